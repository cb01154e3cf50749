/* Packed quantized weights: their sizes, filling them from the checkpoint's rows, reading one
 * element back. */
#include "kernels/ops.h"

#include "kernels/cuda/ops_cuda.h"
#include "kernels/quant_body.h"

enum { BYTES_AT_ONCE = 4 };

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

/* Eight nibbles in the checkpoint's order (even input low) to the kernels': input j low, 4 + j
 * high, of byte j. */
static inline uint32_t split_nibbles(uint32_t v)
{
    const uint32_t first = v & 0xFFFFu, last = v >> 16; /* inputs 0..3 and 4..7 */
    const uint32_t low =
        (first & 0xFu) | (first & 0xF0u) << 4 | (first & 0xF00u) << 8 | (first & 0xF000u) << 12;
    const uint32_t high =
        (last & 0xFu) | (last & 0xF0u) << 4 | (last & 0xF00u) << 8 | (last & 0xF000u) << 12;
    return low | high << 4;
}

static inline uint32_t packed_word(struct quant_format f, uint32_t v)
{
    if (quant_is_nibbles(f.kind)) return split_nibbles(v);
    return f.kind == QUANT_INT8 && !f.has_zeros ? v ^ 0x80808080u : v;
}

/* One output's codes: a word for each of the panel's vectors. */
static void put_row(struct quant_format f, uint8_t *lane, const uint8_t *row, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i += BYTES_AT_ONCE) {
        const size_t left = n_bytes - i;
        uint32_t v = 0;
        if (left >= BYTES_AT_ONCE)
            memcpy(&v, row + i, BYTES_AT_ONCE);
        else
            memcpy(&v, row + i, left);
        v = packed_word(f, v);
        memcpy(lane + i * PANEL_COLUMNS, &v, BYTES_AT_ONCE);
    }
}

void packed_quant_put_codes(struct quant_format f, void *data, size_t n_in, size_t row0,
                            size_t n_rows, const void *rows, size_t row_stride_bytes)
{
    const size_t n_bytes = quant_code_bytes(f.kind, n_in);
    const size_t panel_bytes = kern_quant_panel_bytes(f, n_in);
    for (size_t i = 0; i < n_rows; i++) {
        const size_t n = row0 + i;
        put_row(f,
                (uint8_t *)data + n / PANEL_COLUMNS * panel_bytes + n % PANEL_COLUMNS * QUANT_QUAD,
                (const uint8_t *)rows + i * row_stride_bytes, n_bytes);
    }
}

/* Elements of `size` bytes, one for each group; per channel one is repeated. */
static inline void put_elements(struct quant_format f, size_t size, char *out, size_t n_in,
                                size_t row0, size_t n_rows, const char *rows,
                                size_t row_stride_bytes)
{
    const size_t n_groups = kern_quant_groups(f, n_in);
    for (size_t i = 0; i < n_rows; i++) {
        const size_t n = row0 + i;
        for (size_t g = 0; g < n_groups; g++) {
            const size_t at = (n / PANEL_COLUMNS * n_groups + g) * PANEL_COLUMNS;
            memcpy(out + (at + n % PANEL_COLUMNS) * size,
                   rows + i * row_stride_bytes + (f.group == 0 ? 0 : g * size), size);
        }
    }
}

void packed_quant_put_scales(struct quant_format f, void *scales, size_t n_in, size_t row0,
                             size_t n_rows, const void *rows, size_t row_stride_bytes)
{
    if (kern_quant_scale_bytes(f) == 1)
        put_elements(f, 1, scales, n_in, row0, n_rows, rows, row_stride_bytes);
    else if (kern_quant_scale_bytes(f) == 2)
        put_elements(f, 2, scales, n_in, row0, n_rows, rows, row_stride_bytes);
    else
        put_elements(f, 4, scales, n_in, row0, n_rows, rows, row_stride_bytes);
}

void packed_quant_put_zeros(struct quant_format f, uint8_t *zeros, size_t n_in, size_t row0,
                            size_t n_rows, const uint8_t *rows, size_t row_stride_bytes)
{
    put_elements(f, 1, (char *)zeros, n_in, row0, n_rows, (const char *)rows, row_stride_bytes);
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
                   size_t row0, size_t n_rows, const void *rows, size_t row_stride_bytes)
{
    if (k->device != NULL) {
        const size_t row_bytes = part_row_bytes(w, part);
        cuda_pack(k->device, &(struct cuda_pack_args){.w = w,
                                                      .part = part,
                                                      .row0 = row0,
                                                      .n_rows = n_rows,
                                                      .n_columns = row_bytes,
                                                      .rows = rows,
                                                      .row_bytes = row_bytes,
                                                      .row_stride_bytes = row_stride_bytes});
    } else if (part == PACKED_CODES) {
        packed_quant_put_codes(w->quant, (void *)(uintptr_t)w->data, w->n_in, row0, n_rows, rows,
                               row_stride_bytes);
    } else if (part == PACKED_SCALES) {
        packed_quant_put_scales(w->quant, (void *)(uintptr_t)w->scales, w->n_in, row0, n_rows, rows,
                                row_stride_bytes);
    } else {
        packed_quant_put_zeros(w->quant, (uint8_t *)(uintptr_t)w->zeros, w->n_in, row0, n_rows,
                               rows, row_stride_bytes);
    }
}
