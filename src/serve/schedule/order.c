/* Sorts and mixes requests. */
#include "serve/schedule/order.h"

#include "base/mem.h"
#include "serve/schedule/prefix_cache.h"

#include <stdlib.h>
#include <string.h>

/* Single requests are mixed in groups of this size: enough for several batches, but few enough that
 * the output, which is in order of reading, grows steadily. */
enum { MIX_REQUESTS = 256 };

static int compare_numbers(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int compare_orders(const void *left, const void *right)
{
    return compare_numbers(*(const uint64_t *)left, *(const uint64_t *)right);
}

static int by_priority(const struct request *a, const struct request *b)
{
    return (a->ask->priority > b->ask->priority) - (a->ask->priority < b->ask->priority);
}

static int compare_read(const void *left, const void *right)
{
    const struct request *a = *(struct request *const *)left, *b = *(struct request *const *)right;
    const int c = by_priority(a, b);
    return c != 0 ? c : compare_numbers(a->order, b->order);
}

/* Compares the priorities, then the tokens as bytes; any fixed order that brings common prefixes
 * together would do. */
static int compare_tokens(const void *left, const void *right)
{
    const struct request *a = *(struct request *const *)left, *b = *(struct request *const *)right;
    const size_t n = a->n_tokens < b->n_tokens ? a->n_tokens : b->n_tokens;
    int c = by_priority(a, b);
    if (c == 0) c = memcmp(a->tokens, b->tokens, n * sizeof *a->tokens);
    if (c == 0) c = compare_numbers(a->n_tokens, b->n_tokens);
    return c != 0 ? c : compare_numbers(a->order, b->order);
}

/* Requests that stay together: [first, first + n) of the sorted ones. */
struct unit {
    size_t first, n;
    uint64_t order;         /* the order number of its first request */
    double prefill, decode; /* tokens to compute */
};

static int compare_reading(const void *left, const void *right)
{
    const struct unit *a = left, *b = right;
    return compare_numbers(a->order, b->order);
}

static int compare_sizes(const void *left, const void *right)
{
    const struct unit *a = left, *b = right;
    const double a_size = a->prefill + a->decode, b_size = b->prefill + b->decode;
    if (a_size != b_size) return a_size > b_size ? -1 : 1;
    return compare_numbers(a->order, b->order);
}

/* Returns the number of full blocks with which both requests begin, and which r could therefore
 * take from the prefix cache. */
static size_t n_shared_blocks(const struct request *before, const struct request *r)
{
    const size_t n_least = before->n_tokens < r->n_tokens ? before->n_tokens : r->n_tokens;
    size_t n = 0;
    for (;; n++) {
        const size_t at = n * PLAN_BLOCK_TOKENS;
        if (at + PLAN_BLOCK_TOKENS > n_least || at + PLAN_BLOCK_TOKENS >= r->n_tokens) break;
        if (memcmp(before->tokens + at, r->tokens + at, PLAN_BLOCK_TOKENS * sizeof *r->tokens) !=
            0) {
            break;
        }
    }
    return n;
}

/* Working memory for requests of one priority, sorted by tokens. */
struct mix {
    struct request **requests;
    struct request **sorted;      /* scratch, [n] */
    struct unit *units, *scratch; /* scratch, [n] */
    size_t *n_shared;             /* scratch, [n]: blocks shared with the request before */
    size_t n, n_units;
};

/* Sets m->n_shared, and returns the number of different blocks that two or more of the requests
 * share: in order of tokens, an increase of n_shared by k means k more such blocks. */
static size_t count_shared_blocks(struct mix *m)
{
    size_t sum = 0;
    for (size_t i = 0; i < m->n; i++) {
        const size_t before = i > 0 ? m->n_shared[i - 1] : 0;
        m->n_shared[i] = i > 0 ? n_shared_blocks(m->requests[i - 1], m->requests[i]) : 0;
        if (m->n_shared[i] > before) sum += m->n_shared[i] - before;
    }
    return sum;
}

static void make_units(struct mix *m, bool single)
{
    m->n_units = 0;
    for (size_t i = 0; i < m->n; i++) {
        const struct request *r = m->requests[i];
        if (single || m->n_shared[i] == 0)
            m->units[m->n_units++] = (struct unit){.first = i, .order = r->order};
        struct unit *u = &m->units[m->n_units - 1];
        u->n++;
        u->prefill += (double)(r->n_tokens - m->n_shared[i] * PLAN_BLOCK_TOKENS);
        u->decode += (double)r->ask->max_tokens - (double)(r->n_tokens - r->n_prompt);
    }
}

/* Units [from, to) of one kind, the largest first. The largest and the smallest are taken in turn.
 */
struct deck {
    const struct unit *from, *to;
    bool large; /* the last unit taken was the largest */
};

static const struct unit *deal(struct deck *d)
{
    d->large = !d->large;
    return d->large ? d->from++ : --d->to;
}

/* Moves the units with more prefill than average to the front and returns their number. Both kinds
 * stay sorted. */
static size_t order_split(struct unit *units, size_t n, double prefill, double decode,
                          struct unit *scratch)
{
    size_t n_front = 0, n_back = 0;
    for (size_t i = 0; i < n; i++) {
        const struct unit u = units[i];
        const bool heavy = u.prefill * decode > u.decode * prefill;
        *(heavy ? &units[n_front++] : &scratch[n_back++]) = u;
    }
    memcpy(units + n_front, scratch, n_back * sizeof *scratch);
    return n_front;
}

/* Appends the requests of n units to m->sorted, which already has *at requests. */
static void mix_units(struct mix *m, struct unit *units, size_t n, size_t *at)
{
    double prefill = 0, decode = 0, had_prefill = 0, had_decode = 0;
    for (size_t i = 0; i < n; i++) {
        prefill += units[i].prefill;
        decode += units[i].decode;
    }
    qsort(units, n, sizeof *units, compare_sizes);
    const size_t n_front = order_split(units, n, prefill, decode, m->scratch);
    struct deck front = {units, units + n_front, false}, back = {units + n_front, units + n, false};
    while (front.from < front.to || back.from < back.to) {
        bool take_front = had_prefill * decode <= had_decode * prefill;
        if (front.from == front.to) take_front = false;
        if (back.from == back.to) take_front = true;
        const struct unit *u = deal(take_front ? &front : &back);
        had_prefill += u->prefill;
        had_decode += u->decode;
        for (size_t i = 0; i < u->n; i++) m->sorted[(*at)++] = m->requests[u->first + i];
    }
}

/* Orders the requests of one priority. */
static void order_mix(struct mix *m, int32_t n_blocks)
{
    const bool fits = count_shared_blocks(m) <= (size_t)n_blocks / 4;
    size_t at = 0;
    make_units(m, fits);
    if (fits) qsort(m->units, m->n_units, sizeof *m->units, compare_reading);
    const size_t n_most = fits ? MIX_REQUESTS : m->n_units;
    for (size_t i = 0; i < m->n_units; i += n_most) {
        const size_t left = m->n_units - i;
        mix_units(m, m->units + i, left < n_most ? left : n_most, &at);
    }
    memcpy(m->requests, m->sorted, m->n * sizeof(struct request *));
}

/* Mixes the requests of each priority separately. They are sorted by priority, then by tokens. */
static struct status mix_all(struct request **requests, size_t n, int32_t n_blocks)
{
    struct mix m = {0};
    struct status st;
    TRY_GOTO(st, mem_alloc(&m.sorted, n, sizeof(struct request *), "order"), done);
    TRY_GOTO(st, mem_alloc(&m.units, n, sizeof *m.units, "order"), done);
    TRY_GOTO(st, mem_alloc(&m.n_shared, n, sizeof *m.n_shared, "order"), done);
    TRY_GOTO(st, mem_alloc(&m.scratch, n, sizeof *m.scratch, "order"), done);
    for (size_t first = 0; first < n; first += m.n) {
        m.requests = requests + first;
        for (m.n = 1; first + m.n < n; m.n++) {
            if (requests[first + m.n]->ask->priority != requests[first]->ask->priority) break;
        }
        order_mix(&m, n_blocks);
    }
done:
    mem_free(&m.sorted);
    mem_free(&m.units);
    mem_free(&m.n_shared);
    mem_free(&m.scratch);
    return st;
}

struct status order_requests(enum order_kind kind, int32_t n_blocks, struct request **requests,
                             size_t n)
{
    if (n < 2) return status_ok();
    uint64_t *orders = NULL;
    TRY(mem_alloc(&orders, n, sizeof *orders, "order"));
    for (size_t i = 0; i < n; i++) orders[i] = requests[i]->order;
    /* a request that waited for an equal one comes after requests with higher numbers */
    qsort(orders, n, sizeof *orders, compare_orders);
    qsort(requests, n, sizeof(struct request *),
          kind == ORDER_INPUT ? compare_read : compare_tokens);
    const struct status st = kind == ORDER_AUTO ? mix_all(requests, n, n_blocks) : status_ok();
    for (size_t i = 0; i < n; i++) requests[i]->order = orders[i];
    mem_free(&orders);
    return st;
}
