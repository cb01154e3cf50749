/* Beam search against a plain implementation, over a small artificial model, and the entries for
 * penalties against a count of the request's tokens. */
#include "base/mem.h"
#include "serve/request/beam.h"
#include "serve/schedule/adjusts.h"
#include "util_fake_engine.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 9, MOST = 7, WIDTH_MAX = 5, PROMPT = 3 };

static const int32_t end_ids[] = {4};

static const struct request_rules rules = {
    .end_ids = end_ids, .n_end_ids = 1, .vocab_size = VOCAB, .max_model_len = 64};

/* The log-probability of a token after a list of tokens. Many are equal, to test ties. */
static float logprob_of(const int32_t *tokens, size_t n, int32_t token, uint64_t seed)
{
    uint64_t x = seed * 977 + 1;
    for (size_t i = 0; i < n; i++) x = x * 31 + (uint64_t)tokens[i] + 1;
    x = x * 131 + (uint64_t)token;
    for (int i = 0; i < 5; i++) (void)fake_random(&x);
    return -0.25f * (float)(1 + x % 24);
}

static int32_t top_order(const struct plan_top *a, const struct plan_top *b)
{
    if (a->logprob != b->logprob) return a->logprob > b->logprob ? -1 : 1;
    return a->id - b->id;
}

static int compare_tops(const void *a, const void *b)
{
    return top_order(a, b);
}

/* Fills a probe with the answer that the ranks would give. */
static struct status answer(struct request *probe, uint64_t seed)
{
    struct plan_top tops[VOCAB];
    for (int32_t v = 0; v < VOCAB; v++)
        tops[v] = (struct plan_top){v, logprob_of(probe->tokens, probe->n_tokens, v, seed)};
    qsort(tops, VOCAB, sizeof *tops, compare_tops);
    CU_ASSERT(probe->ask->n_logprobs <= VOCAB && probe->ask->temperature == 0);
    TRY(request_take_logprob(probe, tops[0].logprob, tops));
    return request_take_token(probe, &rules, tops[0].id);
}

static struct request *make_request(const char *line)
{
    struct request *r = NULL;
    struct request_rules with = rules;
    request_defaults_init(&with.defaults);
    const struct status st = request_create(&with, 1, line, strlen(line), &r);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_PTR_NULL_FATAL(r->error.code);
    return r;
}

/* Runs a search to its end, and makes answers [n_choices]. */
static struct status search(struct request *r, uint64_t seed, struct request **answers)
{
    struct beam_search *b = NULL;
    struct request *probes[WIDTH_MAX] = {NULL};
    struct status st = beam_create(r, &rules, &b);
    while (!status_failed(&st) && beam_n_running(b) > 0) {
        const int32_t n = beam_n_running(b);
        for (int32_t i = 0; i < n && !status_failed(&st); i++) {
            st = beam_make_probe(b, i, &probes[i]);
            if (!status_failed(&st)) st = answer(probes[i], seed);
        }
        if (!status_failed(&st)) st = beam_advance(b, probes);
        for (int32_t i = 0; i < n; i++) request_destroy(&probes[i]);
    }
    for (int32_t i = 0; !status_failed(&st) && i < r->ask->n_choices; i++)
        st = beam_make_answer(b, i, &answers[i]);
    beam_destroy(&b);
    return st;
}

/* --- the plain search: everything in one array, sorted whole, nothing clever */

struct plain {
    int32_t tokens[PROMPT + MOST];
    size_t n;
    double score;
    int32_t last, from;
};

static int by_rank(const void *a, const void *b)
{
    const struct plain *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->last != y->last ? x->last - y->last : x->from - y->from;
}

static size_t plain_search(const struct request *r, uint64_t seed, struct plain *ended)
{
    struct plain running[WIDTH_MAX], all[WIDTH_MAX * VOCAB];
    const size_t width = (size_t)r->ask->beam.width;
    size_t n_running = 1, n_ended = 0;
    memset(running, 0, sizeof running);
    memcpy(running[0].tokens, r->tokens, PROMPT * sizeof(int32_t));
    for (size_t length = 1; length <= (size_t)r->ask->max_tokens; length++) {
        size_t n = 0, n_next = 0;
        for (size_t i = 0; i < n_running; i++) {
            for (int32_t v = 0; v < VOCAB; v++) {
                if (v == end_ids[0] && length <= (size_t)r->ask->min_tokens) continue;
                struct plain p = running[i];
                p.score += (double)logprob_of(p.tokens, PROMPT + p.n, v, seed);
                p.tokens[PROMPT + p.n++] = v;
                p.last = v;
                p.from = (int32_t)i;
                all[n++] = p;
            }
        }
        qsort(all, n, sizeof *all, by_rank);
        for (size_t i = 0; i < n; i++) {
            if (all[i].last != end_ids[0] && length < (size_t)r->ask->max_tokens) {
                if (n_next < width) running[n_next++] = all[i];
                continue;
            }
            if (i >= width) continue;
            struct plain e = all[i];
            e.score /= pow((double)length, r->ask->beam.length_penalty);
            size_t at = n_ended < width ? n_ended++ : width;
            while (at > 0 && ended[at - 1].score < e.score) {
                if (at < width) ended[at] = ended[at - 1];
                at--;
            }
            if (at < width) ended[at] = e;
        }
        n_running = n_next;
        if (n_running == 0) break;
        if (n_ended < width) continue;
        if (r->ask->beam.early == BEAM_EARLY) break;
        const bool far = r->ask->beam.early == BEAM_NEVER && r->ask->beam.length_penalty > 0;
        const double reach = far ? (double)r->ask->max_tokens : (double)length;
        if (running[0].score / pow(reach, r->ask->beam.length_penalty) <= ended[width - 1].score)
            break;
    }
    return n_ended;
}

