/* Measures the link between two ranks by messages that are each answered with one byte. Called by
 * bench_node_link.c and measure.c; no job uses it. */
#ifndef SHOAL_PARALLEL_COMM_LINK_H
#define SHOAL_PARALLEL_COMM_LINK_H

#include "parallel/comm/comm.h"

#include <stdbool.h>

enum { LINK_BYTES = 4 << 20 }; /* bytes of a large message */

struct link_speed {
    double latency_s; /* time of a message of one byte, one way */
    double bytes_s;   /* bytes per second of large messages, without their latency */
};

/* **Collective** over this rank and `other`, both ranks of the world; exactly one of them has
 * is_first true. buf: memory of LINK_BYTES, overwritten. Both ranks get the speeds, each by its own
 * clock. */
struct link_speed link_measure(struct comm *c, int other, bool is_first, void *buf);

#endif
