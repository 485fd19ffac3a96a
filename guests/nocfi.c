// Hot code without unwind information: nothing may be rebuilt there.
//#Lang: c
//#With: asm/nocfi.S
//#Idle
#include "guest.h"

uint64_t bare(uint64_t x, uint64_t n);

static uint64_t round_once(void) { return bare(guest_seed, 2000000); }

int main(void) { return guest_run("nocfi", round_once); }
