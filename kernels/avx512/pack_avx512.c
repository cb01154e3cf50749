/* Packs a whole panel on AVX-512: transposes 16 rows in registers of 64 bytes, so that each cache
 * line of the source is read once and each cache line of the panel is written once. */
#include "kernels/avx512/avx512.h"
#include "kernels/pack_body.h"

#include <immintrin.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#include "kernels/avx512/turn.h"

enum { HALVES = 32, WORDS = 16 }; /* elements of a register */

/* Packs inputs [0, n), at most 32, of 16 outputs, for elements of two bytes. */
ALWAYS_INLINE void put_halves(const char *rows, size_t stride, size_t n, char *out)
{
    const __mmask32 some = n < HALVES ? (__mmask32)((1u << n) - 1) : 0xFFFFFFFFu;
    __m512i r[16], v[16];
#pragma GCC unroll 16
    for (size_t i = 0; i < 16; i++) r[i] = _mm512_maskz_loadu_epi16(some, rows + i * stride);
    turn_eight(r, v);
    turn_eight(r + 8, v + 8);
#pragma GCC unroll 4
    for (size_t j = 0; j < 8; j += 2) { /* two inputs of all outputs fill a register */
        __m512i pair[QUARTERS] = {v[j], v[8 + j], v[j + 1], v[8 + j + 1]};
        turn_lanes(pair);
#pragma GCC unroll 4
        for (size_t lane = 0; lane < QUARTERS; lane++) {
            const size_t k = 8 * lane + j;
            char *to = out + k * 32;
            if (k + 2 <= n)
                _mm512_storeu_si512(to, pair[lane]);
            else if (k < n)
                _mm256_storeu_si256((void *)to, _mm512_castsi512_si256(pair[lane]));
        }
    }
}

static void k_pack_halves_avx512(const void *rows, size_t row_stride_bytes, size_t n, void *panel)
{
    const char *from = rows;
    char *to = panel;
    size_t k = 0;
    for (; k + HALVES <= n; k += HALVES)
        put_halves(from + k * 2, row_stride_bytes, HALVES, to + k * 32);
    if (k < n) put_halves(from + k * 2, row_stride_bytes, n - k, to + k * 32);
}

/* Converts quantized values from the checkpoint's form to the panel's (struct packed). */
ALWAYS_INLINE __m512i recode(enum pack_words_kind kind, __m512i v)
{
    if (kind == PACK_WORDS_PLAIN) return v;
    if (kind == PACK_WORDS_SIGNED) return _mm512_xor_si512(v, _mm512_set1_epi32((int)0x80808080u));
    /* A word holds eight inputs: bytes 0 and 1 inputs 0 to 3, bytes 2 and 3 inputs 4 to 7. New byte
     * j gets input j as its low nibble and input 4 + j as its high one. So the shuffles write each
     * old byte twice: its two inputs go to neighbouring new bytes. */
    const __m512i first = _mm512_set4_epi32(0x0D0D0C0C, 0x09090808, 0x05050404, 0x01010000);
    const __m512i last = _mm512_set4_epi32(0x0F0F0E0E, 0x0B0B0A0A, 0x07070606, 0x03030202);
    const __m512i even = _mm512_set1_epi32(0x00FF00FF), low = _mm512_set1_epi32(0x0F0F0F0F);
    const __m512i a = _mm512_shuffle_epi8(v, first), b = _mm512_shuffle_epi8(v, last);
    const __m512i x = _mm512_ternarylogic_epi32(even, a, _mm512_srli_epi16(a, 4), 0xCA);
    const __m512i y = _mm512_ternarylogic_epi32(even, _mm512_slli_epi16(b, 4), b, 0xCA);
    return _mm512_ternarylogic_epi32(low, x, y, 0xCA);
}

/* Packs words [0, n), at most 16, of 16 outputs. */
ALWAYS_INLINE void put_words(enum pack_words_kind kind, const char *rows, size_t stride, size_t n,
                             char *out)
{
    const __mmask16 some = n < WORDS ? (__mmask16)((1u << n) - 1) : 0xFFFFu;
    __m512i r[16], v[16];
#pragma GCC unroll 16
    for (size_t i = 0; i < 16; i++)
        r[i] = recode(kind, _mm512_maskz_loadu_epi32(some, rows + i * stride));
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) turn_four(r + 4 * i, v + 4 * i);
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; j++) {
        __m512i word[QUARTERS] = {v[j], v[4 + j], v[8 + j], v[12 + j]};
        turn_lanes(word);
#pragma GCC unroll 4
        for (size_t lane = 0; lane < QUARTERS; lane++)
            if (4 * lane + j < n) _mm512_storeu_si512(out + (4 * lane + j) * 64, word[lane]);
    }
}

ALWAYS_INLINE void put_panel(enum pack_words_kind kind, const char *rows, size_t stride, size_t n,
                             char *panel)
{
    size_t i = 0;
    for (; i + WORDS <= n; i += WORDS) put_words(kind, rows + i * 4, stride, WORDS, panel + i * 64);
    if (i < n) put_words(kind, rows + i * 4, stride, n - i, panel + i * 64);
}

static PACK_WORDS(k_pack_words_avx512, put_panel)

    void fill_pack_avx512(struct kern_table *t)
{
    t->pack_halves = k_pack_halves_avx512;
    t->pack_words = k_pack_words_avx512;
}
