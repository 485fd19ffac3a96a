// A library that sets a GS base of its own for its caller.
void take(void *at) { __asm__ volatile("wrgsbase %0" ::"r"(at)); }
