/* Draft tokens: which tokens are guessed, how many are worth computing, and that drafting never
 * changes a byte of a job, whatever its lines ask for. test_scheduler.c tests drafting with other
 * layouts, preemption and shared blocks. */
#include "base/json.h"
#include "base/mem.h"
#include "serve/schedule/drafting.h"
#include "serve/schedule/scheduler_private.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

/* Returns the n_most tokens guessed after a text whose tokens are letters; "": there is no guess.
 */
static const char *guess_of(struct drafting *d, const char *text, size_t n_most)
{
    static char drafts[64];
    int32_t tokens[512];
    const size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) tokens[i] = text[i];
    const struct status st = drafting_look(d, tokens, n);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    if (d->n_same == 0) n_most = 0;
    for (size_t i = 0; i < n_most; i++) tokens[n + i] = tokens[d->from + i];
    for (size_t i = 0; i < n_most; i++) drafts[i] = (char)tokens[n + i];
    drafts[n_most] = '\0';
    return drafts;
}

static void the_text_goes_on_as_where_its_end_stood_before(void)
{
    const struct {
        const char *text, *drafts;
        size_t n_same;
    } cases[] = {
        {"", "", 0},
        {"abcdefgh", "", 0},
        {"ab", "", 0},
        {"abcab", "cab", 2}, /* the guess may overlap the text that it continues */
        {"aaaa", "aaa", 2},
        {"abcdefg_abc", "def", 2},
        {"abcdefg_xbcd", "efg", 2},
        {"abcdefg_abcd", "efg", 4},
        {"1abX_2abY_ab", "Y_a", 2},           /* the last earlier place is used */
        {"wxyzabX_5678abY_wxyzab", "X_5", 4}, /* but a longer match is preferred */
        {"q1234abX_5678abY_q1234ab", "X_5", 4},
        {"qr1234abX_56781234abY_qr1234ab", "X_5", 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct drafting d = {0};
        CU_ASSERT_STRING_EQUAL(guess_of(&d, cases[i].text, 3), cases[i].drafts);
        CU_ASSERT_EQUAL(d.n_same, cases[i].n_same);
        drafting_fini(&d);
    }
}

/* A search of the whole text gives the same guesses as the tables, whether tokens come one by one
 * or together and while tables grow, except where an entry of the tables was overwritten. */
static void guesses_are_those_of_a_plain_search(void)
{
    enum { N = 3000 };
    static const size_t lengths[] = {8, 4, 2};
    static int32_t tokens[N];
    uint64_t x = 99;
    struct drafting d = {0};
    size_t n_found = 0, n_missed = 0;
    for (size_t i = 0; i < N; i++) tokens[i] = (int32_t)fake_between(&x, 0, 11);
    for (size_t n = 1; n < N; n += (size_t)fake_between(&x, 1, 3)) {
        const struct status st = drafting_look(&d, tokens, n);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        size_t n_same = 0, from = 0;
        for (size_t i = 0; i < 3 && n_same == 0; i++) {
            for (size_t at = n; --at > lengths[i] && n_same == 0;) {
                if (memcmp(tokens + at - lengths[i], tokens + n - lengths[i],
                           lengths[i] * sizeof *tokens) == 0) {
                    n_same = lengths[i];
                    from = at;
                }
            }
        }
        n_found += n_same > 0;
        if (d.n_same == n_same && (n_same == 0 || d.from == from)) continue;
        n_missed++;
        CU_ASSERT(d.n_same <= n_same);
        if (d.n_same == 0) continue;
        CU_ASSERT(memcmp(tokens + d.from - d.n_same, tokens + n - d.n_same,
                         d.n_same * sizeof *tokens) == 0);
    }
    CU_ASSERT(n_found > 1000);
    CU_ASSERT(n_missed < n_found / 4);
    CU_ASSERT(d.n_slots * sizeof *d.followers <= drafting_bytes(N));
    drafting_fini(&d);
}

static void a_long_text_takes_bounded_memory(void)
{
    enum { N = 1 << 18 };
    int32_t *tokens = NULL;
    struct drafting d = {0};
    struct status st = mem_alloc(&tokens, N + 4, sizeof *tokens, "test");
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    for (int32_t i = 0; i < N; i++) tokens[i] = i;
    memcpy(tokens + N, tokens + N - 100, 4 * sizeof *tokens);
    st = drafting_look(&d, tokens, N + 4);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL(drafting_bytes(N), 1 << 20);
    CU_ASSERT_EQUAL(d.n_slots, 1 << 18);
    CU_ASSERT_EQUAL(d.n_same, 4);
    CU_ASSERT_EQUAL(d.from, N - 96);
    drafting_fini(&d);
    mem_free(&tokens);
}

/* The number of draft tokens, at most n_most, that are worth computing in a step in which this
 * replica has n_rows rows and another one has `others`. */
static int32_t worth(const struct drafting *d, const struct drafting_cost *cost, int32_t n_rows,
                     int32_t others, int32_t n_most)
{
    struct drafting_step step = {.most_rows = n_rows > others ? n_rows : others,
                                 .n_good = (float)(n_rows + others)};
    const float before = step.n_good;
    drafting_times(cost, step.times);
    const int32_t n = drafting_worth(d, &step, n_rows, n_most);
    const int32_t rows = n_rows + n > others ? n_rows + n : others;
    CU_ASSERT_EQUAL(step.most_rows, rows);
    CU_ASSERT(step.n_good >= before && step.n_good <= before + (float)n);
    return n;
}

static const struct drafting_cost floats = {.row = 0.15f}, codes = {.row = 0.3f, .full_rows = 8},
                                  experts = {.row = 0.2f, .experts = 0.6f, .chosen = 0.125f};

static void right_guesses_bring_more_and_wrong_ones_none(void)
{
    struct drafting d = {0};
    guess_of(&d, "abcdefg_abcd", 1);
    CU_ASSERT_EQUAL(worth(&d, &codes, 1, 0, 15), 0);      /* nothing is known yet */
    for (int i = 0; i < 8; i++) drafting_learn(&d, 1, 1); /* observed without computing rows */
    CU_ASSERT(worth(&d, &codes, 1, 0, 15) >= 1);
    for (int i = 0; i < 4; i++) drafting_learn(&d, 1, 0);
    CU_ASSERT_EQUAL(worth(&d, &codes, 1, 0, 15), 0);
    for (int i = 0; i < 40; i++) drafting_learn(&d, 15, 15);
    CU_ASSERT_EQUAL(worth(&d, &floats, 1, 0, 15), 15);
    CU_ASSERT_EQUAL(worth(&d, &floats, 1, 0, 7), 7);
    for (int i = 0; i < 100; i++) drafting_learn(&d, 1, 0);
    CU_ASSERT_EQUAL(worth(&d, &floats, 1, 0, 15), 0);
    drafting_fini(&d);
}

/* When one guess of 20 is right, hardly any step is given a draft token. */
static void odds_below_the_cost_bring_hardly_any(void)
{
    struct drafting d = {0};
    int n = 0;
    guess_of(&d, "abcdefg_abcd", 1);
    for (int i = 0; i < 400; i++) {
        n += worth(&d, &codes, 1, 0, 15);
        drafting_learn(&d, 1, i % 20 == 3);
    }
    CU_ASSERT(n < 10);
    drafting_fini(&d);
}

/* Guesses of a prediction layer have odds of their own, and are made only while they pay. */
static void a_layer_guesses_while_it_pays(void)
{
    struct drafting d = {0};
    float times[DRAFTING_ROWS + 1];
    const struct drafting_cost layer = {.row = 0.15f, .predict = 0.05f};
    drafting_times(&layer, times);
    CU_ASSERT(drafting_pays(&layer, times, drafting_predicted_odds(&d), 1));
    CU_ASSERT(drafting_pays(&layer, times, 0.9f, 4) && !drafting_pays(&layer, times, 0.1f, 1));
    CU_ASSERT(!drafting_pays(&layer, times, 1, DRAFTING_ROWS)); /* no rows are left for drafts */
    CU_ASSERT(drafting_pays(&layer, times, 0.5f, 0)); /* only prompts: the layer fills its cache */
    const struct drafting_cost shallow = {.row = 0.15f, .predict = 0.9f};
    CU_ASSERT(!drafting_pays(&shallow, times, 1, 1));
    for (int i = 0; i < 40; i++) drafting_learn_predicted(&d, true);
    CU_ASSERT(drafting_predicted_odds(&d) > 0.95f && drafting_odds(&d) == 0);
    struct drafting_step step = {.most_rows = 1, .n_good = 1};
    memcpy(step.times, times, sizeof times);
    CU_ASSERT(drafting_is_worth(drafting_predicted_odds(&d), &step, 1));
    CU_ASSERT(step.most_rows == 2 && step.n_good > 1.95f);
    for (int i = 0; i < 40; i++) drafting_learn_predicted(&d, false);
    CU_ASSERT(!drafting_is_worth(drafting_predicted_odds(&d), &step, 2));
    CU_ASSERT_EQUAL(step.most_rows, 2);
}

/* Returns the number of draft tokens for each of n sequences that are alone in the step, when a
 * draft model's tokens are right with probability `odds` and its step takes `model_step` times as
 * long as the model's step of one row. */
static int32_t asked(const struct drafting_cost *cost, float odds, int32_t n, float model_step)
{
    float all[DRAFTING_ROWS], saved;
    struct drafting_step step = {.most_rows = n, .n_good = (float)n};
    for (int32_t i = 0; i < n; i++) all[i] = odds;
    drafting_times(cost, step.times);
    const struct drafting_asked a = {.odds = all, .n = n, .n_busiest = n, .step = model_step};
    const int32_t best = drafting_asked_worth(&a, &step, (DRAFTING_ROWS - n) / n, &saved);
    CU_ASSERT((best > 0) == (saved > 0) || cost->row == 0);
    CU_ASSERT(saved < 1);
    return best;
}

static void a_draft_model_is_asked_where_it_pays(void)
{
    const struct drafting_cost unknown = {0};
    CU_ASSERT(asked(&floats, 0.9f, 1, 0.05f) >= 4);
    CU_ASSERT(asked(&floats, 0.99f, 1, 0.05f) > asked(&floats, 0.8f, 1, 0.05f));
    CU_ASSERT(asked(&floats, 0.9f, 1, 0.3f) < asked(&floats, 0.9f, 1, 0.05f));
    CU_ASSERT_EQUAL(asked(&floats, 1, 1, 1), 0); /* a draft costs what it saves */
    CU_ASSERT_EQUAL(asked(&floats, 0.2f, 1, 0.05f), 0);
    CU_ASSERT(asked(&floats, 0.9f, 4, 0.05f) > 0);
    CU_ASSERT_EQUAL(asked(&codes, 0.9f, 8, 0.05f), 0); /* each row costs its full share */
    CU_ASSERT_EQUAL(asked(&unknown, 0.1f, 2, 5), 15);  /* the user gave the number */
    CU_ASSERT_DOUBLE_EQUAL(drafting_expected(0.5f, 3), 0.875, 1e-6);
}

/* A step during which the CPU was taken away says little about the usual time of a step. */
static void slow_steps_hardly_count(void)
{
    double ns = drafting_usual_ns(0, 900);
    for (int i = 0; i < 1000; i++) ns = drafting_usual_ns(ns, i % 10 == 3 ? 50000 : 100);
    CU_ASSERT(ns >= 100 && ns < 115);
    for (int i = 0; i < 1000; i++) ns = drafting_usual_ns(ns, 300);
    CU_ASSERT(ns > 280 && ns <= 300);
}

static void a_full_step_takes_no_guess(void)
{
    struct drafting d = {.n_same = 8, .odds = {0.8f, 0.8f, 0.8f}};
    const int32_t alone = worth(&d, &codes, 1, 0, 15);
    CU_ASSERT(alone >= 1 && alone < 8);
    CU_ASSERT(worth(&d, &codes, 6, 0, 15) <= 2);
    d.odds[2] = 0.95f;
    CU_ASSERT_EQUAL(worth(&d, &codes, 1, 0, 15), 7); /* up to where each row costs its full share */
    CU_ASSERT_EQUAL(worth(&d, &codes, 8, 0, 15), 0);
    CU_ASSERT_EQUAL(worth(&d, &codes, 16, 0, 15), 0);
    CU_ASSERT(worth(&d, &floats, 8, 0, 15) > 2);
}

/* The first row that goes to an expert has to read its weights. So the first draft token is
 * expensive, and the tenth is not. */
static void experts_are_met_once(void)
{
    float times[DRAFTING_ROWS + 1];
    struct drafting d = {.n_same = 8, .odds = {0.7f, 0.7f, 0.7f}};
    drafting_times(&experts, times);
    CU_ASSERT_EQUAL(times[1], 1);
    CU_ASSERT(times[2] > 1.7f && times[2] < 1.75f); /* 1 + 0.2 + 0.6 (2 - 1/8 - 1) */
    for (int i = 2; i < DRAFTING_ROWS; i++)
        CU_ASSERT(times[i + 1] - times[i] < times[i] - times[i - 1] + 1e-5f);
    CU_ASSERT(worth(&d, &floats, 1, 0, 15) > 0);
    CU_ASSERT_EQUAL(worth(&d, &experts, 1, 0, 15), 0);
    for (int i = 0; i < DRAFTING_LENGTHS; i++) d.odds[i] = 0.97f;
    CU_ASSERT(worth(&d, &experts, 1, 0, 1) <= 1);
    CU_ASSERT(worth(&d, &experts, 1, 0, 15) > 8);
}

/* Replicas wait for the one with the most rows. Draft tokens are free up to that number of rows;
 * beyond it they delay all replicas. */
static void other_replicas_wait_too(void)
{
    struct drafting d = {.n_same = 8, .odds = {0.61f, 0.61f, 0.61f}};
    CU_ASSERT(worth(&d, &codes, 1, 0, 15) >= 1);
    CU_ASSERT_EQUAL(worth(&d, &codes, 4, 4, 15), 0);
    d.odds[2] = 0.85f;
    CU_ASSERT_EQUAL(worth(&d, &codes, 1, 4, 15), 3);
    CU_ASSERT_EQUAL(worth(&d, &codes, 1, 500, 15), 15);
    d.odds[2] = 0.55f;
    CU_ASSERT_EQUAL(worth(&d, &codes, 1, 500, 15), 0); /* although they would cost nothing */
}

/* Fields of a request that affect sampling, the text or its end. */
static const char *const fields[] = {
    "\"temperature\":0",
    "\"temperature\":1,\"seed\":5",
    "\"n\":3,\"logprobs\":2",
    "\"n\":2,\"seed\":3,\"repetition_penalty\":1.3",
    "\"frequency_penalty\":0.5,\"presence_penalty\":-0.5,\"min_tokens\":30",
    "\"temperature\":0,\"repetition_penalty\":1.2,\"logit_bias\":{\"65\":0,\"7\":4.5}",
    "\"prompt_logprobs\":2,\"logprobs\":1",
    "\"stop\":[\"e\",\"th\"],\"min_tokens\":9",
    "\"stop_token_ids\":[101,116,97]",
    "\"ignore_eos\":true",
    "\"bad_words\":[\"ab\",\"x\"],\"min_tokens\":5",
    "\"allowed_token_ids\":[97,98,99,100,101,102,256]",
    "\"guided_regex\":\"[a-f]{3,9}( [g-z]{2,5})*\"",
    "\"guided_json\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},"
    "\"required\":[\"a\"]}",
    "\"num_beams\":3",
};
enum { N_FIELDS = sizeof fields / sizeof *fields, N_LINES = 2 * N_FIELDS };

/* The tokens of each choice of each line in a run without draft tokens. */
struct known {
    struct {
        int32_t tokens[256];
        size_t n;
    } answers[N_LINES][4];
};

static void know_answer(struct known *k, size_t line, size_t choice, const struct js_node *from)
{
    const struct js_node *ids = js_get(from, "token_ids");
    for (size_t i = 0; i < js_count(ids); i++) {
        double id = -1;
        CU_ASSERT_FATAL(js_number(js_at(ids, i), &id));
        k->answers[line][choice].tokens[k->answers[line][choice].n++] = (int32_t)id;
    }
}

static void know(struct known *k, const struct strbuf *rows)
{
    const char *at = rows->data;
    memset(k, 0, sizeof *k);
    for (size_t line = 0; line < N_LINES; line++) {
        const char *end = strchr(at, '\n');
        struct js_doc *doc = NULL;
        const struct status st = js_parse(at, (size_t)(end - at), "row", &doc);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        const struct js_node *choices = js_get(js_root(doc), "choices");
        know_answer(k, line, 0, js_root(doc));
        for (size_t c = 0; c < js_count(choices); c++) know_answer(k, line, c, js_at(choices, c));
        js_destroy(&doc);
        at = end + 1;
    }
}

/* Guesses the known answer for a while, then random tokens. How long depends on the line, the
 * choice and the position. */
static int32_t draft_known(void *user, const struct request *r, int32_t n_most, int32_t *drafts)
{
    const struct known *k = user;
    const size_t line = (size_t)r->line - 1, n_drawn = r->n_tokens - r->n_prompt;
    uint64_t x = (r->line * 1000 + n_drawn) * 7919 + r->choice + 1;
    for (int i = 0; i < 4; i++) (void)fake_random(&x);
    const int64_t n_right = fake_between(&x, 0, 2 * n_most);
    for (int32_t i = 0; i < n_most; i++) {
        const size_t at = n_drawn + (size_t)i;
        const bool is_known = at < k->answers[line][r->choice].n && i < n_right;
        drafts[i] = is_known ? k->answers[line][r->choice].tokens[at]
                             : (int32_t)fake_between(&x, 0, FAKE_VOCAB - 1);
    }
    return n_most;
}

static void no_way_of_guessing_changes_a_byte(void)
{
    static struct known known;
    struct tokenizer *t = util_byte_tokenizer();
    struct strbuf lines, without, with;
    strbuf_init(&lines);
    strbuf_init(&without);
    strbuf_init(&with);
    for (int i = 0; i < N_LINES; i++)
        strbuf_printf(&lines, "{\"prompt\":\"abcab%d%s\",\"max_tokens\":60,%s}\n", i,
                      i < N_FIELDS ? "" : " and on and on and on, to be in the second block of it",
                      fields[i % N_FIELDS]);
    for (int i = 0; i < 7; i++) {
        const int32_t n_drafts[] = {0, 1, 2, 3, 7, 31, 15};
        struct serve_summary summary = {0};
        struct lead_options o = util_lead_options(t, NULL, NULL);
        o.n_groups = 1 + i % 2;
        o.schedule.max_batch = 5; /* few rows, so that there is room for drafts */
        o.schedule.n_drafts = n_drafts[i];
        o.drafts.drafter =
            i < 6 ? draft_known : NULL; /* the last run uses the drafter of a real job */
        o.drafts.user = &known;
        util_lead_run_text(&o, &lines, &summary, i == 0 ? &without : &with);
        CU_ASSERT_EQUAL(summary.n_error_rows, 0);
        if (i == 0) know(&known, &without);
        if (i == 0) continue;
        CU_ASSERT_STRING_EQUAL(without.data, with.data);
        CU_ASSERT(summary.n_drafts > 0);
        if (i < 6) CU_ASSERT(summary.n_right_drafts > 100);
        if (i < 6) CU_ASSERT(summary.n_drafts > summary.n_right_drafts + 50);
    }
    strbuf_fini(&lines);
    strbuf_fini(&without);
    strbuf_fini(&with);
    tokenizer_destroy(&t);
}

/* A draft model that proposes any tokens, and sometimes fewer than it was asked for. */
static struct status propose_any(void *user, struct draft_ask *asks, size_t n)
{
    size_t *n_asked = user;
    for (size_t i = 0; i < n; i++) {
        struct draft_ask *a = &asks[i];
        uint64_t x = (uint64_t)a->id * 7919 + a->n_tokens + 1;
        for (int k = 0; k < 4; k++) (void)fake_random(&x);
        CU_ASSERT_FATAL(a->n_tokens > 0 && a->n_most > 0 && a->n_most <= SEQUENCE_DRAFTS_MAX);
        a->n = (int32_t)fake_between(&x, 0, a->n_most);
        for (int32_t k = 0; k < a->n; k++)
            a->drafts[k] = (int32_t)fake_between(&x, 0, FAKE_VOCAB - 1);
        *n_asked += (size_t)a->n_most;
    }
    return status_ok();
}

/* A draft model that gives no drafts: it has no room, or is still busy with the text. */
struct giver {
    bool is_late;
    size_t n_asks, most_tokens;
};

static struct status propose_none(void *user, struct draft_ask *asks, size_t n)
{
    struct giver *g = user;
    for (size_t i = 0; i < n; i++) {
        asks[i].n = 0;
        asks[i].is_late = g->is_late;
        if (asks[i].n_tokens > g->most_tokens) g->most_tokens = asks[i].n_tokens;
    }
    g->n_asks += n;
    return status_ok();
}

static size_t knows_none(void *user, const struct draft_ask *ask)
{
    (void)user, (void)ask;
    return 0;
}

static double takes_no_time(void *user)
{
    (void)user;
    return 1e-3;
}

/* The first run has no drafts. In the next two their number is given, in the last it is chosen by
 * the cost. */
static void no_draft_model_changes_a_byte(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct strbuf lines, without, with;
    size_t n_asked = 0;
    strbuf_init(&lines);
    strbuf_init(&without);
    strbuf_init(&with);
    for (int i = 0; i < N_LINES; i++)
        strbuf_printf(&lines, "{\"prompt\":\"some%dwords\",\"max_tokens\":60,%s}\n", i,
                      fields[i % N_FIELDS]);
    for (int i = 0; i < 4; i++) {
        struct serve_summary summary = {0};
        struct lead_options o = util_lead_options(t, NULL, NULL);
        o.n_groups = 1 + i % 2;
        o.schedule.max_batch = 5;
        o.schedule.n_drafts = i == 0 ? 0 : i == 1 ? 4 : 15;
        if (i == 3) o.drafts.cost = floats;
        if (i > 0)
            o.drafts.model =
                (struct draft_source){propose_any, knows_none, takes_no_time, 4096, &n_asked};
        util_lead_run_text(&o, &lines, &summary, i == 0 ? &without : &with);
        CU_ASSERT_EQUAL(summary.n_error_rows, 0);
        if (i > 0) CU_ASSERT_STRING_EQUAL(without.data, with.data);
        CU_ASSERT_EQUAL(summary.model_drafts.n > 0, i > 0);
        CU_ASSERT(summary.model_drafts.n <= summary.n_drafts && summary.model_drafts.n <= n_asked);
        n_asked = 0;
    }
    strbuf_fini(&lines);
    strbuf_fini(&without);
    strbuf_fini(&with);
    tokenizer_destroy(&t);
}

/* Generates n_tokens tokens with a draft model that gives no drafts and takes texts of at most
 * `context` tokens. */
static void run_in_vain(struct giver *g, uint32_t context, int n_tokens)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct serve_summary summary = {0};
    struct lead_options o = util_lead_options(t, NULL, NULL);
    struct strbuf lines, out;
    strbuf_init(&lines);
    strbuf_init(&out);
    strbuf_printf(&lines, "{\"prompt\":\"words\",\"max_tokens\":%d,\"ignore_eos\":true}\n",
                  n_tokens);
    o.max_model_len = n_tokens + 10;
    o.schedule.n_drafts = 15;
    o.drafts.cost = floats;
    o.drafts.no_repeats = true;
    o.drafts.model = (struct draft_source){.propose = propose_none,
                                           .n_known = knows_none,
                                           .step_ns = takes_no_time,
                                           .context = context,
                                           .user = g};
    util_lead_run_text(&o, &lines, &summary, &out);
    CU_ASSERT_EQUAL(summary.n_error_rows, 0);
    CU_ASSERT_EQUAL(summary.n_drafts, 0);
    strbuf_fini(&lines);
    strbuf_fini(&out);
    tokenizer_destroy(&t);
}

