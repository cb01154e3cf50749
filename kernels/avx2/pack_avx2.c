/* Packs a whole panel on AVX2: transposes 32 bytes of 16 rows in registers, so that the
 * source is read in one pass and the panel is written in one pass. */
#include "kernels/avx2/avx2.h"
#include "kernels/pack_body.h"

#include <immintrin.h>
#include <string.h>

#define ALWAYS_INLINE            static inline __attribute__((always_inline))
#define UNPACK(part, bits, a, b) _mm256_unpack##part##_epi##bits(a, b)
typedef __m256i vec;
#include "kernels/pack_turn.h"

enum { VECTOR = 32, ROWS = 16 };

ALWAYS_INLINE __m256i load(const char *from)
{
    return _mm256_loadu_si256((const void *)from);
}

ALWAYS_INLINE void store(char *to, __m256i v)
{
    _mm256_storeu_si256((void *)to, v);
}

/* Packs inputs [0, n), at most 16, of 16 outputs, for elements of two bytes. Reads whole vectors.
 */
ALWAYS_INLINE void put_halves(const char *rows, size_t stride, size_t n, char *out)
{
    __m256i r[ROWS], v[ROWS];
#pragma GCC unroll 16
    for (size_t i = 0; i < ROWS; i++) r[i] = load(rows + i * stride);
    turn_eight(r, v);
    turn_eight(r + 8, v + 8);
#pragma GCC unroll 8
    for (size_t j = 0; j < 8; j++) {
        if (j < n) store(out + j * 32, _mm256_permute2x128_si256(v[j], v[8 + j], 0x20));
        if (8 + j < n) store(out + (8 + j) * 32, _mm256_permute2x128_si256(v[j], v[8 + j], 0x31));
    }
}

/* Converts quantized values from the checkpoint's form to the panel's (struct packed). */
ALWAYS_INLINE __m256i recode(enum pack_words_kind kind, __m256i v)
{
    if (kind == PACK_WORDS_PLAIN) return v;
    if (kind == PACK_WORDS_SIGNED) return _mm256_xor_si256(v, _mm256_set1_epi8((char)0x80));
    /* Bytes 0 and 1 hold inputs 0 to 3, bytes 2 and 3 inputs 4 to 7. Each byte is doubled here,
     * for the low and the high nibbles of the new bytes. */
    const __m128i first = _mm_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13);
    const __m128i last = _mm_setr_epi8(2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15);
    const __m256i a = _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(first));
    const __m256i b = _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(last));
    const __m256i even =
        _mm256_or_si256(_mm256_and_si256(a, _mm256_set1_epi16(0x000F)),
                        _mm256_and_si256(_mm256_slli_epi16(b, 4), _mm256_set1_epi16(0x00F0)));
    const __m256i odd =
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), _mm256_set1_epi16(0x0F00)),
                        _mm256_and_si256(b, _mm256_set1_epi16((short)0xF000)));
    return _mm256_or_si256(even, odd);
}

/* Packs words [0, n), at most 8, of 16 outputs. Reads whole vectors. */
ALWAYS_INLINE void put_words(enum pack_words_kind kind, const char *rows, size_t stride, size_t n,
                             char *out)
{
    __m256i r[ROWS], v[ROWS];
#pragma GCC unroll 16
    for (size_t i = 0; i < ROWS; i++) r[i] = recode(kind, load(rows + i * stride));
#pragma GCC unroll 4
    for (size_t i = 0; i < ROWS; i += 4) turn_four(r + i, v + i);
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++) {
        const size_t j = i % 4, word = i;
        if (word >= n) continue;
#pragma GCC unroll 2
        for (size_t h = 0; h < 2; h++) {
            const __m256i x = v[8 * h + j], y = v[8 * h + 4 + j];
            store(out + word * 64 + h * VECTOR, word < 4 ? _mm256_permute2x128_si256(x, y, 0x20)
                                                         : _mm256_permute2x128_si256(x, y, 0x31));
        }
    }
}

/* Copies the last n_bytes of each row to one vector for each row, padded with zeros, so that whole
 * vectors can be read. */
ALWAYS_INLINE void copy_rest(const char *rows, size_t stride, size_t n_bytes,
                             char to[ROWS * VECTOR])
{
    memset(to, 0, ROWS * VECTOR);
    for (size_t i = 0; i < ROWS; i++) memcpy(to + i * VECTOR, rows + i * stride, n_bytes);
}

static void k_pack_halves_avx2(const void *rows, size_t row_stride_bytes, size_t n, void *panel)
{
    const char *from = rows;
    char *to = panel, rest[ROWS * VECTOR];
    size_t k = 0;
    for (; k + 16 <= n; k += 16) put_halves(from + k * 2, row_stride_bytes, 16, to + k * 32);
    if (k == n) return;
    copy_rest(from + k * 2, row_stride_bytes, (n - k) * 2, rest);
    put_halves(rest, VECTOR, n - k, to + k * 32);
}

ALWAYS_INLINE void put_panel(enum pack_words_kind kind, const char *rows, size_t stride, size_t n,
                             char *panel)
{
    char rest[ROWS * VECTOR];
    size_t i = 0;
    for (; i + 8 <= n; i += 8) put_words(kind, rows + i * 4, stride, 8, panel + i * 64);
    if (i == n) return;
    copy_rest(rows + i * 4, stride, (n - i) * 4, rest);
    put_words(kind, rest, VECTOR, n - i, panel + i * 64);
}

static PACK_WORDS(k_pack_words_avx2, put_panel)

    void fill_pack_avx2(struct kern_table *t)
{
    t->pack_halves = k_pack_halves_avx2;
    t->pack_words = k_pack_words_avx2;
}
