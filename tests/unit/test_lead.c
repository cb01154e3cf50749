/* Whole jobs over the fake engine: rows have the same bytes whatever the options. */
#include "serve/lead/lead.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINES = 60 };

static const char duplicate[] = "{\"custom_id\":\"q3\",\"prompt\":\"twice\"}\n";

/* Appends a line of a random kind; id -1: without custom_id. */
static void add_line(struct strbuf *s, uint64_t *x, int id)
{
    const int kind = (int)fake_between(x, 0, 20);
    char name[32] = "";
    if (id >= 0) snprintf(name, sizeof name, "\"custom_id\":\"q%d\",", id);
    const int n_words = (int)fake_between(x, 1, 30);
    if (kind == 0) {
        strbuf_printf(s, "{%s\"prompt\":\"\",\"n\":7}\n", name);
    } else if (kind == 1) {
        strbuf_printf(s, "{%s\"prompt_token_ids\":[5,1,5]}\n",
                      name); /* token 1 at position 1 makes the arithmetic fail */
    } else if (kind == 2) {
        strbuf_printf(s,
                      "{%s\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"model\":"
                      "\"m\",\"prompt\":\"batch %d\",\"max_tokens\":9}}\r\n",
                      name, n_words);
    } else {
        strbuf_printf(s, "{%s\"prompt\":\"", name);
        for (int i = 0; i < n_words; i++) strbuf_printf(s, "w%d ", (int)fake_between(x, 0, 99));
        strbuf_printf(s, "\",\"max_tokens\":%d", (int)fake_between(x, 1, 90));
        if (kind < 6) strbuf_puts(s, ",\"temperature\":0");
        if (kind < 8) strbuf_printf(s, ",\"seed\":%d", (int)fake_between(x, 0, 9));
        const int64_t extra = fake_between(x, 0, 15);
        if (extra == 1) strbuf_puts(s, ",\"repetition_penalty\":1.25,\"min_tokens\":1");
        if (extra == 2) strbuf_puts(s, ",\"frequency_penalty\":0.5,\"presence_penalty\":-0.25");
        if (extra == 3) strbuf_puts(s, ",\"logit_bias\":{\"65\":1.5,\"7\":-100}");
        if (extra == 4) strbuf_puts(s, ",\"stop_token_ids\":[101,32]");
        if (extra == 5) strbuf_puts(s, ",\"ignore_eos\":true");
        if (extra == 6) strbuf_puts(s, ",\"logprobs\":3");
        if (extra == 7) strbuf_puts(s, ",\"prompt_logprobs\":2,\"logprobs\":1");
        if (extra == 8) strbuf_puts(s, ",\"n\":3,\"logprobs\":1");
        if (extra == 9) strbuf_puts(s, ",\"n\":2,\"prompt_logprobs\":0,\"min_tokens\":1");
        if (extra == 10) strbuf_puts(s, ",\"beam\":{\"width\":4},\"n\":3");
        if (extra == 11) strbuf_puts(s, ",\"num_beams\":2,\"early_stopping\":true");
        if (kind % 4 == 1) strbuf_puts(s, ",\"stop\":[\"ab\",\"e\",\"Q\"]");
        strbuf_puts(s, "}\n");
    }
}

/* These lines have the same prompt, which is longer than a block, and ask for different things. A
 * line may share the blocks of the prompt with another line, and nothing else. */
enum { ALIKE = 7 };

static void add_alike(struct strbuf *s)
{
    static const char *const wants[ALIKE] = {
        "",
        ",\"prompt_logprobs\":1",
        ",\"repetition_penalty\":1.5",
        ",\"presence_penalty\":1",
        ",\"logit_bias\":{\"65\":3}",
        ",\"min_tokens\":9",
        ",\"stop_token_ids\":[101],\"min_tokens\":9",
    };
    for (int i = 0; i < ALIKE; i++) {
        strbuf_puts(s, "{\"prompt\":\"");
        for (int k = 0; k < 10; k++) strbuf_puts(s, "alike... ");
        strbuf_printf(s, "\",\"temperature\":0,\"max_tokens\":20%s}\n", wants[i]);
    }
}