static void a_draft_model_is_asked_in_vain_a_few_times(void)
{
    struct giver without_room = {0}, late = {.is_late = true}, short_context = {.is_late = true};
    run_in_vain(&without_room, 4096, 60);
    CU_ASSERT(without_room.n_asks > 0 && without_room.n_asks < 8);
    run_in_vain(&late, 4096, 60);
    CU_ASSERT(late.n_asks > 40);
    run_in_vain(&short_context, 30, 60);
    CU_ASSERT(short_context.n_asks > 0 && short_context.most_tokens <= 30);
}

/* A draft model that was of no use is asked again, but seldom. */
static void a_draft_model_is_asked_again_after_a_while(void)
{
    struct giver first = {0}, all = {0};
    run_in_vain(&first, 4096, 60);
    run_in_vain(&all, 4096, 900);
    CU_ASSERT(all.n_asks > first.n_asks + 3 && all.n_asks < first.n_asks + 30);
}

/* After wrong drafts, the odds of a text rise with the tokens that it gains, up to their first
 * value. Higher odds stay. */
static void odds_recover_with_the_tokens(void)
{
    struct drafting d = {0}, at_once;
    drafting_recover_predicted(&d, 5000);
    CU_ASSERT_EQUAL(d.n_predicted, 0);
    const float first = drafting_predicted_odds(&d);
    for (int i = 0; i < 9; i++) drafting_learn_predicted(&d, false);
    const float low = d.predicted_odds;
    CU_ASSERT(low < 0.3f);
    at_once = d;
    for (size_t n = 5000; n < 5128; n++) drafting_recover_predicted(&d, n + 1);
    drafting_recover_predicted(&at_once, 5128);
    CU_ASSERT(d.predicted_odds > low + 0.04f && d.predicted_odds < low + 0.1f);
    CU_ASSERT_DOUBLE_EQUAL(at_once.predicted_odds, d.predicted_odds, 1e-4);
    drafting_recover_predicted(&d, 5128);
    CU_ASSERT_DOUBLE_EQUAL(at_once.predicted_odds, d.predicted_odds, 1e-4);
    drafting_recover_predicted(&d, 50000);
    CU_ASSERT_EQUAL(d.predicted_odds, first);
    for (int i = 0; i < 30; i++) drafting_learn_predicted(&d, true);
    const float high = d.predicted_odds;
    drafting_recover_predicted(&d, 100000);
    CU_ASSERT(high > first && d.predicted_odds == high);
}

