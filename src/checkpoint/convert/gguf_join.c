#include "checkpoint/convert/gguf_join.h"

size_t gguf_join_scratch_bytes(const struct gguf_join *j, uint64_t n_rows)
{
    const uint64_t a = j->halves[0]->row_bytes, b = j->halves[1]->row_bytes;
    return (size_t)(n_rows * (a > b ? a : b));
}

bool gguf_join_format(const struct gguf_join *j, struct quant_format *out)
{
    struct quant_format other;
    return gguf_quant_format(j->halves[0]->quant, out) &&
           gguf_quant_format(j->halves[1]->quant, &other) && out->kind == other.kind &&
           out->group == other.group && out->scale_dtype == other.scale_dtype;
}

/* Rows that lie one after another in one of the halves. */
struct run {
    const struct gguf_tensor *t;
    uint64_t row0, n_rows;
};

/* Returns the run that begins with row `row` of the joined tensor and has at most n_max rows. */
static struct run run_at(const struct gguf_join *j, uint64_t row, uint64_t n_max)
{
    uint64_t n = 0;
    for (size_t i = 0; i < j->n_parts; i++) n += j->parts[i].n_rows;
    uint64_t at = row % n;
    const struct gguf_join_part *p = j->parts;
    while (at >= p->n_rows) at -= p++->n_rows;
    const uint64_t rest = p->n_rows - at;
    return (struct run){j->halves[p->half], p->first + row / n * p->n_rows + at,
                        rest < n_max ? rest : n_max};
}

struct status gguf_join_rows(const struct gguf *g, const struct gguf_join *j, uint64_t row0,
                             uint64_t n_rows, void *scratch, float *out)
{
    struct run run;
    for (uint64_t r = 0; r < n_rows; r += run.n_rows) {
        run = run_at(j, row0 + r, n_rows - r);
        TRY(gguf_read_floats(g, run.t, run.row0, run.n_rows, scratch, out + r * run.t->n_cols));
    }
    return status_ok();
}

struct status gguf_join_codes(const struct gguf *g, const struct gguf_join *j, uint64_t row0,
                              uint64_t n_rows, void *scratch, const struct quant_block *out,
                              bool *fits)
{
    struct run run;
    struct quant_format f;
    *fits = gguf_join_format(j, &f);
    const uint64_t n = j->halves[0]->n_cols, scale_bytes = dtype_bytes(quant_scale_dtype(f));
    for (uint64_t r = 0; *fits && r < n_rows; r += run.n_rows) {
        run = run_at(j, row0 + r, n_rows - r);
        const struct quant_block part = {
            .codes = (char *)out->codes + r * quant_code_bytes(f.kind, n),
            .scales = (char *)out->scales + r * quant_groups(f, n) * scale_bytes,
        };
        TRY(gguf_read_rows(g, run.t, run.row0, run.n_rows, scratch));
        *fits = gguf_codes(run.t->quant, scratch, run.n_rows, n, &part);
    }
    return status_ok();
}
