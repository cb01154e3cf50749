/* Target: a block of tokens or of results from another host; the first byte says which. All parts
 * of an accepted block are inside its bytes. */
#include "fuzz/fuzz.h"

#include "parallel/wire/result_block.h"
#include "parallel/wire/token_block.h"

#include <string.h>

enum { WIDTH = 40, GROUP = 32, ROOM = 8192, FORMATS = 3 };

static const char *const words[] = {"\xff\xff\xff\xff\xff\xff\xff\xff", "\x40\0\0\0", "\x01", NULL};

static const struct token_format formats[FORMATS] = {
    {WIDTH, 0, false}, {WIDTH, GROUP, false}, {WIDTH, 0, true}};

static void begin(struct fuzz_seeds *seeds)
{
    _Alignas(64) static char bytes[1 + ROOM], block[ROOM];
    for (int i = 0; i < FORMATS; i++) {
        memset(block, 0, sizeof block);
        const struct token_block b = token_block_at(&formats[i], 3, 4, block);
        token_block_write_head(&b, block);
        b.n_chosen[0] = 2;
        b.n_chosen[1] = b.n_chosen[2] = 1;
        bytes[0] = (char)i;
        memcpy(bytes + 1, block, b.n_bytes);
        fuzz_seed_add(seeds, bytes, 1 + b.n_bytes);
    }
    const size_t n = result_head_bytes(3) + 64;
    memset(block, 0, sizeof block);
    result_block_write_head(3, n, block);
    for (int i = 0; i < 3; i++) result_block_ends(block)[i] = 20 * (uint64_t)(i + 1);
    bytes[0] = FORMATS;
    memcpy(bytes + 1, block, n);
    fuzz_seed_add(seeds, bytes, 1 + n);
}

static bool take_tokens(const struct token_format *f, const char *at, size_t n)
{
    struct token_block b;
    if (!token_block_read(f, at, n, &b)) return false;
    size_t n_choices = 0;
    for (size_t i = 0; i < b.n_rows; i++) n_choices += b.n_chosen[i];
    const char *end = f->has_adapters ? (const char *)(b.adapters + b.n_rows)
                                      : (const char *)(b.weights + b.n_choices);
    FUZZ_CHECK(n_choices == b.n_choices, "%zu choices", n_choices);
    FUZZ_CHECK(b.n_bytes <= n && end <= at + n, "%zu of %zu bytes", b.n_bytes, n);
    return true;
}

static bool take_results(const char *at, size_t n)
{
    struct result_block b;
    if (!result_block_read(at, n, &b)) return false;
    FUZZ_CHECK(b.n_bytes <= n, "%zu of %zu bytes", b.n_bytes, n);
    uint64_t last = 0;
    for (size_t i = 0; i < b.n_rows; last = b.ends[i++])
        FUZZ_CHECK(b.ends[i] >= last && b.rows + b.ends[i] <= at + b.n_bytes, "row %zu", i);
    return true;
}

static bool run(const char *bytes, size_t n)
{
    _Alignas(64) static char block[FUZZ_BYTES_MAX];
    if (n == 0) return false;
    const unsigned which = (unsigned char)bytes[0] % (FORMATS + 1);
    memcpy(block, bytes + 1, n - 1);
    return which == FORMATS ? take_results(block, n - 1)
                            : take_tokens(&formats[which], block, n - 1);
}

extern const struct fuzz_target fuzz_mail_blocks;
const struct fuzz_target fuzz_mail_blocks = {"mail_blocks", words, begin, run};
