/* The memory that a rank needs for data to and from other ranks: hidden rows, sums, and the rows of
 * its experts, which are exchanged in the way that moe/moe.c chooses for the layout. */
#include "parallel/layout/layout.h"

#include "parallel/wire/exchange_memory.h"
#include "tensor/dims.h"
#include "tensor/quant_rows.h"

enum { SPREAD = 2 /* factor on the rows that evenly choosing routers send */ };

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* --- rows of experts -------------------------------------------------------------------------- */

/* The ways in which rows reach their experts (moe/moe.c). */
enum way { WAY_LOCAL, WAY_IN_HOST, WAY_BETWEEN_HOSTS, WAY_OF_ROWS };

static enum way way_of(const struct layout *l)
{
    const uint32_t group = l->ep * l->etp;
    if (group == 1) return WAY_LOCAL;
    if (l->model.on_device) return WAY_OF_ROWS;
    const bool in_host = group == l->tp && l->expert_hosts <= 1 && !l->model.arch->moe.bias;
    return in_host && (l->etp == 1 || l->cuts_expert_outputs) ? WAY_IN_HOST : WAY_BETWEEN_HOSTS;
}

/* Returns how many replicas of the model share one replica of the experts. */
static uint64_t batches(const struct layout *l)
{
    return max_u64((uint64_t)l->ep * l->etp / l->tp, 1);
}

static uint64_t n_hosts(const struct layout *l)
{
    return max_u64(l->expert_hosts, 1);
}

struct wire_shape layout_wire_shape(const struct layout *l)
{
    const struct arch *m = l->model.arch;
    return (struct wire_shape){.format = {m->width, l->model.expert_code_group, false},
                               .n_experts = m->moe.n_experts,
                               .n_chosen = m->moe.n_chosen,
                               .router = m->moe.router,
                               .n_hosts = (uint32_t)n_hosts(l)};
}

double layout_expert_rows(const struct layout *l, struct layout_place place, uint64_t step_tokens)
{
    const struct arch *m = l->model.arch;
    return (double)(batches(l) * step_tokens) * m->moe.n_chosen *
           range_count(layout_experts(l, place.ep)) / layout_n_places(l);
}

/* Returns the number of rows to plan for when `mean` are expected and `most` are possible. */
static uint64_t planned(const struct layout *l, double mean, uint64_t most)
{
    if (l->model.streams_experts) return most;
    return min_u64((uint64_t)(SPREAD * mean) + 1, most);
}

/* Returns the rows to plan for at the place's experts. */
static uint64_t rows_in(const struct layout *l, struct layout_place place, uint64_t step_tokens)
{
    const uint64_t held = range_count(layout_experts(l, place.ep));
    return planned(l, layout_expert_rows(l, place, step_tokens),
                   batches(l) * step_tokens * min_u64(l->model.arch->moe.n_chosen, held));
}

uint64_t layout_expert_array_bytes(const struct layout *l, struct layout_place place,
                                   uint64_t step_tokens, uint64_t row_bytes)
{
    if (row_bytes == 0) return 0; /* a model without experts, too */
    return exchange_grown_bytes(rows_in(l, place, step_tokens) * row_bytes);
}

/* Returns the bytes of the experts' own arrays: inputs, gate and up, and integer sums where ranks
 * add them. Streamed experts are computed in runs, each with at most the rows of one step of all
 * replicas that share the experts. */
static uint64_t expert_bytes(const struct layout *l, struct layout_place place, uint64_t n_in,
                             uint64_t step_tokens)
{
    const uint64_t d = l->model.arch->width, f = range_count(layout_expert_ffn(l, place.etp));
    const uint64_t inner =
        l->model.streams_experts ? min_u64(batches(l) * step_tokens, n_in) : n_in;
    const bool is_quantized = l->model.weights[CLASS_EXPERTS].group > 1;
    uint64_t n = inner * 2 * f * sizeof(float);
    if (l->model.expert_code_group == 0) n += n_in * d * sizeof(float);
    if (is_quantized) n += quant_rows_bytes(n_in, d) + quant_rows_bytes(inner, f);
    if (l->etp > 1 && !l->cuts_expert_outputs) n += n_in * (d + 1) * sizeof(int64_t);
    return n;
}

/* Returns the bytes of the arrays that move rows between hosts, as moe/exchange_hosts.c allocates
 * them. */
static uint64_t between_hosts_bytes(const struct layout *l, uint64_t n_routed, uint64_t n_in,
                                    uint64_t step_tokens)
{
    const struct wire_shape w = layout_wire_shape(l);
    const uint64_t k = w.n_chosen, hosts = w.n_hosts,
                   per_host = max_u64((uint64_t)l->ep * l->etp / hosts, 1);
    const double share = wire_host_share(&w), others = (double)(hosts - 1) / (double)hosts;
    const uint64_t came =
        planned(l, share * (double)(batches(l) * step_tokens), batches(l) * step_tokens);
    const uint64_t sent =
        planned(l, share * (double)(hosts * n_routed), n_routed * min_u64(k, hosts));
    const uint64_t from_others = (uint64_t)((double)came * others) / per_host + 1;
    const struct exchange_shape s = {.format = w.format,
                                     .n_hosts = hosts,
                                     .n_chosen = k,
                                     .n_runs = 1,
                                     .n_routed = n_routed,
                                     .n_sent = sent,
                                     .n_choices = n_routed * k,
                                     .n_came = came,
                                     .n_in = n_in,
                                     .n_back = from_others,
                                     .n_mailed = from_others,
                                     .n_returned = sent};
    uint64_t n = w.format.group > 0 ? quant_rows_bytes(n_routed, w.format.width) : 0;
    for (int i = 0; i < EXCHANGE_ARRAY_COUNT; i++)
        n += exchange_array_bytes(&s, (enum exchange_array)i);
    return n;
}

