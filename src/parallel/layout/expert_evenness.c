/* Computes how evenly the parts of a placement share a load: the load for which the placement was
 * made, or another. */
#include "base/mem.h"
#include "parallel/layout/expert_places.h"

#include <string.h>

enum { FLOW_ROUNDS = 4 };

/* --- the flow --------------------------------------------------------------------------------- */

/* Arrays for the rows of one source. */
struct scratch {
    int64_t *rows, *share;       /* [E], [P] */
    int64_t *before, *part_rows; /* [ep] */
    uint8_t *distance;           /* [ep] */
};

static struct status scratch_create(const struct layout *l, const struct expert_places *p,
                                    struct scratch *s)
{
    *s = (struct scratch){.rows = NULL};
    TRY(mem_alloc(&s->rows, p->n_experts, sizeof *s->rows, "experts' load"));
    TRY(mem_alloc(&s->share, p->n_places, sizeof *s->share, "experts' load"));
    TRY(mem_alloc(&s->before, l->ep, sizeof *s->before, "experts' load"));
    TRY(mem_alloc(&s->part_rows, l->ep, sizeof *s->part_rows, "experts' load"));
    return mem_alloc(&s->distance, l->ep, sizeof *s->distance, "experts' load");
}

static void scratch_destroy(struct scratch *s)
{
    mem_free(&s->distance);
    mem_free(&s->part_rows);
    mem_free(&s->before);
    mem_free(&s->share);
    mem_free(&s->rows);
}

static uint32_t stage_of(const struct layout *l, uint32_t layer)
{
    uint32_t pp = 0;
    while (layer >= l->stage_begin[pp + 1]) pp++;
    return pp;
}

/* Computes again how many rows one source sends to each part (sent [ep]). s->part_rows [ep] holds
 * the rows that the parts get from all sources. */
static void send_anew(const struct layout *l, const struct expert_places *p, const int64_t *load,
                      const struct expert_copies *copies, uint32_t source, int64_t *sent,
                      const struct scratch *s)
{
    for (uint32_t e = 0; e < p->n_experts; e++)
        s->rows[e] = load[e] * (source + 1) / l->ep - load[e] * source / l->ep;
    for (uint32_t i = 0; i < l->ep; i++) s->before[i] = s->part_rows[i] - sent[i];
    expert_copies_share(copies, s->rows, s->share, s->part_rows);
    for (uint32_t i = 0; i < l->ep; i++) sent[i] = s->part_rows[i] - s->before[i];
}

struct status expert_flow(const struct layout *l, const struct expert_places *p,
                          const int64_t *load, uint32_t layer, int64_t *sent)
{
    const uint32_t pp = stage_of(l, layer);
    struct expert_copies copies = expert_copies_of(l, p, layer);
    struct scratch s;
    struct status st = scratch_create(l, p, &s);
    copies.distance = s.distance;
    copies.before = s.before;
    memset(sent, 0, (size_t)l->ep * l->ep * sizeof *sent);
    for (int round = 0; round < FLOW_ROUNDS && !status_failed(&st); round++) {
        for (uint32_t source = 0; source < l->ep; source++) {
            expert_distances(l, p, layout_expert_rank(l, pp, 0, source), s.distance);
            send_anew(l, p, load, &copies, source, sent + (size_t)source * l->ep, &s);
        }
    }
    scratch_destroy(&s);
    return st;
}

/* --- evenness --------------------------------------------------------------------------------- */

/* Computes each part's load when experts are placed in the order of their ids, by layout_split. */
static void expect_by_id(const struct layout *l, const int64_t *load, int64_t *of_part)
{
    for (uint32_t i = 0; i < l->ep; i++) {
        const struct range held = layout_split(l->model.arch->moe.n_experts, 1, l->ep, i);
        of_part[i] = 0;
        for (uint32_t e = held.begin; e < held.end; e++) of_part[i] += load[e];
    }
}

static double power(double x, uint32_t n)
{
    double y = 1;
    for (; n > 0; n--) y *= x;
    return y;
}

/* True when part i is the first one on its host. */
static bool is_first_on_host(const struct layout *l, const struct expert_places *p, uint32_t pp,
                             uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (p->host_of[layout_expert_rank(l, pp, 0, k)] ==
            p->host_of[layout_expert_rank(l, pp, 0, i)])
            return false;
    return true;
}

/* Adds what one source contributes to out->other_hosts and out->hosts. sent [ep]: the rows that the
 * source sends to each part. */
