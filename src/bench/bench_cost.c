/* Counts the bytes and operations of a step from the model's shape and the plan: the numerators of
 * the fractions that shoal bench prints. */
#include "bench/bench_private.h"

#include "arch/arch_tensors.h"
#include "attention/kv_pool.h"
#include "base/mem.h"
#include "kernels/ops.h"

#include <math.h>
#include <string.h>

static double bench_cost_bytes_of(const struct packed *w)
{
    if (w->data == NULL) return 0;
    if (w->quant.kind == QUANT_NONE) return (double)packed_bytes(w->dtype, w->n_out, w->n_in);
    const struct packed_quant_sizes n = packed_quant_bytes(w->quant, w->n_out, w->n_in);
    return (double)n.data + (double)n.scales + (double)n.zeros;
}

static double expert_bytes_here(const struct weights *w)
{
    double n = 0;
    for (uint32_t i = 0; i < range_count(w->layers); i++) {
        const struct layer *l = &w->stage_layers[i];
        for (uint32_t e = 0; l->is_moe && e < l->moe.n_experts; e++) {
            n += bench_cost_bytes_of(&l->moe.gate[e]) +
                 (l->moe.up != l->moe.gate ? bench_cost_bytes_of(&l->moe.up[e]) : 0) +
                 bench_cost_bytes_of(&l->moe.down[e]);
        }
    }
    return n;
}

struct status bench_cost_init(struct bench_cost *cost, struct job *j)
{
    const struct arch *m = &j->model;
    const struct weights *w = j->weights;
    const enum dtype kv_dtype = j->o->model.kv_dtype;
    uint32_t n_cached = 0, n_indexed = 0;
    *cost = (struct bench_cost){
        .n_experts = m->moe.n_experts, .n_chosen = m->moe.n_chosen, .window = m->attn.window};
    for (uint32_t i = 0; i < m->n_layers; i++) {
        n_cached += arch_layer_has_kv(m, i);
        if (arch_layer_has_kv(m, i))
            cost->attention_flops += 4.0 * arch_heads(m, m->layer.has_window[i]) * m->attn.head_dim;
        n_indexed += arch_has_beside(m, i);
        cost->n_moe_layers += m->layer.is_moe[i];
        cost->windowed += m->layer.has_window[i] ? 1.0 / m->n_layers : 0;
    }
    const double experts = expert_bytes_here(w);
    const bool lone_embedding = w->embed.data != NULL && w->embed.data != w->head.data;
    const double unread = lone_embedding ? bench_cost_bytes_of(&w->embed) : 0;
    int64_t sums[2] = {(int64_t)((double)w->n_bytes - experts - unread), (int64_t)experts};
    comm_sum_i64(j->comm, COMM_WORLD, sums, 2);
    cost->dense_bytes = (double)sums[0];
    const double n_copies =
        (double)cost->n_moe_layers * layout_n_places(j->layout) * j->layout->n_expert_replicas;
    if (n_copies > 0) cost->expert_bytes = (double)sums[1] / n_copies;
    cost->kv_token_bytes =
        (double)(kv_pool_block_bytes(n_cached, m->attn.n_kv_heads, m->attn.head_dim, kv_dtype,
                                     m->attn.kv_lora > 0) +
                 (uint64_t)n_indexed * kv_pool_index_bytes(kv_dtype, arch_beside_dim(m))) /
        KV_BLOCK_TOKENS;
    cost->row_flops = 2.0 * (double)arch_token_params(m);
    cost->head_flops = 2.0 * m->width * m->vocab;
    cost->counts_experts = m->moe.n_experts > 0 && j->layout->n_ranks == 1;
    if (!cost->counts_experts) return status_ok();
    return mem_alloc(&cost->load, (size_t)m->n_layers * m->moe.n_experts, sizeof *cost->load,
                     "expert load");
}

double bench_cost_token(const struct bench_cost *cost)
{
    return cost->dense_bytes + cost->expert_bytes * cost->n_moe_layers * cost->n_chosen;
}

void bench_cost_fini(struct bench_cost *cost)
{
    mem_free(&cost->load);
}

/* Returns the number of positions that a row at `position` sees, on average over the layers. */
static double seen(const struct bench_cost *cost, double position)
{
    const double n = position + 1;
    return n > cost->window ? n - cost->windowed * (n - cost->window) : n;
}

/* Returns the expected number of experts of one layer that n_rows rows choose, if all experts are
 * equally likely. */
static double spread(const struct bench_cost *cost, double n_rows)
{
    const double e = cost->n_experts;
    return e * (1 - pow(1 - cost->n_chosen / e, n_rows));
}

enum bench_phase_kind bench_cost_step(struct bench_cost *cost, const struct step_plan *plan,
                                      uint32_t n_prompt, const struct job *j,
                                      struct bench_phase *step)
{
    size_t n_decoding = 0;
    double n_rows = 0;
    for (size_t i = 0; i < plan->n_seqs; i++) {
        const struct plan_seq *s = &plan->seqs[i];
        if (s->pos0 >= (int32_t)n_prompt) n_decoding++;
        for (int32_t r = 0; r < s->n_rows; r++) {
            step->flops += cost->row_flops + cost->attention_flops * seen(cost, s->pos0 + r);
        }
        if ((s->want & PLAN_SAMPLE) != 0) step->flops += cost->head_flops;
        step->bytes += cost->kv_token_bytes * seen(cost, s->pos0 + s->n_rows - 1);
        n_rows += s->n_rows;
    }
    uint32_t n_busy = 0; /* replicas that have rows; the others read no dense weights */
    for (int32_t r = 0; r < plan->n_replicas; r++) {
        n_busy += plan->replica_begin[r + 1] > plan->replica_begin[r];
    }
    step->bytes += cost->dense_bytes * n_busy / plan->n_replicas;
    step->n_steps++;
    step->n_tokens += (uint64_t)n_rows;
    if (cost->counts_experts) {
        const size_t n = (size_t)j->model.n_layers * cost->n_experts;
        memcpy(cost->load, stage_expert_load(engine_stage(j->engine)), n * sizeof *cost->load);
    } else if (cost->n_experts > 0) {
        step->bytes += cost->expert_bytes * cost->n_moe_layers * spread(cost, n_rows);
    }
    if (n_decoding == plan->n_seqs) return BENCH_DECODE;
    return n_decoding == 0 ? BENCH_PREFILL : BENCH_MIXED;
}

void bench_cost_experts(const struct bench_cost *cost, const struct job *j,
                        struct bench_phase *step)
{
    if (!cost->counts_experts) return;
    const uint64_t *now = stage_expert_load(engine_stage(j->engine));
    const size_t n = (size_t)j->model.n_layers * cost->n_experts;
    uint64_t n_touched = 0;
    for (size_t i = 0; i < n; i++) n_touched += now[i] != cost->load[i];
    step->bytes += cost->expert_bytes * (double)n_touched;
}

uint32_t bench_token(uint32_t i, uint32_t position, uint32_t vocab)
{
    uint32_t x = i * 0x9E3779B9u + position; /* mixed by the finalizer of MurmurHash3 */
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return (x ^ (x >> 16)) % vocab;
}
