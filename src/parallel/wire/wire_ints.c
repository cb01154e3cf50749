/* Each width has its own loop, compiled from one body with a constant width. It loads and stores
 * whole words that overlap, so that no value needs a loop over its bytes. */
#include "parallel/wire/wire_ints.h"

#include <stdbool.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are cut as little-endian words");

enum { WORD = sizeof(uint64_t) };

#define INLINE static inline __attribute__((always_inline))

/* Returns the bytes per value that a block needs. The highest bit of v ^ 2v is the lowest of v's
 * sign bits, which tells how many bits v needs. */
static unsigned ints_width(const int64_t *v, size_t n)
{
    typedef uint64_t lanes __attribute__((vector_size(32)));
    enum { LANES = sizeof(lanes) / WORD };
    lanes all = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes x;
        memcpy(&x, v + i, sizeof x);
        all |= x ^ (x + x);
    }
    uint64_t signs = all[0] | all[1] | all[2] | all[3];
    for (; i < n; i++) signs |= (uint64_t)v[i] ^ (uint64_t)v[i] << 1;
    return signs == 0 ? 0 : (unsigned)(64 - __builtin_clzll(signs) + 7) / 8;
}

/* Stores n values of w bytes; writes up to 7 bytes after them. */
INLINE void store_word(const int64_t *v, size_t n, size_t w, char *to)
{
    for (size_t i = 0; i < n; i++) memcpy(to + i * w, &v[i], WORD);
}

/* Stores n values of 4 bytes, the usual width, four at a time. */
static void store_4(const int64_t *v, size_t n, char *to)
{
    typedef uint32_t halves __attribute__((vector_size(16)));
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        halves a, b;
        memcpy(&a, v + i, sizeof a);
        memcpy(&b, v + i + 2, sizeof b);
        a = __builtin_shufflevector(a, b, 0, 2, 4, 6);
        memcpy(to + i * 4, &a, sizeof a);
    }
    for (; i < n; i++) memcpy(to + i * 4, &v[i], 4);
}

static void store_block(const int64_t *v, size_t n, unsigned w, char *to)
{
    switch (w) {
    case 1:
        store_word(v, n, 1, to);
        break;
    case 2:
        store_word(v, n, 2, to);
        break;
    case 3:
        store_word(v, n, 3, to);
        break;
    case 4:
        store_4(v, n, to);
        break;
    case 5:
        store_word(v, n, 5, to);
        break;
    case 6:
        store_word(v, n, 6, to);
        break;
    case 7:
        store_word(v, n, 7, to);
        break;
    case 8:
        store_word(v, n, 8, to);
        break;
    default:
        break;
    }
}

size_t wire_ints_pack(const int64_t *values, size_t n, void *to)
{
    char *at = to;
    for (size_t i = 0; i < n; i += WIRE_INTS_BLOCK) {
        const size_t left = n - i, in_block = left < WIRE_INTS_BLOCK ? left : WIRE_INTS_BLOCK;
        const unsigned w = ints_width(values + i, in_block);
        *at++ = (char)w;
        store_block(values + i, in_block, w, at);
        at += in_block * w;
    }
    return (size_t)(at - (char *)to);
}

/* Loads n values of w bytes each into v, or adds them to v; reads up to 7 bytes after them. */
INLINE void load_word(const char *from, size_t n, size_t w, bool adds, int64_t *v)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t word;
        memcpy(&word, from + i * w, WORD);
        const int64_t x = (int64_t)(word << (8 * (WORD - w))) >> (8 * (WORD - w));
        v[i] = adds ? (int64_t)((uint64_t)v[i] + (uint64_t)x) : x;
    }
}

INLINE void load_block(const char *from, size_t n, unsigned w, bool adds, int64_t *v)
{
    switch (w) {
    case 1:
        load_word(from, n, 1, adds, v);
        break;
    case 2:
        load_word(from, n, 2, adds, v);
        break;
    case 3:
        load_word(from, n, 3, adds, v);
        break;
    case 4:
        load_word(from, n, 4, adds, v);
        break;
    case 5:
        load_word(from, n, 5, adds, v);
        break;
    case 6:
        load_word(from, n, 6, adds, v);
        break;
    case 7:
        load_word(from, n, 7, adds, v);
        break;
    case 8:
        load_word(from, n, 8, adds, v);
        break;
    default:
        if (!adds) memset(v, 0, n * sizeof *v);
        break;
    }
}

INLINE size_t read_blocks(const char *from, size_t n_bytes, bool adds, int64_t *values, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i += WIRE_INTS_BLOCK) {
        const size_t left = n - i, in_block = left < WIRE_INTS_BLOCK ? left : WIRE_INTS_BLOCK;
        if (at == n_bytes) return WIRE_INTS_BAD;
        const unsigned w = (unsigned char)from[at++];
        const size_t need = in_block * w;
        if (w > WORD || need > n_bytes - at) return WIRE_INTS_BAD;
        if (n_bytes - at - need >= WORD) {
            load_block(from + at, in_block, w, adds, values + i);
        } else { /* near its end, reading whole words would read beyond `from` */
            char copy[(WIRE_INTS_BLOCK + 1) * WORD] = {0};
            memcpy(copy, from + at, need);
            load_block(copy, in_block, w, adds, values + i);
        }
        at += need;
    }
    return at;
}

size_t wire_ints_unpack(const void *from, size_t n_bytes, int64_t *values, size_t n)
{
    return read_blocks(from, n_bytes, false, values, n);
}

size_t wire_ints_add(const void *from, size_t n_bytes, int64_t *values, size_t n)
{
    return read_blocks(from, n_bytes, true, values, n);
}
