// An interpreter with computed goto: addresses of labels in a table, and an indirect jump for each operation.
//#Lang: c
#include "guest.h"

enum { ADD, MUL, XOR, SHIFT, SWAP, PUSH, POP, LOOP, END };

APART uint64_t interpret(const uint8_t *code, uint64_t x) {
    static void *const labels[] = {&&add, &&mul, &&xor_, &&shift, &&swap, &&push, &&pop, &&loop, &&end};
    const uint8_t *pc = code;
    uint64_t stack[16], *sp = stack, y = 7;
    unsigned count = 50;
#define NEXT goto *labels[*pc++]
    NEXT;
add:
    x += y + *pc++;
    NEXT;
mul:
    x *= 2 * (uint64_t)*pc++ + 1;
    NEXT;
xor_:
    x ^= y;
    NEXT;
shift:
    x ^= x >> (1 + *pc++ % 40);
    NEXT;
swap: {
    uint64_t t = x;
    x = y;
    y = t;
    NEXT;
}
push:
    if (sp < stack + 16) *sp++ = x;
    NEXT;
pop:
    if (sp > stack) y ^= *--sp;
    NEXT;
loop:
    if (--count) pc = code;
    NEXT;
end:
    return mix(x, y);
}

// The same with a table of differences instead of pointers, which needs no relocation.
APART uint64_t interpret_offsets(const uint8_t *code, uint64_t x) {
    static const int offsets[] = {&&inc - &&inc, &&dbl - &&inc, &&inv - &&inc, &&out - &&inc};
#define STEP goto *(&&inc + offsets[*code++])
    STEP;
inc:
    x += 3;
    STEP;
dbl:
    x = x * 2 + 1;
    STEP;
inv:
    x = ~x ^ (x >> 5);
    STEP;
out:
    return x;
}

static uint64_t round_once(void) {
    uint64_t r = guest_seed, x = 1;
    for (int i = 0; i < 200; i++) {
        uint8_t code[64];
        int n = 0;
        while (n < 40) {
            uint8_t op = (uint8_t)(next_random(&r) % LOOP);
            code[n++] = op;
            if (op == ADD || op == MUL || op == SHIFT) code[n++] = (uint8_t)(r >> 24);
        }
        code[n++] = LOOP;
        code[n++] = END;
        x = mix(x, interpret(code, x));
        for (int j = 0; j < 63; j++) code[j] = (uint8_t)(next_random(&r) % 3);
        code[63] = 3;
        x = mix(x, interpret_offsets(code, x));
    }
    return x;
}

int main(void) { return guest_run("goto", round_once); }
