// Functions that probes and breakpoints are put on. Each round checks what it computes; anything wrong ends the program with 3.
#include "page.h"
#include <stdio.h>
#include <string.h>

static uint64_t table[64];

// Has instructions of all lengths, branches and a loop.
APART uint64_t mixed(uint64_t a, uint64_t b) {
    uint64_t sum = a * 0x9e3779b97f4a7c15u;
    char words[320];
    snprintf(words, sizeof words, "%llu %llu", (unsigned long long)a, (unsigned long long)b);
    sum += strtoul(words, NULL, 10) + strlen(words);
    for (uint64_t i = 0; i < (b & 7); i++) {
        table[(a + i) & 63] += sum ^ (b << 3);
        if (table[(a + i) & 63] & 0x100000) sum += 0x12345678;
        else sum ^= table[(b + i) & 63] & 1;
    }
    table[0] = 0;
    memset(table + 1, 0, sizeof table - sizeof *table);
    return sum;
}

// Is entered through a pointer alone.
APART uint64_t pointed(uint64_t a) {
    uint64_t big[40];
    memset(big, (int)(a & 0xff), sizeof big);
    return big[a % 40] + 0x123456789abcdef + mixed(a, a >> 3);
}

static uint64_t (*const volatile by_pointer)(uint64_t) = pointed;
static uint64_t (*const volatile by_pointer_too)(uint64_t, uint64_t) = mixed;

APART static uint64_t round_of(uint64_t seed) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 50; i++) sum = sum * 31 + mixed(seed + i, i) + by_pointer(i) + by_pointer_too(i, seed);
    return sum;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    page_open(argv[1]);
    uint64_t wanted[4];
    for (uint64_t i = 0; i < 4; i++) wanted[i] = round_of(i);
    for (uint64_t n = 0; !page->stop; n++) {
        if (round_of(n & 3) != wanted[n & 3]) {
            printf("wrong in round %llu\n", (unsigned long long)n);
            return 3;
        }
        page_count(&page->work[0]);
    }
    return 0;
}
