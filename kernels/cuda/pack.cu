/* Packs weights, as they arrive on the device, into panels (packed tiles); pack_rows also fills
 * flat (row-major) weights. kern.h describes the layouts. */
#include "kernels/cuda/dialect.h"
#include "kernels/ops.h"
#include "kernels/quant_body.h"

/* Packs rows of outputs, with one thread per element of a row. */
BLOCK_INLINE void pack_rows_block(const struct pack_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t k = (size_t)b.x * CUDA_THREADS + t, n = a->row0 + b.y, n_in = a->w.n_in;
        const char *row = (const char *)a->rows + b.y * a->row_stride_bytes;
        const size_t to = a->w.flat != 0
                              ? n * a->w.flat + k
                              : (n / PANEL_COLUMNS * n_in + k) * PANEL_COLUMNS + n % PANEL_COLUMNS;
        if (k < n_in) {
            if (a->w.dtype == DTYPE_F32)
                ((uint32_t *)(uintptr_t)a->w.data)[to] = ((const uint32_t *)(const void *)row)[k];
            else
                ((uint16_t *)(uintptr_t)a->w.data)[to] = ((const uint16_t *)(const void *)row)[k];
        }
    }
}
CUDA_KERNEL(pack_rows, pack_work)

/* Packs transposed rows: row b.y holds input row0 + b.y of all outputs. */
BLOCK_INLINE void pack_columns_block(const struct pack_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t n = (size_t)b.x * CUDA_THREADS + t, k = a->row0 + b.y;
        const char *row = (const char *)a->rows + b.y * a->row_stride_bytes;
        const size_t to = (n / PANEL_COLUMNS * a->w.n_in + k) * PANEL_COLUMNS + n % PANEL_COLUMNS;
        if (n < a->w.n_out) {
            if (a->w.dtype == DTYPE_F32)
                ((uint32_t *)(uintptr_t)a->w.data)[to] = ((const uint32_t *)(const void *)row)[n];
            else
                ((uint16_t *)(uintptr_t)a->w.data)[to] = ((const uint16_t *)(const void *)row)[n];
        }
    }
}
CUDA_KERNEL(pack_columns, pack_work)

/* Writes byte `byte` of output n's quantized values in the panel. A byte of nibbles in `row` has
 * the even input in its low half. In the panel, byte j of eight inputs has input j in
 * its low half and input 4 + j in its high half. */
BLOCK_INLINE void pack_code(const struct pack_work *a, size_t n, size_t byte, const uint8_t *row)
{
    uint8_t *panel = (uint8_t *)(uintptr_t)a->w.data +
                     n / PANEL_COLUMNS * kern_quant_panel_bytes(a->w.quant, a->w.n_in);
    uint8_t *quad = panel + (byte / QUANT_QUAD * PANEL_COLUMNS + n % PANEL_COLUMNS) * QUANT_QUAD;
    if (!quant_is_nibbles(a->w.quant.kind)) {
        const bool biased = a->w.quant.kind == QUANT_INT8 && !a->w.quant.has_zeros;
        quad[byte % QUANT_QUAD] = row[byte] ^ (biased ? 0x80 : 0);
        return;
    }
    const size_t j = byte % QUANT_QUAD, first = byte - j;
    const size_t low = first + j / 2, high = first + 2 + j / 2;
    const uint8_t from_low = low < a->n_columns ? row[low] : 0;
    const uint8_t from_high = high < a->n_columns ? row[high] : 0;
    const int shift = j % 2 == 0 ? 0 : 4;
    quad[j] = (uint8_t)((from_low >> shift & 15) | (from_high >> shift & 15) << 4);
}

/* Writes one scale or zero point of group g. A per-channel scale is written for every group. */
BLOCK_INLINE void pack_element(const struct pack_work *a, size_t n, size_t g, const char *row)
{
    const size_t from = a->w.quant.group == 0 ? 0 : g, to = kern_quant_scale_index(&a->w, n, g);
    if (a->part == PACKED_ZEROS)
        ((uint8_t *)(uintptr_t)a->w.zeros)[to] = ((const uint8_t *)row)[from];
    else if (a->w.quant.kind == QUANT_MXFP4)
        ((uint8_t *)(uintptr_t)a->w.scales)[to] = ((const uint8_t *)row)[from];
    else if (a->w.quant.scale_dtype == DTYPE_F16)
        ((uint16_t *)(uintptr_t)a->w.scales)[to] = ((const uint16_t *)(const void *)row)[from];
    else
        ((uint32_t *)(uintptr_t)a->w.scales)[to] = ((const uint32_t *)(const void *)row)[from];
}

BLOCK_INLINE void pack_quant_block(const struct pack_work *a, struct cuda_block b, void *shared)
{
    const char *row = (const char *)a->rows + b.y * a->row_stride_bytes;
    (void)shared;
    FOR_THREADS(t)
    {
        const size_t i = (size_t)b.x * CUDA_THREADS + t, n = a->row0 + b.y;
        if (a->part == PACKED_CODES) {
            const size_t quads = (a->n_columns + QUANT_QUAD - 1) / QUANT_QUAD * QUANT_QUAD;
            const bool is_byte = !quant_is_nibbles(a->w.quant.kind);
            if (i < (is_byte ? a->n_columns : quads)) pack_code(a, n, i, (const uint8_t *)row);
        } else if (i < kern_quant_groups(a->w.quant, a->w.n_in)) {
            pack_element(a, n, i, row);
        }
    }
}
CUDA_KERNEL(pack_quant, pack_work)
