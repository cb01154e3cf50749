/* Computes the sizes of the arrays through which rows travel between hosts. Pure functions, shared
 * so that allocation and plan agree: src/moe and comm_mail.c allocate for one call, and
 * layout_exchange.c plans for the largest step. */
#ifndef SHOAL_PARALLEL_WIRE_EXCHANGE_MEMORY_H
#define SHOAL_PARALLEL_WIRE_EXCHANGE_MEMORY_H

#include "parallel/wire/token_block.h"

/* The numbers on which the sizes depend, for one rank and one call. */
struct exchange_shape {
    struct token_format format; /* format of the rows that travel to experts */
    size_t n_hosts, n_chosen;   /* hosts of the ep ranks; K */
    size_t n_runs;              /* threads that pack the sums */
    size_t n_routed;            /* tokens that this rank routes and sends */
    size_t n_sent, n_choices;   /* rows in its blocks for all hosts, this one included; and the
                                   choices of these rows */
    size_t n_came;              /* rows in all blocks for this host */
    size_t n_in;                /* rows of this rank's experts */
    size_t n_back;              /* rows of other hosts whose sums this rank sends back */
    /* rows in the messages that this rank receives: rows of tokens, and rows of sums */
    size_t n_mailed, n_returned;
};

enum exchange_array {
    EXCHANGE_ROW_OF,      /* [routed, hosts] the row of a token in the block for a host */
    EXCHANGE_TOKENS_OUT,  /* the blocks of tokens for all hosts */
    EXCHANGE_HOST_SLOTS,  /* [came, K] numbers of the choices computed on this host */
    EXCHANGE_TO_SLOTS,    /* [came, K] the same choices' rows among those of this rank's experts */
    EXCHANGE_ROW_WEIGHTS, /* [came] pointers to the rows' weights */
    EXCHANGE_GROUP_SUMS,  /* [came, groups] the sum of each group's int8 values */
    EXCHANGE_OUTPUTS,     /* [in, D + 1] the experts' outputs, with their counters */
    EXCHANGE_SUMS_OUT,    /* the blocks of sums for all other hosts */
    EXCHANGE_MAIL,        /* messages from other hosts, of tokens and then of sums */
    EXCHANGE_ARRAY_COUNT
};

/* Bytes that each piece of a message takes in the list of pieces at the start of a rank's memory
 * (parallel/comm/comm_mail.h). */
enum { EXCHANGE_PIECE_BYTES = 16 };

/* Local. Returns the bytes, a multiple of 64, of that list with n_pieces pieces for each host. */
size_t exchange_head_bytes(size_t n_hosts, size_t n_pieces);

/* Local. Returns the most bytes that one array can need. */
size_t exchange_array_bytes(const struct exchange_shape *s, enum exchange_array which);

/* Local. Returns the bytes to allocate when n_bytes are needed: a quarter more, so that steps that
 * grow slowly do not allocate each time. */
size_t exchange_grown_bytes(size_t n_bytes);

#endif
