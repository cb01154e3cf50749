/* Quantizes a layer's matrices. The ranks split the outputs among themselves; then every
 * rank gets all quantized values, because the next pass computes with them. */
#include "calibrate/calibrate_private.h"

#include "base/log.h"
#include "base/mem.h"
#include "kernels/ops.h"
#include "quant/fit.h"
#include "quant/quantize.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* How the members of a unit are rounded. */
struct rounding {
    const struct gptq *gptq; /* NULL: not by GPTQ */
    bool clipped;            /* clipping ranges are searched (AWQ) */
    struct status st;
};

static size_t rows_begin(const struct calib *c, size_t n_out, uint32_t rank)
{
    return n_out * rank / c->n_ranks;
}

/* Returns the rows of a member's block from row0 on. */
static struct quant_block member_block(const struct calib_member *m, size_t row0)
{
    const size_t n_in = m->w->n_in, groups = quant_groups(m->format, n_in);
    return (struct quant_block){
        .codes = (char *)m->block.codes + row0 * quant_code_bytes(m->format.kind, n_in),
        .scales =
            (char *)m->block.scales + row0 * groups * dtype_bytes(quant_scale_dtype(m->format)),
        .zeros = m->block.zeros == NULL ? NULL : m->block.zeros + row0 * groups};
}

/* True when a member's clipping range is searched (AWQ). As in the paper, q and k are not clipped,
 * because their outputs are multiplied with each other. */
static bool is_clipped(const struct rounding *how, const struct calib_member *m)
{
    return how->clipped && m->role != WEIGHT_Q && m->role != WEIGHT_K;
}

static struct status calib_quantize_round_rows(struct calib *c, const struct rounding *how,
                                               struct calib_member *m, size_t row0, size_t n_rows)
{
    const size_t n_in = m->w->n_in;
    const struct quant_block out = member_block(m, row0);
    float *rows = NULL;
    struct status st;
    uint64_t n_bad = 0;
    TRY(mem_alloc(&rows, n_rows * n_in, sizeof *rows, "rows to be rounded"));
    calib_member_rows(m, row0, n_rows, rows);
    st = status_ok();
    for (size_t i = 0; i < n_rows * n_in; i++) n_bad += !(__builtin_fabsf(rows[i]) < INFINITY);
    if (n_bad > 0) {
        st = status_make(STATUS_INPUT, "tensor %s: %llu values are not finite", m->tensor->name,
                         (unsigned long long)n_bad);
    } else if (how->gptq != NULL) {
        st = gptq_rows(how->gptq, m->format, rows, n_rows, &out);
    } else if (is_clipped(how, m)) {
        quant_clipped_rows(c->o->kern->team, m->format, rows, n_rows, n_in, c->full, &out);
    } else {
        quant_rtn_rows(c->o->kern->team, m->format, rows, n_rows, n_in, &out);
    }
    mem_free(&rows);
    return st;
}

static void share_part(struct calib *c, void *data, size_t n_out, size_t row_bytes)
{
    for (uint32_t r = 0; r < c->n_ranks && data != NULL; r++) {
        const size_t begin = rows_begin(c, n_out, r), end = rows_begin(c, n_out, r + 1);
        comm_broadcast(c->o->comm, COMM_WORLD, (int)r, (char *)data + begin * row_bytes,
                       (end - begin) * row_bytes);
    }
}

static struct status round_member(struct calib *c, const struct rounding *how,
                                  struct calib_member *m)
{
    const size_t n_out = m->w->n_out, n_in = m->w->n_in, groups = quant_groups(m->format, n_in);
    struct status st = quant_block_create(m->format, n_out, n_in, &m->block);
    if (!status_failed(&st)) {
        const size_t begin = rows_begin(c, n_out, c->rank);
        st = calib_quantize_round_rows(c, how, m, begin, rows_begin(c, n_out, c->rank + 1) - begin);
    }
    TRY(comm_agree(c->o->comm, st));
    share_part(c, m->block.codes, n_out, quant_code_bytes(m->format.kind, n_in));
    share_part(c, m->block.scales, n_out, groups * dtype_bytes(quant_scale_dtype(m->format)));
    share_part(c, m->block.zeros, n_out, groups);
    return status_ok();
}

