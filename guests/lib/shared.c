#include <stdint.h>

uint64_t program_work(uint64_t x);
uint64_t shared_data;

uint64_t shared_step(uint64_t x, unsigned n) {
    shared_data += x & 3;
    switch ((x ^ n) % 5) {
    case 0: return x + 9;
    case 1: return x ^ (x >> 11);
    case 2: return x * 11;
    case 3: return program_work(x);
    default: return ~x;
    }
}

uint64_t shared_work(uint64_t x, unsigned n) {
    while (n--) x = shared_step(x, n);
    return x;
}

uint64_t shared_with(uint64_t (*each)(uint64_t), uint64_t x) {
    if (each == program_work) x ^= 0x5555;
    for (int i = 0; i < 5; i++) x = each(x);
    return x;
}
