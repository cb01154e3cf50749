/* Packed weights: their size, packing from row-major memory, reading one output back. */
#include "kernels/ops.h"

#include "kernels/body.h"
#include "kernels/device_ops.h"
#include "kernels/ref/ref.h"

size_t packed_bytes(enum dtype t, size_t n_out, size_t n_in)
{
    const size_t n_panels = n_out / PANEL_COLUMNS + (n_out % PANEL_COLUMNS != 0);
    size_t n;
    if (__builtin_mul_overflow(n_panels, PANEL_COLUMNS * dtype_bytes(t), &n) ||
        __builtin_mul_overflow(n, n_in, &n))
        return SIZE_MAX;
    return n;
}

/* Packs elements of n_bytes (2 or 4, constant) of the outputs [lane0, lane1) of one panel. */
static inline void put_lanes(size_t n_bytes, char *panel, size_t n_in, size_t lane0, size_t lane1,
                             const char *rows, size_t row_stride_bytes)
{
    for (size_t k = 0; k < n_in; k++) {
        char *out = panel + k * PANEL_COLUMNS * n_bytes;
        for (size_t lane = lane0; lane < lane1; lane++)
            memcpy(out + lane * n_bytes, rows + (lane - lane0) * row_stride_bytes + k * n_bytes,
                   n_bytes);
    }
}

static void put_rows(const struct kern_table *k, const struct packed *w, size_t row0, size_t n_rows,
                     const char *rows, size_t row_stride_bytes)
{
    const size_t n_bytes = dtype_bytes(w->dtype);
    for (size_t done = 0; done < n_rows;) {
        const size_t n = row0 + done, lane0 = n % PANEL_COLUMNS;
        const size_t room = PANEL_COLUMNS - lane0, left = n_rows - done;
        const size_t lane1 = lane0 + (left < room ? left : room);
        char *panel =
            (char *)(uintptr_t)w->data + n / PANEL_COLUMNS * PANEL_COLUMNS * w->n_in * n_bytes;
        const char *from = rows + done * row_stride_bytes;
        const bool whole = lane1 - lane0 == PANEL_COLUMNS;
        if (whole && n_bytes == 2)
            k->pack_halves(from, row_stride_bytes, w->n_in, panel);
        else if (whole)
            k->pack_words(PACK_WORDS_PLAIN, from, row_stride_bytes, w->n_in, panel);
        else if (n_bytes == 2)
            put_lanes(2, panel, w->n_in, lane0, lane1, from, row_stride_bytes);
        else
            put_lanes(4, panel, w->n_in, lane0, lane1, from, row_stride_bytes);
        done += lane1 - lane0;
    }
}

void packed_put_rows(enum dtype t, void *data, size_t n_in, size_t row0, size_t n_rows,
                     const void *rows, size_t row_stride_bytes)
{
    static const struct kern_table plain = {.pack_halves = k_pack_halves_ref,
                                            .pack_words = k_pack_words_ref};
    const struct packed w = {.dtype = t, .n_in = (uint32_t)n_in, .data = data};
    put_rows(&plain, &w, row0, n_rows, rows, row_stride_bytes);
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
    if (k->device != NULL) device_ops_of(k->device)->place_weight(k->device, w);
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
    return w->flat != 0 ? device_ops_of(k->device)->check_weight(k->device, w) : status_ok();
}

void op_pack_rows(const struct kern_table *k, const struct packed *w, size_t row0, size_t n_rows,
                  const void *rows, size_t row_stride_bytes)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->pack(
            k->device, &(struct device_pack_args){.w = w,
                                                  .row0 = row0,
                                                  .n_rows = n_rows,
                                                  .n_columns = w->n_in,
                                                  .rows = rows,
                                                  .row_bytes = w->n_in * dtype_bytes(w->dtype),
                                                  .row_stride_bytes = row_stride_bytes});
        return;
    }
    put_rows(k, w, row0, n_rows, rows, row_stride_bytes);
}

void op_pack_columns(const struct kern_table *k, const struct packed *w, size_t k0, size_t n,
                     const void *rows, size_t row_stride_bytes)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->pack(
            k->device, &(struct device_pack_args){.w = w,
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
