/* The layout's arithmetic: which place holds which layers, heads, columns, experts and rows. Does
 * not choose (layout_choose) and does not know machines (topo). */
#include "parallel/layout/layout.h"

#include "base/mem.h"
#include "tensor/dims.h"

#include <stdio.h>
#include <string.h>

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

static uint32_t gcd(uint32_t a, uint32_t b)
{
    while (b != 0) {
        const uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

struct range layout_split(uint32_t total, uint32_t unit, uint32_t n_parts, uint32_t i)
{
    const uint64_t n_units = ceil_div(total, unit);
    const uint64_t whole = n_units / n_parts, rest = n_units % n_parts;
    const uint64_t first = i * whole + (i < rest ? i : rest);
    const uint64_t begin = first * unit, end = (first + whole + (i < rest)) * unit;
    return (struct range){(uint32_t)(begin < total ? begin : total),
                          (uint32_t)(end < total ? end : total)};
}

/* --- the units that attention is cut in --------------------------------------------------- */

/* Returns the unit of heads that ranks cut alike in both kinds of layers. The layers without a window
 * may have another number of heads: of 96 and 64, 3 here go with 2 there. */
static uint32_t common_heads(const struct arch *a)
{
    return a->attn.n_full_heads > 0 ? a->attn.n_heads / gcd(a->attn.n_heads, a->attn.n_full_heads)
                                    : 1;
}

/* Returns the number of heads in one o_proj leaf, or in the leaves that end together in both kinds
 * of layers. A rank that sums by inputs may not hold fewer, because a leaf's sum must not be split.
 */
static uint32_t leaf_heads(const struct layout_model *m)
{
    return m->o_leaf / m->arch->attn.value_dim * common_heads(m->arch);
}

/* Returns the unit in which inputs of a row-parallel linear are cut: leaves, whose sums must not be
 * split; or whole quantization groups, if each rank adds all leaves of its outputs. */
static uint32_t inner_unit(const struct layout *l, bool cuts_outputs, uint32_t leaf)
{
    const uint32_t unit = l->model.inner_unit;
    return cuts_outputs && unit > 0 && unit < leaf ? unit : leaf;
}

static struct range split_heads(const struct layout_model *m, uint32_t unit, uint32_t tp,
                                uint32_t i)
{
    return layout_split(m->arch->attn.n_heads, unit, tp, i);
}

static struct range kv_heads_of(const struct layout_model *m, struct range heads)
{
    const uint32_t group = m->arch->attn.n_heads / m->arch->attn.n_kv_heads;
    if (heads.begin == heads.end) return (struct range){heads.begin / group, heads.begin / group};
    return (struct range){heads.begin / group, ceil_div(heads.end, group)};
}

static uint32_t most_kv_heads(const struct layout_model *m, uint32_t unit, uint32_t tp)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < tp; i++) {
        const uint32_t n = range_count(kv_heads_of(m, split_heads(m, unit, tp, i)));
        if (n > most) most = n;
    }
    return most;
}

/* Returns the unit in which query heads are cut: the heads of a whole kv head while there are
 * enough kv heads; otherwise the smallest unit, and every rank holds the kv heads that it reads.
 * Also the smallest unit if the fullest rank then has fewer heads and no more kv heads: 9 heads of
 * 3 kv heads on two ranks are 5 and 4 instead of 6 and 3. */
static uint32_t head_unit(const struct layout *l)
{
    const struct layout_model *m = &l->model;
    const struct arch *a = m->arch;
    const uint32_t leaf = leaf_heads(m), group = a->attn.n_heads / a->attn.n_kv_heads;
    const uint32_t least = inner_unit(l, l->cuts_outputs, m->o_leaf);
    uint32_t grouped = least / gcd(least, a->attn.value_dim);
    if (a->attn.full_dim > 0) { /* whole groups in layers with heads of another width, too */
        const uint32_t wide = least / gcd(least, a->attn.full_dim);
        grouped = grouped / gcd(grouped, wide) * wide;
    }
    grouped *= common_heads(a);
    const uint32_t smallest = grouped < leaf ? grouped : leaf;
    const uint32_t both = leaf / gcd(leaf, group) * group;
    if (a->compression.o_groups > 0) return leaf; /* whole groups */
    if (l->tp > ceil_div(a->attn.n_heads, both)) return smallest;
    const uint32_t fewest = range_count(split_heads(m, smallest, l->tp, 0));
    const bool is_even = fewest >= range_count(split_heads(m, both, l->tp, 0));
    return is_even || most_kv_heads(m, smallest, l->tp) > most_kv_heads(m, both, l->tp) ? both
                                                                                        : smallest;
}

