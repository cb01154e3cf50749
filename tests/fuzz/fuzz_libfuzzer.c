/* The same targets under libFuzzer, which searches for new paths:
 *   fuzz_libfuzzer --target=NAME --corpus=FOLDER [libFuzzer's flags] FOLDER
 * --corpus first writes the target's seeds to FOLDER. Preset libfuzzer; run by hand or by
 * tests/fuzz/libfuzzer.sh. */
#include "base/log.h"
#include "fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct fuzz_target *target;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void write_seeds(const struct fuzz_seeds *seeds, const char *folder)
{
    for (size_t i = 0; i < seeds->n; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/seed-%s-%zu", folder, target->name, i);
        fuzz_write(path, seeds->items[i].bytes, seeds->items[i].n);
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static struct fuzz_seeds seeds;
    const char *corpus = NULL;
    for (int i = 1; i < *argc; i++) {
        if (strncmp((*argv)[i], "--target=", 9) == 0) target = fuzz_target_find((*argv)[i] + 9);
        if (strncmp((*argv)[i], "--corpus=", 9) == 0) corpus = (*argv)[i] + 9;
    }
    if (target == NULL) {
        fprintf(stderr, "usage: fuzz_libfuzzer --target=NAME [--corpus=FOLDER] ...\n");
        exit(2);
    }
    log_init(-1, LOG_ERROR, false);
    target->begin(&seeds);
    if (corpus != NULL) write_seeds(&seeds, corpus);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n <= FUZZ_BYTES_MAX) (void)target->run((const char *)bytes, n);
    return 0;
}