static void make_input(struct strbuf *s, uint64_t seed, bool with_ids)
{
    uint64_t x = seed * 77 + 1;
    for (int i = 0; i < LINES; i++) {
        if (i == 9) strbuf_puts(s, "\n");
        if (i == 10) strbuf_puts(s, "{\"prompt\":\xFF}\n");
        if (i == 11) strbuf_puts(s, duplicate);
        add_line(s, &x, with_ids ? i : -1);
    }
    add_alike(s);
}

static void random_options(struct lead_options *o, uint64_t *x)
{
    const int32_t n_needed = (o->max_model_len + 63) / 64;
    o->n_replicas = (int32_t)fake_between(x, 1, 3);
    o->n_groups = (int32_t)fake_between(x, 1, 4);
    o->n_blocks = n_needed + (int32_t)fake_between(x, 0, fake_between(x, 0, 1) ? 5 : 100);
    o->schedule.max_batch = fake_between(x, 0, 1) ? 0 : (int32_t)fake_between(x, 1, 9);
    o->schedule.step_tokens = fake_between(x, 0, 1) ? 2048 : (int32_t)fake_between(x, 1, 200);
    o->schedule.chunk_tokens = fake_between(x, 0, 1) ? 0 : (int32_t)fake_between(x, 1, 70);
    o->window_rows = fake_between(x, 0, 1) ? 0 : (size_t)fake_between(x, 1, 20);
    o->window_bytes = fake_between(x, 0, 2) ? 0 : (size_t)fake_between(x, 1, 20000);
    o->schedule.prefix_cache = fake_between(x, 0, 1);
    o->flags.result_cache = fake_between(x, 0, 1);
    o->schedule.order = (enum order_kind)fake_between(x, 0, ORDER_KIND_COUNT - 1);
}

static bool same(const struct strbuf *a, const struct strbuf *b)
{
    return a->n == b->n && memcmp(a->data, b->data, a->n) == 0;
}

static void check_options(enum lead_mode mode, uint64_t n_options, uint64_t *n_preemptions)
{
    static struct serve_summary first, again;
    struct tokenizer *t = util_byte_tokenizer();
    struct strbuf in, expected, found;
    strbuf_init(&in);
    strbuf_init(&expected);
    strbuf_init(&found);
    uint64_t random = 31;
    make_input(&in, 1, true);
    struct lead_options o = util_lead_options(t, NULL, NULL);
    o.mode = mode;
    util_lead_run_text(&o, &in, &first, &expected);
    CU_ASSERT_EQUAL(first.n_rows, LINES + 3 + ALIKE);
    CU_ASSERT(first.n_error_rows > 3);
    CU_ASSERT(first.n_error_rows < LINES / 2);
    unsigned n_different = 0;
    for (uint64_t i = 0; i < n_options; i++) {
        random_options(&o, &random);
        util_lead_run_text(&o, &in, &again, &found);
        n_different +=
            !same(&expected, &found) || first.perplexity != again.perplexity ||
            first.n_generated_tokens != again.n_generated_tokens + again.n_result_hit_tokens;
        *n_preemptions += again.n_preemptions;
    }
    CU_ASSERT_EQUAL(n_different, 0);
    strbuf_fini(&in);
    strbuf_fini(&expected);
    strbuf_fini(&found);
    tokenizer_destroy(&t);
}

static void any_options_give_the_same_bytes(void)
{
    uint64_t n_preemptions = 0;
    check_options(LEAD_GENERATE, 200, &n_preemptions);
    CU_ASSERT(n_preemptions > 100);
}

static void any_options_give_the_same_scores(void)
{
    uint64_t n_preemptions = 0;
    check_options(LEAD_SCORE, 60, &n_preemptions);
}

/* Appends the members from "text" to "finish_reason" that the row of a line without errors must
 * have, made without serve's code. */
