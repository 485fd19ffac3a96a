// User time in code of every kind: everywhere PAGE LIBRARY.
// Built with -DLIBRARY it is the library that it opens.
#include "page.h"

#ifdef LIBRARY

uint64_t in_library(uint64_t x, unsigned n) {
    while (n--) x = (x & 4) ? mix(x, n) : x * 5 + 3;
    return x;
}

#else

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

APART uint64_t in_program(uint64_t x, unsigned n) {
    while (n--) x = (x & 8) ? mix(x, n) : x * 3 + 5;
    return x;
}

// No .cfi directives: the function has no unwind table.
uint64_t bare(uint64_t x, uint64_t n);
__asm__(".text\n.p2align 4\n.type bare, @function\nbare:\n"
        "mov %rdi, %rax\n"
        "1: imul $0x5bd1e995, %rax, %rax\nxor %rsi, %rax\ndec %rsi\njnz 1b\nret\n"
        ".size bare, . - bare\n");

// mov %rdi,%rax; 1: imul $3,%rax,%rax; inc %rax; dec %rsi; jnz 1b; ret
static const unsigned char code[] = {0x48, 0x89, 0xf8, 0x48, 0x6b, 0xc0, 0x03, 0x48, 0xff,
                                     0xc0, 0x48, 0xff, 0xce, 0x75, 0xf4, 0xc3};
typedef uint64_t made(uint64_t x, uint64_t n);

static made *make(int flags, int fd) {
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (at == MAP_FAILED) abort();
    memcpy(at, code, sizeof code);
    if (mprotect(at, 4096, PROT_READ | PROT_EXEC)) abort();
    return (made *)at;
}

struct tls_index {
    unsigned long module, offset;
};
void *__tls_get_addr(struct tls_index *);
static __thread uint64_t own;

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    page_open(argv[1]);
    void *library = dlopen(argv[2], RTLD_NOW);
    uint64_t (*in_library)(uint64_t, unsigned) = library ? dlsym(library, "in_library") : NULL;
    if (!in_library) abort();
    int fd = memfd_create("code", 0);
    if (fd < 0 || ftruncate(fd, 4096)) abort();
    made *anonymous = make(MAP_PRIVATE | MAP_ANONYMOUS, -1), *of_memfd = make(MAP_SHARED, fd);
    uint64_t digest = 0;
    while (!page->stop) {
        uint64_t x = in_program(1, 40000);
        x ^= in_library(x, 40000);
        // `status` names the largest shares alone, so the kinds that it must name take more time than the rest, whatever the
        // CPU.
        x ^= bare(x, 160000);
        x ^= anonymous(x, 120000) ^ of_memfd(x, 120000);
        struct tls_index index = {1, 0};
        own = 1;
        for (unsigned i = 0; i < 40000; i++) x += __tls_get_addr(&index) != NULL;
        for (unsigned i = 0; i < 160000; i++) x ^= time(NULL) == 0;
        if (digest && x != digest) abort();
        digest = x;
        page->work[0] = page->work[0] + 1;
    }
    printf("%016llx\n", (unsigned long long)digest);
    return 0;
}
#endif
