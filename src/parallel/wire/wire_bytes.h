/* The bytes that exchange_hosts.c sends between hosts for a token in one layer. Pure functions of
 * the formats of the exchange, for the choice of a layout, forecasts, `shoal plan` and tests. They
 * give expected values; --metrics counts how many hosts a trained router's tokens really go to. */
#ifndef SHOAL_PARALLEL_WIRE_WIRE_BYTES_H
#define SHOAL_PARALLEL_WIRE_WIRE_BYTES_H

#include "parallel/wire/token_block.h"
#include "tensor/router_rule.h"

/* The model of what is sent: E experts, in the order of their ids, divided as evenly as possible
 * among n_hosts hosts. layout_experts divides them in the same way when ep divides E, all hosts
 * have equally many ep ranks, and experts are not placed by load (--expert-load, --expert-replan).
 */
struct wire_shape {
    struct token_format format;
    uint32_t n_experts, n_chosen; /* E, K */
    struct router_rule router;    /* only its groups are used */
    uint32_t n_hosts;
};

struct wire_bytes {
    double hosts;    /* expected number of other hosts that a token goes to, when any host may be
                        its own */
    double dispatch; /* bytes of its rows, with ids and weights, in messages of many rows */
    double combine;  /* bytes of the sums that come back, with 4 bytes for each sum */
    double rows;     /* bytes in each direction if an f32 row were sent for each choice on
                        another host, as the plain all-to-all does */
};

/* Local. Computes the bytes for a router that chooses at random. */
struct wire_bytes wire_bytes_of(const struct wire_shape *s);

/* Local. Computes the bytes for tokens that go to `hosts` other hosts, with the fraction `others`
 * of their choices on these; `rows` is 0. Reads only format and n_chosen of the shape. */
struct wire_bytes wire_bytes_for(const struct wire_shape *s, double hosts, double others);

/* Local. Returns the fraction of all tokens that have an expert on the first host, which holds the
 * most experts. */
double wire_host_share(const struct wire_shape *s);

#endif
