/* The estimate behind the choice of a layout: for each stage a roofline, plus the time of the data
 * that its ranks exchange. Uses only additions, products and quotients of doubles, so that every
 * host computes the same. */
#include "parallel/layout/layout_cost.h"

#include "parallel/layout/kv_groups.h"
#include "parallel/layout/weights_list.h"
#include "tensor/dims.h"

/* Round numbers of current CPU clusters. Only their ratios matter. */
static const double core_flops = 30e9;                    /* per second, f32 */
static const double core_bytes = 4e9;                     /* memory bandwidth, per second */
static const double link_bytes[] = {10e9, 6e9, 12.5e9};   /* per rank; LINK_NET: per host */
static const double link_seconds[] = {1e-6, 2e-6, 10e-6}; /* latency */

/* The reference load. A sequence's slot yields 1 decode row and 4 prefill rows per answer token. */
enum { PROMPT_TOKENS = 512, ANSWER_TOKENS = 128, MEAN_CONTEXT = PROMPT_TOKENS + ANSWER_TOKENS / 2 };
static const double rows_per_slot = 1.0 + (double)PROMPT_TOKENS / ANSWER_TOKENS;
static const double blocks_per_slot = (PROMPT_TOKENS + ANSWER_TOKENS) / (double)KV_BLOCK_TOKENS;

static uint64_t rank_budget_bytes(const struct topo *t)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        const struct topo_rank *rank = &t->ranks[r];
        /* a tenth stays with the system, the page cache and MPI */
        const uint64_t part = t->nodes[rank->host].memory_bytes / rank->n_local_ranks / 10 * 9;
        if (part < least) least = part;
    }
    return least;
}

/* Bytes that a rank may use. */
static uint64_t budget_bytes(const struct layout_budget *b, const struct topo *t)
{
    if (b->rank_bytes > 0) return b->rank_bytes;
    return b->device_bytes > 0 ? b->device_bytes / 10 * 9 : rank_budget_bytes(t);
}

/* Bytes of the KV blocks of one full context and, if slots are wanted, of one sequence's states. */
static uint64_t needed(const struct layout_memory *m, const struct layout_budget *b,
                       uint64_t context_blocks)
{
    return context_blocks * m->kv_block_bytes + (b->n_state_slots > 0 ? m->state_bytes : 0);
}

uint64_t layout_adapter_bytes(const struct layout *l, uint32_t pp,
                              const struct layout_budget *budget)
{
    const uint64_t n_layers = l->model.arch->n_layers;
    const uint64_t layer_bytes = (budget->adapter_bytes + n_layers - 1) / n_layers;
    return layer_bytes * range_count(layout_layers(l, pp));
}

/* Returns which part of lead_bytes counts on a rank. Where the budget is an even part of a host's
 * memory, the ranks of the lead's host share them: these are the first ranks (order_ranks in
 * layout_choose.c). */
static uint64_t lead_part(const struct layout_budget *b, const struct topo *t, uint32_t rank)
{
    const uint32_t n_sharers = b->rank_bytes > 0 ? 1 : t->ranks[0].n_local_ranks;
    return rank < n_sharers ? (b->lead_bytes + n_sharers - 1) / n_sharers : 0;
}

struct layout_fit layout_fit_of(const struct layout *l, const struct topo *t,
                                const struct layout_budget *budget)
{
    struct layout_fit fit = {.budget_bytes = budget_bytes(budget, t),
                             .n_kv_blocks = UINT64_MAX,
                             .n_state_slots = budget->n_state_slots};
    const uint64_t context_blocks = kv_groups_context(l, budget);
    /* Remainders go to the first parts, so the ranks of replica 0 hold the most; but with copies of
     * experts any part may have one place more. */
    const uint32_t n = l->n_expert_copies > 0 ? l->dp * l->tp : l->tp;
    for (uint32_t pp = 0; pp < l->pp; pp++) {
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t rank = layout_rank_of(l, i / l->tp, pp, i % l->tp);
            const struct layout_memory m =
                layout_memory_of(l, layout_place_of(l, rank), budget->kv, budget->step_tokens);
            const uint64_t fixed = layout_fixed_bytes(&m) + layout_adapter_bytes(l, pp, budget) +
                                   lead_part(budget, t, rank);
            if (fixed + needed(&m, budget, context_blocks) > fit.needed_bytes) {
                fit.needed_bytes = fixed + needed(&m, budget, context_blocks);
                fit.worst_rank = rank;
            }
            uint64_t blocks = fixed > fit.budget_bytes ? 0 : UINT64_MAX;
            if (blocks > 0) {
                const uint64_t room = fit.budget_bytes - fixed;
                const uint32_t slots = layout_slots_in(room, m.state_bytes, budget->n_state_slots);
                const uint64_t states = slots * m.state_bytes;
                if (slots < fit.n_state_slots) fit.n_state_slots = slots;
                if (m.kv_block_bytes > 0)
                    blocks = states < room ? (room - states) / m.kv_block_bytes : 0;
            }
            if (blocks < fit.n_kv_blocks) fit.n_kv_blocks = blocks;
        }
    }
    fit.fits = fit.needed_bytes <= fit.budget_bytes;
    return fit;
}