uint32_t layout_tp_max(const struct layout_model *m)
{
    return ceil_div(m->arch->attn.n_heads, leaf_heads(m));
}

struct range layout_heads(const struct layout *l, uint32_t tp)
{
    return split_heads(&l->model, head_unit(l), l->tp, tp);
}

struct range layout_full_heads(const struct layout *l, uint32_t tp)
{
    const struct arch *a = l->model.arch;
    const struct range all = layout_heads(l, tp);
    const uint64_t n = a->attn.n_full_heads;
    return (struct range){(uint32_t)(all.begin * n / a->attn.n_heads),
                          (uint32_t)(all.end * n / a->attn.n_heads)};
}

struct range layout_kv_heads(const struct layout *l, uint32_t tp)
{
    return kv_heads_of(&l->model, layout_heads(l, tp));
}

struct range layout_full_kv_heads(const struct layout *l, uint32_t tp)
{
    const struct arch *a = l->model.arch;
    const struct range kv = layout_kv_heads(l, tp);
    if (a->attn.n_full_kv_heads == 0) return (struct range){0, 0};
    const uint32_t share = a->attn.n_kv_heads / a->attn.n_full_kv_heads;
    const uint32_t begin = kv.begin / share;
    return (struct range){begin, kv.begin == kv.end ? begin : ceil_div(kv.end, share)};
}

struct range layout_layers(const struct layout *l, uint32_t pp)
{
    return (struct range){l->stage_begin[pp], l->stage_begin[pp + 1]};
}

struct range layout_ffn(const struct layout *l, uint32_t tp)
{
    if (l->model.arch->ffn == 0) return (struct range){0, 0};
    return layout_split(l->model.arch->ffn, inner_unit(l, l->cuts_outputs, l->model.ffn_leaf),
                        l->tp, tp);
}

struct range layout_vocab(const struct layout *l, uint32_t tp)
{
    return layout_split(l->model.arch->vocab, PANEL_COLUMNS, l->tp, tp);
}

uint32_t layout_n_places(const struct layout *l)
{
    return l->model.arch->moe.n_experts + l->n_expert_copies;
}

struct range layout_experts(const struct layout *l, uint32_t ep)
{
    const uint32_t n = layout_n_places(l);
    if (l->n_expert_copies == 0) return layout_split(n, 1, l->ep, ep);
    /* spreads the parts that have one place more over the hosts, so that each host can have copies
     */
    return (struct range){(uint32_t)((uint64_t)n * ep / l->ep),
                          (uint32_t)((uint64_t)n * (ep + 1) / l->ep)};
}

struct range layout_expert_ffn(const struct layout *l, uint32_t etp)
{
    if (l->model.arch->moe.n_experts == 0) return (struct range){0, 0};
    return layout_split(l->model.arch->moe.ffn,
                        inner_unit(l, l->cuts_expert_outputs, l->model.expert_leaf), l->etp, etp);
}

struct range layout_delta_heads(const struct layout *l, uint32_t tp)
{
    const struct arch *m = l->model.arch;
    const uint32_t per_head = arch_delta_per_unit(m) * m->delta.value_dim;
    if (per_head == 0) return (struct range){0, 0};
    return layout_split(arch_delta_units(m), l->model.delta_leaf / per_head, l->tp, tp);
}

struct range layout_shared_ffn(const struct layout *l, uint32_t tp)
{
    if (l->model.arch->moe.shared_ffn == 0) return (struct range){0, 0};
    return layout_split(l->model.arch->moe.shared_ffn,
                        inner_unit(l, l->cuts_outputs, l->model.shared_leaf), l->tp, tp);
}

struct range layout_outputs(const struct layout *l, uint32_t tp)
{
    if (!l->cuts_outputs) return (struct range){0, l->model.arch->width};
    return layout_split(l->model.arch->width, PANEL_COLUMNS, l->tp, tp);
}

struct range layout_expert_outputs(const struct layout *l, uint32_t etp)
{
    if (!l->cuts_expert_outputs) return (struct range){0, l->model.arch->width};
    return layout_split(l->model.arch->width, PANEL_COLUMNS, l->etp, etp);
}

