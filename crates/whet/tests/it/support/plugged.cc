// A library for plugins.cc. With GUEST_SECOND it is the other one, which is loaded at the same address.
#include "../../../../../guests/lib/replaced.cc"
