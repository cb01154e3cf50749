/* The loop over the layers: statistics, scales, quantized values, then the layer's outputs for the
 * next layer. */
#include "calibrate/calibrate.h"

#include "base/log.h"
#include "base/mem.h"
#include "calibrate/calibrate_private.h"
#include "quant/quantize.h"

#include <stdio.h>

struct status calibrate_layout(const struct layout_model *m, uint32_t n_ranks, struct layout *out)
{
    const struct layout_flags flags = {.tp = 1, .pp = 1, .ep = 1, .dp = n_ranks};
    return layout_build(m, n_ranks, &flags, out);
}

/* ---- the calibration set ---- */

static struct status make_hidden(struct calib *c)
{
    const struct calibrate_options *o = c->o;
    TRY(mem_alloc(&c->hidden, o->n_seqs, sizeof *c->hidden, "calibration set"));
    TRY(mem_alloc(&c->buffers, o->n_seqs, sizeof *c->buffers, "calibration set"));
    for (size_t i = 0; i < o->n_seqs; i++) {
        const size_t n = o->first[i + 1] - o->first[i];
        if (n > c->longest) c->longest = n;
        if (i % c->n_ranks != c->rank) continue;
        TRY(mem_alloc(&c->buffers[i], hidden_bytes(n, o->model->width), 1, "hidden rows"));
        c->hidden[i] = hidden_view(c->buffers[i], n, o->model->width);
    }
    const size_t n_blocks = (c->longest + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    TRY(mem_alloc(&c->blocks, n_blocks, sizeof *c->blocks, "KV blocks"));
    for (size_t i = 0; i < n_blocks; i++) c->blocks[i] = (int32_t)i;
    return mem_alloc(&c->scratch, hidden_bytes(c->longest, o->model->width), 1, "hidden rows");
}

/* Makes a layout with one layer per stage, so that the loader reads one layer at a time. */
static struct status calibrate_make_layout(struct calib *c)
{
    const uint32_t n_layers = c->o->model->n_layers;
    const struct layout_flags flags = {.tp = 1, .pp = n_layers, .ep = 1, .dp = 1};
    TRY(mem_alloc(&c->layout, 1, sizeof *c->layout, "layout"));
    return layout_build(c->o->layout_model, n_layers, &flags, c->layout);
}

static struct status calibrate_check(const struct calib *c)
{
    for (size_t i = 0; i < ckpt_tensor_count(c->o->ckpt); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(c->o->ckpt, i);
        if (t->quant.kind == QUANT_NONE) continue;
        return status_make(STATUS_USAGE,
                           "%s: tensor %s is quantized already, and calibrating needs floats; only "
                           "rounding (--method rtn without --calibration) starts from codes",
                           ckpt_path(c->o->ckpt), t->name);
    }
    if (c->o->model->delta.n_key_heads > 0) {
        return status_make(STATUS_USAGE,
                           "--calibration: not implemented for the %s of %s; rounding (--method "
                           "rtn without --calibration) is",
                           c->o->model->delta.is_mamba ? "Mamba-2 scan" : "gated delta rule",
                           c->o->model->family->title);
    }
    if (c->o->model->compression.o_groups > 0) {
        return status_make(STATUS_USAGE,
                           "--calibration: not implemented for the compressed attention of %s; "
                           "rounding (--method rtn without --calibration) is",
                           c->o->model->family->title);
    }
    if (c->o->model->family->stepped) {
        return status_make(
            STATUS_USAGE,
            "--calibration: not implemented for %s, whose FFNs have limits and whose "
            "kinds of layers differ in heads; rounding (--method rtn without "
            "--calibration) is",
            c->o->model->family->title);
    }
    if (c->o->model->attn.n_full_kv_heads > 0) {
        return status_make(STATUS_USAGE,
                           "--calibration: not implemented for %s, whose layers without a window "
                           "have KV heads of another number or width; rounding (--method rtn "
                           "without --calibration) is",
                           c->o->model->family->title);
    }
    if (c->o->model->sub_norms) {
        return status_make(STATUS_USAGE,
                           "--calibration: not implemented for %s, whose output projections read "
                           "normed rows; rounding (--method rtn without --calibration) is",
                           c->o->model->family->title);
    }
    for (uint32_t l = 0; l < c->o->model->n_layers; l++) {
        if (!arch_continues(c->o->model, l)) continue;
        return status_make(STATUS_USAGE,
                           "--calibration: layer %u of %s continues the one before it, and "
                           "calibrating runs one layer at a time; rounding (--method rtn without "
                           "--calibration) is implemented",
                           l, c->o->model->family->title);
    }
    if (c->o->n_seqs > 0) return status_ok();
    return status_make(STATUS_USAGE, "--calibration: no prompt in it");
}

static struct status calibrate_start(struct calib *c)
{
    struct status st = calibrate_check(c);
    if (!status_failed(&st)) st = calibrate_make_layout(c);
    if (!status_failed(&st)) st = make_hidden(c);
    return comm_agree(c->o->comm, st);
}

static void calibrate_stop(struct calib *c)
{
    calib_unload(c);
    for (size_t i = 0; c->buffers != NULL && i < c->o->n_seqs; i++) mem_free(&c->buffers[i]);
    mem_free(&c->buffers);
    mem_free(&c->hidden);
    mem_free(&c->scratch);
    mem_free(&c->blocks);
    mem_free(&c->mine.seen);
    mem_free(&c->mine.rows);
    mem_free(&c->theirs.seen);
    mem_free(&c->theirs.rows);
    mem_free(&c->layout);
}

static void embed(struct calib *c)
{
    for (size_t i = c->rank; i < c->o->n_seqs; i += c->n_ranks) {
        stage_embed(c->stage, c->o->tokens + c->o->first[i], &c->hidden[i]);
    }
}

/* ---- layers ---- */

typedef struct status layer_work(struct calib *c, void *ctx);

static struct status quantize_layer(struct calib *c, void *ctx)
{
    (void)ctx;
    TRY(calib_scale(c));
    TRY(calib_quantize(c));
    return calib_emit(c);
}

static struct status run_layers(struct calib *c, layer_work *work, void *ctx)
{
    for (uint32_t layer = 0; layer < c->o->model->n_layers; layer++) {
        TRY(calib_load(c, layer));
        if (layer == 0) embed(c);
        TRY(work(c, ctx));
        TRY(calib_forward(c));
        calib_unload(c);
        log_line(LOG_INFO, "layer %u of %u calibrated", layer + 1, c->o->model->n_layers);
    }
    return status_ok();
}

static struct calib calib_of(const struct calibrate_options *o)
{
    return (struct calib){.o = o,
                          .rank = (uint32_t)comm_rank(o->comm, COMM_WORLD),
                          .n_ranks = (uint32_t)comm_size(o->comm, COMM_WORLD)};
}

struct status calibrate_run(const struct calibrate_options *o, struct calibrate_report *report)
{
    struct calib c = calib_of(o);
    struct status st = calibrate_start(&c);
    if (!status_failed(&st)) st = run_layers(&c, quantize_layer, NULL);
    *report = c.report;
    calibrate_stop(&c);
    return st;
}

/* ---- sensitivity ---- */

struct sensing {
    const struct quant_format *formats;
    uint32_t n_formats;
    struct calibrate_error *out; /* owned [n], until it is passed to the caller */
    double *energy;              /* owned [n] */
    size_t n, capacity;
};

/* Finds or adds the entry of a tensor. Experts are visited one by one; all experts of one tensor
 * share its entry. */
static struct status entry_of(struct sensing *s, const struct ckpt_tensor *t, size_t *at)
{
    for (*at = s->n; *at > 0; (*at)--) {
        if (s->out[*at - 1].tensor != t) continue;
        (*at)--;
        return status_ok();
    }
    if (s->n == s->capacity) {
        const size_t want = 2 * s->capacity + 16;
        TRY(mem_grow(&s->out, s->n, want, sizeof *s->out, "sensitivities"));
        TRY(mem_grow(&s->energy, s->n, want, sizeof *s->energy, "sensitivities"));
        s->capacity = want;
    }
    *at = s->n++;
    s->out[*at].tensor = t;
    return status_ok();
}

/* d [n_rows, n_in] = the change of the weights by RTN in format f; *error = the output error of d.
 */
static struct status rtn_error(struct calib *c, struct quant_format f, const float *rows,
                               size_t n_rows, size_t n_in, float *d, double *error)
{
    struct quant_block block;
    TRY(quant_block_create(f, n_rows, n_in, &block));
    quant_rtn_rows(c->o->kern->team, f, rows, n_rows, n_in, &block);
    quant_dequantize_rows(c->o->kern->team, f, &block, n_rows, n_in, d);
    quant_block_destroy(&block);
    for (size_t i = 0; i < n_rows * n_in; i++) d[i] -= rows[i];
    return hessian_error(c->o->kern->team, c->full, (uint32_t)n_in, d, n_rows, error);
}

static struct status sense_member(struct calib *c, struct sensing *s, const struct calib_member *m)
{
    float *rows = NULL, *d = NULL;
    size_t n_rows, at;
    struct status st;
    double error;
    const uint32_t n_in = m->w->n_in;
    TRY_GOTO(st, calib_some_rows(m, &rows, &n_rows), out);
    TRY_GOTO(st, entry_of(s, m->tensor, &at), out);
    TRY_GOTO(st, mem_alloc(&d, n_rows * n_in, sizeof *d, "rows"), out);
    TRY_GOTO(st, hessian_error(c->o->kern->team, c->full, n_in, rows, n_rows, &error), out);
    s->energy[at] += error;
    for (uint32_t f = 0; f < s->n_formats; f++) {
        TRY_GOTO(st, rtn_error(c, s->formats[f], rows, n_rows, n_in, d, &error), out);
        s->out[at].error[f] += error;
    }
out:
    mem_free(&d);
    mem_free(&rows);
    return st;
}

static struct status sense_unit(struct calib *c, struct calib_unit *u, void *ctx)
{
    struct status st = status_ok();
    for (uint32_t i = 0; i < u->n_members && !status_failed(&st); i++) {
        if (u->members[i].format.kind == QUANT_NONE) continue;
        st = sense_member(c, ctx, &u->members[i]);
    }
    return comm_agree(c->o->comm, st);
}

static struct status sense_layer(struct calib *c, void *ctx)
{
    return calib_visit_units(c, sense_unit, ctx);
}

struct status calibrate_sensitivity(const struct calibrate_options *o,
                                    const struct quant_format *formats, uint32_t n_formats,
                                    struct calibrate_error **out, size_t *n)
{
    struct calib c = calib_of(o);
    struct sensing s = {.formats = formats, .n_formats = n_formats};
    struct status st = calibrate_start(&c);
    if (!status_failed(&st)) st = run_layers(&c, sense_layer, &s);
    for (size_t i = 0; i < s.n; i++) {
        for (uint32_t f = 0; f < n_formats && s.energy[i] > 0; f++) {
            s.out[i].error[f] /= s.energy[i];
        }
    }
    calibrate_stop(&c);
    mem_free(&s.energy);
    if (status_failed(&st)) mem_free(&s.out);
    *out = s.out;
    *n = status_failed(&st) ? 0 : s.n;
    return st;
}
