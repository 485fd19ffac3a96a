// The first bytes of functions, in all forms that make it hard to place a jump there.
//#Lang: c
//#With: asm/prologues.S
#include "guest.h"

// All functions of the matrix. Each takes a number and returns a number.
#define ALL(m)                                                                                                  \
    m(p_short) m(p_short_next) m(p_two) m(p_five) m(p_six) m(p_plus1) m(p_plus2) m(p_plus3) m(p_plus4)           \
        m(p_plus5) m(p_other3) m(p_into3) m(p_loop) m(p_loop_endbr) m(p_call) m(p_push_call) m(p_indirect_call)  \
            m(p_rip) m(p_rip_lea) m(p_rip_compare) m(p_rip_store) m(p_endbr) m(p_endbr_plus) m(p_endbr_rip)      \
                m(p_nops) m(p_nop5) m(p_page) m(p_page1) m(p_line) m(p_jump) m(p_jump_far) m(p_tail)             \
                    m(p_condition) m(p_condition_first) m(p_falls) m(p_two_entries) m(p_second_entry)            \
                        m(p_rep_ret) m(p_ret_imm) m(p_own_address) m(p_own_label) m(p_table5)                    \
                            m(p_prefixed) m(p_long) m(p_jrcxz) m(p_self_tail)

#define DECLARE(f) uint64_t f(uint64_t);
ALL(DECLARE)
#define POINTER(f) f,
static uint64_t (*volatile const pointers[])(uint64_t) = {ALL(POINTER)};
#define NAME(f) #f,
static const char *const names[] = {ALL(NAME)};
#define COUNT (sizeof pointers / sizeof *pointers)

uint64_t p_helper(uint64_t x) { return mix(x, 3); }

static uint64_t round_once(void) {
    uint64_t r = guest_seed, x = 1;
    for (int i = 0; i < 2000; i++) {
        uint64_t k = (next_random(&r) & 31) + 1;
        uint64_t before = x;
        // Direct calls first, then calls by pointers.
#define CALL(f) x = mix(x, f(k));
        ALL(CALL)
        uint64_t y = before;
        for (unsigned j = 0; j < COUNT; j++) y = mix(y, pointers[j](k));
        if (x != y) {
            for (unsigned j = 0; j < COUNT; j++)
                printf("%s(%llu) = %llx\n", names[j], (unsigned long long)k, (unsigned long long)pointers[j](k));
            guest_fail("calls and pointers differ");
        }
    }
    return x;
}

int main(void) { return guest_run("prologues", round_once); }
