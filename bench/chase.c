// Follows pointers through 256 MiB in random order, so it waits for the data caches. Argument 1 is a file of
// one page, whose first 8 bytes count the pointers followed.
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define LINES (1u << 22)

struct line {
    uint32_t next;
    uint32_t value;
    char rest[56];
};

static uint64_t state = 88172645463325252u;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

__attribute__((noipa)) uint32_t follow(const struct line *lines, uint32_t at) {
    return lines[at].next;
}

__attribute__((noipa)) uint64_t weigh(const struct line *lines, uint32_t at, uint64_t sum) {
    uint32_t value = lines[at].value;
    if (value & 1) return sum + value;
    return sum ^ value;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(argv[1], O_RDWR);
    volatile uint64_t *followed = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct line *lines = malloc(LINES * sizeof *lines);
    if (followed == MAP_FAILED || !lines) abort();
    // One ring through all lines (Sattolo).
    for (uint32_t i = 0; i < LINES; i++) lines[i] = (struct line){.next = i, .value = (uint32_t)draw()};
    for (uint32_t i = LINES - 1; i > 0; i--) {
        uint32_t j = (uint32_t)(draw() % i), other = lines[i].next;
        lines[i].next = lines[j].next;
        lines[j].next = other;
    }
    uint64_t sum = 0;
    for (uint32_t at = 0;; at = follow(lines, at)) {
        sum = weigh(lines, at, sum);
        // The sum is stored, so that the compiler does not leave it out.
        followed[1] = sum;
        followed[0] += 1;
    }
}
