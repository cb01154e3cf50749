/* The part of `shoal plan` about experts that stream from disk. */
#include "parallel/layout/layout_cost.h"
#include "parallel/layout/plan_report.h"

static double in_gib(double bytes)
{
    return bytes / (double)(1ull << 30);
}

/* Bytes of one rank's experts: all, those kept in memory, and those that a step reads if each
 * expert has rows. */
struct streaming {
    double on_disk, in_memory, read;
};

/* Computes a rank's streaming. Experts get half of the memory that weights, arrays and one full
 * context leave, as in a job (job_memory.c). */
static struct streaming streaming_of(const struct layout *l, const struct layout_budget *budget,
                                     const struct layout_fit *fit)
{
    const struct layout_memory m =
        layout_memory_of(l, layout_place_of(l, fit->worst_rank), budget->kv, budget->step_tokens);
    struct streaming s = {.on_disk = (double)m.on_disk_bytes};
    const double left =
        fit->budget_bytes > fit->needed_bytes ? (double)(fit->budget_bytes - fit->needed_bytes) : 0;
    s.in_memory = left / 2 + (double)m.stream_bytes;
    if (s.in_memory > s.on_disk) s.in_memory = s.on_disk;
    /* a quarter of that memory is the ring, which keeps no experts for the next step */
    s.read = s.in_memory < s.on_disk ? s.on_disk - s.in_memory / 4 * 3 : 0;
    return s;
}

double plan_streamed_part(const struct layout *l, const struct layout_budget *budget,
                          const struct layout_fit *fit)
{
    const struct streaming s = streaming_of(l, budget, fit);
    return s.on_disk > 0 ? s.read / s.on_disk : 0;
}

struct status plan_report_stream(const struct layout *l, const struct topo *t,
                                 const uint32_t *order, const struct layout_budget *budget,
                                 double disk_bytes_s, struct strbuf *out)
{
    if (!l->model.streams_experts || disk_bytes_s <= 0) return status_ok();
    const struct layout_fit fit = layout_fit_of(l, t, budget);
    if (!fit.fits) return status_ok();
    const struct streaming s = streaming_of(l, budget, &fit);
    const struct topo_rank *here = &t->ranks[order[fit.worst_rank]];
    const double disk_s = s.read * here->n_local_ranks / disk_bytes_s;
    const double rows_s = layout_rows_s(l, t, order, budget, &fit);
    const double compute_s = rows_s > 0 ? budget->step_tokens / rows_s : 0;
    const double step_s = compute_s > disk_s ? compute_s : disk_s;
    strbuf_printf(out,
                  "\nStreaming %.2f GiB of a rank's experts are on disk, and memory holds %.2f GiB "
                  "of them; a step in which every expert has rows reads %.2f GiB\n",
                  in_gib(s.on_disk), in_gib(s.in_memory), in_gib(s.read));
    strbuf_printf(out,
                  "%*sa host's disk at %.2f GB/s needs %.2f s for its ranks, in which they compute "
                  "about %.0f rows; steps have at most %u, so about %.0f rows a second\n",
                  10, "", disk_bytes_s / 1e9, disk_s, disk_s * rows_s, budget->step_tokens,
                  step_s > 0 ? l->dp * budget->step_tokens / step_s : 0);
    return strbuf_status(out);
}
