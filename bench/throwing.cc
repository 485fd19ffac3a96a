// Exceptions thrown through 24 frames with destructors. Argument 1 is a file of one page, whose first 8 bytes
// count them.
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/prctl.h>

static volatile uint64_t sum;

struct Guard {
    uint64_t value;
    ~Guard() { sum = sum + value; }
};

__attribute__((noinline)) uint64_t descend(unsigned depth, uint64_t x) {
    Guard guard{x};
    if (depth == 0) throw std::runtime_error("thrown");
    return descend(depth - 1, x * 3 + depth) + guard.value;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(argv[1], O_RDWR);
    auto *thrown = static_cast<volatile uint64_t *>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    if (thrown == MAP_FAILED) abort();
    for (uint64_t x = 1;; x++) {
        try {
            sum = sum + descend(24, x);
        } catch (const std::exception &e) {
            sum = sum + (unsigned char)e.what()[0];
        }
        thrown[0] = thrown[0] + 1;
    }
}
