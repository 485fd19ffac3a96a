// A program with data of its own among what a rebuild reads: secret PAGE. It is linked to fixed addresses, so
// all words of its data may be addresses of code.
#include "page.h"
#include <string.h>

APART uint64_t stir(uint64_t x) {
    for (unsigned i = 0; i < 1000; i++) x = mix(x, i);
    return x;
}

// The first is an address of code, the others are data. None is zero, so that they are in the file too.
static struct {
    uint64_t (*code)(uint64_t);
    char words[4096];
} data = {stir, "nothing yet"};

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    page_open(argv[1]);
    // The file holds the secret in no form.
    static const char turned[] = "`!b`se!otlcds!5111,0325";
    for (unsigned i = 0; i + sizeof turned < sizeof data.words; i += sizeof turned)
        for (unsigned k = 0; k < sizeof turned - 1; k++) data.words[i + k] = (char)(turned[k] ^ 1);
    uint64_t (*volatile code)(uint64_t) = data.code;
    while (!page->stop) {
        code(1);
        page->work[0] = page->work[0] + 1;
    }
    return 0;
}
