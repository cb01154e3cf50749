/* Packed weights: their layout and its check, their size, packing from row-major memory, unpacking
 * the weights of one output. */
#include "kernels/ops.h"

#include "kernels/body.h"
#include "kernels/device_ops.h"
#include "kernels/ref/ref.h"

#include <assert.h>

size_t packed_bytes(enum dtype t, size_t n_out, size_t n_in)
{
    const size_t n_panels = n_out / PANEL_COLUMNS + (n_out % PANEL_COLUMNS != 0);
    size_t n;
    if (__builtin_mul_overflow(n_panels, PANEL_COLUMNS * dtype_bytes(t), &n) ||
        __builtin_mul_overflow(n, n_in, &n))
        return SIZE_MAX;
    return n;
}

/* Packs elements of n_bytes (2 or 4, constant) of some outputs of one panel. rows->row0 counts
 * from the panel's first output. */
static inline void put_lanes(size_t n_bytes, char *panel, size_t n_in,
                             const struct matrix_rows *rows)
{
    for (size_t k = 0; k < n_in; k++) {
        char *out = panel + (k * PANEL_COLUMNS + rows->row0) * n_bytes;
        for (size_t i = 0; i < rows->n; i++)
            memcpy(out + i * n_bytes,
                   (const char *)rows->data + i * rows->stride_bytes + k * n_bytes, n_bytes);
    }
}

static void put_rows(const struct kern_table *k, const struct packed *w,
                     const struct matrix_rows *rows)
{
    const size_t n_bytes = dtype_bytes(w->dtype), stride = rows->stride_bytes;
    for (size_t done = 0; done < rows->n;) {
        const size_t n = rows->row0 + done, lane = n % PANEL_COLUMNS;
        const size_t room = PANEL_COLUMNS - lane, left = rows->n - done;
        char *panel =
            (char *)(uintptr_t)w->data + n / PANEL_COLUMNS * PANEL_COLUMNS * w->n_in * n_bytes;
        const struct matrix_rows lanes = {.data = (const char *)rows->data + done * stride,
                                          .stride_bytes = stride,
                                          .row0 = lane,
                                          .n = left < room ? left : room};
        if (lanes.n == PANEL_COLUMNS && n_bytes == 2)
            k->pack_halves(lanes.data, stride, w->n_in, panel);
        else if (lanes.n == PANEL_COLUMNS)
            k->pack_words(PACK_WORDS_PLAIN, lanes.data, stride, w->n_in, panel);
        else if (n_bytes == 2)
            put_lanes(2, panel, w->n_in, &lanes);
        else
            put_lanes(4, panel, w->n_in, &lanes);
        done += lanes.n;
    }
}

void packed_put_rows(enum dtype t, void *data, size_t n_in, const struct matrix_rows *rows)
{
    static const struct kern_table plain = {.pack_halves = k_pack_halves_ref,
                                            .pack_words = k_pack_words_ref};
    const struct packed w = {.dtype = t, .n_in = (uint32_t)n_in, .data = data};
    put_rows(&plain, &w, rows);
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
    const size_t row = (size_t)w->flat * dtype_bytes(w->dtype);
    const size_t rows = ((size_t)w->n_out + PACKED_FLAT_OUTPUTS - 1) / PACKED_FLAT_OUTPUTS;
    size_t n;
    return __builtin_mul_overflow(row, rows * PACKED_FLAT_OUTPUTS, &n) ? SIZE_MAX : n;
}

struct status op_check_weight(const struct kern_table *k, const struct packed *w)
{
    return w->flat != 0 ? device_ops_of(k->device)->check_weight(k->device, w) : status_ok();
}

void op_pack_rows(const struct kern_table *k, const struct packed *w,
                  const struct matrix_rows *rows)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->pack(
            k->device, &(struct device_pack_args){.w = w,
                                                  .n_columns = w->n_in,
                                                  .row_bytes = w->n_in * dtype_bytes(w->dtype),
                                                  .rows = *rows});
        return;
    }
    put_rows(k, w, rows);
}

void op_pack_columns(const struct kern_table *k, const struct packed *w,
                     const struct matrix_rows *rows)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->pack(
            k->device, &(struct device_pack_args){.w = w,
                                                  .transposed = true,
                                                  .n_columns = w->n_out,
                                                  .row_bytes = w->n_out * dtype_bytes(w->dtype),
                                                  .rows = *rows});
        return;
    }
    for (size_t i = 0; i < rows->n; i++)
        packed_put_column(w->dtype, (void *)(uintptr_t)w->data, w->n_in, rows->row0 + i, w->n_out,
                          (const char *)rows->data + i * rows->stride_bytes);
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

struct packed packed_outputs(const struct packed *w, size_t first, size_t n)
{
    struct packed part = *w;
    assert(w->flat == 0 && first % PANEL_COLUMNS == 0 && n % PANEL_COLUMNS == 0);
    part.n_out = (uint32_t)n;
    if (w->quant.kind == QUANT_NONE) {
        part.data = (const char *)w->data + packed_bytes(w->dtype, first, w->n_in);
        return part;
    }
    const struct packed_quant_sizes before = packed_quant_bytes(w->quant, first, w->n_in);
    part.data = (const char *)w->data + before.data;
    part.scales = (const char *)w->scales + before.scales;
    if (w->zeros != NULL) part.zeros = w->zeros + before.zeros;
    return part;
}
