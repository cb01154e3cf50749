/* Adds up the times of a job's steps, and extrapolates from a sample of its lines to all of them.
 */
#include "cost/forecast.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

const char *forecast_phase_title(enum forecast_phase p)
{
    static const char *const titles[] = {"prompts", "answers", "both"};
    return titles[p];
}

enum forecast_phase forecast_phase_of(const struct step_plan *plan)
{
    bool prompts = false, answers = false;
    for (size_t i = 0; i < plan->n_seqs; i++) {
        const struct plan_seq *s = &plan->seqs[i];
        if (s->n_rows == 1 && (s->want & PLAN_SAMPLE) != 0)
            answers = true;
        else
            prompts = true;
    }
    return prompts && answers ? FORECAST_MIXED : prompts ? FORECAST_PREFILL : FORECAST_DECODE;
}

struct status forecast_init(struct forecast *f, const struct cost_model *m)
{
    *f = (struct forecast){.m = m};
    return mem_alloc(&f->rows, m->l->dp, sizeof *f->rows, "forecast");
}

void forecast_fini(struct forecast *f)
{
    mem_free(&f->rows);
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Adds the parts of the slowest stage, shortened to the time that the step added to the job. The
 * rest of that time counts as an idle pipeline. */
static void take_cost_parts(struct forecast *f, const struct cost *slowest, double added_s)
{
    const double s = cost_total(slowest);
    const double times = s > added_s ? added_s / s : 1;
    cost_add(&f->by, slowest, times);
    f->by.s[COST_BUBBLE] += added_s - times * s;
}

void forecast_step(struct forecast *f, uint32_t group, const struct step_plan *plan)
{
    const struct cost_model *m = f->m;
    struct cost slowest = {{0}};
    if (plan->n_seqs == 0) return;
    cost_rows_of(plan, cost_window(m->l->model.arch), f->rows);
    const double lead_s = cost_lead_s(m, f->rows);
    double at = later(f->lead_free_s, f->group_ready_s[group]) + lead_s;
    f->lead_free_s = at;
    for (uint32_t pp = 0; pp < m->n_stages; pp++) {
        const struct cost c = cost_stage_of(m, pp, f->rows);
        at = later(at, f->stage_free_s[pp]) + cost_total(&c);
        f->stage_free_s[pp] = at;
        if (cost_total(&c) > cost_total(&slowest)) slowest = c;
    }
    if (m->n_stages == 1) slowest.s[COST_LEAD] += lead_s;
    f->group_ready_s[group] = at;
    const double added = later(at - f->now_s, 0);
    f->now_s += added;
    take_cost_parts(f, &slowest, added);
    f->phase_s[forecast_phase_of(plan)] += added;
    f->n_steps++;
    for (uint32_t r = 0; r < m->l->dp; r++) {
        f->n_rows += f->rows[r].n_rows;
        f->n_sampled += f->rows[r].n_sampled;
    }
}

double forecast_even_s(const struct cost_model *m, const struct forecast_load *load)
{
    const double dp = m->l->dp, n = load->n_sequences / dp;
    const double n_prompt = n * load->prompt / load->answer;
    const double window = cost_window(m->l->model.arch);
    const double seen = window > 0 && window < load->context ? window : load->context;
    const struct cost_rows rows = {.n_rows = n + n_prompt,
                                   .n_sampled = n,
                                   .n_sequences = n,
                                   .n_one = n,
                                   .one = {n * load->context, n * seen},
                                   .many = {n_prompt * load->context / 2, n_prompt * seen / 2}};
    double s = dp * (m->node->step_s + n * m->node->sequence_s);
    for (uint32_t pp = 0; pp < m->n_stages; pp++) {
        const struct cost c = cost_even_of(m, pp, &rows);
        s += cost_total(&c);
    }
    return s * load->answer / load->n_sequences;
}

/* Returns the time at which the fraction `part` of the rows was done, by linear interpolation
 * between the marks, of which an implied first one has no rows at 0 s. */
static double time_at(const struct forecast_marks *m, double part)
{
    double part0 = 0, s0 = 0;
    for (size_t i = 0; i < m->n; i++) {
        const double wide = m->part[i] - part0;
        if (m->part[i] >= part && wide > 0) return s0 + (m->s[i] - s0) * (part - part0) / wide;
        part0 = m->part[i];
        s0 = m->s[i];
    }
    return s0;
}

struct forecast_end forecast_extend(const struct forecast_marks *m, double total_s,
                                    double n_simulated, double n_lines, double spread,
                                    double model_error)
{
    struct forecast_end end = {.s = total_s};
    double sampling = 0;
    if (n_simulated > 0 && n_lines > n_simulated) {
        const double middle = time_at(m, 0.75) - time_at(m, 0.25);
        const double line_s = middle > 0 ? middle / (0.5 * n_simulated) : total_s / n_simulated;
        end.s = total_s + (n_lines - n_simulated) * line_s;
        sampling = 2 * spread / sqrt(n_simulated) * sqrt(1 - n_simulated / n_lines);
    }
    const double error = sqrt(sampling * sampling + model_error * model_error);
    end.least_s = end.s * (1 - (error < 0.9 ? error : 0.9));
    end.most_s = end.s * (1 + error);
    return end;
}
