/* Target: a compressed input. An accepted one gives the same bytes when read in other pieces. */
#include "fuzz/fuzz.h"

#include "serve/input/byte_source.h"
#include "util_compress.h"

#include <string.h>

enum { LARGE = 4096, SMALL = 64, ALL = 1 << 20 };

static const char *const words[] = {"\x1F\x8B\x08", "\x28\xB5\x2F\xFD", "\xFD\x37zXZ",
                                    "\xFF\xFF\xFF\xFF", NULL};

static void begin(struct fuzz_seeds *seeds)
{
    static const char text[] = "{\"prompt\":\"one\"}\n{\"prompt\":\"two, two, two\"}\n";
    for (int f = 0; f < UTIL_FORMAT_COUNT; f++) {
        struct strbuf file;
        strbuf_init(&file);
        util_compress(f, text, sizeof text - 1, &file);
        fuzz_seed_add(seeds, file.data, file.n);
        util_compress(f, text, 5, &file);
        fuzz_seed_add(seeds, file.data, file.n);
        strbuf_fini(&file);
    }
}

/* Reads at most ALL bytes in pieces of n_piece. */
static struct status read_all(const char *path, size_t n_piece, char *to, size_t *n)
{
    struct byte_source *s = NULL;
    struct source_read got = {SOURCE_BYTES, 0};
    *n = 0;
    TRY(byte_source_open(path, &s));
    struct status st = status_ok();
    while (!status_failed(&st) && got.kind != SOURCE_END && *n + n_piece <= ALL) {
        st = byte_source_read(s, true, to + *n, n_piece, &got);
        if (!status_failed(&st)) *n += got.n;
    }
    byte_source_close(&s);
    return st;
}

static bool run(const char *bytes, size_t n)
{
    static char large[ALL], small[ALL];
    const char *path = fuzz_scratch("in.jsonl.gz");
    size_t n_large, n_small;
    fuzz_write(path, bytes, n);
    const struct status st = read_all(path, LARGE, large, &n_large);
    const struct status again = read_all(path, SMALL, small, &n_small);
    const size_t n_both = n_large < n_small ? n_large : n_small;
    FUZZ_CHECK(memcmp(large, small, n_both) == 0, "pieces change the bytes");
    if (status_failed(&st)) return fuzz_refused(&st);
    if (n_large <= ALL - LARGE)
        FUZZ_CHECK(again.code == st.code && n_large == n_small, "pieces fail");
    return true;
}

extern const struct fuzz_target fuzz_compressed;
const struct fuzz_target fuzz_compressed = {"compressed", words, begin, run};
