/* The order in which a window of requests runs: none is lost, prompts that begin alike run
 * together, and prefill and decoding are mixed. */
#include "options/flags.h"
#include "serve/schedule/order.h"

#include "base/mem.h"
#include "serve/request/request_list.h"
#include "util_fake_engine.h"

#include <CUnit/CUnit.h>
#include <string.h>

enum { MOST = 250 };

/* A request whose prompt has n_header tokens of header `header` and n_tail tokens of its own. */
static struct request *make(uint64_t index, int header, size_t n_header, size_t n_tail,
                            int32_t max_tokens)
{
    struct request *r = NULL;
    struct status st = request_create_failed(index + 1, "test", "not a line", &r);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    uint64_t own = index * 77 + 5, shared = (uint64_t)header * 991 + 3;
    for (int i = 0; i < 4; i++) fake_random(&own);
    for (int i = 0; i < 4; i++) fake_random(&shared);
    st = mem_alloc(&r->tokens, n_header + n_tail, sizeof *r->tokens, "tokens");
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    for (size_t i = 0; i < n_header; i++) r->tokens[i] = (int32_t)fake_between(&shared, 0, 999);
    for (size_t i = 0; i < n_tail; i++)
        r->tokens[n_header + i] = (int32_t)fake_between(&own, 0, 999);
    r->n_tokens = r->n_prompt = n_header + n_tail;
    ((struct request_ask *)r->ask)->max_tokens = max_tokens;
    r->index = index;
    r->order = 3 * index + 7; /* leaves gaps, as if other requests were read between them */
    return r;
}

static void destroy_all(struct request **requests, size_t n)
{
    for (size_t i = 0; i < n; i++) request_destroy(&requests[i]);
}

/* Whether each request occurs once, more urgent requests come first, and the order numbers ascend
 * and are those that `make` gave. */
static bool is_sound(struct request **requests, size_t n)
{
    bool seen[MOST] = {false};
    for (size_t i = 0; i < n; i++) {
        const struct request *r = requests[i];
        if (seen[r->index] || r->order % 3 != 7 % 3 || r->order > 3 * (n - 1) + 7) return false;
        seen[r->index] = true;
        if (i > 0 && requests[i - 1]->order >= r->order) return false;
        if (i > 0 && !request_is_before(requests[i - 1], r)) return false;
    }
    return true;
}

/* Mixes the requests, as when one that waited for an equal request comes back after later ones. */
static void shuffle(struct request **requests, size_t n, uint64_t *x)
{
    for (size_t i = 1; i < n; i++) {
        const size_t k = (size_t)fake_between(x, 0, (int64_t)i);
        struct request *r = requests[i];
        requests[i] = requests[k];
        requests[k] = r;
    }
}

static void every_order_keeps_all_and_heeds_priorities(void)
{
    uint64_t x = 99;
    for (int round = 0; round < 400; round++) {
        struct request *requests[MOST];
        const size_t n = (size_t)fake_between(&x, 0, MOST);
        for (size_t i = 0; i < n; i++) {
            requests[i] = make(i, (int)fake_between(&x, 0, 9), (size_t)fake_between(&x, 0, 3) * 50,
                               (size_t)fake_between(&x, 1, 90), (int32_t)fake_between(&x, 1, 90));
            struct request_ask *ask = (struct request_ask *)requests[i]->ask;
            if (round % 2 == 1) ask->priority = (int32_t)fake_between(&x, -2, 2);
        }
        if (round % 4 >= 2) shuffle(requests, n, &x);
        const enum order_kind kind = (enum order_kind)(round % ORDER_KIND_COUNT);
        const struct status st =
            order_requests(kind, (int32_t)fake_between(&x, 1, 200), requests, n);
        CU_ASSERT_FALSE(status_failed(&st));
        if (round % 2 == 1) { /* requests with smaller priorities come first */
            for (size_t i = 1; i < n; i++)
                CU_ASSERT(requests[i - 1]->ask->priority <= requests[i]->ask->priority);
        }
        CU_ASSERT(is_sound(requests, n));
        if (kind == ORDER_INPUT && round % 2 == 0)
            for (size_t i = 0; i < n; i++) CU_ASSERT_EQUAL(requests[i]->index, i);
        destroy_all(requests, n);
    }
}

/* How often neighbours in the order begin with different blocks. */
static size_t count_changes(struct request **requests, size_t n)
{
    size_t n_changes = 0;
    for (size_t i = 1; i < n; i++)
        n_changes +=
            memcmp(requests[i - 1]->tokens, requests[i]->tokens, 64 * sizeof(int32_t)) != 0;
    return n_changes;
}

