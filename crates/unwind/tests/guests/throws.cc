// A program without frame tables of its own (linked with --no-eh-frame-hdr): it unwinds by the tables in the file that
// its first argument names, mapped at the address its second argument states. Without arguments it must abort.
#include <alloca.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>

extern "C" void __register_frame(void *);

#define FAR __attribute__((noinline, noclone))

struct Noise {
    const char *name;
    ~Noise() { printf("~%s ", name); }
};
struct Odd {
    int value;
};

FAR void raise(int kind) {
    asm volatile("");
    switch (kind) {
    case 0: throw 7;
    case 1: throw std::runtime_error("seven");
    case 2: throw std::string("a string");
    case 3: throw Odd{9};
    case 4: throw 'c';
    }
}

// Cleanups only, with a frame pointer and a stack of unknown size.
FAR void middle(int kind, int size) {
    Noise a{"middle"};
    char *p = static_cast<char *>(alloca(size));
    memset(p, kind, size);
    asm volatile("" ::"r"(p) : "memory");
    raise(kind);
    asm volatile("" ::"r"(p) : "memory");
}

// A realigned stack: frame and registers by DWARF expressions.
FAR void aligned(int kind) {
    alignas(64) char block[128];
    Noise a{"aligned"};
    memset(block, kind, sizeof block);
    asm volatile("" ::"r"(block) : "memory");
    middle(kind, 100 + block[kind]);
    asm volatile("" ::"r"(block) : "memory");
}

// Every callee-saved register holds a value across the throw.
FAR long full(int kind, long a, long b, long c, long d, long e) {
    long r = 0;
    try {
        aligned(kind);
    } catch (int i) {
        printf("int %d ", i);
        r = 1;
    } catch (const std::exception &x) {
        printf("exception %s ", x.what());
        r = 2;
    } catch (const std::string &s) {
        printf("string %s ", s.c_str());
        r = 3;
    }
    return r + 10 * a + 100 * b + 1000 * c + 10000 * d + 100000 * e;
}

FAR void again(int kind) {
    try {
        full(kind, 1, 2, 3, 4, 5);
    } catch (...) {
        printf("again ");
        throw;
    }
}

// A dynamic exception specification: a negative filter.
FAR void only_int_or_string(int kind) throw(int, std::string) { raise(kind); }

FAR void never(int kind) noexcept { raise(kind); }

int main(int argc, char **argv) {
    if (argc > 2) {
        int fd = open(argv[1], O_RDONLY);
        struct stat st;
        fstat(fd, &st);
        void *at = reinterpret_cast<void *>(strtoull(argv[2], nullptr, 0));
        if (mmap(at, st.st_size, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) != at) return 3;
        __register_frame(at);
    }
    for (int kind = 0; kind < 5; kind++) {
        try {
            printf("%ld", full(kind, 1, 2, 3, 4, 5));
            again(kind);
        } catch (const Odd &o) {
            printf("odd %d", o.value);
        } catch (...) {
            printf("other");
        }
        printf("\n");
    }
    std::set_unexpected([] {
        printf("unexpected ");
        throw 5;
    });
    for (int kind = 0; kind < 5; kind++) {
        try {
            only_int_or_string(kind);
        } catch (int i) {
            printf("got %d; ", i);
        } catch (const std::string &s) {
            printf("got %s; ", s.c_str());
        }
    }
    printf("\n");
    std::set_terminate([] {
        printf("terminated\n");
        fflush(stdout);
        _Exit(42);
    });
    never(2);
}