/* Adds a member's output error, on evenly spread rows, to the report. Every rank has all values,
 * so all ranks add the same numbers in the same order. */
static struct status calib_quantize_add_error(struct calib *c, const struct calib_member *m)
{
    enum { ROWS = 64 };
    const size_t n_out = m->w->n_out, n_in = m->w->n_in, n = n_out < ROWS ? n_out : ROWS;
    float *before = NULL, *after = NULL;
    struct status st;
    double error, energy;
    TRY_GOTO(st, mem_alloc(&before, n * n_in, sizeof *before, "rows"), out);
    TRY_GOTO(st, mem_alloc(&after, n * n_in, sizeof *after, "rows"), out);
    for (size_t i = 0; i < n; i++) {
        const size_t row = i * n_out / n;
        const struct quant_block block = member_block(m, row);
        calib_member_rows(m, row, 1, before + i * n_in);
        quant_dequantize_rows(NULL, m->format, &block, 1, n_in, after + i * n_in);
    }
    for (size_t i = 0; i < n * n_in; i++) after[i] -= before[i];
    TRY_GOTO(st, hessian_error(c->o->kern->team, c->full, (uint32_t)n_in, after, n, &error), out);
    TRY_GOTO(st, hessian_error(c->o->kern->team, c->full, (uint32_t)n_in, before, n, &energy), out);
    c->report.error += error * (double)n_out / (double)n;
    c->report.energy += energy * (double)n_out / (double)n;
out:
    mem_free(&after);
    mem_free(&before);
    return st;
}

/* Replaces w by f32 values: dequantized ones, or plain rows into which scales are folded. */
static struct status show_values(struct calib_member *m)
{
    const size_t n_out = m->w->n_out, n_in = m->w->n_in;
    float *row = NULL;
    struct status st;
    TRY_GOTO(st, mem_alloc(&row, n_in, sizeof *row, "a row"), out);
    TRY_GOTO(st, mem_alloc(&m->values, packed_bytes(DTYPE_F32, n_out, n_in), 1, "values"), out);
    for (size_t r = 0; r < n_out; r++) {
        if (m->format.kind == QUANT_NONE) {
            calib_member_rows(m, r, 1, row);
        } else {
            const struct quant_block block = member_block(m, r);
            quant_dequantize_rows(NULL, m->format, &block, 1, n_in, row);
        }
        packed_put_rows(DTYPE_F32, m->values, n_in,
                        &(struct matrix_rows){.data = row, .row0 = r, .n = 1});
    }
    *m->w = (struct packed){.dtype = DTYPE_F32,
                            .n_out = (uint32_t)n_out,
                            .n_in = (uint32_t)n_in,
                            .leaf = m->w->leaf,
                            .grid_bits = m->w->grid_bits,
                            .data = m->values};
out:
    mem_free(&row);
    return st;
}

static bool is_scarce(const struct calib *c, const struct calib_unit *u)
{
    return u->h.n_tokens < c->o->min_tokens;
}

static void count_experts(struct calib *c, const struct calib_unit *u)
{
    if (u->site != TAP_EXPERT) return;
    c->report.n_experts_visited++;
    if (!is_scarce(c, u)) return;
    c->report.n_experts_rtn++;
    log_line(LOG_WARN,
             "layer %u, expert %u: %llu calibration tokens chose it, fewer than %llu; "
             "it is rounded to nearest",
             c->layer, u->expert, (unsigned long long)u->h.n_tokens,
             (unsigned long long)c->o->min_tokens);
}

/* Rounds a unit's members. c->full is the unit's H; if the unit's input has scales, this changes
 * c->full to the H of the scaled input. */
static struct status round_unit(struct calib *c, struct calib_unit *u, void *ctx)
{
    (void)ctx;
    struct gptq gptq = {0};
    struct rounding how = {.clipped = c->o->method == CALIBRATE_AWQ && !is_scarce(c, u)};
    struct status st = status_ok();
    if (u->members[0].s_in != NULL) awq_scale_moments(c->full, u->n_in, u->members[0].s_in);
    if (c->o->method == CALIBRATE_GPTQ && !is_scarce(c, u)) {
        st = gptq_create(c->o->kern->team, c->full, u->n_in, &c->o->gptq, &gptq);
        how.gptq = &gptq;
    }
    st = comm_agree(c->o->comm, st);
    for (uint32_t i = 0; i < u->n_members && !status_failed(&st); i++) {
        struct calib_member *m = &u->members[i];
        if (m->format.kind == QUANT_NONE) continue;
        st = round_member(c, &how, m);
        if (!status_failed(&st)) st = comm_agree(c->o->comm, calib_quantize_add_error(c, m));
    }
    gptq_destroy(&gptq);
    count_experts(c, u);
    return st;
}

