/* Helpers of the tests of quantized kernels. */
#include "util_quant.h"

#include <math.h>
#include <stdlib.h>

static const char *const formats[QUANT_TEST_FORMATS] = {
    "int8",          "int8-g32",       "int8-g64", "int8-g128", "int8-asym", "int8-asym-g32",
    "int8-asym-g64", "int8-asym-g128", "int4",     "int4-g64",  "int4-g128", "int4-asym-g32",
    "int4-asym-g64", "int4-asym-g128", "mxfp4",    "fp8",       "fp8-g128",  "int4-g32",
};

struct quant_format quant_test_format(size_t i)
{
    struct quant_format f;
    if (!quant_format_parse(formats[i], &f)) exit(1);
    if (f.kind != QUANT_MXFP4) f.scale_dtype = i % 2 ? DTYPE_F32 : DTYPE_F16;
    return f;
}

static void *aligned(size_t n_bytes)
{
    void *p = aligned_alloc(64, (n_bytes + 64) / 64 * 64);
    if (p == NULL) exit(1);
    memset(p, 0, n_bytes);
    return p;
}

static size_t stored_scale_bytes(struct quant_format f)
{
    return f.kind == QUANT_MXFP4 ? 1 : f.scale_dtype == DTYPE_F16 ? 2 : 4;
}

static void random_scale(struct rng *r, struct quant_format f, size_t every, uint8_t *out)
{
    float scale = 0.01f + fabsf(rng_float(r, 0.05f));
    if (every > 0) rng_specials(r, &scale, 1, every);
    if (f.kind == QUANT_MXFP4) {
        *out = (uint8_t)(118 + rng_below(r, 8));
        if (every > 0 && rng_below(r, every) == 0) *out = (uint8_t)rng_next(r);
        if (every > 0 && rng_below(r, every) == 0) *out = (uint8_t)(rng_next(r) % 3);
    } else {
        dtype_from_f32(f.scale_dtype, &scale, 1, out);
    }
}

static uint8_t random_code(struct rng *r, struct quant_format f, size_t every)
{
    uint8_t c = (uint8_t)rng_next(r);
    if (f.kind == QUANT_INT8 && !f.has_zeros && c == 0x80) c = 0x81;
    if (f.kind == QUANT_INT8 && rng_below(r, 4) == 0) c = rng_below(r, 2) ? 0x7F : 0x81;
    if (f.kind == QUANT_INT8 && f.has_zeros && rng_below(r, 4) == 0) c = rng_below(r, 2) ? 255 : 0;
    if (f.kind == QUANT_FP8 && (c & 0x7F) == 0x7F && every == 0) c = 0;
    return c;
}

/* Packs outputs [row0, row0 + n) of a part, whose rows of row_bytes begin at `stored`. */
static void put_part(const struct packed *w, enum packed_part part, const uint8_t *stored,
                     size_t row_bytes, size_t row0, size_t n)
{
    struct kern_table ref = {0};
    kern_fill_ref(&ref);
    op_pack_quant(&ref, w, part,
                  &(struct matrix_rows){stored + row0 * row_bytes, row_bytes, row0, n});
}

