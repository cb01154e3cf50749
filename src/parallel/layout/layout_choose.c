/* The choice of a layout: every product of tp, pp and dp that the flags allow is built (with one or
 * several ep: consider_ep), checked against memory and compared by estimated rows per second, under
 * the rules in choose_best. */
#include "parallel/layout/layout_choose.h"

#include "base/mem.h"
#include "parallel/layout/layout_cost.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the order of ranks ------------------------------------------------------------------- */

struct seat {
    uint32_t launcher_rank;
    const struct topo_rank *rank;
};

static int compare_i64(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int compare_seats(const void *left, const void *right)
{
    const struct seat *a = left, *b = right;
    int by = compare_i64(a->rank->host, b->rank->host);
    if (by == 0) by = compare_i64(a->rank->package, b->rank->package);
    if (by == 0) by = compare_i64(a->rank->numa, b->rank->numa);
    if (by == 0) by = compare_i64(a->rank->l3, b->rank->l3);
    if (by == 0) by = compare_i64(a->rank->first_pu, b->rank->first_pu);
    return by != 0 ? by : compare_i64(a->launcher_rank, b->launcher_rank);
}

/* Orders ranks so that neighbours in the order are neighbours in the machine. topo numbers hosts by
 * their first rank, so rank 0's host comes first. */
static struct status order_ranks(const struct topo *t, uint32_t *order)
{
    struct seat *seats = NULL;
    TRY(mem_alloc(&seats, t->n_ranks, sizeof *seats, "rank order"));
    for (uint32_t r = 0; r < t->n_ranks; r++) seats[r] = (struct seat){r, &t->ranks[r]};
    qsort(seats, t->n_ranks, sizeof *seats, compare_seats);
    for (uint32_t r = 0; r < t->n_ranks; r++) order[r] = seats[r].launcher_rank;
    mem_free(&seats);
    return status_ok();
}

/* --- candidates --------------------------------------------------------------------------- */

struct search {
    const struct layout_model *model;
    const struct topo *t;
    const uint32_t *order;
    const struct layout_budget *budget;
    const struct layout_flags *flags;
    bool cross_hosts;       /* groups of ranks with one replica of the experts may span hosts */
    bool tp_crosses;        /* tp groups may span hosts */
    struct status *trouble; /* borrowed; the last failure that is not about a candidate's sizes */
};

/* A candidate of the search. At the end the layout is built again from its sizes. */
struct candidate {
    struct layout_flags sizes; /* all set; tp = 0: none */
    struct layout_fit fit;
    double rows_s;
};

static bool flag_allows(uint32_t flag, uint32_t value)
{
    return flag == 0 || flag == value;
}

/* True when the layout's tp and expert groups span hosts only where this search allows it. */
static bool groups_allowed(const struct search *s, const struct layout *l)
{
    const bool tp_inside = layout_link_of(s->t, s->order, l->tp) != LINK_NET;
    const bool experts_inside = layout_link_of(s->t, s->order, l->ep * l->etp) != LINK_NET;
    return (tp_inside || s->tp_crosses) && (experts_inside || s->cross_hosts);
}

/* True when `a` is better than `b`: there is no `b`; `a` fits and `b` does not; or both fit and `a`
 * has more than `margin` times the rows per second of `b` (so that among equals the first and
 * simplest stays); or neither fits and `a` needs less memory. */
static bool better(const struct candidate *a, const struct candidate *b, double margin)
{
    if (b->sizes.tp == 0) return a->sizes.tp != 0;
    if (a->fit.fits != b->fit.fits) return a->fit.fits;
    if (!a->fit.fits) return a->fit.needed_bytes < b->fit.needed_bytes;
    return a->rows_s > b->rows_s * margin;
}

/* The estimate is no more exact than 5 %. A longer pipeline must be worth the additional groups of
 * sequences that fill it. */
static const double margin_equal = 1.05, margin_pp = 1.3;

/* Groups across hosts must be worth the risk that others use the network or that a host fails. */
static const double margin_hosts = 1.3;

static void consider(const struct search *s, const struct layout_flags *sizes,
                     struct candidate *best)
{
    struct layout l;
    const struct status st = layout_build(s->model, s->t->n_ranks, sizes, &l);
    if (status_failed(&st) && st.code != STATUS_USAGE) *s->trouble = st;
    if (status_failed(&st) || !groups_allowed(s, &l)) return;
    layout_see_hosts(s->t, s->order, &l);
    layout_choose_halves(s->t, s->order, s->budget, s->flags->overlap, &l);
    struct candidate c = {.sizes = *sizes};
    c.sizes.tp = l.tp;
    c.sizes.pp = l.pp;
    c.sizes.ep = l.ep;
    c.sizes.dp = l.dp;
    c.fit = layout_fit_of(&l, s->t, s->budget);
    if (c.fit.fits) c.rows_s = layout_rows_s(&l, s->t, s->order, s->budget, &c.fit);
    if (better(&c, best, margin_equal)) *best = c;
}

/* Unless flags or a dense model fix ep, tries the divisors of a stage's ranks, the largest first.
 * Takes the first whose groups stay inside a host or, when groups may span hosts, compares all. */
static void consider_ep(const struct search *s, struct layout_flags sizes, struct candidate *best)
{
    const uint32_t stage_ranks = sizes.dp * sizes.tp;
    const struct layout_flags *f = s->flags;
    const bool all_asked = f->tp > 0 && f->pp > 0 && f->dp > 0;
    sizes.ep = f->ep;
    if (f->ep > 0 || s->model->arch->moe.n_experts == 0 || all_asked) {
        consider(s, &sizes, best); /* ep 0: layout_build's default */
        return;
    }
    for (uint32_t ep = stage_ranks; ep > 0; ep--) {
        if (stage_ranks % ep != 0 || ep > s->model->arch->moe.n_experts) continue;
        struct candidate found = {0};
        sizes.ep = ep;
        consider(s, &sizes, &found);
        if (found.sizes.tp == 0) continue;
        if (better(&found, best, margin_equal)) *best = found;
        if (!s->cross_hosts) return; /* ep is the largest whose groups stay inside a host */
    }
}

/* Returns the best candidate with this pp. Tries tp 1, which needs no sums over ranks, first. */
static struct candidate best_with_pp(const struct search *s, uint32_t pp)
{
    const uint32_t rest = s->t->n_ranks / pp, tp_max = layout_tp_max(s->model);
    struct candidate best = {0};
    for (uint32_t tp = 1; tp <= rest && tp <= tp_max; tp++) {
        if (rest % tp != 0 || !flag_allows(s->flags->tp, tp)) continue;
        if (!flag_allows(s->flags->dp, rest / tp)) continue;
        struct layout_flags sizes = *s->flags;
        sizes.tp = tp;
        sizes.pp = pp;
        sizes.dp = rest / tp;
        consider_ep(s, sizes, &best);
    }
    return best;
}

/* Takes the smallest pp unless a larger one is clearly better: a pipeline of pp stages needs pp
 * groups of sequences, and each group takes its share of the KV cache. */
static struct candidate layout_choose_best_of(const struct search *s)
{
    struct candidate chosen = {0};
    for (uint32_t pp = 1; pp <= s->t->n_ranks && pp <= s->model->arch->n_layers; pp++) {
        if (s->t->n_ranks % pp != 0 || !flag_allows(s->flags->pp, pp)) continue;
        const struct candidate c = best_with_pp(s, pp);
        if (better(&c, &chosen, margin_pp)) chosen = c;
    }
    return chosen;
}

/* Keeps tp and expert groups inside hosts, unless no such layout fits or experts spread over hosts
 * are clearly faster. */
static struct candidate choose_best(struct search s)
{
    const struct candidate inside = layout_choose_best_of(&s);
    if (s.t->n_nodes == 1 || (inside.fit.fits && s.model->arch->moe.n_experts == 0)) return inside;
    s.cross_hosts = true;
    s.tp_crosses = !inside.fit.fits;
    const struct candidate crossing = layout_choose_best_of(&s);
    return better(&crossing, &inside, inside.fit.fits ? margin_hosts : margin_equal) ? crossing
                                                                                     : inside;
}

/* --- the reasons -------------------------------------------------------------------------- */

struct text {
    char *at;
    size_t left;
};

static void layout_choose_say(struct text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void layout_choose_say(struct text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(text->at, text->left, format, args);
    va_end(args);
    const size_t used = n < 0 ? 0 : (size_t)n < text->left ? (size_t)n : text->left - 1;
    text->at += used;
    text->left -= used;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1u << 30);
}

static const char *link_name(enum layout_link link)
{
    static const char *const names[] = {"inside a NUMA node", "inside a host", "across hosts"};
    return names[link];
}

static void say_pp(struct text *text, const struct layout *l, const struct search *s, bool fits)
{
    if (!fits) {
        layout_choose_say(text, "No layout fits; this one lacks the least memory. ");
    } else if (s->flags->pp != 0) {
        layout_choose_say(text, "pp %u as asked. ", l->pp);
    } else if (l->pp == 1) {
        layout_choose_say(
            text, "pp 1: the layers fit without a pipeline, which would need groups to fill it. ");
    } else {
        layout_choose_say(
            text,
            "pp %u %s: with fewer stages the weights leave too little memory for the KV cache, and "
            "stages exchange the least. ",
            l->pp, s->t->n_nodes == 1 ? "inside the host" : "across hosts");
    }
}

static void say_tp(struct text *text, const struct layout *l, const struct search *s)
{
    const char *where = link_name(layout_link_of(s->t, s->order, l->tp));
    if (s->flags->tp != 0) {
        layout_choose_say(text, "tp %u as asked%s%s. ", l->tp, l->tp > 1 ? ", " : "",
                          l->tp > 1 ? where : "");
    } else if (l->tp == 1) {
        layout_choose_say(
            text, "tp 1: a rank's memory holds its layers, so nothing is summed over ranks%s. ",
            l->dp > 1 ? " (for a few requests at a time, a larger --tp answers sooner)" : "");
    } else {
        layout_choose_say(
            text, "tp %u %s: divides attention's weights and the KV cache where sums are cheap. ",
            l->tp, where);
    }
}

static void say_dp(struct text *text, const struct layout *l, const struct search *s)
{
    if (s->flags->dp != 0) {
        layout_choose_say(text, "dp %u as asked. ", l->dp);
    } else if (l->dp > 1) {
        layout_choose_say(text, "dp %u: the remaining ranks are replicas, for throughput. ", l->dp);
    }
}

static void say_ep(struct text *text, const struct layout *l, const struct search *s)
{
    if (l->model.arch->moe.n_experts == 0) return;
    const char *where = link_name(layout_link_of(s->t, s->order, l->ep * l->etp));
    if (s->flags->ep != 0) {
        layout_choose_say(text, "ep %u as asked", l->ep);
    } else if (l->ep > 1) {
        layout_choose_say(text, "ep %u %s: each expert is read by one rank for all of them", l->ep,
                          where);
        if (l->expert_hosts > 1)
            layout_choose_say(text, ", a token goes to a host once at %.4g Gbit/s",
                              layout_network_bytes_s(s->budget) * 8e-9);
    } else {
        layout_choose_say(text, "ep 1: %s",
                          l->dp * l->tp == 1
                              ? "a stage is one rank, which holds its layers' experts"
                              : "no group of ranks inside a host divides the stage");
    }
    if (l->etp > 1) layout_choose_say(text, ", its columns split over %u ranks", l->etp);
    if (l->n_expert_replicas > 1) layout_choose_say(text, ", in %u copies", l->n_expert_replicas);
    layout_choose_say(text, ". ");
}

static void say_halves(struct text *text, const struct layout *l, const struct search *s)
{
    if (l->halves_from == 0) return;
    layout_choose_say(text, "Steps of %u rows a replica and more go in two halves%s. ",
                      l->halves_from,
                      s->flags->overlap == OVERLAP_ON
                          ? " as asked"
                          : ": one is computed while the other travels between hosts");
}

static void say_lack(struct text *text, const struct layout *l, const struct layout_fit *fit)
{
    if (fit->fits) return;
    const struct layout_place place = layout_place_of(l, fit->worst_rank);
    layout_choose_say(
        text,
        "DOES NOT FIT: rank %u (stage %u, tp %u) needs %.2f GiB and may use %.2f GiB, %.2f GiB "
        "less. ",
        fit->worst_rank, place.pp, place.tp, gib(fit->needed_bytes), gib(fit->budget_bytes),
        gib(fit->needed_bytes - fit->budget_bytes));
}

static void explain(struct layout *l, const struct search *s, const struct layout_fit *fit)
{
    struct text text = {l->why, sizeof l->why};
    say_pp(&text, l, s, fit->fits);
    if (fit->fits) {
        say_tp(&text, l, s);
        say_dp(&text, l, s);
        say_ep(&text, l, s);
        say_halves(&text, l, s);
    }
    say_lack(&text, l, fit);
    if (text.at > l->why) text.at[-1] = '\0'; /* the blank after the last sentence */
}

struct status layout_choose(const struct layout_model *model, const struct topo *t,
                            const struct layout_flags *flags, const struct layout_budget *budget,
                            struct layout *out, uint32_t *order, bool *fits)
{
    *fits = false;
    /* layout_build refuses a bad model before anything is divided by its values. Its sentence on
     * bad flags is returned if no layout is found. */
    struct layout_flags fixed = *flags;
    const struct status derived = layout_build(model, t->n_ranks, &fixed, out);
    if (status_failed(&derived) && derived.code != STATUS_USAGE) return derived;
    /* --ep N alone sets tp; layout_build says to which value */
    if (!status_failed(&derived) && flags->ep > 0 && flags->tp == 0 && flags->dp == 0) {
        fixed.tp = out->tp;
    }
    TRY(order_ranks(t, order));
    struct status trouble = status_ok();
    const struct search s = {.model = model,
                             .t = t,
                             .order = order,
                             .budget = budget,
                             .flags = &fixed,
                             .trouble = &trouble};
    const struct candidate best = choose_best(s);
    TRY(trouble);
    if (best.sizes.tp == 0) return derived;
    TRY(layout_build(model, t->n_ranks, &best.sizes, out));
    layout_see_hosts(t, order, out);
    layout_choose_halves(t, order, budget, flags->overlap, out);
    explain(out, &s, &best.fit);
    *fits = best.fit.fits;
    return status_ok();
}

void layout_expect_cuts(const struct topo *t, const uint32_t *order, struct layout *l)
{
    /* each tp group is on one host. Where experts may be cut by outputs, their groups are the tp
     * groups */
    bool on_hosts = true;
    for (uint32_t r = 0; r < l->n_ranks; r++) {
        const struct layout_place p = layout_place_of(l, r);
        const uint32_t first = layout_rank_of(l, p.dp, p.pp, 0);
        on_hosts = on_hosts && t->ranks[order[r]].host == t->ranks[order[first]].host;
    }
    l->cuts_outputs = on_hosts && layout_may_cut_outputs(l);
    l->cuts_expert_outputs = on_hosts && layout_may_cut_expert_outputs(l);
}
