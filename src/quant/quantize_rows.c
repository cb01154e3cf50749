/* Quantizes and dequantizes whole rows; threads divide the rows. */
#include "quant/fp_reset.h"
#include "quant/quantize_private.h"
#include "quant/share.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    PIECE_ELEMS = 1 << 14, /* a thread takes about this many elements at a time */
    LANES = 16,            /* values that are rounded side by side */
};

/* Returns the number of rows that a thread takes at a time. */
static size_t quantize_piece_rows(size_t n_in)
{
    return n_in < PIECE_ELEMS ? PIECE_ELEMS / n_in : 1;
}

/* Finds the inputs [*begin, *end) of group g. */
static void group_bounds(struct quant_format f, size_t n_in, size_t g, size_t *begin, size_t *end)
{
    *begin = f.group == 0 ? 0 : g * f.group;
    *end = f.group == 0 || *begin + f.group > n_in ? n_in : *begin + f.group;
}

/* Returns the extremes of n values; values that are not finite count as 0. */
QUANT_INLINE struct quant_extremes rtn_extremes(const float *x, size_t n)
{
    float least[LANES] = {0}, most[LANES] = {0};
    struct quant_extremes e = {0, 0, 0};
    size_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        for (size_t i = 0; i < LANES; i++) {
            const float a = __builtin_fabsf(x[k + i]) <= FLT_MAX ? x[k + i] : 0.0f;
            least[i] = a < least[i] ? a : least[i];
            most[i] = a > most[i] ? a : most[i];
        }
    }
    for (size_t i = 0; k < n; k++, i++) {
        const float a = __builtin_fabsf(x[k]) <= FLT_MAX ? x[k] : 0.0f;
        least[i] = a < least[i] ? a : least[i];
        most[i] = a > most[i] ? a : most[i];
    }
    for (size_t half = LANES / 2; half > 0; half /= 2) {
        for (size_t i = 0; i < half; i++) {
            least[i] = least[i + half] < least[i] ? least[i + half] : least[i];
            most[i] = most[i + half] > most[i] ? most[i + half] : most[i];
        }
    }
    e.least = least[0];
    e.most = most[0];
    e.largest = -e.least > e.most ? e.least : e.most;
    if (-e.least != e.most || e.most == 0) return e;
    for (k = 0; __builtin_fabsf(x[k]) != e.most; k++) {
    }
    e.largest = x[k];
    return e;
}

/* The constants that turn a group's values into integer codes. */
struct int_coder {
    float scale, zero;
    float low, high; /* limits of the codes, before zero is added */
};

QUANT_INLINE struct int_coder int_coder_of(struct quant_format f, struct quant_param p)
{
    const bool is_signed = f.kind == QUANT_INT8 && !f.has_zeros;
    const float zero = (float)p.zero, least = is_signed ? -127.0f : 0.0f;
    const float most = is_signed ? 127.0f : f.kind == QUANT_INT8 ? 255.0f : 15.0f;
    return (struct int_coder){p.scale != 0 ? p.scale : INFINITY, zero, least - zero, most - zero};
}

/* Computes integer codes of LANES values: x / scale to the nearest integer, plus zero. The
 * quotient is clamped before it is rounded; the bounds are integers, so the result is the same.
 * Below 2^22, adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even. */
QUANT_INLINE void encode_ints(struct int_coder c, const float *restrict x, uint8_t *restrict codes)
{
    int32_t wide[LANES];
    for (size_t i = 0; i < LANES; i++) {
        const float a = __builtin_fabsf(x[i]) <= FLT_MAX ? x[i] : 0.0f;
        const float q = a / c.scale;
        const float above = q > c.low ? q : c.low, cut = above < c.high ? above : c.high;
        wide[i] = (int32_t)((cut + 0x1.8p23f) - 0x1.8p23f + c.zero);
    }
    for (size_t i = 0; i < LANES; i++) codes[i] = (uint8_t)wide[i];
}

/* Computes the codes of n values of a group, one code in each byte. `codes` has room for n rounded
 * up to a multiple of LANES. */