static void searches_are_those_over_all_candidates(void)
{
    static const char *const earlies[] = {"false", "true", "\"never\""};
    static const double penalties[] = {1, 0, 2, -1, 0.5, 1.75};
    size_t n_answers = 0, n_short = 0;
    for (uint64_t seed = 0; seed < 600; seed++) {
        char line[256];
        struct plain expected[WIDTH_MAX];
        struct request *found[WIDTH_MAX] = {NULL};
        const int width = 1 + (int)(seed % WIDTH_MAX), most = 1 + (int)(seed / 3 % MOST);
        snprintf(line, sizeof line,
                 "{\"prompt\":[1,2,3],\"beam\":{\"width\":%d,\"length_penalty\":%g,"
                 "\"early_stopping\":%s},\"n\":%d,\"max_tokens\":%d,\"min_tokens\":%d}",
                 width, penalties[seed % 6], earlies[seed / 6 % 3], width, most,
                 seed % 4 == 3 ? most / 2 : 0);
        struct request *r = make_request(line);
        const struct status st = search(r, seed, found);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        const size_t n = plain_search(r, seed, expected);
        for (size_t i = 0; i < n; i++) {
            const struct request *a = found[i];
            const bool same =
                a->n_tokens == PROMPT + expected[i].n &&
                memcmp(a->tokens, expected[i].tokens, a->n_tokens * sizeof *a->tokens) == 0;
            CU_ASSERT(same);
            CU_ASSERT_EQUAL(a->finish == REQUEST_STOP, expected[i].last == end_ids[0]);
            n_short += expected[i].n < (size_t)most;
            n_answers++;
        }
        for (int i = 0; i < width; i++) request_destroy(&found[i]);
        request_destroy(&r);
    }
    CU_ASSERT(n_answers > 1000);
    CU_ASSERT(n_short > 100);
}

static void every_failed_allocation_is_a_status(void)
{
    struct request *r =
        make_request("{\"prompt\":[1,2,3],\"num_beams\":3,\"n\":2,\"max_tokens\":4}");
    uint64_t n_failed = 0;
    bool passed = false;
    for (uint64_t n = 1; !passed && n < 10000; n++) {
        struct request *found[WIDTH_MAX] = {NULL};
        (void)mem_fail_after(n);
        const struct status st = search(r, 3, found);
        passed = mem_fail_after(0) < n;
        n_failed += status_failed(&st);
        CU_ASSERT(!status_failed(&st) || st.code == STATUS_MEMORY);
        for (int i = 0; i < WIDTH_MAX; i++) request_destroy(&found[i]);
    }
    CU_ASSERT(passed);
    CU_ASSERT(n_failed > 20);
    request_destroy(&r);
}

/* After each token, compares every entry with a count over all tokens. */
static void entries_count_what_the_tokens_are(void)
{
    struct request *r = make_request(
        "{\"prompt\":[1,2,7,2],\"max_tokens\":40,\"repetition_penalty\":1.5,\"min_tokens\":6,"
        "\"stop_token_ids\":[6],\"logit_bias\":{\"8\":2,\"1\":-3}}");
    struct adjusts adjusts = {0};
    uint64_t x = 9;
    for (int step = 0; step < 40; step++) {
        const struct status st = adjusts_update(&adjusts, r, &rules);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        size_t at = 0;
        for (int32_t v = 0; v < VOCAB; v++) {
            int32_t n_sampled = 0;
            bool in_prompt = false;
            for (size_t i = 0; i < r->n_tokens; i++) {
                if (r->tokens[i] == v && i < r->n_prompt) in_prompt = true;
                if (r->tokens[i] == v && i >= r->n_prompt) n_sampled++;
            }
            const bool is_end = (v == 4 || v == 6), forbidden = is_end && step < 6;
            const float bias = v == 8 ? 2 : v == 1 ? -3 : 0;
            if (!in_prompt && n_sampled == 0 && !is_end && bias == 0) continue;
            CU_ASSERT_FATAL(at < adjusts.n);
            const struct plan_adjust *a = &adjusts.entries[at++];
            CU_ASSERT(a->id == v && a->n_sampled == n_sampled && a->bias == bias);
            CU_ASSERT_EQUAL(a->flags,
                            (in_prompt ? PLAN_IN_PROMPT : 0u) | (forbidden ? PLAN_FORBIDDEN : 0u));
        }
        CU_ASSERT_EQUAL(at, adjusts.n);
        int32_t token = (int32_t)fake_between(&x, 0, VOCAB - 1);
        if (token == 4 || token == 6) token = 5;
        CU_ASSERT_EQUAL_FATAL(request_take_token(r, &rules, token).code, STATUS_OK);
    }
    adjusts_fini(&adjusts);
    request_destroy(&r);
}

void suite_beam(CU_pSuite suite);
void suite_beam(CU_pSuite suite)
{
    CU_add_test(suite, "searches are those over all candidates",
                searches_are_those_over_all_candidates);
    CU_add_test(suite, "every failed allocation is a status", every_failed_allocation_is_a_status);
    CU_add_test(suite, "entries count what the tokens are", entries_count_what_the_tokens_are);
}
