/* Packs a whole panel with vector instructions that every CPU has. */
#include "kernels/pack_body.h"
#include "kernels/ref/ref.h"

#include "tensor/dims.h"

#include <string.h>

typedef uint16_t u16x8 __attribute__((vector_size(16)));

/* Transposes 8 x 8 elements: element j of row i becomes element i of row j. Without the unrolling
 * the compiler would keep the rows in memory. */
static inline void turn_eight(u16x8 r[8])
{
    u16x8 a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[2 * i] = __builtin_shufflevector(r[i], r[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        a[2 * i + 1] = __builtin_shufflevector(r[i], r[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        b[2 * i] = __builtin_shufflevector(a[i], a[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[2 * i] = __builtin_shufflevector(b[i], b[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        r[2 * i + 1] = __builtin_shufflevector(b[i], b[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
}

/* Packs eight rows of n two-byte elements; `lane` is the first row's place in the panel. */
static void put_eight(const char *rows, size_t stride, size_t n, char *lane)
{
    const size_t line = PANEL_COLUMNS * sizeof(uint16_t);
    size_t k = 0;
    for (; k + 8 <= n; k += 8) {
        u16x8 r[8];
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++)
            memcpy(&r[i], rows + i * stride + k * sizeof r[0][0], sizeof r[i]);
        turn_eight(r);
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++) memcpy(lane + (k + i) * line, &r[i], sizeof r[i]);
    }
    for (; k < n; k++) {
        uint16_t one[8];
        for (size_t i = 0; i < 8; i++) memcpy(&one[i], rows + i * stride + k * sizeof one[0], 2);
        memcpy(lane + k * line, one, sizeof one);
    }
}

void k_pack_halves_ref(const void *rows, size_t row_stride_bytes, size_t n, void *panel)
{
    for (size_t c = 0; c < PANEL_COLUMNS; c += 8)
        put_eight((const char *)rows + c * row_stride_bytes, row_stride_bytes, n,
                  (char *)panel + c * sizeof(uint16_t));
}

typedef uint32_t u32x4 __attribute__((vector_size(16)));

/* Reorders the eight nibbles of each word, from the checkpoint's order (even input in the low
 * half) to the kernels' order: byte j has input j in its low half and input 4 + j in its high
 * half. */
static inline u32x4 split_nibbles(u32x4 v)
{
    const u32x4 first = v & 0xFFFFu, last = v >> 16; /* inputs 0 to 3 and 4 to 7 */
    const u32x4 low =
        (first & 0xFu) | (first & 0xF0u) << 4 | (first & 0xF00u) << 8 | (first & 0xF000u) << 12;
    const u32x4 high =
        (last & 0xFu) | (last & 0xF0u) << 4 | (last & 0xF00u) << 8 | (last & 0xF000u) << 12;
    return low | high << 4;
}

static inline u32x4 recode(enum pack_words_kind kind, u32x4 v)
{
    if (kind == PACK_WORDS_NIBBLES) return split_nibbles(v);
    return kind == PACK_WORDS_SIGNED ? v ^ 0x80808080u : v;
}

uint32_t k_pack_word_ref(enum pack_words_kind kind, uint32_t word)
{
    return recode(kind, (u32x4){word})[0];
}

/* Transposes 4 x 4 words: [output][place] to [place][output]. */
static inline void turn(u32x4 v[4])
{
    const u32x4 a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5);
    const u32x4 b = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
    const u32x4 c = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
    const u32x4 d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
    v[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    v[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    v[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    v[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

/* Packs four rows of n words; `lane` is the first row's place in the panel. */
static inline void put_four(enum pack_words_kind kind, const char *rows, size_t stride, size_t n,
                            char *lane)
{
    const size_t line = PANEL_COLUMNS * sizeof(uint32_t);
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        u32x4 v[4];
#pragma GCC unroll 4
        for (size_t r = 0; r < 4; r++) {
            memcpy(&v[r], rows + r * stride + i * sizeof v[0][0], sizeof v[r]);
            v[r] = recode(kind, v[r]);
        }
        turn(v);
#pragma GCC unroll 4
        for (size_t r = 0; r < 4; r++) memcpy(lane + (i + r) * line, &v[r], sizeof v[r]);
    }
    for (; i < n; i++) {
        for (size_t r = 0; r < 4; r++) {
            uint32_t word;
            memcpy(&word, rows + r * stride + i * sizeof word, sizeof word);
            word = k_pack_word_ref(kind, word);
            memcpy(lane + i * line + r * sizeof word, &word, sizeof word);
        }
    }
}

static inline void put_panel(enum pack_words_kind kind, const char *rows, size_t stride, size_t n,
                             char *panel)
{
    for (size_t c = 0; c < PANEL_COLUMNS; c += 4)
        put_four(kind, rows + c * stride, stride, n, panel + c * sizeof(uint32_t));
}

PACK_WORDS(k_pack_words_ref, put_panel)

void fill_pack_ref(struct kern_table *t)
{
    t->pack_halves = k_pack_halves_ref;
    t->pack_words = k_pack_words_ref;
}