bool layout_may_cut_outputs(const struct layout *l)
{
    return l->tp > 1 && l->model.arch->width / PANEL_COLUMNS >= l->tp;
}

bool layout_may_cut_expert_outputs(const struct layout *l)
{
    const struct layout_model *m = &l->model;
    const struct arch *a = m->arch;
    if (a->moe.n_experts == 0 || l->etp == 1 || l->ep * l->etp != l->tp || a->moe.bias)
        return false;
    const uint32_t n_units = ceil_div(a->moe.ffn, inner_unit(l, true, m->expert_leaf));
    return a->width / PANEL_COLUMNS >= l->etp && n_units >= l->etp;
}

bool layout_may_lend_experts(const struct layout *l)
{
    return !l->model.streams_experts && l->ep > 1 && l->ep * l->etp == l->tp &&
           l->model.arch->moe.n_experts >= l->ep && !l->model.arch->moe.bias;
}

/* --- places ------------------------------------------------------------------------------- */

struct layout_place layout_place_of(const struct layout *l, uint32_t rank)
{
    struct layout_place p = {.tp = rank % l->tp};
    const uint32_t rest = rank / l->tp;
    p.dp = l->pp_outermost ? rest % l->dp : rest / l->pp;
    p.pp = l->pp_outermost ? rest / l->dp : rest % l->pp;
    /* etp divides tp, so an expert's parts lie inside one tp group; ep * etp is a multiple of tp
     * or divides it, so an expert replica is made of whole tp groups or lies inside one. */
    const uint32_t in_stage = p.dp * l->tp + p.tp;
    p.etp = in_stage % l->etp;
    p.ep = in_stage / l->etp % l->ep;
    p.expert_replica = in_stage / (l->etp * l->ep);
    return p;
}

uint32_t layout_rank_of(const struct layout *l, uint32_t dp, uint32_t pp, uint32_t tp)
{
    const uint32_t outer = l->pp_outermost ? pp * l->dp + dp : dp * l->pp + pp;
    return outer * l->tp + tp;
}

uint32_t layout_expert_rank(const struct layout *l, uint32_t pp, uint32_t replica, uint32_t ep)
{
    const uint32_t in_stage = (replica * l->ep + ep) * l->etp;
    return layout_rank_of(l, in_stage / l->tp, pp, in_stage % l->tp);
}

/* --- stages ------------------------------------------------------------------------------- */

/* Returns the weight bytes that one token reads in a layer; the head counts with the last layer. */
static uint64_t layer_cost(const struct layout_model *m, uint32_t layer)
{
    const struct arch *a = m->arch;
    const bool is_last = layer == a->n_layers - 1;
    const uint64_t parts = arch_layer_parts(a, layer) | (is_last ? PART_HEAD : 0);
    const struct arch_tensor *t;
    uint64_t bytes = 0;
    for (size_t i = 0; (t = arch_tensor_at(i)) != NULL; i++) {
        if ((t->part & parts) == 0 || t->is_vector) continue;
        const uint64_t row = layout_row_bytes(m, t->class, arch_dim_size(a, t->cols));
        bytes += row * arch_dim_size(a, t->rows) * (t->is_expert ? a->moe.n_chosen : 1);
    }
    return bytes;
}

/* Returns the number of stages when each takes layers as long as its cost stays within `cap`; 0
 * when one layer exceeds `cap`. */
static uint32_t stages_under(const uint64_t *cost, uint32_t n_layers, uint64_t cap)
{
    uint32_t n = 1;
    uint64_t filled = 0;
    for (uint32_t i = 0; i < n_layers; i++) {
        if (cost[i] > cap) return 0;
        if (filled + cost[i] > cap) {
            n++;
            filled = 0;
        }
        filled += cost[i];
    }
    return n;
}

/* Returns the smallest possible cost of the most expensive of pp contiguous stages. */
static uint64_t smallest_cap(const uint64_t *cost, uint32_t n_layers, uint32_t pp)
{
    uint64_t low = 1, high = 1;
    for (uint32_t i = 0; i < n_layers; i++) high += cost[i];
    while (low < high) {
        const uint64_t cap = low + (high - low) / 2;
        const uint32_t n = stages_under(cost, n_layers, cap);
        if (n != 0 && n <= pp) {
            high = cap;
        } else {
            low = cap + 1;
        }
    }
    return low;
}

