/* Reads rows of other programs' quantized weights, as quantized values in shoal's order or as
 * floats. A row of any layout is first unpacked to one code per byte. */
#include "base/mem.h"
#include "checkpoint/convert/hf_quant.h"

#include <string.h>

void hf_raw_fini(struct hf_raw *raw)
{
    mem_free(&raw->codes);
    mem_free(&raw->scales);
    mem_free(&raw->zeros);
    mem_free(&raw->g_idx);
    mem_free(&raw->row_codes);
    mem_free(&raw->row_zeros);
    mem_free(&raw->row_scales);
    *raw = (struct hf_raw){0};
}

/* ---- the rows in memory ---- */

/* True for GPTQ and AWQ, which store inputs first: an output's codes are spread over the whole
 * tensor. */
static bool is_by_input(const struct hf_quant *q)
{
    return q->layout == HF_GPTQ || q->layout == HF_AWQ;
}

/* True when consecutive rows do not lie one after another in the source: all rows are then read at
 * once. */
static bool is_spread(const struct hf_quant *q)
{
    return is_by_input(q) || q->layout == HF_TERNARY;
}

/* Reads all bytes of t into new memory; *out stays NULL when t is NULL. */
static struct status read_whole(const struct safetensors *s, const struct safetensors_tensor *t,
                                void **out)
{
    if (t == NULL) return status_ok();
    TRY(mem_alloc(out, t->n_bytes, 1, t->name));
    return safetensors_read(s, t, 0, t->n_bytes, *out);
}

static struct status g_idx_read(const struct safetensors *s, const struct hf_quant *q,
                                struct hf_raw *raw)
{
    if (q->g_idx == NULL) return status_ok();
    TRY(mem_alloc(&raw->g_idx, q->n_in, sizeof raw->g_idx[0], q->g_idx->name));
    TRY(safetensors_read(s, q->g_idx, 0, q->n_in * sizeof raw->g_idx[0], raw->g_idx));
    for (uint64_t k = 0; k < q->n_in; k++) {
        if (raw->g_idx[k] >= 0 && (uint64_t)raw->g_idx[k] < q->n_groups) continue;
        return status_make(STATUS_INPUT,
                           "%s: tensor '%.200s': input %llu: group %d, expected 0 to "
                           "%llu",
                           safetensors_path(s, q->g_idx), q->g_idx->name, (unsigned long long)k,
                           raw->g_idx[k], (unsigned long long)(q->n_groups - 1));
    }
    return status_ok();
}

static struct status parts_read(const struct safetensors *s, const struct hf_quant *q,
                                struct hf_raw *raw)
{
    TRY(read_whole(s, q->scales, &raw->scales));
    TRY(read_whole(s, q->zeros, &raw->zeros));
    TRY(g_idx_read(s, q, raw));
    TRY(mem_alloc(&raw->row_codes, q->n_in, 1, "a row of codes"));
    TRY(mem_alloc(&raw->row_zeros, q->n_groups, 1, "a row of zero points"));
    TRY(mem_alloc(&raw->row_scales, q->n_groups, sizeof raw->row_scales[0], "a row of scales"));
    if (!is_spread(q)) return status_ok();
    TRY(read_whole(s, q->codes, &raw->codes));
    raw->n_rows = q->n_out;
    return status_ok();
}

static struct status codes_read(const struct safetensors *s, const struct hf_quant *q,
                                struct hf_raw *raw, uint64_t row0, uint64_t n_rows)
{
    const uint64_t row_bytes = q->codes->n_bytes / q->n_out;
    mem_free(&raw->codes);
    raw->n_rows = 0;
    TRY(mem_alloc(&raw->codes, n_rows * row_bytes, 1, "rows of codes"));
    TRY(safetensors_read(s, q->codes, row0 * row_bytes, n_rows * row_bytes, raw->codes));
    raw->row0 = row0;
    raw->n_rows = n_rows;
    return status_ok();
}

/* Reads the rows with their scales and zero points, unless they are in memory. */
static struct status hf_quant_rows_fetch(const struct safetensors *s, const struct hf_quant *q,
                                         struct hf_raw *raw, uint64_t row0, uint64_t n_rows)
{
    if (raw->of != q) {
        hf_raw_fini(raw);
        TRY(parts_read(s, q, raw));
        raw->of = q;
    }
    if (row0 >= raw->row0 && row0 + n_rows <= raw->row0 + raw->n_rows) return status_ok();
    return codes_read(s, q, raw, row0, n_rows);
}

/* ---- one row ---- */

/* Returns the number of the nibble that holds output n in a word of AWQ. A word's 8 nibbles, from
 * the lowest, are the outputs 0 2 4 6 1 3 5 7. */
static unsigned awq_place(uint64_t n)
{
    return (unsigned)(n % 8 / 2 + n % 2 * 4);
}