static void expect_plain(const struct request *r, const char *const *stops, size_t n_stops,
                         struct strbuf *out)
{
    int32_t tokens[300];
    char text[300];
    size_t n = fake_engine_expect(r, 200, tokens), n_text = 0, cut = SIZE_MAX;
    const int32_t *sampled = tokens + r->n_prompt;
    bool stopped = sampled[n - 1] == FAKE_END_ID;
    for (size_t i = 0; i < n && cut == SIZE_MAX; i++) {
        if (sampled[i] == FAKE_END_ID) break;
        text[n_text++] = (char)sampled[i];
        for (size_t k = 0; k < n_stops; k++) {
            const size_t m = strlen(stops[k]);
            if (n_text < m || memcmp(text + n_text - m, stops[k], m) != 0) continue;
            if (cut == SIZE_MAX || n_text - m < cut) cut = n_text - m;
        }
        if (cut == SIZE_MAX) continue;
        n_text = cut;
        n = i + 1;
        stopped = true;
    }
    strbuf_puts(out, "\"text\":");
    strbuf_json_string(out, text, n_text);
    strbuf_puts(out, ",\"token_ids\":[");
    for (size_t i = 0; i < n; i++) strbuf_printf(out, i == 0 ? "%d" : ",%d", sampled[i]);
    strbuf_printf(out, "],\"finish_reason\":\"%s\"", stopped ? "stop" : "length");
}

/* Whether fake_engine_expect can predict the request. */
static bool is_simple(const struct request *r)
{
    return r->ask->penalties.repetition == 1 && r->ask->penalties.frequency == 0 &&
           r->ask->penalties.presence == 0 && r->ask->min_tokens == 0 && r->ask->n_biases == 0 &&
           r->ask->n_stop_ids == 0 && !r->ask->ignore_eos && r->ask->n_choices == 1 &&
           r->ask->beam.width == 0;
}

