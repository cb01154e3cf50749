/* Packed quantized weights: their sizes, packing them from the checkpoint's rows, reading one
 * element back. */
#include "kernels/ops.h"

#include "kernels/device_ops.h"
#include "kernels/quant_body.h"
#include "kernels/ref/ref.h"

enum { WORD_BYTES = 4 };

static size_t product(size_t a, size_t b)
{
    size_t n;
    return __builtin_mul_overflow(a, b, &n) ? SIZE_MAX : n;
}

struct packed_quant_sizes packed_quant_bytes(struct quant_format f, size_t n_out, size_t n_in)
{
    const size_t n_panels = n_out / PANEL_COLUMNS + (n_out % PANEL_COLUMNS != 0);
    const size_t n_scales = product(product(n_panels, PANEL_COLUMNS), kern_quant_groups(f, n_in));
    const size_t n_codes = product(n_scales, quant_kernel_group(f));
    return (struct packed_quant_sizes){
        .data = n_codes == SIZE_MAX || !quant_is_nibbles(f.kind) ? n_codes : n_codes / 2,
        .scales = product(n_scales, kern_quant_scale_bytes(f)),
        .zeros = f.has_zeros ? n_scales : 0};
}

static enum pack_words_kind words_kind(struct quant_format f)
{
    if (quant_is_nibbles(f.kind)) return PACK_WORDS_NIBBLES;
    return f.kind == QUANT_INT8 && !f.has_zeros ? PACK_WORDS_SIGNED : PACK_WORDS_PLAIN;
}

/* Packs one output's quantized values from byte i on, one word of four bytes at a time. `lane` is
 * the output's place in the panel. */
static void put_row(enum pack_words_kind kind, uint8_t *lane, const uint8_t *row, size_t i,
                    size_t n_bytes)
{
    for (; i < n_bytes; i += WORD_BYTES) {
        const size_t left = n_bytes - i;
        uint32_t v = 0;
        memcpy(&v, row + i, left >= WORD_BYTES ? WORD_BYTES : left);
        v = k_pack_word_ref(kind, v);
        memcpy(lane + i * PANEL_COLUMNS, &v, WORD_BYTES);
    }
}

static void put_codes(const struct kern_table *k, const struct packed *w,
                      const struct matrix_rows *rows)
{
    const size_t stride = rows->stride_bytes;
    const size_t n_bytes = quant_code_bytes(w->quant.kind, w->n_in);
    const size_t panel_bytes = kern_quant_panel_bytes(w->quant, w->n_in);
    const enum pack_words_kind kind = words_kind(w->quant);
    for (size_t i = 0, count; i < rows->n; i += count) {
        const size_t n = rows->row0 + i;
        const bool whole = n % PANEL_COLUMNS == 0 && rows->n - i >= PANEL_COLUMNS;
        const uint8_t *from = (const uint8_t *)rows->data + i * stride;
        uint8_t *panel = (uint8_t *)(uintptr_t)w->data + n / PANEL_COLUMNS * panel_bytes;
        uint8_t *lane = panel + n % PANEL_COLUMNS * QUANT_QUAD;
        if (whole) k->pack_words(kind, from, stride, n_bytes / WORD_BYTES, panel);
        const size_t done = whole ? n_bytes / WORD_BYTES * WORD_BYTES : 0;
        count = whole ? PANEL_COLUMNS : 1;
        for (size_t r = 0; r < count && done < n_bytes; r++)
            put_row(kind, lane + r * QUANT_QUAD, from + r * stride, done, n_bytes);
    }
}

/* Writes per-channel scales or zero points, elements of `size` (constant) bytes: one for each
 * output of the panel, repeated for each group. */
static inline void put_channels(size_t size, char *panel, size_t n_groups, const char *rows,
                                size_t row_stride_bytes)
{
    char side[PANEL_COLUMNS * sizeof(float)];
    for (size_t c = 0; c < PANEL_COLUMNS; c++)
        memcpy(side + c * size, rows + c * row_stride_bytes, size);
    for (size_t g = 0; g < n_groups; g++)
        memcpy(panel + g * PANEL_COLUMNS * size, side, PANEL_COLUMNS * size);
}

/* Stores scales or zero points of `size` bytes (a constant) into `out`, the array of the whole
 * weight. */
static inline void put_elements(size_t size, const struct packed *w, char *out,
                                const struct matrix_rows *rows)
{
    const size_t stride = rows->stride_bytes;
    const size_t n_groups = kern_quant_groups(w->quant, w->n_in);
    const size_t step = w->quant.group == 0 ? 0 : size; /* 0: one per channel, for all groups */
    for (size_t i = 0, count; i < rows->n; i += count) {
        const size_t n = rows->row0 + i, lane = n % PANEL_COLUMNS, room = PANEL_COLUMNS - lane;
        const char *from = (const char *)rows->data + i * stride;
        char *panel = out + n / PANEL_COLUMNS * n_groups * PANEL_COLUMNS * size;
        count = rows->n - i < room ? rows->n - i : room;
        if (step == 0 && count == PANEL_COLUMNS) {
            put_channels(size, panel, n_groups, from, stride);
            continue;
        }
        for (size_t g = 0; g < n_groups; g++)
            for (size_t c = 0; c < count; c++)
                memcpy(panel + (g * PANEL_COLUMNS + lane + c) * size, from + c * stride + g * step,
                       size);
    }
}

static void put_scales(const struct kern_table *k, const struct packed *w,
                       const struct matrix_rows *rows)
{
    const size_t size = kern_quant_scale_bytes(w->quant);
    char *out = (char *)(uintptr_t)w->scales;
    if (size > 1 && w->quant.group != 0) {
        /* as a plain matrix whose inputs are the groups */
        const struct packed as = {.dtype = size == 2 ? DTYPE_F16 : DTYPE_F32,
                                  .n_in = (uint32_t)kern_quant_groups(w->quant, w->n_in),
                                  .data = out};
        op_pack_rows(k, &as, rows);
    } else if (size == 1) {
        put_elements(1, w, out, rows);
    } else if (size == 2) {
        put_elements(2, w, out, rows);
    } else {
        put_elements(4, w, out, rows);
    }
}

float packed_quant_value(const struct packed *w, size_t n, size_t k)
{
    return kern_quant_float(w, n, k);
}

static size_t part_row_bytes(const struct packed *w, enum packed_part part)
{
    if (part == PACKED_CODES) return quant_code_bytes(w->quant.kind, w->n_in);
    return quant_groups(w->quant, w->n_in) *
           (part == PACKED_SCALES ? kern_quant_scale_bytes(w->quant) : 1);
}

void op_pack_quant(const struct kern_table *k, const struct packed *w, enum packed_part part,
                   const struct matrix_rows *rows)
{
    if (k->device != NULL) {
        const size_t row_bytes = part_row_bytes(w, part);
        device_ops_of(k->device)->pack(k->device, &(struct device_pack_args){.w = w,
                                                                             .part = part,
                                                                             .n_columns = row_bytes,
                                                                             .row_bytes = row_bytes,
                                                                             .rows = *rows});
    } else if (part == PACKED_CODES) {
        put_codes(k, w, rows);
    } else if (part == PACKED_SCALES) {
        put_scales(k, w, rows);
    } else {
        put_elements(1, w, (char *)(uintptr_t)w->zeros, rows);
    }
}