/* Returns value i of packed words; a word holds values from its lowest bits up. */
static uint8_t packed_at(const uint32_t *words, uint64_t i, unsigned bits)
{
    const unsigned per_word = 32 / bits;
    return (uint8_t)(words[i / per_word] >> i % per_word * bits & ((1u << bits) - 1));
}

/* Unpacks the codes of row n, one per byte: unsigned integers, or the format's own bytes. */
static void row_codes(const struct hf_quant *q, struct hf_raw *raw, uint64_t n)
{
    const uint64_t row = n - raw->row0, row_bytes = q->codes->n_bytes / q->n_out;
    const uint32_t *words = raw->codes;
    const uint8_t *bytes = (const uint8_t *)raw->codes + row * row_bytes;
    uint8_t *out = raw->row_codes;
    const unsigned per_word = 32 / q->bits, mask = (1u << q->bits) - 1;
    switch (q->layout) {
    case HF_GPTQ:
        for (uint64_t k = 0; k < q->n_in; k++)
            out[k] = (uint8_t)(words[k / per_word * q->n_out + n] >> k % per_word * q->bits & mask);
        break;
    case HF_AWQ:
        for (uint64_t k = 0; k < q->n_in; k++)
            out[k] = words[k * (q->n_out / 8) + n / 8] >> 4 * awq_place(n) & 15;
        break;
    case HF_PACKED:
        words += row * q->codes->dims[1];
        for (uint64_t k = 0; k < q->n_in; k++) out[k] = packed_at(words, k, q->bits);
        break;
    case HF_MXFP4:
        for (uint64_t k = 0; k < q->n_in; k++) out[k] = bytes[k / 2] >> 4 * (k % 2) & 15;
        break;
    case HF_INT8:
        for (uint64_t k = 0; k < q->n_in; k++) out[k] = bytes[k] ^ 0x80;
        break;
    case HF_TERNARY: { /* the file has value + 1, int4 has value + QUANT_INT4_ZERO */
        const uint64_t n_rows = q->n_out / HF_TERNARY_ROWS, shift = 2 * (n / n_rows);
        bytes = (const uint8_t *)raw->codes + n % n_rows * q->n_in;
        for (uint64_t k = 0; k < q->n_in; k++)
            out[k] = (uint8_t)((bytes[k] >> shift & 3) + QUANT_INT4_ZERO - 1);
        break;
    }
    default:
        memcpy(out, bytes, q->n_in);
        break;
    }
}

static uint8_t zero_at(const struct hf_quant *q, const struct hf_raw *raw, uint64_t n, uint64_t g)
{
    const unsigned per_word = 32 / q->bits, mask = (1u << q->bits) - 1;
    const uint32_t *words = raw->zeros;
    if (words == NULL) return (uint8_t)(1u << (q->bits - 1));
    if (is_by_input(q)) {
        /* GPTQ's version 1 subtracts 1 from all zero points of a word by one subtraction, with
         * borrows between them; the addition undoes it */
        const uint32_t ones = !q->zero_is_one_less ? 0 : q->bits == 4 ? 0x11111111u : 0x01010101u;
        const unsigned place = q->layout == HF_AWQ ? awq_place(n) : (unsigned)(n % per_word);
        return (uint8_t)((words[g * (q->n_out / per_word) + n / per_word] + ones) >>
                             place * q->bits &
                         mask);
    }
    /* compressed-tensors: signed bytes, or packed along the outputs */
    if (q->zeros->dtype == DTYPE_I8) {
        const uint8_t zero = ((const uint8_t *)raw->zeros)[n * q->n_groups + g];
        return (uint8_t)((zero + (1u << (q->bits - 1))) & mask);
    }
    return (uint8_t)(words[n / per_word * q->n_groups + g] >> n % per_word * q->bits & mask);
}

/* Returns the index of the scale of row n and group g. */
static uint64_t scale_place(const struct hf_quant *q, uint64_t n, uint64_t g)
{
    return is_by_input(q) ? g * q->n_out + n : n / q->block_rows * q->n_groups + g;
}

static float scale_at(const struct hf_quant *q, const struct hf_raw *raw, uint64_t n, uint64_t g)
{
    const uint64_t at = scale_place(q, n, g);
    float scale = 1.0f;
    if (q->scales == NULL) return scale;
    if (q->layout == HF_MXFP4 || q->scales->dtype == DTYPE_F8_E8M0)
        return f32_from_e8m0(((const uint8_t *)raw->scales)[at]);
    const size_t n_bytes = dtype_bytes(q->scales->dtype);
    dtype_to_f32(q->scales->dtype, (const char *)raw->scales + at * n_bytes, 1, &scale);
    return scale;
}

