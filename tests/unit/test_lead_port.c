/* The lead behind a port like the server's, over the fake engine: calls arrive while it runs, some
 * as streams, and some are cancelled. Answers are those of a job of lines. */
#include "serve/lead/lead_port.h"

#include "base/json.h"
#include "base/mem.h"
#include "serve/output/progress.h"
#include "serve/output/result_row.h"
#include "serve/output/result_stream.h"
#include "util_cases.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

enum { CALLS = 40, ANSWERS_MAX = 3, RUNS = 150 };
static const char cancelled[] = "cancelled";

/* A call, and its answer so far. */
struct exchange {
    struct strbuf body, answer, events;
    struct request *r; /* owned by the lead; NULL: not sent yet, or ended */
    struct result_stream streams[ANSWERS_MAX];
    bool is_chat, is_stream, is_sent, is_ended, is_error, is_cut;
};

struct calls {
    struct exchange list[CALLS];
    uint64_t x;
    int n_sent, n_ended, cancels; /* cancels: one read in this many chooses a call at random and
                                     cancels it if it runs; 0: none */
    size_t n_pieces;
};

static void make_body(struct exchange *c, uint64_t *x, int i)
{
    struct strbuf *s = &c->body;
    strbuf_printf(s, "{\"model\":\"m\",\"prompt\":\"");
    /* every seventh call has the same prompt */
    const int n_words = i % 7 == 0 ? 3 : (int)fake_between(x, 1, 25);
    for (int k = 0; k < n_words; k++)
        strbuf_printf(s, "w%d ", i % 7 == 0 ? k : (int)fake_between(x, 0, 99));
    strbuf_printf(s, "\",\"max_tokens\":%d", (int)fake_between(x, 1, 80));
    if (i % 3 == 0) strbuf_puts(s, ",\"temperature\":0");
    if (i % 3 == 1) strbuf_printf(s, ",\"seed\":%d", (int)fake_between(x, 0, 4));
    if (i % 5 == 1) strbuf_puts(s, ",\"stop\":[\"ab\",\"e\",\"Q\"]");
    if (i % 6 == 2) strbuf_puts(s, ",\"n\":3");
    if (i % 8 == 3) strbuf_puts(s, ",\"logprobs\":0");
    if (i % 16 == 4) strbuf_puts(s, ",\"beam_width\":2");
    if (i % 13 == 5) strbuf_puts(s, ",\"temprature\":1");
    strbuf_puts(s, "}");
}