enum layout_link layout_link_of(const struct topo *t, const uint32_t *order, uint32_t n)
{
    enum layout_link widest = LINK_NUMA;
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        const struct topo_rank *first = &t->ranks[order[r - r % n]], *rank = &t->ranks[order[r]];
        if (rank->host != first->host) return LINK_NET;
        if (r % n != 0 && (rank->numa < 0 || rank->numa != first->numa)) widest = LINK_HOST;
    }
    return widest;
}

void layout_see_hosts(const struct topo *t, const uint32_t *order, struct layout *l)
{
    const uint32_t n = l->ep * l->etp;
    uint32_t most = 1, here = 1;
    for (uint32_t r = 1; r < l->n_ranks; r++) {
        if (r % n == 0) {
            here = 1;
        } else if (t->ranks[order[r]].host != t->ranks[order[r - 1]].host) {
            here++;
        }
        if (here > most) most = here;
    }
    l->expert_hosts = most;
}

/* The rates of the slowest rank. */
struct rates {
    double flops, bytes;
    double net_bytes; /* its part of the host's network */
};

double layout_network_bytes_s(const struct layout_budget *budget)
{
    return budget->network_bytes_s > 0 ? budget->network_bytes_s : link_bytes[LINK_NET];
}

static struct rates slowest_rank(const struct topo *t, const struct layout_budget *budget)
{
    double cores = 1e9, ranks = 1;
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        const struct topo_rank *rank = &t->ranks[r];
        const double part = (double)t->nodes[rank->host].n_cores / rank->n_local_ranks;
        const double mine = rank->n_cores < part ? rank->n_cores : part;
        if (mine < cores) cores = mine;
        if (rank->n_local_ranks > ranks) ranks = rank->n_local_ranks;
    }
    return (struct rates){cores * core_flops, cores * core_bytes,
                          layout_network_bytes_s(budget) / ranks};
}

struct group {
    double n, bytes_s, latency_s;
};

static struct group layout_cost_group_of(const struct topo *t, const uint32_t *order,
                                         const struct rates *rates, uint32_t n)
{
    const enum layout_link link = layout_link_of(t, order, n);
    return (struct group){n, link == LINK_NET ? rates->net_bytes : link_bytes[link],
                          link_seconds[link]};
}

/* Seconds to pass `rows` rows through `params` weights each, or to read `read` weights from memory
 * once, whichever takes longer. */
static double linear_s(const struct rates *r, double rows, double params, double read,
                       double weight_bytes)
{
    const double compute = 2.0 * rows * params / r->flops, load = read * weight_bytes / r->bytes;
    return compute > load ? compute : load;
}

/* Returns the seconds of an all-reduce of int64 [rows, width]: reduce-scatter and all-gather. */
static double group_sum_s(const struct group *g, double rows, double width)
{
    if (g->n < 2) return 0;
    return 2.0 * (g->n - 1) / g->n * rows * width * 8.0 / g->bytes_s + 2.0 * g->n * g->latency_s;
}

struct stage_load {
    const struct layout *l;
    struct rates rates;
    struct group tp, experts;
    double rows; /* rows of one replica's microbatch */
    uint32_t kv_bytes;
    bool etp_crosses; /* the ranks of an expert are on several hosts */
};

/* Seconds of the linears of these parts, except the experts', for `rows` rows. */
static double linears_s(const struct stage_load *s, const struct weights_cut *cut, uint64_t parts,
                        double rows)
{
    double seconds = 0;
    const struct arch_tensor *t;
    for (size_t i = 0; (t = arch_tensor_at(i)) != NULL; i++) {
        if ((t->part & parts) == 0 || t->is_vector || t->is_expert) continue;
        const struct weight_spec held = weights_slab(cut, t);
        const double params = (double)range_count(held.rows) * range_count(held.cols);
        seconds +=
            linear_s(&s->rates, rows, params, params, layout_weight_bytes(&s->l->model, t->class));
    }
    return seconds;
}