/* Finds the partition with the smallest sum of squared stage costs among those whose stages cost at
 * most `cap`, so that the other stages are balanced too. Uses dynamic programming over (stages,
 * layers); on equal sums earlier stages get more layers. best: [(pp + 1) * (n_layers + 1)] sums;
 * from: same shape. */
static void partition(const uint64_t *cost, uint32_t n_layers, uint32_t pp, uint64_t cap,
                      uint64_t *best, uint16_t *from, uint32_t *stage_begin)
{
    const size_t row = n_layers + 1;
    for (size_t i = 0; i < row * (pp + 1); i++) best[i] = UINT64_MAX;
    best[0] = 0;
    for (uint32_t s = 1; s <= pp; s++) {
        for (uint32_t end = s; end <= n_layers; end++) {
            uint64_t stage_cost = 0;
            for (uint32_t begin = end; begin-- > s - 1;) {
                stage_cost += cost[begin];
                if (stage_cost > cap) break;
                if (best[(s - 1) * row + begin] == UINT64_MAX) continue;
                /* the stage's cost in units of cap / 2^20: the sum of 512 squares stays far below
                 * 2^64 */
                const uint64_t part = (uint64_t)((double)stage_cost / (double)cap * 0x1p20);
                const uint64_t sum = best[(s - 1) * row + begin] + part * part;
                if (sum < best[s * row + end]) {
                    best[s * row + end] = sum;
                    from[s * row + end] = (uint16_t)begin;
                }
            }
        }
    }
    stage_begin[pp] = n_layers;
    for (uint32_t s = pp; s > 0; s--) stage_begin[s - 1] = from[s * row + stage_begin[s]];
}

/* Returns the most stages that a model can have: a layer that continues another must be in that
 * layer's stage. */
static uint32_t stages_max(const struct arch *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_layers; i++) n += !arch_continues(m, i);
    return n;
}

/* Divides the layers into stages; a layer stays together with the layers that continue it. */
static struct status split_layers(struct layout *l)
{
    const struct layout_model *m = &l->model;
    const struct arch *a = m->arch;
    const uint32_t n_layers = arch_all_layers(a);
    uint64_t cost[ARCH_LAYERS_MAX];
    uint32_t begin[ARCH_LAYERS_MAX + 1], n_runs = 0;
    for (uint32_t i = 0; i < n_layers; i++) {
        if (!arch_continues(a, i)) {
            begin[n_runs] = i;
            cost[n_runs++] = 0;
        }
        cost[n_runs - 1] += layer_cost(m, i);
    }
    begin[n_runs] = n_layers;
    const size_t n = (size_t)(l->pp + 1) * (n_runs + 1);
    uint64_t *best = NULL;
    uint16_t *from = NULL;
    struct status st;
    TRY_GOTO(st, mem_alloc(&best, n, sizeof *best, "stage costs"), done);
    TRY_GOTO(st, mem_alloc(&from, n, sizeof *from, "stage begins"), free_best);
    partition(cost, n_runs, l->pp, smallest_cap(cost, n_runs, l->pp), best, from, l->stage_begin);
    for (uint32_t s = 0; s <= l->pp; s++) l->stage_begin[s] = begin[l->stage_begin[s]];
    mem_free(&from);
free_best:
    mem_free(&best);
done:
    return st;
}

/* --- building ----------------------------------------------------------------------------- */

static struct status check_moe(const struct layout_model *m)
{
    const struct arch *a = m->arch;
    bool any_moe = false, any_dense = false;
    for (uint32_t i = 0; i < arch_all_layers(a); i++) {
        any_moe |= a->layer.is_moe[i];
        any_dense |= !a->layer.is_moe[i] && !a->layer.lacks_ffn[i];
    }
    if (any_moe && (a->moe.n_experts == 0 || a->moe.ffn == 0 || m->expert_leaf == 0)) {
        return status_make(STATUS_INPUT, "%s: MoE layers need experts, found %u of width %u",
                           m->name, a->moe.n_experts, a->moe.ffn);
    }
    if (any_moe && (a->moe.n_chosen == 0 || a->moe.n_chosen > a->moe.n_experts)) {
        return status_make(STATUS_INPUT, "%s: %u experts chosen per token, expected 1 to %u",
                           m->name, a->moe.n_chosen, a->moe.n_experts);
    }
    if (any_dense && (a->ffn == 0 || m->ffn_leaf == 0)) {
        return status_make(STATUS_INPUT, "%s: dense layers need an FFN width, found %u", m->name,
                           a->ffn);
    }
    return status_ok();
}