/* Returns the bytes that the second half of a step needs besides those of the first half, whose
 * arrays have room for a whole step. */
static uint64_t second_lane_bytes(const struct layout *l, struct layout_place place,
                                  uint64_t step_tokens)
{
    const uint64_t half = step_tokens / 2 + 1, routed = (half + l->tp - 1) / l->tp;
    return between_hosts_bytes(l, routed, rows_in(l, place, half), half) +
           half * ((l->model.arch->width + 1) * sizeof(float) + sizeof(int));
}

uint64_t layout_moe_bytes(const struct layout *l, struct layout_place place, uint64_t step_tokens)
{
    const struct arch *m = l->model.arch;
    const enum way way = way_of(l);
    const uint64_t d = m->width, k = m->moe.n_chosen, row = (d + 1) * sizeof(float);
    const uint64_t slice = (step_tokens + l->tp - 1) / l->tp;
    const uint64_t routed = way == WAY_BETWEEN_HOSTS || way == WAY_OF_ROWS ? slice : step_tokens;
    const uint64_t n_in = rows_in(l, place, step_tokens);
    if (m->moe.n_experts == 0) return 0;
    /* all tokens as int8 values; needed where they were not quantized before */
    const uint64_t codes = l->model.expert_code_group > 0 ? quant_rows_bytes(step_tokens, d) : 0;
    /* scores, ids twice, weights and slots; outputs and marks */
    uint64_t n =
        routed * (arch_n_routed(m) + 4 * k) * sizeof(float) + step_tokens * (row + sizeof(int));
    if (m->moe.n_zero > 0) n += step_tokens * row;
    if (m->moe.weighs_inputs) n += (step_tokens * d + routed) * sizeof(float);
    n += expert_bytes(l, place, n_in, step_tokens);
    switch (way) {
    case WAY_LOCAL:
        n += n_in * row + codes;
        break;
    case WAY_IN_HOST: /* all choices; the outputs in two segments, used in turn */
        n += step_tokens * 6 * k * sizeof(int32_t) + 2 * n_in * row + codes;
        break;
    case WAY_BETWEEN_HOSTS:
        n += between_hosts_bytes(l, routed, n_in, step_tokens);
        if (l->halves_from > 0) n += second_lane_bytes(l, place, step_tokens);
        break;
    case WAY_OF_ROWS: /* rows sent and rows returned; rows received, computed and sent back */
        n += 2 * routed * k * row + 3 * n_in * row;
        break;
    }
    return exchange_grown_bytes(n);
}

/* --- all ---------------------------------------------------------------------------------------
 */

/* Returns how many elements of 4 bytes a row-parallel linear needs per row. Counts the larger of
 * the two ways to cut it, because the hosts decide which one is used. */
static uint64_t row_sum_elements(const struct layout *l)
{
    const struct arch *m = l->model.arch;
    const uint64_t by_inputs = 2 * ((uint64_t)m->width + 1);
    if (l->tp == 1) return 0; /* the kernels round sums where they compute them */
    const uint64_t n_o = arch_mixed_inputs(m);
    const uint64_t inputs = max_u64(n_o, max_u64(m->ffn, m->moe.shared_ffn));
    const uint64_t normed = m->width + quant_rows_bytes(1, m->width) / sizeof(float);
    const uint64_t shared = (inputs + normed + l->tp - 1) / l->tp;
    const uint64_t by_outputs = m->width / l->tp + PANEL_COLUMNS + shared;
    return max_u64(by_inputs, by_outputs);
}

/* Adds up, in units of 4 bytes, for T = step_tokens rows:
 *   a buffer in flight to or from the next stage                          T D
 *   where tp > 1: sums over ranks, int64 [T, D + 1] (a counter per row)   2 T (D + 1)
 *     or, where ranks share a host and cut by outputs, the rank's D / tp output columns and
 *     its part of the inputs and normed rows that all read (the latter may be int8 too):
 *     T (D / tp + 16) + T (max(H V, F) + D + int8 values of D) / tp
 * and the rows of the experts. */
uint64_t layout_exchange_bytes(const struct layout *l, struct layout_place place,
                               uint64_t step_tokens)
{
    const uint64_t per_row = l->model.arch->width + row_sum_elements(l);
    const uint64_t sums = step_tokens * per_row * sizeof(float);
    return (l->model.streams_experts ? exchange_grown_bytes(sums) : sums) +
           layout_moe_bytes(l, place, step_tokens);
}