struct quant_weight quant_weight_make(struct rng *r, struct quant_format f, size_t n_out,
                                      size_t n_in, size_t leaf, size_t every)
{
    const size_t row_bytes = quant_code_bytes(f.kind, n_in), n_scales = quant_groups(f, n_in);
    const size_t scale_bytes = stored_scale_bytes(f);
    const struct packed_quant_sizes sizes = packed_quant_bytes(f, n_out, n_in);
    struct quant_weight q = {.codes = test_memory(n_out * row_bytes),
                             .scales = test_memory(n_out * n_scales * scale_bytes),
                             .zeros = test_memory(n_out * n_scales),
                             .data = aligned(sizes.data),
                             .packed_scales = aligned(sizes.scales),
                             .packed_zeros = aligned(sizes.zeros)};
    for (size_t i = 0; i < n_out * row_bytes; i++) q.codes[i] = random_code(r, f, every);
    for (size_t i = 0; i < n_out * n_scales; i++) {
        random_scale(r, f, every, q.scales + i * scale_bytes);
        q.zeros[i] = (uint8_t)rng_below(r, f.kind == QUANT_INT8 ? 256 : 17);
    }
    q.w = (struct packed){.n_out = (uint32_t)n_out,
                          .n_in = (uint32_t)n_in,
                          .leaf = (uint32_t)leaf,
                          .grid_bits = 32,
                          .data = q.data,
                          .quant = f,
                          .scales = q.packed_scales,
                          .zeros = f.has_zeros ? q.packed_zeros : NULL};
    for (size_t n0 = 0, n = 0; n0 < n_out; n0 += n) { /* in random pieces */
        n = 1 + rng_below(r, n_out - n0);
        put_part(&q.w, PACKED_CODES, q.codes, row_bytes, n0, n);
        put_part(&q.w, PACKED_SCALES, q.scales, n_scales * scale_bytes, n0, n);
        if (f.has_zeros) put_part(&q.w, PACKED_ZEROS, q.zeros, n_scales, n0, n);
    }
    return q;
}

void quant_weight_free(struct quant_weight *q)
{
    free(q->codes);
    free(q->scales);
    free(q->zeros);
    free(q->data);
    free(q->packed_scales);
    free(q->packed_zeros);
}

double quant_weight_at(const struct quant_weight *q, size_t n, size_t k)
{
    static const double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const struct quant_format f = q->w.quant;
    const size_t group = f.group == 0 ? 0 : k / f.group;
    const size_t at = n * quant_groups(f, q->w.n_in) + group;
    const uint8_t *row = q->codes + n * quant_code_bytes(f.kind, q->w.n_in);
    const uint8_t nibble = k % 2 ? row[k / 2] >> 4 : row[k / 2] & 15;
    float scale = 0;
    if (f.kind == QUANT_MXFP4)
        return (nibble & 8 ? -1 : 1) * e2m1[nibble & 7] * exp2((double)q->scales[at] - 127);
    dtype_to_f32(f.scale_dtype, q->scales + at * stored_scale_bytes(f), 1, &scale);
    if (f.kind == QUANT_FP8) return (double)f32_from_e4m3(row[k]) * scale;
    if (f.kind == QUANT_INT4) return (nibble - (f.has_zeros ? q->zeros[at] : 8)) * (double)scale;
    if (f.has_zeros) return (row[k] - q->zeros[at]) * (double)scale;
    return (int8_t)row[k] * (double)scale;
}

struct quant_rows quant_rows_make(size_t n_rows, size_t n, struct quant_format f)
{
    const size_t group = quant_kernel_group(f), n_groups = (n + group - 1) / group;
    return (struct quant_rows){.group = (uint32_t)group,
                               .n_groups = n_groups,
                               .codes = test_memory(n_rows * n_groups * group),
                               .scales = test_memory(n_rows * n_groups * sizeof(float)),
                               .sums = test_memory(n_rows * n_groups * sizeof(int32_t))};
}

void quant_rows_free(struct quant_rows *q)
{
    free(q->codes);
    free(q->scales);
    free(q->sums);
}

size_t tables_fast(struct kern_table out[FAST_SETS])
{
    static const char *const names[FAST_SETS] = {"avx2", "avx512", "amx"};
    static struct kern_table found[FAST_SETS]; /* chosen once */
    static bool is_chosen;
    static size_t n;
    for (size_t i = 0; i < FAST_SETS && !is_chosen; i++) {
        const struct status st = kern_select(names[i], &found[n]);
        if (st.code == STATUS_OK)
            n++;
        else if (st.code != STATUS_USAGE)
            exit(1);
    }
    is_chosen = true;
    memcpy(out, found, n * sizeof *out);
    return n;
}
