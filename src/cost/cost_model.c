/* Prepares the cost model of a layout: counts the weights and elements that the busiest rank of
 * each stage passes its rows through, and the links between its ranks. */
#include "cost/step_cost.h"

#include "arch/arch_tensors.h"
#include "parallel/layout/weights_list.h"
#include "tensor/quant_format.h"

#include <string.h>

/* Ops of a layer and of a step, each of which wakes the threads (model/stage_attention.c,
 * stage_ffn.c, moe). */
enum {
    OPS_ATTENTION = 7, /* norm, q k v, rope and cache, attention, codes of o's input, o, sum */
    OPS_DENSE = 5,     /* norm, gate and up, down, sum, poll */
    OPS_MOE = 8,       /* norm, logits, choice, scatter, codes, gate and up, down, combination */
    OPS_STEP = 6,      /* embedding, rotary table, gather, final norm, head, sampling */
};

static enum node_format format_of(const struct layout_model *m, enum arch_class c)
{
    static const enum node_format kinds[QUANT_KIND_COUNT] = {[QUANT_INT8] = NODE_INT8,
                                                             [QUANT_INT4] = NODE_INT4,
                                                             [QUANT_FP8] = NODE_FP8,
                                                             [QUANT_MXFP4] = NODE_MXFP4};
    const struct layout_weight w = m->weights[c];
    if (w.kind == QUANT_INT8 && w.group == 32) return NODE_INT8_G32;
    if (w.kind == QUANT_INT4 && w.group > 32) return NODE_INT4_G128;
    if (w.kind != QUANT_NONE) return kinds[w.kind];
    const uint32_t bytes = w.group == 1 ? w.group_bytes : m->weight_bytes;
    if (bytes >= 4) return NODE_F32;
    if (bytes == 1) return NODE_INT8;
    return w.group == 1 && w.dtype == DTYPE_F16 ? NODE_F16 : NODE_BF16;
}

/* Returns the number of weights in a rank's slab of a tensor. */
static double weight_count(const struct weights_cut *cut, const struct arch_tensor *t)
{
    const struct weight_spec held = weights_slab(cut, t);
    const double outer = t->is_expert ? range_count(held.outer) : 1;
    return outer * range_count(held.rows) * range_count(held.cols);
}

/* Adds the weights of a layer with these parts, `times` times. */
static void count_layer(struct cost_model *m, struct cost_stage *s, const struct weights_cut *cut,
                        uint64_t parts, double times)
{
    const struct arch_tensor *t;
    for (size_t i = 0; (t = arch_tensor_at(i)) != NULL; i++) {
        if ((t->part & parts) == 0 || t->is_vector) continue;
        const enum node_format f = format_of(&m->l->model, t->class);
        m->weight_bytes[f] = layout_weight_bytes(&m->l->model, t->class);
        *(t->is_expert ? &s->expert[f] : &s->dense[f]) += times * weight_count(cut, t);
    }
}

/* Counts a recurrent layer: each row reads and writes the states of its heads. */
static void count_recurrent(struct cost_stage *s, const struct cost_model *m, uint32_t tp)
{
    const struct arch *a = m->l->model.arch;
    const double values =
        range_count(layout_delta_heads(m->l, tp)) * (double)arch_delta_per_unit(a);
    s->rope += values * a->delta.value_dim * (1 + 2.0 * a->delta.key_dim);
}

/* Counts compressed attention over a window of the last positions and over entries, each of which
 * stands for many positions; an index scores all entries of its layer, and rows see as many as it
 * chooses. (A row of few positions sees fewer; its attention is cheap.) */
static void count_compressed(struct cost_stage *s, const struct arch *a, uint32_t layer,
                             double elements, double index)
{
    const double rate = arch_rate(a, layer);
    s->attention[COST_WINDOWED] += elements;
    if (index > 0) {
        s->attention[COST_WINDOWED] += elements * a->index.n_chosen / a->attn.window;
        s->attention[COST_FULL] += index / rate;
    } else if (rate > 0) {
        s->attention[COST_FULL] += elements / rate;
    }
}

static void count_attention(struct cost_stage *s, const struct cost_model *m, uint32_t layer,
                            uint32_t tp)
{
    const struct arch *a = m->l->model.arch;
    const bool few = a->attn.n_full_heads > 0 && !a->layer.has_window[layer];
    const double heads = range_count(few ? layout_full_heads(m->l, tp) : layout_heads(m->l, tp));
    const double kv = a->attn.kv_lora > 0 ? 1 : range_count(layout_kv_heads(m->l, tp));
    if (a->layer.is_delta[layer]) count_recurrent(s, m, tp);
    if (!arch_layer_has_kv(a, layer)) return;
    const bool windowed =
        arch_is_sparse(a, layer) || (a->attn.window > 0 && a->layer.has_window[layer]);
    /* an index scores positions but adds up no values: half of attention's work */
    const double index_heads = a->index.block > 0 ? kv : a->index.n_heads;
    const double index = arch_has_index(a, layer) ? index_heads * a->index.dim / 2 : 0;
    if (a->compression.o_groups > 0) {
        count_compressed(s, a, layer, heads * a->attn.head_dim, index);
    } else {
        s->attention[windowed ? COST_WINDOWED : COST_FULL] += heads * a->attn.head_dim;
        s->attention[COST_FULL] += index;
    }
    s->rope += (heads + 2 * kv) * a->attn.head_dim;
}

