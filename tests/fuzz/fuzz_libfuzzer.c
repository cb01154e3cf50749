/* The same targets under libFuzzer, which looks for new paths by itself:
 *   fuzz_libfuzzer --target=NAME [libFuzzer's flags] [CORPUS]
 * Built with clang only; run by hand or by tests/run.sh --long. */
#include "fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct fuzz_target *target;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static struct fuzz_seeds seeds;
    for (int i = 1; i < *argc; i++) {
        if (strncmp((*argv)[i], "--target=", 9) == 0) target = fuzz_target_find((*argv)[i] + 9);
    }
    if (target == NULL) {
        fprintf(stderr, "usage: fuzz_libfuzzer --target=NAME ...\n");
        exit(2);
    }
    target->begin(&seeds);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n <= FUZZ_BYTES_MAX) (void)target->run((const char *)bytes, n);
    return 0;
}