static void rows_are_what_each_line_alone_comes_to(void)
{
    static struct serve_summary summary;
    static const char *const stops[] = {"ab", "e", "Q"};
    struct tokenizer *t = util_byte_tokenizer();
    struct strbuf in, out, row;
    strbuf_init(&in);
    strbuf_init(&out);
    strbuf_init(&row);
    make_input(&in, 6, true);
    struct lead_options o = util_lead_options(t, NULL, NULL);
    util_lead_run_text(&o, &in, &summary, &out);
    const struct request_rules rules = {.defaults = o.defaults,
                                        .tokenizer = t,
                                        .vocab_size = FAKE_VOCAB,
                                        .max_model_len = o.max_model_len};
    const char *line = in.data, *found = out.data;
    unsigned n_checked = 0, n_stopped = 0, n_different = 0;
    for (uint64_t number = 1; *line != '\0'; number++) {
        const char *end = strchr(line, '\n');
        const char *found_end = strchr(found, '\n');
        struct request *r = NULL;
        const struct status st = request_create(&rules, number, line, (size_t)(end - line), &r);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        CU_ASSERT_PTR_NOT_NULL_FATAL(found_end);
        if (r->error.code == NULL && r->ask->format == REQUEST_PLAIN && r->tokens[1] != 1 &&
            is_simple(r) && strncmp(line, duplicate, strlen(duplicate)) != 0) {
            strbuf_clear(&row);
            strbuf_printf(&row, "{\"custom_id\":\"%s\",", r->custom_id.bytes);
            expect_plain(r, stops, r->stop != NULL ? 3 : 0, &row);
            n_different += strncmp(row.data, found, row.n) != 0;
            n_stopped += r->stop != NULL;
            n_checked++;
        }
        request_destroy(&r);
        line = end + 1;
        found = found_end + 1;
    }
    CU_ASSERT_EQUAL(*found, '\0');
    CU_ASSERT_EQUAL(n_different, 0);
    CU_ASSERT(n_checked > 10);
    CU_ASSERT(n_stopped > 3);
    strbuf_fini(&in);
    strbuf_fini(&out);
    strbuf_fini(&row);
    tokenizer_destroy(&t);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Splits s into its lines in place and sorts them. Returns their number. */
static size_t sort_lines(struct strbuf *s, char **lines, size_t most)
{
    size_t n = 0;
    for (char *at = strtok(s->data, "\n"); at != NULL && n < most; at = strtok(NULL, "\n"))
        lines[n++] = at;
    qsort(lines, n, sizeof *lines, by_text);
    return n;
}

static void shuffled_lines_give_the_same_rows(void)
{
    static struct serve_summary summary;
    struct tokenizer *t = util_byte_tokenizer();
    struct strbuf lines[LINES], in, out[2];
    uint64_t x = 8;
    int order[LINES];
    char *rows[2][LINES];
    for (int i = 0; i < LINES; i++) {
        strbuf_init(&lines[i]);
        add_line(&lines[i], &x, i);
        order[i] = i;
    }
    for (int round = 0; round < 2; round++) {
        strbuf_init(&in);
        strbuf_init(&out[round]);
        for (int i = 0; i < LINES; i++) strbuf_add(&in, lines[order[i]].data, lines[order[i]].n);
        struct lead_options o = util_lead_options(t, NULL, NULL);
        o.n_blocks = round == 0 ? 500 : 5;
        util_lead_run_text(&o, &in, &summary, &out[round]);
        CU_ASSERT_EQUAL_FATAL(sort_lines(&out[round], rows[round], LINES), LINES);
        for (int i = LINES - 1; i > 0; i--) {
            const int k = (int)fake_between(&x, 0, i), was = order[i];
            order[i] = order[k];
            order[k] = was;
        }
        strbuf_fini(&in);
    }
    for (int i = 0; i < LINES; i++) CU_ASSERT_STRING_EQUAL(rows[0][i], rows[1][i]);
    for (int i = 0; i < LINES; i++) strbuf_fini(&lines[i]);
    strbuf_fini(&out[0]);
    strbuf_fini(&out[1]);
    tokenizer_destroy(&t);
}

static void a_long_input_runs_in_bounded_memory(void)
{
    enum { N = 100000 };
    static struct serve_summary summary;
    struct strbuf in;
    strbuf_init(&in);
    for (int i = 0; i < N; i++)
        strbuf_printf(&in, "{\"prompt_token_ids\":[%d,%d,3,4,5],\"max_tokens\":%d}\n", i % 250 + 2,
                      i / 250 % 250 + 2, i % 1000 == 0 ? 190 : 3);
    char input[UTIL_PATH_MAX], output[UTIL_PATH_MAX];
    util_file_create(input, in.data, in.n);
    util_file_create(output, "", 0);
    strbuf_fini(&in);
    struct lead_options o = util_lead_options(NULL, input, output);
    uint64_t n_wrong = 0;
    const uint64_t before = util_peak_restart();
    struct status st = util_lead_run(&o, &summary, &n_wrong);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL(n_wrong, 0);
    const uint64_t used = mem_peak_bytes() - before,
                   most = (uint64_t)16 << 20; /* enough for a window of lines */
#ifdef __SANITIZE_ADDRESS__ /* AddressSanitizer keeps freed memory, 256 MiB and more with huge     \
                               pages */
    CU_ASSERT(used < most * 64);
#else
    CU_ASSERT(used < most);
#endif
    CU_ASSERT_EQUAL(summary.n_rows, N);
    CU_ASSERT_EQUAL(summary.n_error_rows, 0);
    CU_ASSERT_EQUAL(summary.n_prompt_tokens, 5 * N);
    char *bytes = NULL;
    size_t n = 0;
    st = file_read(output, (size_t)1 << 30, &bytes, &n);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    unsigned n_misplaced = 0;
    const char *at = bytes;
    for (int i = 1; i <= N && at != NULL; i++) {
        char start[40];
        const int m = snprintf(start, sizeof start, "{\"custom_id\":\"%d\",\"text\"", i);
        n_misplaced += strncmp(at, start, (size_t)m) != 0;
        at = strchr(at, '\n') + 1;
    }
    CU_ASSERT_EQUAL(n_misplaced, 0);
    CU_ASSERT_EQUAL(at, bytes + n);
    mem_free(&bytes);
    util_file_remove(input);
    util_file_remove(output);
}

/* The rows of logits that have arrived, by line and position, and how many of their values were
 * wrong. */
struct logits_seen {
    uint8_t rows[LINES + 20][200];
    unsigned n_bad;
};

static struct status see_logits(void *user, uint64_t line, int32_t row0, const float *rows,
                                int32_t n_rows, int32_t vocab)
{
    struct logits_seen *seen = user;
    for (int32_t i = 0; i < n_rows; i++) {
        seen->rows[line][row0 + i] = 1;
        for (int32_t v = 0; v < vocab; v++)
            seen->n_bad += rows[(int64_t)i * vocab + v] != (float)((row0 + i) * 1000 + v);
    }
    return status_ok();
}

static void scores_come_with_perplexity_and_logits(void)
{
    static struct serve_summary summary;
    static struct logits_seen seen;
    struct tokenizer *t = util_byte_tokenizer();
    struct strbuf in, out;
    strbuf_init(&in);
    strbuf_init(&out);
    strbuf_puts(&in, "{\"prompt\":\"abcdefghijklmnopqrstuvwxyz\"}\n{\"prompt\":\"z\"}\nbad\n"
                     "{\"prompt\":\"aab\",\"max_tokens\":1}\n");
    struct lead_options o = util_lead_options(t, NULL, NULL);
    o.mode = LEAD_SCORE;
    o.schedule.chunk_tokens = 7;
    o.logits = see_logits;
    o.logits_user = &seen;
    util_lead_run_text(&o, &in, &summary, &out);
    int32_t tokens[26];
    double sum[2] = {0, 0};
    for (int i = 0; i < 26; i++) tokens[i] = 'a' + i;
    float scores[26];
    fake_engine_scores(0, tokens, 26, scores);
    for (size_t i = 1; i < 26; i++) sum[0] += (double)scores[i];
    const int32_t aab[] = {'a', 'a', 'b'};
    fake_engine_scores(0, aab, 3, scores);
    for (size_t i = 1; i < 3; i++) sum[1] += (double)scores[i];
    CU_ASSERT_EQUAL(summary.n_scored, 27);
    CU_ASSERT_EQUAL(summary.sum_logprob, sum[0] + sum[1]);
    CU_ASSERT_DOUBLE_EQUAL(summary.perplexity, exp(-(sum[0] + sum[1]) / 27), 1e-9);
    CU_ASSERT_EQUAL(seen.n_bad, 0);
    int n_rows[5] = {0};
    for (int line = 1; line < 5; line++)
        for (int i = 0; i < 200; i++) n_rows[line] += seen.rows[line][i];
    CU_ASSERT_EQUAL(n_rows[1], 26);
    CU_ASSERT_EQUAL(n_rows[2], 1);
    CU_ASSERT_EQUAL(n_rows[3], 0);
    CU_ASSERT_EQUAL(n_rows[4], 3);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(out.data, "{\"custom_id\":\"3\",\"error\":{\"code\":\"invalid_json"));
    strbuf_fini(&in);
    strbuf_fini(&out);
    tokenizer_destroy(&t);
}

