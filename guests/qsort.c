// Callbacks from the C library: qsort, bsearch, tsearch.
//#Lang: c
#include "guest.h"
#include <search.h>

#define COUNT 1500
static unsigned comparisons;

APART int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    comparisons++;
    return x < y ? -1 : x > y;
}

APART int by_low_bits(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a & 0xfff, y = *(const uint64_t *)b & 0xfff;
    if (x == y) return by_value(a, b);
    return x < y ? -1 : 1;
}

APART int with_context(const void *a, const void *b, void *context) {
    ++*(unsigned *)context;
    return by_value(b, a);
}

static uint64_t visited;
static void visit(const void *node, VISIT order, int depth) {
    if (order == postorder || order == leaf) visited = mix(visited, **(uint64_t *const *)node + (uint64_t)depth);
}
static void keep(void *node) { (void)node; }

static uint64_t round_once(void) {
    static uint64_t values[COUNT];
    uint64_t r = guest_seed, x = 1;
    unsigned count = 0;
    comparisons = 0;
    for (int i = 0; i < COUNT; i++) values[i] = next_random(&r);
    qsort(values, COUNT, sizeof *values, by_low_bits);
    for (int i = 0; i < COUNT; i++) x = mix(x, values[i]);
    qsort_r(values, COUNT, sizeof *values, with_context, &count);
    for (int i = 1; i < COUNT; i++) CHECK(values[i - 1] >= values[i]);
    qsort(values, COUNT, sizeof *values, by_value);
    for (int i = 0; i < COUNT; i += 7) {
        uint64_t *found = bsearch(&values[i], values, COUNT, sizeof *values, by_value);
        CHECK(found == &values[i]);
    }
    void *root = NULL;
    visited = 1;
    for (int i = 0; i < 300; i++) CHECK(tsearch(&values[(i * 7) % COUNT], &root, by_value));
    twalk(root, visit);
    tdestroy(root, keep);
    return mix(mix(x, visited), comparisons + count);
}

int main(void) { return guest_run("qsort", round_once); }
