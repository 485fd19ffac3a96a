// Does almost nothing: there is nothing hot to find.
//#Lang: c
//#Idle
#include "guest.h"

static uint64_t round_once(void) {
    usleep(3000);
    return mix(1, guest_seed);
}

int main(void) { return guest_run("idle", round_once); }