QUANT_INLINE void encode(struct quant_format f, struct quant_param p, const float *x, size_t n,
                         uint8_t *codes)
{
    size_t k = 0;
    if (f.kind == QUANT_FP8 || f.kind == QUANT_MXFP4) {
        for (; k < n; k++) codes[k] = quant_encode(f, p, x[k]);
        return;
    }
    const struct int_coder c = int_coder_of(f, p);
    for (; k + LANES <= n; k += LANES) encode_ints(c, x + k, codes + k);
    if (k == n) return;
    float last[LANES] = {0};
    memcpy(last, x + k, (n - k) * sizeof *x);
    encode_ints(c, last, codes + k);
}

/* Stores n codes as the format does, two in a byte if they have 4 bits. The first code belongs to
 * an even input. */
QUANT_INLINE void codes_store(struct quant_format f, const uint8_t *restrict codes, size_t n,
                              uint8_t *restrict out)
{
    if (!quant_is_nibbles(f.kind)) {
        memcpy(out, codes, n);
        return;
    }
    size_t i = 0;
    for (; i + LANES <= n / 2; i += LANES) {
        for (size_t j = 0; j < LANES; j++) {
            out[i + j] = (uint8_t)(codes[2 * (i + j)] | codes[2 * (i + j) + 1] << 4);
        }
    }
    for (; i < n / 2; i++) out[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
    if (n % 2 != 0) out[n / 2] = codes[n - 1];
}

QUANT_CLONES
static void rtn_row(struct quant_format f, const float *x, size_t n_in,
                    const struct quant_block *out, size_t row)
{
    const size_t n_groups = quant_groups(f, n_in);
    uint8_t *to = (uint8_t *)out->codes + row * quant_code_bytes(f.kind, n_in);
    uint8_t codes[QUANT_GROUP_MAX];
    for (size_t g = 0; g < n_groups; g++) {
        size_t begin, end;
        group_bounds(f, n_in, g, &begin, &end);
        const struct quant_param p = quant_fit_extremes(f, rtn_extremes(x + begin, end - begin));
        quant_put_param(f, out, n_in, row, g, p);
        for (size_t k = begin; k < end; k += QUANT_GROUP_MAX) {
            const size_t n = end - k < QUANT_GROUP_MAX ? end - k : QUANT_GROUP_MAX;
            encode(f, p, x + k, n, codes);
            codes_store(f, codes, n, to + quant_code_bytes(f.kind, k));
        }
    }
}

QUANT_CLONES
static uint64_t quantize_rows_count_bad(const float *x, size_t n)
{
    uint32_t n_bad[LANES] = {0}, sum = 0; /* 32 bits suffice: a row has at most 64 MiB */
    size_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        for (size_t i = 0; i < LANES; i++) n_bad[i] += !(__builtin_fabsf(x[k + i]) <= FLT_MAX);
    }
    for (; k < n; k++) sum += !(__builtin_fabsf(x[k]) <= FLT_MAX);
    for (size_t i = 0; i < LANES; i++) sum += n_bad[i];
    return sum;
}

struct rtn_job {
    struct quant_format f;
    const float *rows;
    size_t n_in;
    const struct quant_block *out;
    atomic_uint_fast64_t n_bad;
};

static void rtn_piece(void *ctx, size_t begin, size_t end)
{
    struct rtn_job *j = ctx;
    for (size_t row = begin; row < end; row++) {
        const float *x = j->rows + row * j->n_in;
        const uint64_t n_bad = quantize_rows_count_bad(x, j->n_in);
        if (n_bad > 0) atomic_fetch_add(&j->n_bad, n_bad);
        rtn_row(j->f, x, j->n_in, j->out, row);
    }
}

uint64_t quant_rtn_rows(struct team *team, struct quant_format f, const float *rows, size_t n_rows,
                        size_t n_in, const struct quant_block *out)
{
    struct rtn_job j = {.f = f, .rows = rows, .n_in = n_in, .out = out};
    share_run(team, n_rows, quantize_piece_rows(n_in), rtn_piece, &j);
    return j.n_bad;
}

void quant_table_init(struct quant_format f, struct quant_table *out)
{
    for (int c = 0; c < 256; c++) {
        for (int i = 0; i < 2; i++) {
            const uint8_t nibble = (uint8_t)(c >> 4 * i & 15);
            out->nibbles[c][i] =
                f.kind == QUANT_INT4 ? (float)nibble : (float)e2m1_doubled(nibble) * 0.5f;
        }
        out->bytes[c] = f32_from_e4m3((uint8_t)c);
    }
}