static struct status layout_check_model(const struct layout_model *m)
{
    const struct arch *a = m->arch;
    if (a->n_layers == 0 || a->n_layers > ARCH_LAYERS_MAX) {
        return status_make(STATUS_INPUT, "%s: %u layers, expected 1 to %d", m->name, a->n_layers,
                           ARCH_LAYERS_MAX);
    }
    if (a->attn.n_heads == 0 || a->attn.n_kv_heads == 0 ||
        a->attn.n_heads % a->attn.n_kv_heads != 0) {
        return status_make(STATUS_INPUT,
                           "%s: %u query heads and %u kv heads, expected a positive multiple",
                           m->name, a->attn.n_heads, a->attn.n_kv_heads);
    }
    if (a->attn.value_dim == 0 || a->width == 0 || a->vocab == 0 || m->weight_bytes == 0) {
        return status_make(STATUS_INPUT,
                           "%s: head dimension %u, width %u, vocabulary %u, %u bytes per weight: "
                           "expected none to be 0",
                           m->name, a->attn.value_dim, a->width, a->vocab, m->weight_bytes);
    }
    if (m->o_leaf == 0 || m->o_leaf % a->attn.value_dim != 0) {
        return status_make(STATUS_INPUT,
                           "%s: leaves of o_proj have %u elements, expected a multiple "
                           "of the head dimension %u",
                           m->name, m->o_leaf, a->attn.value_dim);
    }
    return check_moe(m);
}

static struct status too_many_stages(const struct layout_model *m, uint32_t pp)
{
    const uint32_t most = stages_max(m->arch), n_layers = m->arch->n_layers;
    char reuse[128] = "";
    if (most < n_layers)
        snprintf(reuse, sizeof reuse, ", of which %u continue the layer before them",
                 n_layers - most);
    return status_make(STATUS_USAGE, "--pp %u: %s has %u layers%s; pp may be at most %u", pp,
                       m->name, n_layers, reuse, most);
}

static struct status check_limits(const struct layout *l, const struct layout_flags *f)
{
    const struct layout_model *m = &l->model;
    const struct arch *a = m->arch;
    const uint32_t tp_max = layout_tp_max(m), leaf = leaf_heads(m);
    if (f->tp > tp_max && leaf == 1) {
        return status_make(STATUS_USAGE, "--tp %u: %s has %u query heads; tp may be at most %u",
                           f->tp, m->name, a->attn.n_heads, tp_max);
    }
    if (f->tp > tp_max) {
        return status_make(STATUS_USAGE,
                           "--tp %u: %s has %u query heads in %u units of %u (o_proj's leaves have "
                           "%u elements); tp may be at most %u",
                           f->tp, m->name, a->attn.n_heads, tp_max, leaf, m->o_leaf, tp_max);
    }
    if (f->pp > stages_max(a)) return too_many_stages(m, f->pp);
    if (f->ep > 1 && a->moe.n_experts == 0) {
        return status_make(STATUS_USAGE,
                           "--ep %u: %s is dense, it has no experts; ep may only be 1", f->ep,
                           m->name);
    }
    if (f->ep > a->moe.n_experts && a->moe.n_experts > 0) {
        return status_make(STATUS_USAGE, "--ep %u: %s has %u experts; ep may be at most %u", f->ep,
                           m->name, a->moe.n_experts, a->moe.n_experts);
    }
    if (f->expert_replan > 0 && a->moe.n_experts == 0) {
        return status_make(STATUS_USAGE, "--expert-replan %u: %s is dense, it has no experts",
                           f->expert_replan, m->name);
    }
    if (f->expert_copies > 0 && f->expert_load == NULL && f->expert_replan == 0) {
        return status_make(STATUS_USAGE,
                           "--expert-copies %u: needs --expert-load FILE, which says which experts "
                           "have the most tokens, or in a job --expert-replan N, which counts them",
                           f->expert_copies);
    }
    return status_ok();
}

