/* Sizes of the exchange between hosts. Blocks begin on lines of 64 bytes, and so do their parts. */
#include "parallel/wire/exchange_memory.h"

#include "parallel/wire/result_block.h"
#include "parallel/wire/wire_ints.h"

enum {
    LINE = 64,
    TOKEN_PARTS = 6, /* parts of a token block without adapters, each padded to whole lines */
};

static size_t lines(size_t n_bytes)
{
    return (n_bytes + LINE - 1) / LINE * LINE;
}

size_t exchange_head_bytes(size_t n_hosts, size_t n_pieces)
{
    return lines(sizeof(uint64_t) + n_hosts * n_pieces * EXCHANGE_PIECE_BYTES);
}

/* Bytes of n_blocks blocks that together have n_rows rows and n_choices choices. */
static size_t token_bytes(const struct exchange_shape *s, size_t n_rows, size_t n_choices,
                          size_t n_blocks)
{
    return token_block_at(&s->format, n_rows, n_choices, NULL).n_bytes +
           n_blocks * (TOKEN_PARTS + (s->format.has_adapters ? 1 : 0)) * LINE;
}

/* Returns the same for blocks of sums, each packed by n_runs threads. */
static size_t sum_bytes(const struct exchange_shape *s, size_t n_rows, size_t n_blocks)
{
    return n_rows * (wire_ints_bound(s->format.width + 1) + sizeof(uint64_t)) +
           n_blocks * (result_head_bytes(0) + (1 + 2 * s->n_runs) * LINE);
}

static size_t mail_bytes(const struct exchange_shape *s)
{
    const size_t n_choices = s->n_mailed * s->n_chosen;
    const size_t there = token_bytes(s, s->n_mailed, n_choices, s->n_hosts),
                 back = sum_bytes(s, s->n_returned, s->n_hosts);
    return there > back ? there : back;
}

size_t exchange_array_bytes(const struct exchange_shape *s, enum exchange_array which)
{
    switch (which) {
    case EXCHANGE_ROW_OF:
        return s->n_routed * s->n_hosts * sizeof(int32_t);
    case EXCHANGE_TOKENS_OUT:
        return exchange_head_bytes(s->n_hosts, 1) +
               token_bytes(s, s->n_sent, s->n_choices, s->n_hosts);
    case EXCHANGE_HOST_SLOTS:
    case EXCHANGE_TO_SLOTS:
        return s->n_came * s->n_chosen * sizeof(int32_t);
    case EXCHANGE_ROW_WEIGHTS:
        return s->n_came * sizeof(float *);
    case EXCHANGE_GROUP_SUMS:
        return s->n_came * token_row_groups(&s->format) * sizeof(int32_t);
    case EXCHANGE_OUTPUTS:
        return s->n_in * (s->format.width * sizeof(float) + sizeof(int32_t));
    case EXCHANGE_SUMS_OUT:
        return exchange_head_bytes(s->n_hosts, 1 + s->n_runs) + sum_bytes(s, s->n_back, s->n_hosts);
    case EXCHANGE_MAIL:
        return s->n_hosts > 1 ? mail_bytes(s) : 0;
    default:
        return 0;
    }
}

size_t exchange_grown_bytes(size_t n_bytes)
{
    return n_bytes + n_bytes / 4;
}
