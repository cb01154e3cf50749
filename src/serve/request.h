/* One request line: parsing, checking, its sampling values and key, and its life's data.
 * Knows ids, sampling, state and status; never ranks or tensors. Made by the lead from each line,
 * lent to the scheduler, turned into a result line by result_row. */
#ifndef SHOAL_SERVE_REQUEST_H
#define SHOAL_SERVE_REQUEST_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REQUEST_STOPS_MAX = 64, REQUEST_STOP_BYTES_MAX = 1024 };

/* A borrowed or owned byte string; may hold NULs. */
struct request_bytes {
    char *bytes;
    size_t n;
};

/* Values of flags (over generation_config.json), which a line's own values override. */
struct request_defaults {
    int64_t max_tokens;        /* >= 1 */
    double temperature;        /* >= 0; 0: greedy */
    double top_p;              /* (0, 1] */
    double min_p;              /* [0, 1] */
    int64_t top_k;             /* 0 or -1: off */
    uint64_t seed;             /* --seed: hashed with the custom_id */
    const char *const *stops;  /* [n_stops], borrowed */
    size_t n_stops;
};

/* Local. 128, 1.0, 1.0, 0, 0, 0, no stops. */
void request_defaults_init(struct request_defaults *d);

/* Local. Checks flag values by the rules of request lines; `STATUS_USAGE` names the field. */
struct status request_defaults_check(const struct request_defaults *d);

#endif