/* Returns the largest divisor of n that is at most `most` (n, most >= 1). */
static uint32_t largest_divisor(uint32_t n, uint32_t most)
{
    uint32_t d = min_u32(n, most);
    while (n % d != 0) d--;
    return d;
}

static struct status not_a_multiple(const struct layout *l, const uint32_t *open, uint64_t known)
{
    char product[96];
    int n = 0;
    const struct {
        const char *name;
        const uint32_t *value;
    } axes[] = {{"tp", &l->tp}, {"pp", &l->pp}, {"dp", &l->dp}};
    for (size_t i = 0; i < 3; i++) {
        if (axes[i].value == open) continue;
        n += snprintf(product + n, sizeof product - (size_t)n, "%s%s %u", n > 0 ? " x " : "",
                      axes[i].name, *axes[i].value);
    }
    return status_make(STATUS_USAGE, "%s needs %s%llu ranks, but there are %u", product,
                       open != NULL ? "a multiple of " : "", (unsigned long long)known, l->n_ranks);
}

/* Sets tp, pp and dp from the flags; a flag of 0 follows from the others. */
static struct status derive_world(struct layout *l, const struct layout_flags *f)
{
    l->tp = f->tp;
    l->pp = f->pp;
    l->dp = f->dp;
    if (l->tp == 0 && l->dp == 0) {
        /* --ep N alone means the largest tp that divides N and that the heads allow */
        l->tp = f->ep == 0 ? 1 : largest_divisor(f->ep, layout_tp_max(&l->model));
    }
    if (l->pp == 0 && (l->tp == 0 || l->dp == 0)) l->pp = 1;
    uint32_t *open = l->tp == 0 ? &l->tp : l->pp == 0 ? &l->pp : l->dp == 0 ? &l->dp : NULL;
    if (open != NULL) *open = 1;
    const uint64_t known = (uint64_t)l->tp * l->pp * l->dp;
    if (open == NULL ? known != l->n_ranks : l->n_ranks % known != 0) {
        const struct status st = not_a_multiple(l, open, known);
        if (f->tp > 0 || f->dp > 0 || f->ep == 0) return st;
        return status_wrap(st, "--ep %u alone means tp %u", f->ep, l->tp);
    }
    if (open != NULL) *open = (uint32_t)(l->n_ranks / known);
    return status_ok();
}

static struct status derive_experts(struct layout *l, uint32_t ep)
{
    const uint32_t stage_ranks = l->dp * l->tp;
    if (ep == 0) {
        ep = l->model.arch->moe.n_experts == 0
                 ? 1
                 : largest_divisor(stage_ranks, l->model.arch->moe.n_experts);
    }
    if (stage_ranks % ep != 0) {
        return status_make(STATUS_USAGE,
                           "--ep %u does not divide the %u ranks of a stage (dp %u x "
                           "tp %u)",
                           ep, stage_ranks, l->dp, l->tp);
    }
    const uint32_t rest = stage_ranks / ep;
    const bool moe = l->model.arch->moe.n_experts > 0;
    l->ep = ep;
    l->etp = moe ? gcd(rest, l->tp) : 1;
    l->n_expert_replicas = rest / l->etp;
    l->pp_outermost = moe && ep * l->etp > l->tp;
    return status_ok();
}

struct status layout_build(const struct layout_model *model, uint32_t n_ranks,
                           const struct layout_flags *flags, struct layout *out)
{
    if (n_ranks == 0 || n_ranks > LAYOUT_RANKS_MAX) {
        return status_make(STATUS_USAGE, "%u ranks, expected 1 to %d", n_ranks, LAYOUT_RANKS_MAX);
    }
    TRY(layout_check_model(model));
    memset(out, 0, sizeof *out);
    out->model = *model;
    out->n_ranks = n_ranks;
    TRY(check_limits(out, flags));
    if (flags->dp > n_ranks) {
        return status_make(STATUS_USAGE, "--dp %u: there are only %u ranks", flags->dp, n_ranks);
    }
    TRY(derive_world(out, flags));
    /* derived values have the same limits as flags */
    TRY(check_limits(out, &(struct layout_flags){.tp = out->tp, .pp = out->pp, .ep = 0}));
    TRY(derive_experts(out, flags->ep));
    /* a part has no use for two copies of an expert, so an expert has at most ep places */
    out->n_expert_copies =
        min_u32(flags->expert_copies, out->model.arch->moe.n_experts * (out->ep - 1));
    return split_layers(out);
}