static void shared_beginnings_meet_when_the_pool_is_small(void)
{
    for (int kind = 0; kind < ORDER_KIND_COUNT; kind++) {
        for (int large = 0; large < 2; large++) {
            struct request *requests[200];
            for (size_t i = 0; i < 200; i++) requests[i] = make(i, (int)(i % 10), 130, 20, 30);
            /* ten headers of two blocks: 20 shared blocks, a quarter of 80 */
            const struct status st =
                order_requests((enum order_kind)kind, large ? 80 : 79, requests, 200);
            CU_ASSERT_FALSE(status_failed(&st));
            const size_t n_changes = count_changes(requests, 200);
            if (kind == ORDER_INPUT) CU_ASSERT_EQUAL(n_changes, 199);
            if (kind == ORDER_PREFIX || (kind == ORDER_AUTO && !large))
                CU_ASSERT_EQUAL(n_changes, 9);
            destroy_all(requests, 200);
        }
    }
}

/* The first half of the requests has long prompts and short answers, the second half short prompts
 * and long answers. In each fifth of the order, the share of prompt tokens and the number of tokens
 * per request must be near those of all requests. */
static void prefill_and_decode_mix(void)
{
    struct request *requests[MOST];
    uint64_t x = 5;
    for (size_t i = 0; i < MOST; i++) {
        const size_t size = (size_t)fake_between(&x, 1, 40) * 10;
        requests[i] = i < MOST / 2 ? make(i, 0, 0, size, 4) : make(i, 0, 0, 4, (int32_t)size);
    }
    const struct status st = order_requests(ORDER_AUTO, 1000, requests, MOST);
    CU_ASSERT_FALSE(status_failed(&st));
    double all_prefill = 0, all_decode = 0, all = 0;
    for (size_t i = 0; i < MOST; i++) all_prefill += (double)requests[i]->n_tokens;
    for (size_t i = 0; i < MOST; i++) all_decode += requests[i]->ask->max_tokens;
    all = (all_prefill + all_decode) / MOST;
    for (size_t begin = 0; begin < MOST; begin += MOST / 5) {
        double prefill = 0, decode = 0;
        for (size_t i = begin; i < begin + MOST / 5; i++) {
            prefill += (double)requests[i]->n_tokens;
            decode += requests[i]->ask->max_tokens;
        }
        const double share = prefill / (prefill + decode);
        CU_ASSERT_DOUBLE_EQUAL(share, all_prefill / (all_prefill + all_decode), 0.1);
        CU_ASSERT_DOUBLE_EQUAL((prefill + decode) / (MOST / 5.0) / all, 1, 0.25);
    }
    destroy_all(requests, MOST);
}

/* Rows are written in the order of the input, so no request may be delayed for long. */
static void mixing_moves_nobody_far(void)
{
    enum { N = 1500, FAR = 256 };
    static struct request *requests[N];
    uint64_t x = 6;
    for (size_t i = 0; i < N; i++) {
        requests[i] = make(i, (int)(i % 20), 640, (size_t)fake_between(&x, 1, 90),
                           (int32_t)fake_between(&x, 1, 200));
    }
    const struct status st = order_requests(ORDER_AUTO, 1000, requests, N);
    CU_ASSERT_FALSE(status_failed(&st));
    size_t n_far = 0, n_moved = 0;
    for (size_t i = 0; i < N; i++) {
        const size_t was = requests[i]->index;
        n_far += (was > i ? was - i : i - was) >= FAR;
        n_moved += was != i;
    }
    CU_ASSERT_EQUAL(n_far, 0);
    CU_ASSERT(n_moved > N / 2);
    destroy_all(requests, N);
}

/* Each order has the name that flags and --metrics use. */
static void every_order_has_a_word(void)
{
    for (int32_t k = 0; k < ORDER_KIND_COUNT; k++)
        CU_ASSERT_PTR_NOT_NULL(flag_word_of(FLAG_WORDS(ORDER_WORDS), k));
}

void suite_order(CU_pSuite suite);
void suite_order(CU_pSuite suite)
{
    CU_add_test(suite, "every order keeps all and heeds priorities",
                every_order_keeps_all_and_heeds_priorities);
    CU_add_test(suite, "shared beginnings meet when the pool is small",
                shared_beginnings_meet_when_the_pool_is_small);
    CU_add_test(suite, "prefill and decode mix", prefill_and_decode_mix);
    CU_add_test(suite, "mixing moves nobody far", mixing_moves_nobody_far);
    CU_add_test(suite, "every order has a word", every_order_has_a_word);
}
