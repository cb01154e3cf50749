/* Packed weights: their size, filling them from row-major memory, reading one output back. */
#include "kernels/ops.h"

#include "kernels/body.h"
#include "kernels/cuda/ops_cuda.h"

size_t packed_bytes(enum dtype t, size_t n_out, size_t n_in)
{
    const size_t n_panels = n_out / PANEL_COLUMNS + (n_out % PANEL_COLUMNS != 0);
    size_t n;
    if (__builtin_mul_overflow(n_panels, PANEL_COLUMNS * dtype_bytes(t), &n) ||
        __builtin_mul_overflow(n, n_in, &n))
        return SIZE_MAX;
    return n;
}

typedef uint16_t u16x8 __attribute__((vector_size(16)));

/* Transposes 8 x 8: element j of row i becomes element i of row j. Unrolled, or the compiler keeps
 * the rows in memory. */
static inline void transpose(u16x8 r[8])
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

/* Eight consecutive outputs of one panel of 2-byte elements, 8 inputs at a time; returns the inputs
 * done. `panel` is at the first one's place. */
static size_t put_eight(char *panel, size_t n_in, const char *rows, size_t row_stride_bytes)
{
    size_t k = 0;
    for (; k + 8 <= n_in; k += 8) {
        u16x8 r[8];
        const char *from = rows + k * sizeof r[0][0];
        char *to = panel + k * PANEL_COLUMNS * sizeof r[0][0];
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++) memcpy(&r[i], from + i * row_stride_bytes, sizeof r[i]);
        transpose(r);
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++)
            memcpy(to + i * PANEL_COLUMNS * sizeof r[0][0], &r[i], sizeof r[i]);
    }
    return k;
}

/* Outputs [lane0, lane1) of one panel, from consecutive rows; n_bytes is 2 or 4, a constant. */
static inline void put_panel(size_t n_bytes, char *panel, size_t n_in, size_t lane0, size_t lane1,
                             const char *rows, size_t row_stride_bytes)
{
    size_t k = 0;
    if (n_bytes == 2 && (lane1 - lane0) % 8 == 0) {
        for (size_t lane = lane0; lane < lane1; lane += 8)
            k = put_eight(panel + lane * n_bytes, n_in, rows + (lane - lane0) * row_stride_bytes,
                          row_stride_bytes);
    }
    for (; k < n_in; k++) {
        char *out = panel + k * PANEL_COLUMNS * n_bytes;
        for (size_t lane = lane0; lane < lane1; lane++)
            memcpy(out + lane * n_bytes, rows + (lane - lane0) * row_stride_bytes + k * n_bytes,
                   n_bytes);
    }
}

void packed_put_rows(enum dtype t, void *data, size_t n_in, size_t row0, size_t n_rows,
                     const void *rows, size_t row_stride_bytes)
{
    const size_t n_bytes = dtype_bytes(t);
    for (size_t done = 0; done < n_rows;) {
        const size_t n = row0 + done, lane0 = n % PANEL_COLUMNS;
        const size_t room = PANEL_COLUMNS - lane0, left = n_rows - done;
        const size_t lane1 = lane0 + (left < room ? left : room);
        char *panel = (char *)data + n / PANEL_COLUMNS * PANEL_COLUMNS * n_in * n_bytes;
        const char *from = (const char *)rows + done * row_stride_bytes;
        if (n_bytes == 2)
            put_panel(2, panel, n_in, lane0, lane1, from, row_stride_bytes);
        else
            put_panel(4, panel, n_in, lane0, lane1, from, row_stride_bytes);
        done += lane1 - lane0;
    }
}

void packed_put_column(enum dtype t, void *data, size_t n_in, size_t k, size_t n_out,
                       const void *elements)
{
    const size_t n_bytes = dtype_bytes(t);
    for (size_t n = 0; n < n_out; n += PANEL_COLUMNS) {
        const size_t left = n_out - n, count = left < PANEL_COLUMNS ? left : PANEL_COLUMNS;
        char *panel = (char *)data + n * n_in * n_bytes;
        memcpy(panel + k * PANEL_COLUMNS * n_bytes, (const char *)elements + n * n_bytes,
               count * n_bytes);
    }
}

void op_place_weight(const struct kern_table *k, struct packed *w)
{
    w->flat = 0;
    if (k->device != NULL) cuda_place_weight(k->device, w);
}

size_t packed_bytes_of(const struct packed *w)
{
    if (w->flat == 0) return packed_bytes(w->dtype, w->n_out, w->n_in);
    size_t n;
    return __builtin_mul_overflow((size_t)w->flat * dtype_bytes(w->dtype), w->n_out, &n) ? SIZE_MAX
                                                                                         : n;
}

struct status op_check_weight(const struct kern_table *k, const struct packed *w)
{
    return w->flat != 0 ? cuda_check_weight(k->device, w) : status_ok();
}

void op_pack_rows(const struct kern_table *k, const struct packed *w, size_t row0, size_t n_rows,
                  const void *rows, size_t row_stride_bytes)
{
    if (k->device != NULL) {
        cuda_pack(k->device, &(struct cuda_pack_args){.w = w,
                                                      .row0 = row0,
                                                      .n_rows = n_rows,
                                                      .n_columns = w->n_in,
                                                      .rows = rows,
                                                      .row_bytes = w->n_in * dtype_bytes(w->dtype),
                                                      .row_stride_bytes = row_stride_bytes});
        return;
    }
    packed_put_rows(w->dtype, (void *)(uintptr_t)w->data, w->n_in, row0, n_rows, rows,
                    row_stride_bytes);
}

void op_pack_columns(const struct kern_table *k, const struct packed *w, size_t k0, size_t n,
                     const void *rows, size_t row_stride_bytes)
{
    if (k->device != NULL) {
        cuda_pack(k->device, &(struct cuda_pack_args){.w = w,
                                                      .transposed = true,
                                                      .row0 = k0,
                                                      .n_rows = n,
                                                      .n_columns = w->n_out,
                                                      .rows = rows,
                                                      .row_bytes = w->n_out * dtype_bytes(w->dtype),
                                                      .row_stride_bytes = row_stride_bytes});
        return;
    }
    for (size_t i = 0; i < n; i++)
        packed_put_column(w->dtype, (void *)(uintptr_t)w->data, w->n_in, k0 + i, w->n_out,
                          (const char *)rows + i * row_stride_bytes);
}

void op_embed_row(const struct packed *w, uint32_t id, float *out)
{
    if (w->quant.kind != QUANT_NONE) {
        for (size_t k = 0; k < w->n_in; k++) out[k] = packed_quant_value(w, id, k);
        return;
    }
    const size_t panel = (size_t)(id / PANEL_COLUMNS) * w->n_in;
    for (size_t k = 0; k < w->n_in; k++)
        out[k] = kern_load(w->dtype, w->data, (panel + k) * PANEL_COLUMNS + id % PANEL_COLUMNS);
}
