/* Shows how far a job is. */
#include "serve/output/progress.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BAR_CELLS = 24 };

void progress_init(struct progress *p, bool quiet)
{
    *p = (struct progress){.quiet = quiet, .start_ns = clock_ns()};
    p->is_terminal = isatty(STDERR_FILENO) == 1;
    p->last_ns = p->start_ns;
}

/* Returns the fraction of the job that is done: finished rows (written or waiting) over rows read,
 * times the fraction of the input that has been read. Negative: the input's size is unknown and not
 * all is read. Before the first row: 1 if all is read, else 0. */
static double fraction(const struct progress_view *v)
{
    if (v->n_read == 0) return v->all_read ? 1 : 0;
    const double of_read = (double)(v->n_done + v->n_waiting) / (double)v->n_read;
    if (v->all_read) return of_read;
    return v->read_fraction < 0 ? -1 : of_read * v->read_fraction;
}

void progress_estimate(struct progress *p, const struct progress_view *v, uint64_t now_ns)
{
    const double f = fraction(v);
    p->left_s = 0;
    if (p->first_ns == 0) {
        p->first_ns = now_ns;
        p->first_fraction = f;
    }
    const double seconds = (double)(now_ns - p->first_ns) * 1e-9, gained = f - p->first_fraction;
    if (p->first_fraction >= 0 && f < 1 && gained > 0) p->left_s = (1 - f) / gained * seconds;
}

void progress_text(const struct progress *p, const struct progress_view *v, double seconds,
                   bool bar, struct strbuf *out)
{
    const double f = fraction(v);
    const double per_s = seconds > 0 ? 1 / seconds : 0;
    if (bar && f >= 0) {
        strbuf_puts(out, "[");
        for (int i = 0; i < BAR_CELLS; i++) strbuf_puts(out, i < (int)(f * BAR_CELLS) ? "#" : "-");
        strbuf_puts(out, "] ");
    }
    if (f >= 0) strbuf_printf(out, "%3.0f%%  ", 100 * f);
    strbuf_printf(out, "%llu/%llu%s rows", (unsigned long long)v->n_done,
                  (unsigned long long)v->n_read, v->all_read ? "" : "+");
    if (v->n_waiting > 0) {
        strbuf_printf(out, ", %llu done behind them", (unsigned long long)v->n_waiting);
    }
    if (p->left_s > 0) {
        const unsigned long s = (unsigned long)p->left_s;
        strbuf_printf(out, ", about %lu:%02lu:%02lu left", s / 3600, s / 60 % 60, s % 60);
    }
    strbuf_printf(out, "  prompt %.0f tok/s  generated %.0f tok/s  ",
                  (double)(v->n_prompt_tokens - p->last_prompt) * per_s,
                  (double)(v->n_generated_tokens - p->last_generated) * per_s);
    strbuf_printf(out, "running %zu  waiting %zu  free blocks %lld/%lld", v->load.n_running,
                  v->load.n_waiting, (long long)v->load.n_free_blocks, (long long)v->load.n_blocks);
}

static void progress_show(struct progress *p, const struct progress_view *v, uint64_t now_ns)
{
    struct strbuf text;
    strbuf_init(&text);
    progress_estimate(p, v, now_ns);
    progress_text(p, v, (double)(now_ns - p->last_ns) * 1e-9, p->is_terminal, &text);
    const struct status st = strbuf_status(&text);
    if (!status_failed(&st) && p->is_terminal) {
        fprintf(stderr, "\r%s\x1b[K", text.data);
        fflush(stderr);
        p->drawn = true;
    } else if (!status_failed(&st)) {
        log_line(LOG_INFO, "%s", text.data);
    }
    strbuf_fini(&text);
    p->last_ns = now_ns;
    p->last_prompt = v->n_prompt_tokens;
    p->last_generated = v->n_generated_tokens;
}

void progress_update(struct progress *p, const struct progress_view *v)
{
    if (p->quiet) return;
    const uint64_t now_ns = clock_ns();
    if (p->first_ns == 0) progress_estimate(p, v, now_ns);
    const uint64_t every_ns = p->is_terminal ? 200000000u : 5000000000u;
    if (now_ns - p->last_ns >= every_ns) progress_show(p, v, now_ns);
}

void progress_end(struct progress *p, const struct progress_view *v)
{
    if (p->quiet) return;
    /* the last view shows the rates of the whole run */
    p->last_ns = p->start_ns;
    p->last_prompt = p->last_generated = 0;
    progress_show(p, v, clock_ns());
    if (p->drawn) fputc('\n', stderr);
    p->drawn = false;
}