/* Makes the rows of a job whose lines have these bodies and the custom_ids "c0", "c1", ... */
static void make_rows(const struct calls *k, struct tokenizer *t, struct strbuf *rows)
{
    static struct serve_summary summary;
    struct strbuf in;
    strbuf_init(&in);
    for (int i = 0; i < CALLS; i++) {
        strbuf_printf(&in,
                      "{\"custom_id\":\"c%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",", i);
        strbuf_printf(&in, "\"body\":%s}\n", k->list[i].body.data);
    }
    struct lead_options o = util_lead_options(t, NULL, NULL);
    util_lead_run_text(&o, &in, &summary, rows);
    strbuf_fini(&in);
}

/* ---- the port ---- */

static struct status send(struct calls *k, struct lead *l, int i)
{
    struct exchange *c = &k->list[i];
    struct request *r = NULL;
    char id[16];
    snprintf(id, sizeof id, "c%d", i);
    struct strbuf body;
    strbuf_init(&body);
    strbuf_add(&body, c->body.data, c->body.n - 1);
    strbuf_puts(&body, c->is_stream ? ",\"stream\":true}" : "}");
    const struct request_call call = {.format = REQUEST_OPENAI,
                                      .number = (uint64_t)i + 1,
                                      .id = id,
                                      .body = body.data,
                                      .n_body = body.n};
    const struct status st = request_create_call(lead_rules(l), &call, &r);
    strbuf_fini(&body);
    TRY(st);
    r->call = c;
    c->r = r;
    c->is_sent = true;
    return lead_take(l, r);
}

static struct status read_calls(void *user, struct lead *l)
{
    struct calls *k = user;
    for (int64_t n = fake_between(&k->x, 0, 3); n > 0 && k->n_sent < CALLS; n--)
        TRY(send(k, l, k->n_sent++));
    struct exchange *c = &k->list[fake_between(&k->x, 0, CALLS - 1)];
    const bool cancels = k->cancels > 0 && fake_between(&k->x, 1, k->cancels) == 1;
    if (cancels && c->r != NULL) TRY(lead_cancel(l, c->r, cancelled, "its client has gone"));
    return lead_order(l);
}

static bool all_came(const void *user)
{
    return ((const struct calls *)user)->n_sent == CALLS;
}

static struct status put(void *user, struct lead *l, const struct request *r)
{
    struct calls *k = user;
    struct exchange *c = r->call;
    k->n_ended++;
    CU_ASSERT_FALSE(c->is_ended);
    c->is_ended = true;
    c->r = NULL;
    c->is_error = r->error.code != NULL;
    c->is_cut = c->is_error && r->error.code == cancelled;
    if (c->is_error) {
        strbuf_puts(&c->answer, r->error.message);
    } else if (c->is_stream) {
        for (int32_t i = 0; i < r->ask->n_choices; i++)
            TRY(result_stream_write(&c->streams[i], result_row_choice(r, i), lead_rules(l), NULL,
                                    &c->events));
        result_stream_end(r, NULL, &c->events);
    } else {
        TRY(result_row_body(r, lead_rules(l), NULL, &c->answer));
    }
    return strbuf_status(&c->answer);
}

struct visitor {
    struct calls *k;
    struct lead *l;
};

static struct status piece(void *user, struct request *r)
{
    const struct visitor *v = user;
    const struct request *line = r->parent != NULL ? r->parent : r;
    struct exchange *c = line->call;
    if (!c->is_stream || line->choices.search != NULL) return status_ok();
    const size_t before = c->events.n;
    TRY(result_stream_write(&c->streams[r->choice], r, lead_rules(v->l), NULL, &c->events));
    v->k->n_pieces += c->events.n > before;
    return status_ok();
}

static struct status commit(void *user, struct lead *l, int32_t group)
{
    struct visitor v = {user, l};
    return lead_visit(l, group, piece, &v);
}

static struct status close_port(void *user)
{
    (void)user;
    return status_ok();
}

static void view(const void *user, struct progress_view *v)
{
    (void)user;
    (void)v;
}

static void sum(const void *user, struct serve_summary *s)
{
    s->n_rows = (uint64_t)((const struct calls *)user)->n_ended;
}

/* ---- comparing ---- */

/* Returns the body of a row's response, or the message of its error. */
static const struct js_node *row_of(const struct js_doc *doc, bool *is_error)
{
    const struct js_node *error = js_get(js_root(doc), "error");
    *is_error = js_type(error) == JS_OBJECT;
    return *is_error ? js_get(error, "message") : js_get(js_get(js_root(doc), "response"), "body");
}

/* Joins the texts of a stream's events by choice. */
static void join(const struct exchange *c, struct strbuf texts[ANSWERS_MAX])
{
    const char *end = c->events.data + c->events.n;
    for (const char *at = c->events.data; at < end;) {
        const char *next = strstr(at, "\n\n") + 2;
        struct js_doc *doc = NULL;
        CU_ASSERT_EQUAL_FATAL(strncmp(at, "data: ", 6), 0);
        if (next == end) {
            CU_ASSERT_EQUAL(strcmp(at, "data: [DONE]\n\n"), 0);
            return;
        }
        const struct status st = js_parse(at + 6, (size_t)(next - at) - 8, "event", &doc);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        const struct js_node *choice = js_at(js_get(js_root(doc), "choices"), 0);
        int64_t index = -1;
        size_t n = 0;
        (void)js_int(js_get(choice, "index"), &index);
        CU_ASSERT_FATAL(index >= 0 && index < ANSWERS_MAX);
        const char *text = js_string(js_get(choice, "text"), &n);
        strbuf_add(&texts[index], text, n);
        js_destroy(&doc);
        at = next;
    }
}

static bool stream_is(const struct exchange *c, const struct js_node *body)
{
    struct strbuf texts[ANSWERS_MAX];
    bool same = true;
    for (int i = 0; i < ANSWERS_MAX; i++) strbuf_init(&texts[i]);
    join(c, texts);
    const struct js_node *choices = js_get(body, "choices");
    for (size_t i = 0; i < js_count(choices); i++) {
        size_t n = 0;
        const char *text = js_string(js_get(js_at(choices, i), "text"), &n);
        same = same && n == texts[i].n && (n == 0 || memcmp(text, texts[i].data, n) == 0);
    }
    for (int i = 0; i < ANSWERS_MAX; i++) strbuf_fini(&texts[i]);
    return same;
}

/* Whether the call got the answer of its row, which is `line` [n]. */
static bool is_right(const struct exchange *c, const char *line, size_t n)
{
    struct js_doc *doc = NULL;
    bool is_error, same;
    const struct status st = js_parse(line, n, "row", &doc);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    const struct js_node *row = row_of(doc, &is_error);
    if (is_error != c->is_error) {
        same = false;
    } else if (is_error) {
        same = strcmp(js_string(row, NULL), c->answer.data) == 0;
    } else if (c->is_stream) {
        same = stream_is(c, row);
    } else {
        const char *body = strstr(line, "\"body\":");
        same = body != NULL && strncmp(body + 7, c->answer.data, c->answer.n) == 0;
    }
    js_destroy(&doc);
    return same;
}

static size_t count_wrong(const struct calls *k, const struct strbuf *rows)
{
    size_t n_wrong = 0;
    const char *at = rows->data;
    for (int i = 0; i < CALLS; i++) {
        const char *end = strchr(at, '\n');
        const struct exchange *c = &k->list[i];
        if (!c->is_cut) n_wrong += !c->is_ended || !is_right(c, at, (size_t)(end - at));
        at = end + 1;
    }
    return n_wrong;
}

/* One run in a random layout. */
static void run(struct calls *k, struct tokenizer *t)
{
    static struct serve_summary summary;
    uint64_t n_wrong = 0;
    const struct lead_port port = {.user = k,
                                   .read = read_calls,
                                   .is_at_end = all_came,
                                   .put = put,
                                   .commit = commit,
                                   .close = close_port,
                                   .view = view,
                                   .sum = sum};
    struct lead_options o = util_lead_options(t, NULL, NULL);
    o.port = &port;
    o.n_replicas = (int32_t)fake_between(&k->x, 1, 3);
    o.n_groups = (int32_t)fake_between(&k->x, 1, 4);
    o.n_blocks = fake_between(&k->x, 0, 1) ? 500 : 6;
    o.flags.result_cache = fake_between(&k->x, 0, 1);
    o.schedule.prefix_cache = fake_between(&k->x, 0, 1);
    const struct status st = util_lead_run(&o, &summary, &n_wrong);
    if (status_failed(&st)) printf("\n  %s\n", st.text);
    CU_ASSERT_FALSE(status_failed(&st));
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT_EQUAL(summary.n_rows, CALLS);
}

/* Runs all calls once, about `streams` tenths of them as streams. Adds the number of cancelled
 * calls to *n_cut and that of streamed pieces to *n_pieces. */
static void check(uint64_t seed, int streams, int cancels, size_t *n_cut, size_t *n_pieces)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct calls *k = NULL;
    struct strbuf rows;
    strbuf_init(&rows);
    CU_ASSERT_EQUAL_FATAL(mem_alloc(&k, 1, sizeof *k, "calls").code, STATUS_OK);
    k->x = seed * 0x9E3779B97F4A7C15u + 1;
    k->cancels = cancels;
    for (int i = 0; i < 4; i++) fake_random(&k->x);
    uint64_t bodies = 5;
    for (int i = 0; i < CALLS; i++) {
        struct exchange *c = &k->list[i];
        make_body(c, &bodies, i);
        c->is_stream = fake_between(&k->x, 0, 9) < streams;
    }
    make_rows(k, t, &rows);
    run(k, t);
    CU_ASSERT_EQUAL(count_wrong(k, &rows), 0);
    *n_pieces += k->n_pieces;
    for (int i = 0; i < CALLS; i++) {
        struct exchange *c = &k->list[i];
        *n_cut += c->is_cut;
        strbuf_fini(&c->body);
        strbuf_fini(&c->answer);
        strbuf_fini(&c->events);
    }
    strbuf_fini(&rows);
    mem_free(&k);
    tokenizer_destroy(&t);
}

