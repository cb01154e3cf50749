/* The section of `shoal plan` on experts by load: how evenly the ranks are loaded with experts
 * placed by id, by load, and by load with copies. */
#include "base/mem.h"
#include "parallel/layout/plan_report.h"

#include <stdio.h>

enum { INDENT = 10, PARTS_MAX = 32 /* most parts that are shown one by one */ };

/* Appends each part's load over all layers, divided by the mean of the parts. */
static struct status plan_report_add_parts(const struct layout *l, const struct expert_places *p,
                                           const int64_t *load, double *of_all, struct strbuf *out)
{
    struct expert_rows_expected rows = {.of_part = NULL};
    double sum = 0;
    struct status st;
    TRY(mem_alloc(&rows.of_part, l->ep, sizeof *rows.of_part, "experts' load"));
    for (uint32_t layer = 0; layer < l->model.arch->n_layers; layer++) {
        TRY_GOTO(st, expert_rows_expect(l, p, load, layer, &rows), done);
        for (uint32_t i = 0; i < l->ep; i++) {
            of_all[i] += (double)rows.of_part[i];
            sum += (double)rows.of_part[i];
        }
    }
    strbuf_puts(out, "; each over all layers:");
    for (uint32_t i = 0; i < l->ep; i++)
        strbuf_printf(out, " %.2f", sum > 0 ? of_all[i] * l->ep / sum : 0);
    st = status_ok();
done:
    mem_free(&rows.of_part);
    return st;
}

static struct status add_evenness(const struct layout *l, const struct expert_places *p,
                                  const int64_t *load, const char *how, struct strbuf *out)
{
    struct expert_evenness even;
    double *of_all = NULL;
    struct status st;
    TRY(expert_evenness_of(l, p, load, &even));
    TRY_GOTO(st, mem_alloc(&of_all, l->ep, sizeof *of_all, "experts' load"), done);
    strbuf_printf(out, "%*s%s %.2f, in the worst layer %.2f", INDENT, "", how, even.mean,
                  even.worst);
    if (l->ep <= PARTS_MAX) TRY_GOTO(st, plan_report_add_parts(l, p, load, of_all, out), done);
    strbuf_puts(out, "\n");
done:
    mem_free(&of_all);
    return st;
}

/* Appends how evenly the ranks are loaded with experts placed by load but without copies. */
static struct status add_without_copies(const struct layout *l, const int64_t *load,
                                        struct strbuf *out)
{
    struct layout *plain = NULL;
    struct expert_places *places = NULL;
    struct status st;
    TRY(mem_alloc(&plain, 1, sizeof *plain, "plan"));
    *plain = *l;
    plain->n_expert_copies = 0;
    st = expert_places_create(plain, load, l->expert_places->host_of, &places);
    if (!status_failed(&st)) st = add_evenness(plain, places, load, "by load", out);
    expert_places_destroy(&places);
    mem_free(&plain);
    return st;
}

struct status plan_report_experts(const struct layout *l, const int64_t *load, struct strbuf *out)
{
    if (l->ep == 1) {
        strbuf_printf(out, "\n%-*sep 1: each part has all of them, their load changes nothing\n",
                      INDENT, "Experts");
        return strbuf_status(out);
    }
    strbuf_printf(out, "\n%-*stokens of the fullest of %u parts by their mean:\n", INDENT,
                  "Experts", l->ep);
    TRY(add_evenness(l, NULL, load, "by id", out));
    if (l->n_expert_copies == 0) {
        TRY(add_evenness(l, l->expert_places, load, "by load", out));
    } else {
        char how[64];
        snprintf(how, sizeof how, "with %u copies", l->n_expert_copies);
        TRY(add_without_copies(l, load, out));
        TRY(add_evenness(l, l->expert_places, load, how, out));
    }
    const struct expert_evenness least = expert_least_of(l, load);
    strbuf_printf(out, "%*sno places do better than %.2f, in the worst layer %.2f\n", INDENT, "",
                  least.mean, least.worst);
    return strbuf_status(out);
}
