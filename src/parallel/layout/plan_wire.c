/* The section of `shoal plan` on experts and the network. */
#include "base/mem.h"
#include "parallel/layout/plan_report.h"

#include <stdio.h>

enum { INDENT = 10 };

/* Returns the ep rank that holds the most experts and copies. */
static uint32_t fullest_rank(const struct layout *l)
{
    uint32_t most = 0;
    for (uint32_t ep = 1; ep < l->ep; ep++) {
        if (range_count(layout_experts(l, ep)) > range_count(layout_experts(l, most))) most = ep;
    }
    return most;
}

/* Appends the mean rows of a step for an expert, and for the rank with the most experts. */
static void report_rows(const struct layout *l, const struct layout_budget *b, struct strbuf *out)
{
    struct layout_place place = layout_place_of(l, 0);
    place.ep = fullest_rank(l);
    const uint32_t held = range_count(layout_experts(l, place.ep));
    const double rows = layout_expert_rows(l, place, b->step_tokens);
    const double all = rows / held * layout_n_places(l);
    const uint32_t n_batches = l->ep * l->etp > l->tp ? l->ep * l->etp / l->tp : 1;
    strbuf_printf(out,
                  "\n%-*sa step of %u rows in each of %u replicas that share them brings %.4g rows "
                  "to an expert on average, %.4g to a rank of %u experts%s, in each layer\n",
                  INDENT, "Rows", b->step_tokens, n_batches, all / l->model.arch->moe.n_experts,
                  rows, held, l->n_expert_copies > 0 ? " and copies" : "");
}

/* Computes a token's bytes between hosts, as the mean over the layers with experts, when tokens
 * choose experts as the load says. */
static struct status wire_by_load(const struct layout *l, const int64_t *load,
                                  const struct wire_shape *shape, struct wire_bytes *out)
{
    struct expert_rows_expected expected = {.of_part = NULL};
    struct status st = status_ok();
    double n = 0;
    *out = (struct wire_bytes){.hosts = 0};
    TRY(mem_alloc(&expected.of_part, l->ep, sizeof *expected.of_part, "experts' load"));
    for (uint32_t layer = 0; layer < l->model.arch->n_layers && !status_failed(&st); layer++) {
        if (!l->model.arch->layer.is_moe[layer]) continue;
        st = expert_rows_expect(l, l->expert_places, load, layer, &expected);
        const struct wire_bytes w = wire_bytes_for(shape, expected.hosts, expected.other_hosts);
        out->hosts += w.hosts;
        out->dispatch += w.dispatch;
        out->combine += w.combine;
        n++;
    }
    out->hosts /= n;
    out->dispatch /= n;
    out->combine /= n;
    mem_free(&expected.of_part);
    return st;
}

static void add_wire(const char *title, const struct wire_shape *shape, const char *how,
                     const struct wire_bytes *w, struct strbuf *out)
{
    strbuf_printf(out,
                  "%-*s%s: a token goes to %.2f others; %.3g KB there as %s, %.3g KB back, in each "
                  "layer\n",
                  INDENT, title, how, w->hosts, w->dispatch / 1e3,
                  shape->format.group > 0 ? "int8 values" : "floats", w->combine / 1e3);
}

struct status plan_report_wire(const struct layout *l, const struct layout_budget *budget,
                               const int64_t *load, struct strbuf *out)
{
    const struct arch *m = l->model.arch;
    if (m->moe.n_experts == 0) return status_ok();
    report_rows(l, budget, out);
    if (l->model.on_device || l->expert_hosts < 2 || l->expert_hosts > m->moe.n_experts)
        return strbuf_status(out);
    const struct wire_shape shape = layout_wire_shape(l);
    struct wire_bytes w = wire_bytes_of(&shape);
    char how[64];
    snprintf(how, sizeof how, "experts on %u hosts", shape.n_hosts);
    add_wire("Wire", &shape, how, &w, out);
    if (load == NULL) return strbuf_status(out);
    TRY(wire_by_load(l, load, &shape, &w));
    snprintf(how, sizeof how, "by the load, with %u copies", l->n_expert_copies);
    add_wire("", &shape, how, &w, out);
    return strbuf_status(out);
}
