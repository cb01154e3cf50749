/* Formats forecasts (forecast_table.h). */
#include "cost/forecast_table.h"

#include <stdio.h>

static const double tie = 1.01;

static double node_hours(const struct forecast_row *r)
{
    return r->n_nodes * r->end.s / 3600;
}

size_t forecast_soonest(const struct forecast_row *rows, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++) {
        const bool is_fewer = rows[i].n_nodes < rows[best].n_nodes;
        if (rows[i].end.s * (is_fewer ? 1 : tie) < rows[best].end.s * (is_fewer ? tie : 1))
            best = i;
    }
    return best;
}

size_t forecast_cheapest(const struct forecast_row *rows, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++) {
        const bool is_fewer = rows[i].n_nodes < rows[best].n_nodes;
        const double mine = node_hours(&rows[i]), its = node_hours(&rows[best]);
        if (mine * (is_fewer ? 1 : tie) < its * (is_fewer ? tie : 1)) best = i;
    }
    return best;
}

/* Writes a duration as H:MM:SS, or below a minute as seconds. */
static const char *clock_of(double s, char out[32])
{
    if (s < 60) {
        snprintf(out, 32, "%.2f s", s);
        return out;
    }
    const unsigned long n = s < 1e9 ? (unsigned long)(s + 0.5) : 1000000000ul;
    snprintf(out, 32, "%lu:%02lu:%02lu", n / 3600, n / 60 % 60, n % 60);
    return out;
}

static void add_row(const struct forecast_row *r, double watts, struct strbuf *out)
{
    char s[32], least[32], most[32], layout[48], interval[72];
    snprintf(layout, sizeof layout, "%ux%ux%u ep %u", r->dp, r->pp, r->tp, r->ep);
    snprintf(interval, sizeof interval, "%s .. %s", clock_of(r->end.least_s, least),
             clock_of(r->end.most_s, most));
    strbuf_printf(out, "%5u %5u  %-15s %10.1f %10s  %-22s %10.2f", r->n_nodes, r->n_ranks, layout,
                  r->tokens_s, clock_of(r->end.s, s), interval, node_hours(r));
    if (watts > 0) strbuf_printf(out, " %8.2f", watts * r->n_nodes * r->end.s * 1e-6);
    const enum cost_part bound = cost_bound(&r->by);
    strbuf_printf(out, " %8.2f  %s %.0f %%\n", r->rank_bytes / (1 << 30), cost_part_title(bound),
                  100 * r->by.s[bound] / cost_total(&r->by));
}

static void add_choice(const char *what, const struct forecast_row *r, struct strbuf *out)
{
    char s[32];
    strbuf_printf(out,
                  "%-18s %u node%s, --dp %u --pp %u --tp %u --ep %u: %s, %.2f node-hours, %.1f "
                  "tokens/s\n",
                  what, r->n_nodes, r->n_nodes > 1 ? "s" : "", r->dp, r->pp, r->tp, r->ep,
                  clock_of(r->end.s, s), node_hours(r), r->tokens_s);
}

struct status forecast_table(const struct forecast_row *rows, size_t n, double watts,
                             struct strbuf *out)
{
    strbuf_printf(out, "%5s %5s  %-15s %10s %10s  %-22s %10s", "nodes", "ranks", "dp x pp x tp",
                  "tokens/s", "time", "interval", "node-hours");
    if (watts > 0) strbuf_printf(out, " %8s", "MJ");
    strbuf_printf(out, " %8s  %s\n", "GiB/rank", "bound");
    for (size_t i = 0; i < n; i++) add_row(&rows[i], watts, out);
    strbuf_puts(out, "\n");
    add_choice("soonest", &rows[forecast_soonest(rows, n)], out);
    add_choice("fewest node-hours", &rows[forecast_cheapest(rows, n)], out);
    return strbuf_status(out);
}

struct status forecast_slurm(const struct forecast_row *row, struct strbuf *out)
{
    char time[32];
    const double s = row->end.most_s * 1.1, least = 600;
    strbuf_printf(out,
                  "#SBATCH --nodes=%u\n#SBATCH --ntasks=%u\n#SBATCH --cpus-per-task=%u\n"
                  "#SBATCH --time=%s\n",
                  row->n_nodes, row->n_ranks, row->n_cores,
                  clock_of((double)((unsigned long)((s > least ? s : least) / 60) + 1) * 60, time));
    return strbuf_status(out);
}