/* Computes the values of LANES codes, each rounded once, as quant_value does. */
QUANT_INLINE void decode_bytes(struct quant_format f, const float *table, struct quant_param p,
                               const uint8_t *restrict codes, float *restrict out)
{
    const float scale = p.scale;
    const int32_t zero = p.zero;
    if (f.kind == QUANT_FP8) {
        for (size_t k = 0; k < LANES; k++) out[k] = table[codes[k]] * scale;
    } else if (f.has_zeros) {
        for (size_t k = 0; k < LANES; k++) out[k] = (float)((int32_t)codes[k] - zero) * scale;
    } else {
        for (size_t k = 0; k < LANES; k++) out[k] = (float)(int8_t)codes[k] * scale;
    }
}

/* Computes the values of n codes of 4 bits: looks up both codes of a byte, then scales them. */
QUANT_INLINE void decode_nibbles(struct quant_format f, const struct quant_table *table,
                                 struct quant_param p, const uint8_t *restrict codes, size_t n,
                                 float *restrict out)
{
    const float scale = p.scale, zero = f.kind == QUANT_INT4 ? (float)p.zero : 0.0f;
    size_t k = 0;
    for (size_t i = 0; i < n / 2; i++)
        memcpy(out + 2 * i, table->nibbles[codes[i]], 2 * sizeof *out);
    if (n % 2 != 0) out[n - 1] = table->nibbles[codes[n / 2]][0];
    for (; k + LANES <= n; k += LANES) {
        for (size_t i = 0; i < LANES; i++) out[k + i] = (out[k + i] - zero) * scale;
    }
    for (; k < n; k++) out[k] = (out[k] - zero) * scale;
}

/* Computes the values of n codes of a group; the first code belongs to an even input. */
QUANT_INLINE void decode(struct quant_format f, const struct quant_table *table,
                         struct quant_param p, const uint8_t *codes, size_t n, float *out)
{
    uint8_t last[LANES] = {0};
    float values[LANES];
    size_t k = 0;
    if (quant_is_nibbles(f.kind)) {
        decode_nibbles(f, table, p, codes, n, out);
        return;
    }
    for (; k + LANES <= n; k += LANES) decode_bytes(f, table->bytes, p, codes + k, out + k);
    if (k == n) return;
    memcpy(last, codes + k, n - k);
    decode_bytes(f, table->bytes, p, last, values);
    memcpy(out + k, values, (n - k) * sizeof *out);
}

QUANT_CLONES
void quant_dequantize_span(const struct quant_decoder *d, size_t row, size_t begin, size_t end,
                           float *out)
{
    const struct quant_format f = d->f;
    const uint8_t *codes =
        (const uint8_t *)d->block->codes + row * quant_code_bytes(f.kind, d->n_in);
    const size_t group = f.group == 0 ? d->n_in : f.group;
    for (size_t k = begin, n; k < end; k += n) {
        const size_t g = k / group, left = (g + 1) * group - k;
        n = left < end - k ? left : end - k;
        const struct quant_param p = quant_get_param(f, d->block, d->n_in, row, g);
        decode(f, &d->table, p, codes + quant_code_bytes(f.kind, k), n, out + (k - begin));
    }
}

struct dequantize_job {
    struct quant_decoder decoder;
    float *out;
};

static void dequantize_piece(void *ctx, size_t begin, size_t end)
{
    const struct dequantize_job *j = ctx;
    const size_t n_in = j->decoder.n_in;
    for (size_t row = begin; row < end; row++) {
        quant_dequantize_span(&j->decoder, row, 0, n_in, j->out + row * n_in);
    }
}

void quant_dequantize_rows(struct team *team, struct quant_format f, const struct quant_block *b,
                           size_t n_rows, size_t n_in, float *out)
{
    struct dequantize_job j = {.decoder = {.f = f, .n_in = n_in, .block = b}, .out = out};
    quant_table_init(f, &j.decoder.table);
    share_run(team, n_rows, quantize_piece_rows(n_in), dequantize_piece, &j);
}