/* Seconds for reading the KV cache and for o_proj's sum over ranks. */
static double attention_s(const struct stage_load *s, struct layout_place place)
{
    const struct arch *m = s->l->model.arch;
    const double kv = range_count(layout_kv_heads(s->l, place.tp));
    const double token =
        kv * m->attn.head_dim * (m->attn.kv_lora > 0 ? 1 : 2) + (kv > 0 ? arch_beside_dim(m) : 0);
    const double cached = s->rows / rows_per_slot * MEAN_CONTEXT * token;
    return cached * s->kv_bytes / s->rates.bytes + group_sum_s(&s->tp, s->rows, m->width);
}

/* Seconds of the experts' linears: `chosen` rows in all, through `touched` experts. */
static double experts_s(const struct stage_load *s, const struct weights_cut *cut, double chosen,
                        double touched)
{
    double seconds = 0;
    const struct arch_tensor *t;
    for (size_t i = 0; (t = arch_tensor_at(i)) != NULL; i++) {
        if (!t->is_expert || t->is_vector) continue;
        const struct weight_spec held = weights_slab(cut, t);
        const double one = (double)range_count(held.rows) * range_count(held.cols);
        seconds += linear_s(&s->rates, chosen, one, touched * one,
                            layout_weight_bytes(&s->l->model, t->class));
    }
    return seconds;
}

/* Seconds for the exchange of rows with the experts' ranks. */
static double load_exchange_s(const struct stage_load *s)
{
    const struct layout *l = s->l;
    const struct arch *m = l->model.arch;
    const double sent = s->rows / l->tp;
    /* a token goes to each host once */
    if (l->expert_hosts > 1 && !s->etp_crosses && !l->model.on_device) {
        const struct wire_shape shape = layout_wire_shape(l);
        const struct wire_bytes w = wire_bytes_of(&shape);
        return sent * (w.dispatch + w.combine) / s->rates.net_bytes +
               2.0 * l->expert_hosts * link_seconds[LINK_NET];
    }
    /* rows go to every part of their chosen experts as f32, and come back as f32 or, when experts
     * are split, as int64 sums */
    const double row = m->width * (l->etp > 1 ? 12.0 : 8.0);
    const double moved = sent * m->moe.n_chosen * l->etp * row;
    return moved * (s->experts.n - 1) / s->experts.n / s->experts.bytes_s +
           2.0 * s->experts.n * s->experts.latency_s;
}

/* Returns the expected number of rows of this place's experts. */
static double chosen_rows(const struct stage_load *s, const struct weights_cut *cut)
{
    const double n_batches = s->experts.n / s->l->tp;
    return s->rows * n_batches * s->l->model.arch->moe.n_chosen * range_count(cut->experts) /
           layout_n_places(s->l);
}

/* Seconds for the experts and for the exchange of rows with their ranks. */
static double moe_s(const struct stage_load *s, const struct weights_cut *cut)
{
    const struct layout *l = s->l;
    const struct arch *m = l->model.arch;
    const double n_local = range_count(cut->experts), chosen = chosen_rows(s, cut);
    double seconds = experts_s(s, cut, chosen, chosen < n_local ? chosen : n_local);
    if (m->moe.shared_ffn > 0) seconds += group_sum_s(&s->tp, s->rows, m->width);
    if (s->experts.n < 2) return seconds;
    seconds += load_exchange_s(s);
    /* each tp rank has combined its part of the rows, and all ranks need all rows */
    if (l->tp > 1) seconds += s->rows * m->width * 4.0 / s->tp.bytes_s;
    return seconds;
}

static double stage_s(const struct stage_load *s, uint32_t pp, double hop_bytes_s)
{
    const struct layout *l = s->l;
    const struct arch *m = l->model.arch;
    const struct layout_place place = layout_place_of(l, layout_rank_of(l, 0, pp, 0));
    const struct weights_cut cut = weights_cut_of(l, place);
    const struct range layers = layout_layers(l, pp);
    const double moe = m->moe.n_experts > 0 ? moe_s(s, &cut) : 0;
    const double sum = group_sum_s(&s->tp, s->rows, m->width);
    double seconds = range_count(layers) * attention_s(s, place), one = 0;
    uint64_t counted = 0; /* the parts whose seconds are `one` */
    for (uint32_t i = layers.begin; i < layers.end; i++) {
        const uint64_t parts = arch_layer_parts(m, i);
        if (parts != counted) one = linears_s(s, &cut, parts, s->rows);
        counted = parts;
        seconds += one + (m->layer.is_moe[i] ? moe : sum) + (arch_starts_shortcut(m, i) ? sum : 0);
    }
    if (pp == l->pp - 1) seconds += linears_s(s, &cut, PART_HEAD, s->rows / rows_per_slot);
    if (l->pp > 1) seconds += s->rows * arch_row_width(m) * 4.0 / hop_bytes_s;
    return seconds;
}

/* The seconds of one MoE layer: the linears before rows are sent, the experts, sending rows to
 * other hosts, and sending the sums back. */