/* --- the picture -------------------------------------------------------------------------- */

enum {
    SVG_LEFT = 70,
    SVG_TOP = 20,
    SVG_HEIGHT = 260,
    SVG_BAR = 46,
    SVG_GAP = 22,
    SVG_LEGEND = 190
};

/* Colours of the parts, apart in lightness too, so that a grey print can be read. */
static const char *const colours[COST_PART_COUNT] = {
    "#1f4e79", "#5b9bd5", "#2e7d32", "#a5d6a7", "#b71c1c", "#ef9a9a", "#6a1b9a",
    "#f9a825", "#ffe082", "#424242", "#9e9e9e", "#e0e0e0", "#00838f"};

/* Sets picks to the index of the fastest row for each number of nodes, at most n_most. Returns how
 * many. */
static size_t fastest(const struct forecast_row *rows, size_t n, size_t *picks, size_t n_most)
{
    size_t n_picks = 0;
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < n_picks && rows[picks[k]].n_nodes != rows[i].n_nodes) k++;
        if (k == n_picks && k < n_most) picks[n_picks++] = i;
        if (k < n_picks && rows[i].tokens_s > rows[picks[k]].tokens_s) picks[k] = i;
    }
    return n_picks;
}

static void add_bar(const struct forecast_row *r, double x, double full, struct strbuf *out)
{
    const double height = SVG_HEIGHT * r->tokens_s / full, total = cost_total(&r->by);
    double y = SVG_TOP + SVG_HEIGHT;
    for (int p = 0; p < COST_PART_COUNT && total > 0; p++) {
        const double part = height * r->by.s[p] / total;
        if (part <= 0) continue;
        y -= part;
        strbuf_printf(out,
                      "<rect x=\"%.1f\" y=\"%.2f\" width=\"%d\" height=\"%.2f\" fill=\"%s\">"
                      "<title>%s %.0f %%</title></rect>\n",
                      x, y, (int)SVG_BAR, part, colours[p], cost_part_title((enum cost_part)p),
                      100 * r->by.s[p] / total);
    }
    strbuf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.4g</text>\n",
                  x + SVG_BAR / 2.0, y - 4, r->tokens_s);
    strbuf_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%u</text>\n",
                  x + SVG_BAR / 2.0, SVG_TOP + SVG_HEIGHT + 16, r->n_nodes);
}

static void add_legend(double x, struct strbuf *out)
{
    for (int p = 0; p < COST_PART_COUNT; p++) {
        const int y = SVG_TOP + 18 * p;
        strbuf_printf(out,
                      "<rect x=\"%.0f\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                      "<text x=\"%.0f\" y=\"%d\">%s</text>\n",
                      x, y, colours[p], x + 18, y + 11, cost_part_title((enum cost_part)p));
    }
}

struct status forecast_svg(const struct forecast_row *rows, size_t n, struct strbuf *out)
{
    size_t picks[32];
    double full = 1e-9;
    const size_t n_picks = fastest(rows, n, picks, sizeof picks / sizeof picks[0]);
    const double bars = SVG_LEFT + (double)n_picks * (SVG_BAR + SVG_GAP);
    for (size_t i = 0; i < n_picks; i++)
        if (rows[picks[i]].tokens_s > full) full = rows[picks[i]].tokens_s;
    strbuf_printf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" "
                  "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" "
                  "height=\"100%%\" fill=\"white\"/>\n",
                  bars + SVG_LEGEND, SVG_TOP + SVG_HEIGHT + 50);
    for (size_t i = 0; i < n_picks; i++)
        add_bar(&rows[picks[i]], SVG_LEFT + (double)i * (SVG_BAR + SVG_GAP), full * 1.1, out);
    strbuf_printf(out,
                  "<text x=\"%d\" y=\"%d\">nodes</text>\n<text x=\"16\" y=\"%d\" "
                  "transform=\"rotate(-90 16 %d)\">generated tokens per second</text>\n",
                  (int)SVG_LEFT, SVG_TOP + SVG_HEIGHT + 36, SVG_TOP + SVG_HEIGHT,
                  SVG_TOP + SVG_HEIGHT);
    add_legend(bars + 10, out);
    strbuf_puts(out, "</svg>\n");
    return strbuf_status(out);
}
