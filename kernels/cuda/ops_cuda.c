/* Ops as kernel launches: chooses the grid of each op and passes the op's arguments to the device.
 * Linears are in linear_cuda.c. */
#include "kernels/cuda/ops_cuda.h"

#include "kernels/cuda/device_state.h"
#include "kernels/cuda/graphs.h"

#include <assert.h>
#include <string.h>

static uint32_t chunks(size_t n)
{
    return (uint32_t)((n + CUDA_THREADS - 1) / CUDA_THREADS);
}

/* Launches one thread for each of `width` elements of each row. */
static void launch_rows(struct device *d, enum cuda_kernel kernel, size_t n_rows, size_t width,
                        const void *args)
{
    device_launch(d, kernel, (struct cuda_grid){chunks(width), (uint32_t)n_rows, 1, 0}, args);
}

/* --- the step ------------------------------------------------------------------------------ */

static size_t count_blocks(const struct seq_rows *seqs, size_t n_seqs)
{
    size_t n = 0;
    for (size_t s = 0; s < n_seqs; s++)
        n += (seqs[s].pos0 + seqs[s].n_rows + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    return n;
}

/* Fills `words` with positions [n_rows], first blocks [n_rows] and the block tables. Returns the
 * largest number of tiles of a row. */
static uint32_t fill_rows(int32_t *words, const struct seq_rows *seqs, size_t n_seqs, size_t n_rows)
{
    int32_t *first = words + n_rows, *blocks = first + n_rows;
    size_t at = 0, most = 0;
    for (size_t s = 0; s < n_seqs; s++) {
        const struct seq_rows *q = &seqs[s];
        const size_t n = (q->pos0 + q->n_rows + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
        for (size_t r = 0; r < q->n_rows; r++) {
            words[q->row0 + r] = (int32_t)(q->pos0 + r);
            first[q->row0 + r] = (int32_t)at;
        }
        memcpy(blocks + at, q->blocks, n * sizeof *blocks);
        at += n;
        most = n > most ? n : most;
    }
    return (uint32_t)most;
}

static void op_step_begin_cuda(struct device *d, const struct seq_rows *seqs, size_t n_seqs,
                               size_t n_rows)
{
    const size_t n_words = 2 * n_rows + count_blocks(seqs, n_seqs);
    d->n_rows = n_rows;
    int32_t *words = device_rows_fill(d, n_words);
    if (words == NULL) return;
    d->n_tiles_max = fill_rows(words, seqs, n_seqs, n_rows);
    const int32_t *at = device_rows_send(d, n_words);
    if (at == NULL) return;
    d->step_rows = d->rows = (struct cuda_rows){at, at + n_rows, at + 2 * n_rows};
    graphs_step(d, n_rows);
}

static void op_step_part_cuda(struct device *d, size_t row0, size_t n_rows)
{
    const struct cuda_rows *all = &d->step_rows;
    d->n_rows = n_rows;
    d->rows = (struct cuda_rows){all->position + row0, all->first_block + row0, all->blocks};
}

static void op_embed_cuda(struct device *d, const struct embed_args *a)
{
    const struct embed_work w = {.w = *a->w,
                                 .tokens = device_call(d, a->tokens, a->n_rows * sizeof *a->tokens),
                                 .vocab0 = a->vocab_begin,
                                 .vocab1 = a->vocab_end,
                                 .n_rows = a->n_rows,
                                 .h = a->h};
    launch_rows(d, CUDA_KERNEL_embed, a->n_rows, a->w->n_in, &w);
}

static void op_gather_rows_cuda(struct device *d, const struct gather_args *a)
{
    const struct gather_work w = {.from = a->from,
                                  .rows = device_call(d, a->rows, a->n_rows * sizeof *a->rows),
                                  .n_rows = a->n_rows,
                                  .width = a->width,
                                  .to = a->to};
    launch_rows(d, CUDA_KERNEL_gather_rows, a->n_rows, a->width, &w);
}

/* --- rows ---------------------------------------------------------------------------------- */

static void op_quantize_rows_cuda(struct device *d, const float *x, size_t x_stride, size_t n_rows,
                                  size_t n, const struct quant_rows *out)
{
    const struct quantize_work w = {x, x_stride, n_rows, n, *out};
    const uint32_t at_once = CUDA_QUANTIZE_SPAN / out->group; /* groups of a block */
    assert(out->group <= CUDA_QUANTIZE_SPAN && (out->group & (out->group - 1)) == 0);
    device_launch(d, CUDA_KERNEL_quantize,
                  (struct cuda_grid){((uint32_t)out->n_groups + at_once - 1) / at_once,
                                     (uint32_t)n_rows, 1, 2 * at_once * sizeof(uint32_t)},
                  &w);
}

void op_grid_cuda(struct device *d, const struct grid_args *a)
{
    launch_rows(d, CUDA_KERNEL_grid, a->n_rows, a->n_out + 1, a);
}

static void op_grid_words_cuda(struct device *d, const struct grid_words_args *a, void *stream)
{
    const struct cuda_grid grid = {1, chunks(a->n), 1, 0};
    if (stream != NULL) {
        device_launch_on(d, stream, CUDA_KERNEL_grid_words, grid, a);
    } else {
        device_launch(d, CUDA_KERNEL_grid_words, grid, a);
    }
}

static void op_take_words_cuda(struct device *d, const struct take_words_args *a)
{
    launch_rows(d, CUDA_KERNEL_take_words, a->n_rows, a->n_out + 1, a);
}

static void norm_rows(struct device *d, const struct norm_args *a)
{
    const size_t n_words = LANES + 2 + (a->n <= CUDA_NORM_MAX ? a->n : 0);
    struct norm_work w = {.norm = *a};
    if (a->codes != NULL) w.codes = *a->codes;
    w.norm.codes = NULL; /* a host address, not read; equal arguments save updates of graphs */
    device_launch(
        d, CUDA_KERNEL_rmsnorm,
        (struct cuda_grid){1, (uint32_t)a->n_rows, 1,
                           (uint32_t)((n_words + 2 * w.codes.n_groups) * sizeof(uint32_t))},
        &w);
}

static void op_rmsnorm_cuda(struct device *d, const struct norm_args *a)
{
    /* groups of long rows find no room in shared memory */
    const bool fits = a->codes != NULL && a->codes->n_groups <= CUDA_NORM_MAX / 32;
    struct norm_args norm = *a;
    if (!fits) norm.codes = NULL;
    norm_rows(d, &norm);
    if (a->codes != NULL && !fits) op_quantize_rows_cuda(d, a->y, a->n, a->n_rows, a->n, a->codes);
}

static void op_rope_table_cuda(struct device *d, const struct rope_table_args *a)
{
    struct rope_table_args w = *a;
    assert(a->n_rows == d->n_rows);
    d->rows_in_use = true;
    w.positions = d->rows.position;
    launch_rows(d, CUDA_KERNEL_rope_table, a->n_rows, a->rot / 2, &w);
}

static void op_rope_tails_cuda(struct device *d, const struct rope_tails *a)
{
    launch_rows(d, CUDA_KERNEL_rope_tails, a->n_rows, a->n_heads * (a->rot / 2), a);
}

static void op_head_square_sums_cuda(struct device *d, const struct square_sums_args *a)
{
    device_launch(d, CUDA_KERNEL_square_sums,
                  (struct cuda_grid){chunks(a->n_heads * LANES), (uint32_t)a->n_rows, 1,
                                     CUDA_THREADS * sizeof(float)},
                  a);
}

static void op_norm_whole_cuda(struct device *d, const struct norm_whole *a)
{
    device_launch(d, CUDA_KERNEL_norm_whole,
                  (struct cuda_grid){1, (uint32_t)a->n_rows, 1, sizeof(float)}, a);
}

static void op_kv_write_cuda(struct device *d, const float *key, const float *value,
                             const struct kv_view *kv)
{
    d->rows_in_use = true;
    const struct kv_write_work w = {key, value, *kv, d->rows, d->n_rows};
    device_launch(d, CUDA_KERNEL_kv_write,
                  (struct cuda_grid){kv->n_kv_heads, (uint32_t)d->n_rows, kv->latent ? 1 : 2,
                                     sizeof(uint32_t)},
                  &w);
}

static void op_rope_kv_cuda(struct device *d, const struct rope_kv_args *a)
{
    struct rope_kv_work w = {*a, d->rows};
    const size_t of_q = (a->n_heads + CUDA_ROPE_HEADS - 1) / CUDA_ROPE_HEADS;
    const size_t of_kv = (a->kv.n_kv_heads + CUDA_ROPE_HEADS - 1) / CUDA_ROPE_HEADS;
    const size_t n_floats = CUDA_THREADS + CUDA_ROPE_HEADS * (1 + (size_t)a->kv.head_dim);
    w.args.n_seqs = 0; /* not read by the kernel; equal arguments save updates of graphs */
    w.args.seqs = NULL;
    d->rows_in_use = true;
    device_launch(d, CUDA_KERNEL_rope_kv,
                  (struct cuda_grid){(uint32_t)(of_q + 2 * of_kv), (uint32_t)a->n_rows, 1,
                                     (uint32_t)(n_floats * sizeof(float))},
                  &w);
}

static void op_swiglu_cuda(struct device *d, const struct swiglu_args *a)
{
    launch_rows(d, CUDA_KERNEL_swiglu, a->n_rows, a->n, a);
}

static void op_gated_cuda(struct device *d, const struct gated_args *a)
{
    const struct linear_args both[2] = {a->gate, a->up};
    const size_t f = a->gate.y_stride;
    const struct swiglu_args act = {a->gate.y, a->up.y, f,       a->n_rows, f,
                                    a->gate.y, f,       a->kind, 0,         false};
    op_linears_cuda(d, both, 2);
    op_swiglu_cuda(d, &act);
    if (a->codes != NULL) op_quantize_rows_cuda(d, a->gate.y, f, a->n_rows, f, a->codes);
}

static void op_swiglu_clamped_cuda(struct device *d, float *gate, const float *up, size_t n,
                                   float alpha, float limit)
{
    const struct swiglu_clamped_work w = {gate, up, n, alpha, limit};
    device_launch(d, CUDA_KERNEL_swiglu_clamped, (struct cuda_grid){1, chunks(n), 1, 0}, &w);
}

static void op_sigmoid_rows_cuda(struct device *d, float *x, const float *gate, size_t n_rows,
                                 size_t n)
{
    const struct sigmoid_rows_work w = {x, gate, n_rows, n};
    launch_rows(d, CUDA_KERNEL_sigmoid_rows, n_rows, n, &w);
}

static void op_add_cuda(struct device *d, float *h, const float *x, size_t n)
{
    const struct add_work w = {.h = h, .x = x, .n = n};
    device_launch(d, CUDA_KERNEL_add, (struct cuda_grid){1, chunks(n), 1, 0}, &w);
}

static void op_axpy_cuda(struct device *d, float w, const float *x, size_t n, float *acc)
{
    const struct add_work a = {.h = acc, .x = x, .n = n, .w = w};
    device_launch(d, CUDA_KERNEL_axpy, (struct cuda_grid){1, chunks(n), 1, 0}, &a);
}

static void op_scale_cuda(struct device *d, float *x, float w, size_t n)
{
    const struct add_work a = {.h = x, .n = n, .w = w};
    device_launch(d, CUDA_KERNEL_scale, (struct cuda_grid){1, chunks(n), 1, 0}, &a);
}

static void op_clamp_cuda(struct device *d, float *x, float limit, size_t n)
{
    const struct add_work a = {.h = x, .n = n, .w = limit};
    device_launch(d, CUDA_KERNEL_clamp, (struct cuda_grid){1, chunks(n), 1, 0}, &a);
}

static void op_softcap_cuda(struct device *d, float *x, float cap, size_t n)
{
    const struct add_work a = {.h = x, .n = n, .w = cap};
    device_launch(d, CUDA_KERNEL_softcap, (struct cuda_grid){1, chunks(n), 1, 0}, &a);
}

static void op_xielu_cuda(struct device *d, float *x, const float law[4], size_t n)
{
    const struct xielu_work w = {x, n, {law[0], law[1], law[2], law[3]}};
    device_launch(d, CUDA_KERNEL_xielu, (struct cuda_grid){1, chunks(n), 1, 0}, &w);
}

static void op_add_bias_cuda(struct device *d, float *y, const float *bias, size_t n_rows, size_t n)
{
    const struct add_work a = {.h = y, .x = bias, .n = n_rows * n, .width = n};
    device_launch(d, CUDA_KERNEL_add_bias, (struct cuda_grid){1, chunks(n_rows * n), 1, 0}, &a);
}

/* --- experts ------------------------------------------------------------------------------- */

static void op_router_cuda(struct device *d, const struct router_args *a, size_t n_rows)
{
    const uint32_t n = a->n_experts, n_groups = a->rule.n_groups;
    const uint32_t shared =
        (uint32_t)((2 * n + n_groups + 1) * sizeof(float)) + n + n_groups; /* see router_part_of */
    assert(n <= DEVICE_EXPERTS_MAX && n_groups <= ROUTER_GROUPS_MAX);
    device_launch(d, CUDA_KERNEL_router, (struct cuda_grid){1, (uint32_t)n_rows, 1, shared}, a);
}

static void op_scatter_rows_cuda(struct device *d, const struct scatter_args *a)
{
    struct scatter_args w = *a;
    w.slots = device_call(d, a->slots, a->n_slots * sizeof *a->slots);
    launch_rows(d, CUDA_KERNEL_scatter_rows, a->n_slots, a->width, &w);
}

static void op_combine_choices_cuda(struct device *d, const struct combine_choices *a)
{
    struct combine_choices w = *a;
    w.slots = device_call(d, a->slots, a->n_rows * a->n_chosen * sizeof *a->slots);
    launch_rows(d, CUDA_KERNEL_combine_choices, a->n_rows, a->width, &w);
}

static void op_take_marks_cuda(struct device *d, const int32_t *marks, size_t n, int32_t *bad,
                               int32_t *dropped)
{
    const struct marks_work w = {marks, n, bad, dropped};
    device_launch(d, CUDA_KERNEL_take_marks, (struct cuda_grid){1, chunks(n), 1, 0}, &w);
}

static void op_move_rows_cuda(struct device *d, const struct move_args *a)
{
    const struct move_work w = {.from = a->from,
                                .from_row =
                                    device_call(d, a->from_row, a->n_rows * sizeof *a->from_row),
                                .to_row = device_call(d, a->to_row, a->n_rows * sizeof *a->to_row),
                                .n_rows = a->n_rows,
                                .width = a->width,
                                .to_stride = a->to_stride,
                                .extra = a->extra,
                                .to = a->to};
    launch_rows(d, CUDA_KERNEL_move_rows, a->n_rows, a->width, &w);
}

static void op_place_rows_cuda(struct device *d, const struct place_args *a)
{
    launch_rows(d, CUDA_KERNEL_place_rows, a->n_rows, a->width, a);
}

/* --- sampling ------------------------------------------------------------------------------ */

static void op_argmax_rows_cuda(struct device *d, const struct argmax_args *a)
{
    device_fill(d, a->keys, 0, a->n_rows * sizeof *a->keys);
    device_fill(d, a->n_bad, 0, a->n_rows * sizeof *a->n_bad);
    device_launch(d, CUDA_KERNEL_argmax,
                  (struct cuda_grid){(uint32_t)((a->n + CUDA_ARGMAX_SPAN - 1) / CUDA_ARGMAX_SPAN),
                                     (uint32_t)a->n_rows, 1, 2 * sizeof(uint64_t)},
                  a);
}

static void op_score_rows_cuda(struct device *d, const struct score_args *a)
{
    struct score_args w = *a;
    w.maxima = device_call(d, a->maxima, a->n_rows * sizeof *a->maxima);
    w.targets = device_call(d, a->targets, a->n_rows * sizeof *a->targets);
    device_fill(d, a->totals, 0, a->n_rows * sizeof *a->totals);
    device_fill(d, a->bits, 0, a->n_rows * sizeof *a->bits);
    device_launch(d, CUDA_KERNEL_score,
                  (struct cuda_grid){(uint32_t)((a->n + CUDA_ARGMAX_SPAN - 1) / CUDA_ARGMAX_SPAN),
                                     (uint32_t)a->n_rows, 1, sizeof(int64_t)},
                  &w);
}

static void op_change_logits_cuda(struct device *d, const struct change_logits_args *a)
{
    enum { AT_ONCE = CALL_BYTES / 2 / sizeof(struct logit_change) };
    for (size_t i = 0; i < a->n_changes; i += AT_ONCE) {
        struct change_logits_args w = *a;
        w.n_changes = a->n_changes - i < AT_ONCE ? a->n_changes - i : AT_ONCE;
        w.changes = device_call(d, a->changes + i, w.n_changes * sizeof *a->changes);
        device_launch(d, CUDA_KERNEL_change_logits,
                      (struct cuda_grid){1, chunks(w.n_changes), 1, 0}, &w);
    }
}

static void op_pick_rows_cuda(struct device *d, const struct pick_args *a)
{
    struct pick_args w = *a;
    w.rows = device_call(d, a->rows, a->n_rows * sizeof *a->rows);
    device_launch(d, CUDA_KERNEL_pick,
                  (struct cuda_grid){1, (uint32_t)a->n_rows, 1, (256 + 2) * sizeof(uint64_t)}, &w);
}

/* --- memory ---------------------------------------------------------------------------------- */

static void arrive(struct device *d)
{
    if (d->n_gets > 0) device_wait(d);
}

static void copy(struct device *d, void *to, const void *from, size_t n_bytes)
{
    if (device_is_lost(d) || n_bytes == 0) return;
    (void)device_failed(d, d->driver->copy(to, from, n_bytes, CUDA_COPY_WITHIN, device_compute(d)),
                        "a copy");
}

static void fill(struct device *d, void *p, int byte, size_t n_bytes)
{
    if (!device_is_lost(d) && n_bytes > 0) device_fill(d, p, byte, n_bytes);
}

const struct device_ops device_ops_cuda = {
    .step_begin = op_step_begin_cuda,
    .step_part = op_step_part_cuda,
    .embed = op_embed_cuda,
    .linears = op_linears_cuda,
    .linear_leaf = op_linear_leaf_cuda,
    .quantize_rows = op_quantize_rows_cuda,
    .grid = op_grid_cuda,
    .rmsnorm = op_rmsnorm_cuda,
    .head_square_sums = op_head_square_sums_cuda,
    .norm_whole = op_norm_whole_cuda,
    .rope_table = op_rope_table_cuda,
    .rope_tails = op_rope_tails_cuda,
    .rope_kv = op_rope_kv_cuda,
    .kv_write = op_kv_write_cuda,
    .attention = op_attention_cuda,
    .swiglu = op_swiglu_cuda,
    .swiglu_clamped = op_swiglu_clamped_cuda,
    .gated = op_gated_cuda,
    .sigmoid_rows = op_sigmoid_rows_cuda,
    .add = op_add_cuda,
    .axpy = op_axpy_cuda,
    .scale = op_scale_cuda,
    .clamp = op_clamp_cuda,
    .softcap = op_softcap_cuda,
    .xielu = op_xielu_cuda,
    .add_bias = op_add_bias_cuda,
    .router = op_router_cuda,
    .scatter_rows = op_scatter_rows_cuda,
    .combine_choices = op_combine_choices_cuda,
    .take_marks = op_take_marks_cuda,
    .gather_rows = op_gather_rows_cuda,
    .move_rows = op_move_rows_cuda,
    .place_rows = op_place_rows_cuda,
    .argmax_rows = op_argmax_rows_cuda,
    .score_rows = op_score_rows_cuda,
    .change_logits = op_change_logits_cuda,
    .pick_rows = op_pick_rows_cuda,
    .grid_words = op_grid_words_cuda,
    .take_words = op_take_words_cuda,
    .place_weight = place_weight_cuda,
    .check_weight = check_weight_cuda,
    .pack = pack_cuda,
    .alloc = device_alloc,
    .release = device_release,
    .put = device_put,
    .get = device_get,
    .get_later = device_get_later,
    .arrive = arrive,
    .copy = copy,
    .fill = fill,
};