struct layer_times {
    double before, experts, there, back;
};

static struct layer_times layer_times_of(const struct stage_load *s, const struct weights_cut *cut,
                                         uint64_t parts)
{
    const struct wire_shape shape = layout_wire_shape(s->l);
    const struct wire_bytes w = wire_bytes_of(&shape);
    const double chosen = chosen_rows(s, cut), n_local = range_count(cut->experts);
    const double sent = s->rows / s->l->tp, latency = s->l->expert_hosts * link_seconds[LINK_NET];
    return (struct layer_times){.before = linears_s(s, cut, parts, s->rows),
                                .experts =
                                    experts_s(s, cut, chosen, chosen < n_local ? chosen : n_local),
                                .there = sent * w.dispatch / s->rates.net_bytes + latency,
                                .back = sent * w.combine / s->rates.net_bytes + latency};
}

static double exposed(double travels, double computes)
{
    return travels > computes ? travels - computes : 0;
}

/* True when a step of s.rows rows takes more than halves_win times as long whole as in two halves.
 * The drawing in model/stage.c (run_hiding) shows which work hides which messages. */
static bool halves_pay(struct stage_load s, const struct weights_cut *cut, uint64_t parts)
{
    static const double halves_win = 1.05;
    static const double second_half_s = 1e-4; /* time to start each op and message of a layer a
                                                 second time */
    const struct layer_times whole = layer_times_of(&s, cut, parts);
    s.rows /= 2;
    const struct layer_times half = layer_times_of(&s, cut, parts);
    const double in_halves = second_half_s + 2 * (half.before + half.experts) +
                             exposed(half.there, half.before) + exposed(half.there, half.experts) +
                             exposed(half.back, half.experts) + exposed(half.back, half.before);
    return whole.before + whole.experts + whole.there + whole.back > halves_win * in_halves;
}

/* Returns the model's first MoE layer; n_layers: it has none. */
static uint32_t moe_layer(const struct arch *m)
{
    uint32_t i = 0;
    while (i < m->n_layers && !m->layer.is_moe[i]) i++;
    return i;
}

void layout_choose_halves(const struct topo *t, const uint32_t *order,
                          const struct layout_budget *budget, enum overlap overlap,
                          struct layout *l)
{
    struct stage_load s = {.l = l, .rates = slowest_rank(t, budget)};
    const uint32_t layer = moe_layer(l->model.arch);
    l->halves_from = 0;
    if (overlap == OVERLAP_OFF || l->expert_hosts < 2 || l->model.on_device ||
        layer == l->model.arch->n_layers || layout_link_of(t, order, l->etp) == LINK_NET)
        return;
    const struct weights_cut cut = weights_cut_of(l, layout_place_of(l, 0));
    const uint64_t parts = arch_layer_parts(l->model.arch, layer);
    s.experts = layout_cost_group_of(t, order, &s.rates, l->ep * l->etp);
    for (uint32_t rows = 2; rows <= budget->step_tokens; rows *= 2) {
        s.rows = rows;
        if (overlap != OVERLAP_ON && !halves_pay(s, &cut, parts)) continue;
        l->halves_from = rows;
        return;
    }
}

double layout_rows_s(const struct layout *l, const struct topo *t, const uint32_t *order,
                     const struct layout_budget *budget, const struct layout_fit *fit)
{
    struct stage_load s = {
        .l = l, .rates = slowest_rank(t, budget), .kv_bytes = budget->kv.element_bytes};
    s.tp = layout_cost_group_of(t, order, &s.rates, l->tp);
    s.experts = layout_cost_group_of(t, order, &s.rates, l->ep * l->etp);
    s.etp_crosses = layout_link_of(t, order, l->etp) == LINK_NET;
    /* pp groups of sequences are in flight and share the cache */
    const struct kv_groups groups = kv_groups_of(l);
    const double n_tables = groups.n_full + groups.n_windowed;
    const double slots = (double)fit->n_kv_blocks / (blocks_per_slot * n_tables) / l->pp;
    s.rows = slots * rows_per_slot;
    if (s.rows > budget->step_tokens) s.rows = budget->step_tokens;
    if (s.rows < 1) s.rows = 1;
    if (budget->estimate != NULL) {
        const double step_s = budget->estimate->step_s(budget->estimate->user, l, t, order, s.rows);
        if (step_s > 0) return l->dp * s.rows / step_s;
    }
    const double hop = t->n_nodes > 1 ? s.rates.net_bytes : link_bytes[LINK_HOST];
    double slowest = 0;
    for (uint32_t pp = 0; pp < l->pp; pp++) {
        const double seconds = stage_s(&s, pp, hop);
        if (seconds > slowest) slowest = seconds;
    }
    return l->dp * s.rows / slowest;
}