static void add_hosts(const struct layout *l, const struct expert_places *p, uint32_t pp,
                      uint32_t source, const int64_t *sent, struct expert_rows_expected *out)
{
    const uint32_t here = p->host_of[layout_expert_rank(l, pp, 0, source)];
    int64_t all = 0;
    for (uint32_t i = 0; i < l->ep; i++) all += sent[i];
    for (uint32_t i = 0; all > 0 && i < l->ep; i++) {
        const uint32_t host = p->host_of[layout_expert_rank(l, pp, 0, i)];
        int64_t there = 0;
        if (host == here || !is_first_on_host(l, p, pp, i)) continue;
        for (uint32_t k = i; k < l->ep; k++)
            if (p->host_of[layout_expert_rank(l, pp, 0, k)] == host) there += sent[k];
        const double chosen = (double)there / (double)all;
        out->other_hosts += chosen / l->ep;
        out->hosts += (1 - power(1 - chosen, l->model.arch->moe.n_chosen)) / l->ep;
    }
}

struct status expert_rows_expect(const struct layout *l, const struct expert_places *p,
                                 const int64_t *load, uint32_t layer,
                                 struct expert_rows_expected *out)
{
    int64_t *sent = NULL;
    load += (size_t)layer * l->model.arch->moe.n_experts;
    out->other_hosts = out->hosts = 0;
    memset(out->of_part, 0, l->ep * sizeof *out->of_part);
    if (p == NULL) {
        expect_by_id(l, load, out->of_part);
        return status_ok();
    }
    TRY(mem_alloc(&sent, (size_t)l->ep * l->ep, sizeof *sent, "experts' load"));
    const struct status st = expert_flow(l, p, load, layer, sent);
    for (uint32_t source = 0; source < l->ep && !status_failed(&st); source++) {
        const int64_t *mine = sent + (size_t)source * l->ep;
        for (uint32_t i = 0; i < l->ep; i++) out->of_part[i] += mine[i];
        add_hosts(l, p, stage_of(l, layer), source, mine, out);
    }
    mem_free(&sent);
    return st;
}

struct status expert_evenness_of(const struct layout *l, const struct expert_places *p,
                                 const int64_t *load, struct expert_evenness *out)
{
    struct expert_rows_expected rows = {.of_part = NULL};
    struct status st;
    uint32_t n = 0;
    *out = (struct expert_evenness){0};
    TRY(mem_alloc(&rows.of_part, l->ep, sizeof *rows.of_part, "experts' load"));
    for (uint32_t layer = 0; layer < l->model.arch->n_layers; layer++) {
        int64_t sum = 0, most = 0;
        TRY_GOTO(st, expert_rows_expect(l, p, load, layer, &rows), done);
        for (uint32_t i = 0; i < l->ep; i++) {
            sum += rows.of_part[i];
            if (rows.of_part[i] > most) most = rows.of_part[i];
        }
        if (sum == 0) continue;
        const double ratio = (double)most * l->ep / (double)sum;
        out->mean += ratio;
        if (ratio > out->worst) out->worst = ratio;
        n++;
    }
    if (n > 0) out->mean /= n;
    st = status_ok();
done:
    mem_free(&rows.of_part);
    return st;
}

/* Returns how many additional copies are needed so that no part must compute more than `most` rows
 * of one expert. */
static uint64_t copies_needed(const int64_t *load, uint32_t n_experts, int64_t most)
{
    uint64_t n = 0;
    for (uint32_t e = 0; e < n_experts; e++)
        if (load[e] > most) n += (uint64_t)((load[e] - 1) / most);
    return n;
}

double expert_bound_of(const int64_t *load, uint32_t n_experts, uint32_t n_parts, uint32_t n_copies)
{
    int64_t sum = 0, high = 1;
    for (uint32_t e = 0; e < n_experts; e++) {
        sum += load[e];
        if (load[e] > high) high = load[e];
    }
    if (sum == 0) return 0;
    int64_t low = (sum + n_parts - 1) / n_parts; /* rounded up, because rows are whole */
    if (low > high) high = low;
    while (low < high) {
        const int64_t most = low + (high - low) / 2;
        if (copies_needed(load, n_experts, most) <= n_copies) {
            high = most;
        } else {
            low = most + 1;
        }
    }
    return (double)low * n_parts / (double)sum;
}

struct expert_evenness expert_least_of(const struct layout *l, const int64_t *load)
{
    const uint32_t n_experts = l->model.arch->moe.n_experts;
    struct expert_evenness e = {0};
    uint32_t n = 0;
    for (uint32_t layer = 0; layer < l->model.arch->n_layers; layer++) {
        const double least =
            expert_bound_of(load + (size_t)layer * n_experts, n_experts, l->ep, l->n_expert_copies);
        e.mean += least;
        if (least > e.worst) e.worst = least;
        n += least > 0;
    }
    if (n > 0) e.mean /= n;
    return e;
}
