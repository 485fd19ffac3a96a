// A library for plugins.cc; with GUEST_SECOND the other one, which comes to lie at its address.
#include "../../../../../guests/lib/replaced.cc"