/* Unpacks row n of the source, with its scales and zero points. */
static void row_take(const struct hf_quant *q, struct hf_raw *raw, uint64_t n)
{
    row_codes(q, raw, n);
    for (uint64_t g = 0; g < q->n_groups; g++) {
        raw->row_scales[g] = scale_at(q, raw, n, g);
        raw->row_zeros[g] = zero_at(q, raw, n, g);
    }
}

/* ---- as codes ---- */

static void hf_quant_rows_put_codes(const struct hf_quant *q, const struct hf_raw *raw,
                                    uint8_t *out)
{
    if (!quant_is_nibbles(q->format.kind)) {
        memcpy(out, raw->row_codes, q->n_in);
        return;
    }
    memset(out, 0, quant_code_bytes(q->format.kind, q->n_in));
    for (uint64_t k = 0; k < q->n_in; k++) {
        out[k / 2] |= (uint8_t)(raw->row_codes[k] << 4 * (k % 2));
    }
}

/* Checks that all zero points of symmetric int4 are 8. */
static struct status zeros_check(const struct safetensors *s, const struct hf_quant *q,
                                 const struct hf_raw *raw)
{
    for (uint64_t g = 0; g < q->n_groups; g++) {
        if (raw->row_zeros[g] == QUANT_INT4_ZERO) continue;
        return status_make(STATUS_INPUT,
                           "%s: weight '%.200s': a zero point of %u, expected %d, because "
                           "quantization_config says that the weights are symmetric",
                           safetensors_path(s, q->codes), q->name, raw->row_zeros[g],
                           QUANT_INT4_ZERO);
    }
    return status_ok();
}

/* Writes the scales and zero points of the row. One of the source's groups is a whole number of
 * shoal's groups, or all inputs. */
static void put_params(const struct hf_quant *q, const struct hf_raw *raw, struct quant_format f,
                       uint64_t n, uint64_t row, const struct quant_block *out)
{
    const uint64_t n_groups = quant_groups(f, q->n_in);
    for (uint64_t g = 0; g < n_groups; g++) {
        const uint64_t at = row * n_groups + g, theirs = g * f.group / q->group;
        if (f.kind == QUANT_MXFP4) {
            ((uint8_t *)out->scales)[at] = ((const uint8_t *)raw->scales)[scale_place(q, n, g)];
        } else if (f.scale_dtype == DTYPE_F16) {
            ((uint16_t *)out->scales)[at] =
                f16_from_f32(raw->row_scales[theirs]); /* exact: it was an f16 */
        } else {
            ((float *)out->scales)[at] = raw->row_scales[theirs];
        }
        if (f.has_zeros) out->zeros[at] = raw->row_zeros[theirs];
    }
}

struct status hf_quant_codes(const struct safetensors *s, const struct hf_quant *q,
                             struct hf_raw *raw, struct quant_format format, uint64_t row0,
                             uint64_t n_rows, const struct quant_block *out)
{
    const uint64_t row_bytes = quant_code_bytes(format.kind, q->n_in);
    const uint64_t first = q->first + row0 * q->step;
    TRY(hf_quant_rows_fetch(s, q, raw, first, (n_rows - 1) * q->step + 1));
    for (uint64_t row = 0; row < n_rows; row++) {
        row_take(q, raw, first + row * q->step);
        hf_quant_rows_put_codes(q, raw, (uint8_t *)out->codes + row * row_bytes);
        if (format.kind == QUANT_INT4 && !format.has_zeros) TRY(zeros_check(s, q, raw));
        put_params(q, raw, format, first + row * q->step, row, out);
    }
    return status_ok();
}

/* ---- as values ---- */

static void row_values(const struct hf_quant *q, const struct hf_raw *raw, float *out)
{
    const bool is_e5m2 = q->codes->dtype == DTYPE_F8_E5M2;
    const struct quant_format f = {.kind = q->layout == HF_MXFP4 ? QUANT_MXFP4
                                           : q->layout == HF_FP8 ? QUANT_FP8
                                                                 : QUANT_INT8,
                                   .has_zeros = true};
    for (uint64_t k = 0; k < q->n_in; k++) {
        const uint64_t g = raw->g_idx != NULL ? (uint64_t)raw->g_idx[k] : k / q->group;
        const uint8_t code = raw->row_codes[k];
        out[k] = is_e5m2 ? f32_from_e5m2(code) * raw->row_scales[g]
                         : quant_value(f, code, raw->row_zeros[g], raw->row_scales[g]);
    }
}

struct status hf_quant_values(const struct safetensors *s, const struct hf_quant *q,
                              struct hf_raw *raw, uint64_t row0, uint64_t n_rows, float *out)
{
    const uint64_t first = q->first + row0 * q->step;
    TRY(hf_quant_rows_fetch(s, q, raw, first, (n_rows - 1) * q->step + 1));
    for (uint64_t row = 0; row < n_rows; row++) {
        row_take(q, raw, first + row * q->step);
        row_values(q, raw, out + row * q->n_in);
    }
    return status_ok();
}