static void count_ffn(struct cost_stage *s, const struct cost_model *m, uint32_t layer,
                      const struct layout_place *place)
{
    const uint64_t parts = arch_layer_parts(m->l->model.arch, layer);
    if ((parts & (PART_DENSE | PART_UNGATED | PART_RELU2 | PART_LONE_SHARED)) != 0) {
        s->gate += range_count(layout_ffn(m->l, place->tp));
        s->n_sums++;
    }
    if ((parts & PART_SHARED) != 0) {
        s->gate += range_count(layout_shared_ffn(m->l, place->tp));
        s->n_sums++;
    }
    if ((parts & PART_MOE) == 0) return;
    s->n_moe_layers++;
    s->n_ops += OPS_MOE;
    s->chosen_gate += range_count(layout_expert_ffn(m->l, place->etp));
}

double cost_window(const struct arch *a)
{
    if (a->encoder) return 2.0 * a->attn.window - (a->attn.window > 0); /* to both sides */
    if (a->compression.o_groups > 0) return a->attn.window;
    return a->index.n_heads > 0 ? a->index.n_chosen : a->attn.window;
}

static void count_stage(struct cost_model *m, uint32_t pp)
{
    struct cost_stage *s = &m->stages[pp];
    const struct arch *a = m->l->model.arch;
    const struct layout_place place = layout_place_of(m->l, layout_rank_of(m->l, 0, pp, 0));
    const struct weights_cut cut = weights_cut_of(m->l, place);
    const struct range layers = layout_layers(m->l, pp);
    for (uint32_t i = layers.begin; i < layers.end && i < a->n_layers; i++) {
        count_layer(m, s, &cut, arch_layer_parts(a, i), 1);
        count_attention(s, m, i, place.tp);
        count_ffn(s, m, i, &place);
        s->n_layers++;
        if (!a->layer.lacks_mixer[i]) {
            s->n_sums++; /* of o */
            s->norm += a->width;
            s->n_ops += OPS_ATTENTION;
        }
        if (!a->layer.lacks_ffn[i]) {
            s->norm += a->width;
            s->n_ops += OPS_DENSE;
        }
    }
    s->n_ops += OPS_STEP;
    if (pp + 1 < m->l->pp) return;
    const uint32_t vocab = range_count(layout_vocab(m->l, place.tp));
    const enum node_format f = format_of(&m->l->model, a->tied ? CLASS_EMBED : CLASS_HEAD);
    m->weight_bytes[f] = layout_weight_bytes(&m->l->model, a->tied ? CLASS_EMBED : CLASS_HEAD);
    s->head[f] += (double)a->width * vocab;
    s->n_logits = vocab;
}

/* Returns how many times as long n threads take as n_all threads. */
static double slower(const struct curve *speed, double n_all, double n)
{
    return curve_at(speed, n_all) / curve_at(speed, n);
}

static void see_hosts(struct cost_model *m, const struct topo *t, const uint32_t *order)
{
    const struct node *node = m->node;
    double threads = 0, ranks = 1;
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        const struct topo_rank *rank = &t->ranks[r];
        const double of_host = rank->n_local_ranks * (double)topo_threads(t, r);
        if (rank->n_local_ranks > ranks) ranks = rank->n_local_ranks;
        if (of_host > threads) threads = of_host;
    }
    m->ranks = ranks;
    m->read_slower = slower(&node->read, node->n_threads, threads);
    m->arithmetic_slower = slower(&node->flops, node->n_threads, threads);
    m->read_bytes_s = curve_at(&node->read, threads);
    m->tp_link = layout_link_of(t, order, m->l->tp);
    m->expert_link = layout_link_of(t, order, m->l->ep * m->l->etp);
    m->stage_link = t->n_nodes > 1 ? LINK_NET : LINK_HOST;
}

static double all_weight_bytes(const struct cost_model *m, const struct cost_stage *s)
{
    double n = 0;
    for (int f = 0; f < NODE_FORMAT_COUNT; f++)
        n += m->weight_bytes[f] * (s->dense[f] + s->expert[f] + s->head[f]);
    return n;
}

double cost_rank_bytes(const struct cost_model *m)
{
    double most = 0;
    for (uint32_t pp = 0; pp < m->n_stages; pp++) {
        const double n = all_weight_bytes(m, &m->stages[pp]);
        if (n > most) most = n;
    }
    return most;
}

struct status cost_model_init(struct cost_model *m, const struct node *node, const struct layout *l,
                              const struct topo *t, const uint32_t *order)
{
    memset(m, 0, sizeof *m);
    if (l->pp > COST_STAGES_MAX)
        return status_make(STATUS_USAGE, "--pp: a forecast knows at most %d stages, found %u",
                           (int)COST_STAGES_MAX, l->pp);
    if (node_linear_of(node, NODE_INT8) == NULL)
        return status_make(STATUS_INPUT, "the node's file has no linear");
    if (l->model.streams_experts && node->disk_bytes_s <= 0)
        return status_make(STATUS_INPUT,
                           "experts stream, and the node's file does not know the disk: measure it "
                           "with `shoal bench --disk DIR --save NODE.json`, or give plan --disk");
    m->node = node;
    m->l = l;
    m->streamed = l->model.streams_experts ? 1 : 0;
    m->n_stages = l->pp;
    see_hosts(m, t, order);
    m->network_bytes_s = node->network_bytes_s > 0 ? node->network_bytes_s : 12.5e9;
    m->network_s = node->network_s > 0 ? node->network_s : 5e-6;
    const uint32_t group = l->ep * l->etp;
    m->n_batches = group > l->tp ? group / l->tp : 1;
    if (l->model.arch->moe.n_experts > 0) m->n_local = range_count(layout_experts(l, 0));
    for (uint32_t pp = 0; pp < l->pp; pp++) count_stage(m, pp);
    m->is_cached = m->ranks * cost_rank_bytes(m) < node->cache_bytes / 2;
    return status_ok();
}
