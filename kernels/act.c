/* Quantizes activations once for all weights with the same group size, and again for a weight with
 * another group size. */
#include "kernels/act.h"

#include "kernels/ops.h"
#include "tensor/quant_rows.h"

enum { ALIGN = QUANT_ROWS_ALIGN };

static size_t aligned(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

size_t act_codes_bytes(size_t n_rows, size_t n)
{
    return quant_rows_bytes(n_rows, n);
}

static bool meets_codes(const struct packed *w)
{
    return w->quant.kind == QUANT_INT8 || w->quant.kind == QUANT_INT4 ||
           w->quant.kind == QUANT_MXFP4;
}

const struct quant_rows *act_codes_to_make(struct act_rows *rows, const struct packed *w)
{
    if (rows->memory == NULL || !meets_codes(w)) return NULL;
    const uint32_t group = quant_kernel_group(w->quant);
    const size_t n = rows->n_all > 0 ? rows->n_all : rows->n;
    const size_t n_groups = (n + group - 1) / group, n_params = rows->n_rows * n_groups;
    char *at = rows->memory;
    rows->codes = (struct quant_rows){.group = group, .n_groups = n_groups, .codes = (int8_t *)at};
    at += aligned(n_params * group);
    rows->codes.scales = (float *)at;
    at += aligned(n_params * sizeof(float));
    rows->codes.sums = (int32_t *)at;
    rows->own = rows->codes;
    rows->own.codes += rows->first;
    rows->own.scales += rows->first / group;
    rows->own.sums += rows->first / group;
    return &rows->own;
}

const struct quant_rows *act_codes(const struct kern_table *k, struct act_rows *rows,
                                   const struct packed *w)
{
    if (rows->memory == NULL || !meets_codes(w)) return NULL;
    if (rows->codes.group == quant_kernel_group(w->quant)) return &rows->codes;
    act_codes_to_make(rows, w);
    if (rows->n > 0) op_quantize_rows(k, rows->x, rows->stride, rows->n_rows, rows->n, &rows->own);
    return &rows->codes;
}

bool act_codes_replace(const struct act_rows *rows, const struct packed *w)
{
    return rows->memory != NULL && meets_codes(w) && rows->codes.group != 0 &&
           rows->codes.group != quant_kernel_group(w->quant);
}

bool act_codes_alike(const struct packed *a, const struct packed *b)
{
    return meets_codes(a) && meets_codes(b) &&
           quant_kernel_group(a->quant) == quant_kernel_group(b->quant);
}

void act_codes_scatter(const struct kern_table *k, struct act_rows *rows, const struct packed *w,
                       const struct quant_rows *from, const struct scatter_args *slots)
{
    act_codes_to_make(rows, w);
    struct scatter_args a = *slots;
    a.x = (const float *)(const void *)from->codes; /* copies words of four values each; a group
                                                       is a multiple of 32 values */
    a.to = (float *)(void *)rows->codes.codes;
    a.width = from->n_groups * from->group / sizeof(float);
    op_scatter_rows(k, &a);
    a.x = from->scales;
    a.to = rows->codes.scales;
    a.width = from->n_groups;
    op_scatter_rows(k, &a);
    a.x = (const float *)(const void *)from->sums;
    a.to = (float *)(void *)rows->codes.sums;
    op_scatter_rows(k, &a);
}

struct quant_rows act_codes_from(const struct quant_rows *all, size_t row)
{
    struct quant_rows from = *all;
    from.codes += row * all->n_groups * all->group;
    from.scales += row * all->n_groups;
    from.sums += row * all->n_groups;
    return from;
}