static void calls_get_the_answers_of_lines(void)
{
    size_t n_cut = 0, n_pieces = 0;
    for (uint64_t i = 0; i < util_cases(RUNS); i++) check(i, 0, 0, &n_cut, &n_pieces);
    CU_ASSERT(n_cut == 0 && n_pieces == 0);
}

static void streams_join_to_the_answers_of_lines(void)
{
    size_t n_cut = 0, n_pieces = 0;
    for (uint64_t i = 0; i < util_cases(RUNS); i++) check(i, 7, 0, &n_cut, &n_pieces);
    CU_ASSERT(n_cut == 0 && n_pieces > 20 * util_cases(RUNS));
}

static void cancelled_calls_end_and_change_no_other(void)
{
    size_t n_cut = 0, n_pieces = 0;
    for (uint64_t i = 0; i < util_cases(RUNS); i++)
        check(i, 5, 1 + (int)(i % 6), &n_cut, &n_pieces);
    CU_ASSERT(n_cut > 2 * util_cases(RUNS) && n_cut < (CALLS - 10) * util_cases(RUNS));
}

void suite_lead_port(CU_pSuite suite);
void suite_lead_port(CU_pSuite suite)
{
    CU_add_test(suite, "calls get the answers of lines", calls_get_the_answers_of_lines);
    CU_add_test(suite, "streams join to the answers of lines",
                streams_join_to_the_answers_of_lines);
    CU_add_test(suite, "cancelled calls end, and change no other",
                cancelled_calls_end_and_change_no_other);
}
