// Recursion: deep, wide and through a tree on the heap.
//#Lang: c
#include "guest.h"

APART uint64_t ackermann(uint64_t m, uint64_t n) {
    if (m == 0) return n + 1;
    if (n == 0) return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}

APART uint64_t fibonacci(unsigned n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

APART uint64_t hanoi(unsigned n, unsigned from, unsigned to, unsigned via, uint64_t digest) {
    if (n == 0) return digest;
    digest = hanoi(n - 1, from, via, to, digest);
    digest = mix(digest, n * 16 + from * 4 + to);
    return hanoi(n - 1, via, to, from, digest);
}

struct node {
    struct node *left, *right;
    uint64_t key;
};

APART struct node *insert(struct node *n, struct node *add) {
    if (!n) return add;
    if (add->key < n->key)
        n->left = insert(n->left, add);
    else
        n->right = insert(n->right, add);
    return n;
}

APART uint64_t walk(const struct node *n, uint64_t digest) {
    if (!n) return digest;
    digest = walk(n->left, digest);
    digest = mix(digest, n->key);
    return walk(n->right, digest);
}

APART uint64_t deep(unsigned depth, uint64_t x) {
    volatile uint64_t here[4] = {x, depth, x ^ depth, 0};
    if (depth == 0) return x;
    here[3] = deep(depth - 1, mix(x, depth));
    return here[3] + (here[0] ^ here[2]) - here[1];
}

static uint64_t round_once(void) {
    static struct node nodes[2000];
    uint64_t r = guest_seed, x = ackermann(2, 60);
    x = mix(x, fibonacci(18));
    x = mix(x, hanoi(10, 0, 1, 2, x));
    struct node *root = NULL;
    for (int i = 0; i < 2000; i++) {
        nodes[i] = (struct node){NULL, NULL, next_random(&r)};
        root = insert(root, &nodes[i]);
    }
    x = walk(root, x);
    return mix(x, deep(3000, x));
}

int main(void) { return guest_run("recursion", round_once); }
