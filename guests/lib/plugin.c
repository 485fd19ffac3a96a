#include <stdint.h>

uint64_t host_callback(uint64_t x);
int plugin_instances;

__attribute__((constructor)) static void begin(void) { plugin_instances++; }

uint64_t plugin_work(uint64_t x, unsigned n) {
    while (n--) {
        switch (x % 6) {
        case 0: x += 5; break;
        case 1: x ^= x >> 5; break;
        case 2: x *= 7; break;
        case 3: x = host_callback(x); break;
        case 4: x = ~x; break;
        default: x = (x << 5) | (x >> 59);
        }
    }
    return x;
}
