/* Target: packed integers of another rank; accepted ones are packed again and read back. */
#include "fuzz/fuzz.h"

#include "parallel/wire/wire_ints.h"

#include <string.h>

enum { N = 2 * WIRE_INTS_BLOCK + 3 };

static const char *const words[] = {"\x08", "\x04", "\x01", "\xff", NULL};

static void begin(struct fuzz_seeds *seeds)
{
    int64_t v[N];
    char message[N * 8 + 64];
    for (int width = 0; width <= 8; width++) {
        for (int i = 0; i < N; i++) v[i] = width == 0 ? 0 : (i - N / 2) * (1ll << 8 * (width - 1));
        fuzz_seed_add(seeds, message, wire_ints_pack(v, N, message));
    }
}

static bool run(const char *bytes, size_t n)
{
    int64_t v[N], again[N];
    char message[N * 8 + 64];
    const size_t n_bytes = wire_ints_unpack(bytes, n, v, N);
    if (n_bytes == WIRE_INTS_BAD) return false;
    FUZZ_CHECK(n_bytes <= n, "%zu of %zu bytes", n_bytes, n);
    const size_t n_packed = wire_ints_pack(v, N, message);
    FUZZ_CHECK(n_packed <= n_bytes, "%zu bytes where %zu were enough", n_packed, n_bytes);
    FUZZ_CHECK(wire_ints_unpack(message, n_packed, again, N) == n_packed, "length");
    FUZZ_CHECK(memcmp(v, again, sizeof v) == 0, "values");
    return true;
}

extern const struct fuzz_target fuzz_wire_ints;
const struct fuzz_target fuzz_wire_ints = {"wire_ints", words, begin, run};