struct status calib_quantize(struct calib *c)
{
    TRY(calib_visit_units(c, round_unit, NULL));
    struct status st = status_ok();
    for (uint32_t i = 0; i < c->n_members && !status_failed(&st); i++) {
        struct calib_member *m = &c->members[i];
        if (m->format.kind != QUANT_NONE || m->s_in != NULL) st = show_values(m);
        m->s_in = m->s_out = NULL; /* now folded into the values */
    }
    return comm_agree(c->o->comm, st);
}

/* ---- passing tensors to the sink ---- */

static struct status emit_plain(struct calib *c, const struct calib_member *m)
{
    const size_t n_out = m->w->n_out, n_in = m->w->n_in;
    float *rows = NULL;
    TRY(mem_alloc(&rows, n_out * n_in, sizeof *rows, m->tensor->name));
    calib_member_rows(m, 0, n_out, rows);
    const struct status st = c->o->sink.plain(c->o->sink.ctx, m->tensor, rows);
    mem_free(&rows);
    return st;
}

/* Passes the tensor of member `first` to the sink if it was changed, and no earlier member has it.
 * Members are in the order of the tensor's rows: expert by expert, and gate before up if one
 * tensor holds both. */
static struct status emit_tensor(struct calib *c, uint32_t first)
{
    const struct calib_member *m = &c->members[first];
    if (m->values == NULL) return status_ok();
    for (uint32_t i = 0; i < first; i++) {
        if (c->members[i].tensor == m->tensor) return status_ok();
    }
    if (m->format.kind == QUANT_NONE) return emit_plain(c, m);
    c->report.n_tensors++;
    TRY(c->o->sink.begin(c->o->sink.ctx, m->tensor, m->format));
    for (uint32_t i = first; i < c->n_members; i++) {
        const struct calib_member *part = &c->members[i];
        if (part->tensor != m->tensor) continue;
        TRY(c->o->sink.rows(c->o->sink.ctx, &part->block, part->w->n_out));
    }
    return status_ok();
}

/* Returns the description of the layer's tensor with a role; NULL if the layer has none. */
static const struct arch_tensor *layer_tensor(const struct calib *c, enum weight_role role)
{
    const uint64_t parts = arch_layer_parts(c->o->model, c->layer);
    const struct arch_tensor *t;
    for (size_t i = 0; (t = arch_tensor_at(i)) != NULL; i++) {
        if (t->role == role && (t->part & parts) != 0) return t;
    }
    return NULL;
}

static struct status emit_norm(struct calib *c, enum weight_role role, const float *values,
                               enum tap_site site)
{
    char full_name[128];
    const struct calib_unit *u = calib_unit_of(c, site, 0);
    if (u == NULL || u->s == NULL) return status_ok();
    arch_tensor_name(layer_tensor(c, role), c->o->model->family, c->layer, full_name,
                     sizeof full_name);
    return c->o->sink.plain(c->o->sink.ctx, ckpt_find(c->o->ckpt, full_name), values);
}

struct status calib_emit(struct calib *c)
{
    const struct layer *w = &c->weights->stage_layers[0];
    struct status st = status_ok();
    if (c->rank == 0) {
        st = emit_norm(c, WEIGHT_ATTN_NORM, w->attn_norm, TAP_ATTENTION);
        if (!status_failed(&st))
            st = emit_norm(c, WEIGHT_Q_A_NORM, w->attention.latent.q_a_norm, TAP_Q_LATENT);
        if (!status_failed(&st)) st = emit_norm(c, WEIGHT_FFN_NORM, w->ffn_norm, TAP_FFN);
        for (uint32_t i = 0; i < c->n_members && !status_failed(&st); i++) st = emit_tensor(c, i);
    }
    return comm_agree(c->o->comm, st);
}
