/* Packed weights: their size, filling them from row-major memory, reading one output back. */
#include "kernels/ops.h"

#include "kernels/body.h"

size_t packed_bytes(enum dtype t, size_t n_out, size_t n_in)
{
    const size_t n_panels = n_out / PANEL_COLUMNS + (n_out % PANEL_COLUMNS != 0);
    size_t n;
    if (__builtin_mul_overflow(n_panels, PANEL_COLUMNS * dtype_bytes(t), &n) ||
        __builtin_mul_overflow(n, n_in, &n))
        return SIZE_MAX;
    return n;
}

/* Outputs [lane0, lane1) of one panel, from consecutive rows; n_bytes is 2 or 4, a constant. */
static inline void put_panel(size_t n_bytes, char *panel, size_t n_in, size_t lane0, size_t lane1,
                             const char *rows, size_t row_stride_bytes)
{
    for (size_t k = 0; k < n_in; k++) {
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
