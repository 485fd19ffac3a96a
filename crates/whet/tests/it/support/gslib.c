// A library that gives its caller a GS base of its own.
void take(void *at) { __asm__ volatile("wrgsbase %0" ::"r"(at)); }