/* Each allocation of opening the job and planning its first step fails in turn: nothing crashes,
 * and an error is STATUS_MEMORY. */
static void every_failed_allocation_is_a_status(void)
{
    char input[UTIL_PATH_MAX], output[UTIL_PATH_MAX];
    struct tokenizer *t = util_byte_tokenizer();
    struct strbuf in;
    strbuf_init(&in);
    make_input(&in, 2, true);
    util_file_create(input, in.data, in.n);
    util_file_create(output, "", 0);
    const struct lead_options o = util_lead_options(t, input, output);
    uint64_t n_failed = 0;
    bool passed = false;
    for (uint64_t n = 1; !passed && n < 100000; n++) {
        struct lead *lead = NULL;
        struct step_plan plan = {0};
        bool done;
        (void)mem_fail_after(n);
        struct status st = lead_create(&o, &lead);
        if (!status_failed(&st)) st = step_plan_init(&plan, 1);
        if (!status_failed(&st)) st = lead_next(lead, 0, 0, &plan, &done);
        passed = mem_fail_after(0) < n;
        if (status_failed(&st)) {
            CU_ASSERT_EQUAL(st.code, STATUS_MEMORY);
            n_failed++;
        }
        step_plan_fini(&plan);
        lead_destroy(&lead);
    }
    CU_ASSERT(passed);
    CU_ASSERT(n_failed > 100);
    strbuf_fini(&in);
    util_file_remove(input);
    util_file_remove(output);
    tokenizer_destroy(&t);
}

void suite_lead(CU_pSuite suite);
void suite_lead(CU_pSuite suite)
{
    CU_add_test(suite, "a long input runs in bounded memory", a_long_input_runs_in_bounded_memory);
    CU_add_test(suite, "any options give the same bytes", any_options_give_the_same_bytes);
    CU_add_test(suite, "any options give the same scores", any_options_give_the_same_scores);
    CU_add_test(suite, "rows are what each line alone comes to",
                rows_are_what_each_line_alone_comes_to);
    CU_add_test(suite, "shuffled lines give the same rows", shuffled_lines_give_the_same_rows);
    CU_add_test(suite, "scores come with perplexity and logits",
                scores_come_with_perplexity_and_logits);
    CU_add_test(suite, "every failed allocation is a status", every_failed_allocation_is_a_status);
}
