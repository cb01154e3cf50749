/* The forecasts of `shoal plan`, as a table, as a picture and as lines of a Slurm script. Formats
 * and compares; computes no times. */
#ifndef SHOAL_COST_FORECAST_TABLE_H
#define SHOAL_COST_FORECAST_TABLE_H

#include "base/strbuf.h"
#include "cost/forecast.h"

/* One layout on a number of nodes. */
struct forecast_row {
    uint32_t n_nodes, n_ranks, tp, pp, dp, ep;
    uint32_t n_cores;  /* of a rank */
    double rank_bytes; /* that the fullest rank needs, with one full context */
    double tokens_s;   /* generated tokens per second, over the whole job */
    struct forecast_end end;
    struct cost by; /* of the simulated steps */
};

/* Local. Return the index of the row that ends first; and of the one with the fewest node-hours. On
 * a tie of less than 1 %, the one with fewer nodes. n is at least 1. */
size_t forecast_soonest(const struct forecast_row *rows, size_t n);
size_t forecast_cheapest(const struct forecast_row *rows, size_t n);

/* Local. Appends a table of rows [n] and both choices. watts: power of a node; 0: unknown. Errors:
 * STATUS_MEMORY. */
struct status forecast_table(const struct forecast_row *rows, size_t n, double watts,
                             struct strbuf *out);

/* Local. Appends a picture: for each number of nodes (at most 32), the tokens per second of its
 * fastest row, as a bar stacked by the parts of a step. Errors: STATUS_MEMORY. */
struct status forecast_svg(const struct forecast_row *rows, size_t n, struct strbuf *out);

/* Local. Appends --nodes, --ntasks, --cpus-per-task and --time as #SBATCH lines; the time is the
 * interval's end and a tenth more for loading, up to the next whole minute, at least 11 minutes.
 * Errors: STATUS_MEMORY. */
struct status forecast_slurm(const struct forecast_row *row, struct strbuf *out);

#endif
