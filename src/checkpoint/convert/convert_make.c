/* Makes rows in one format from the values of rows in another format. */
#include "base/mem.h"
#include "checkpoint/convert/convert_private.h"
#include "quant/quantize.h"

#include <string.h>

static uint64_t part_bytes(const struct ckpt_tensor_spec *spec, enum ckpt_part part,
                           uint64_t n_rows)
{
    return (ckpt_spec_row_bytes(spec, part) * n_rows + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
}

uint64_t convert_rows_bytes(const struct ckpt_tensor_spec *spec, uint64_t n_rows)
{
    uint64_t n = 0;
    for (int i = 0; i < CKPT_PART_COUNT; i++) n += part_bytes(spec, (enum ckpt_part)i, n_rows);
    return n;
}

struct quant_block convert_rows_block(const struct convert_rows *r)
{
    char *scales = r->bytes + part_bytes(r->spec, CKPT_CODES, r->n_rows);
    char *zeros = scales + part_bytes(r->spec, CKPT_SCALES, r->n_rows);
    return (struct quant_block){.codes = r->bytes,
                                .scales = scales,
                                .zeros = r->spec->quant.has_zeros ? (uint8_t *)zeros : NULL};
}

struct status convert_reserve(void *buffer, size_t *n_bytes, size_t n_wanted)
{
    if (n_wanted <= *n_bytes) return status_ok();
    mem_free(buffer);
    *n_bytes = 0;
    TRY(mem_alloc(buffer, n_wanted, 1, "rows of the source"));
    *n_bytes = n_wanted;
    return status_ok();
}

/* Quantizes c->values by rounding. again: the values come from quantized rows, so the loss is
 * added. */
static struct status codes_make(struct convert *c, uint64_t row0, bool again,
                                const struct convert_rows *to)
{
    const struct quant_format f = to->spec->quant;
    const uint64_t n_cols = to->spec->dims[to->spec->n_dims - 1];
    const struct quant_block block = convert_rows_block(to);
    struct team *team = c->options->team;
    const uint64_t n_bad = quant_rtn_rows(team, f, c->values, to->n_rows, n_cols, &block);
    if (n_bad > 0) {
        return status_make(STATUS_INPUT,
                           "tensor %s: %llu values of %llu rows from row %llu on are not finite",
                           to->spec->name, (unsigned long long)n_bad,
                           (unsigned long long)to->n_rows, (unsigned long long)row0);
    }
    if (!again) return status_ok();
    const struct quant_values from = {.rows = c->values, .n_rows = to->n_rows, .n_in = n_cols};
    return quant_loss_add(team, f, &from, &block, &c->result.loss);
}

struct status convert_make(struct convert *c, const struct convert_rows *from, uint64_t row0,
                           const struct convert_rows *to)
{
    const bool from_codes = from->spec->quant.kind != QUANT_NONE;
    const uint64_t n_cols = from->spec->dims[from->spec->n_dims - 1];
    const size_t n = (size_t)(from->n_rows * n_cols);
    TRY(convert_reserve(&c->values, &c->n_values_bytes, n * sizeof c->values[0]));
    if (from_codes) {
        const struct quant_block block = convert_rows_block(from);
        quant_dequantize_rows(c->options->team, from->spec->quant, &block, from->n_rows, n_cols,
                              c->values);
    } else {
        dtype_to_f32(from->spec->dtype, from->bytes, n, c->values);
    }
    if (to->spec->quant.kind != QUANT_NONE) return codes_make(c, row0, from_codes, to);
    dtype_from_f32(to->spec->dtype, c->values, n, to->bytes);
    c->result.n_overflowed += dtype_count_overflowed(to->spec->dtype, c->values, n, to->bytes);
    return status_ok();
}