/* A draft that got no row is compared with the sampled token; without a token nothing is
 * learned. */
static void a_draft_without_a_row_is_no_wrong_one(void)
{
    int32_t drafts[] = {5, 6};
    struct scheduler s = {.predicted_odds = 0.5f};
    struct sequence q = {.drafts = drafts, .n_proposed = 2};
    const struct result_seq same = {.token = 5}, other = {.token = 6}, none = {.token = -1};
    scheduler_learn_model(&s, &q, &none, 0);
    CU_ASSERT(s.predicted_odds == 0.5f && q.drafting.n_predicted == 0);
    scheduler_learn_model(&s, &q, &same, 0);
    CU_ASSERT(s.predicted_odds > 0.5f && q.drafting.n_predicted == 1);
    s.predicted_odds = 0.5f;
    scheduler_learn_model(&s, &q, &other, 0);
    CU_ASSERT(s.predicted_odds < 0.5f);
    s.predicted_odds = 0.5f;
    q.n_drafts = 1; /* the second got no row */
    scheduler_learn_model(&s, &q, &same, 1);
    CU_ASSERT(s.predicted_odds > 0.5f);
}

/* The odds rise while sequences are open but not asked, not while nothing decodes. */
static void odds_recover_while_none_is_asked(void)
{
    struct microbatch m = {0};
    struct replica replica = {.groups = &m};
    struct scheduler s = {
        .o.n_replicas = 1, .replicas = &replica, .n_timed = 100, .predicted_odds = 0.3f};
    struct drafting_step step = {0};
    drafting_times(&floats, step.times);
    struct status st = scheduler_ask_model(&s, 0, &step);
    CU_ASSERT(!status_failed(&st) && s.predicted_odds == 0.3f);
    m.n_open = 1;
    st = scheduler_ask_model(&s, 0, &step);
    CU_ASSERT(!status_failed(&st) && s.predicted_odds > 0.3f);
}

