/* A host gets a token unless none of the token's experts is there. With router groups, all sets of
 * n_groups_chosen groups are equally likely, and so are all sets of K experts of these groups. */
#include "parallel/wire/wire_bytes.h"

#include "parallel/wire/result_block.h"
#include "parallel/wire/wire_ints.h"

enum { MANY_ROWS = 1 << 12 /* rows of a block so large that its head and padding hardly count */ };

static double ways_to_choose(uint32_t n, uint32_t k)
{
    double c = 1;
    if (k > n) return 0;
    for (uint32_t i = 0; i < k; i++) c *= (double)(n - i) / (double)(i + 1);
    return c;
}

/* Returns the probability that none of k experts, chosen at random from n, is among `held` given
 * ones. */
static double none_chosen(uint32_t n, uint32_t held, uint32_t k)
{
    double p = 1;
    for (uint32_t i = 0; i < k; i++) {
        if (n - i <= held) return 0;
        p *= (double)(n - held - i) / (double)(n - i);
    }
    return p;
}

/* Returns the probability that a token chooses none of the `held` experts of a host. They belong to
 * `mine` router groups, in equal parts. */
static double none_on_host(const struct wire_shape *s, uint32_t held)
{
    const uint32_t groups = s->router.n_groups, chosen = s->router.n_groups_chosen;
    if (groups <= 1 || chosen >= groups || held == 0)
        return none_chosen(s->n_experts, held, s->n_chosen);
    const uint32_t size = s->n_experts / groups, mine = (held + size - 1) / size;
    double p = 0;
    for (uint32_t j = 0; j <= mine && j <= chosen; j++) {
        const double ways = ways_to_choose(mine, j) * ways_to_choose(groups - mine, chosen - j);
        p += ways / ways_to_choose(groups, chosen) *
             none_chosen(chosen * size, j * held / mine, s->n_chosen);
    }
    return p;
}

double wire_host_share(const struct wire_shape *s)
{
    return 1 - none_on_host(s, (s->n_experts + s->n_hosts - 1) / s->n_hosts);
}

struct wire_bytes wire_bytes_for(const struct wire_shape *s, double hosts, double others)
{
    struct wire_bytes w = {.hosts = hosts};
    const size_t n_values = s->format.width + 1, n_choices = MANY_ROWS * (size_t)s->n_chosen;
    const double choices = (double)(token_block_at(&s->format, MANY_ROWS, n_choices, NULL).n_bytes -
                                    token_block_at(&s->format, MANY_ROWS, 0, NULL).n_bytes);
    const double rows = (double)token_block_at(&s->format, MANY_ROWS, 0, NULL).n_bytes;
    const size_t n_blocks = (n_values + WIRE_INTS_BLOCK - 1) / WIRE_INTS_BLOCK;
    w.dispatch = (w.hosts * rows + others * choices) / MANY_ROWS;
    w.combine = w.hosts * ((double)result_head_bytes(MANY_ROWS) / MANY_ROWS +
                           (double)(n_values * sizeof(int32_t) + n_blocks));
    return w;
}

struct wire_bytes wire_bytes_of(const struct wire_shape *s)
{
    const uint32_t each = s->n_experts / s->n_hosts, more = s->n_experts % s->n_hosts;
    const double others = (double)(s->n_hosts - 1) / (double)s->n_hosts;
    double hosts = 0;
    for (uint32_t h = 0; h < s->n_hosts; h++) hosts += 1 - none_on_host(s, each + (h < more));
    struct wire_bytes w = wire_bytes_for(s, hosts * others, others);
    w.rows = others * s->n_chosen * (double)s->format.width * sizeof(float);
    return w;
}