void suite_drafting(CU_pSuite suite);
void suite_drafting(CU_pSuite suite)
{
    CU_add_test(suite, "the text goes on as where its end stood before",
                the_text_goes_on_as_where_its_end_stood_before);
    CU_add_test(suite, "guesses are those of a plain search", guesses_are_those_of_a_plain_search);
    CU_add_test(suite, "a long text takes bounded memory", a_long_text_takes_bounded_memory);
    CU_add_test(suite, "right guesses bring more and wrong ones none",
                right_guesses_bring_more_and_wrong_ones_none);
    CU_add_test(suite, "odds below the cost bring hardly any",
                odds_below_the_cost_bring_hardly_any);
    CU_add_test(suite, "a layer guesses while it pays", a_layer_guesses_while_it_pays);
    CU_add_test(suite, "a draft model is asked where it pays",
                a_draft_model_is_asked_where_it_pays);
    CU_add_test(suite, "slow steps hardly count", slow_steps_hardly_count);
    CU_add_test(suite, "no draft model changes a byte", no_draft_model_changes_a_byte);
    CU_add_test(suite, "a draft model is asked in vain a few times",
                a_draft_model_is_asked_in_vain_a_few_times);
    CU_add_test(suite, "a draft model is asked again after a while",
                a_draft_model_is_asked_again_after_a_while);
    CU_add_test(suite, "odds recover with the tokens", odds_recover_with_the_tokens);
    CU_add_test(suite, "a draft without a row is no wrong one",
                a_draft_without_a_row_is_no_wrong_one);
    CU_add_test(suite, "odds recover while none is asked", odds_recover_while_none_is_asked);
    CU_add_test(suite, "a full step takes no guess", a_full_step_takes_no_guess);
    CU_add_test(suite, "experts are met once", experts_are_met_once);
    CU_add_test(suite, "other replicas wait, too", other_replicas_wait_too);
    CU_add_test(suite, "no way of guessing changes a byte", no_way_of_guessing_changes_a_byte);
}
