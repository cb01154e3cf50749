/* Whole jobs over the fake engine with inputs that are refused, empty, slow, or too long. */
#include "base/file.h"
#include "base/mem.h"
#include "text/tokenizer/tokenizer.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void files_that_cannot_be_used_are_refused(void)
{
    static struct serve_summary summary;
    char input[UTIL_PATH_MAX], output[UTIL_PATH_MAX];
    uint64_t n_wrong;
    util_file_create(input, "{\"prompt_token_ids\":[3]}\n", 25);
    util_file_create(output, "kept", 4);
    struct lead_options o = util_lead_options(NULL, "/nowhere/in.jsonl", output);
    struct status st = util_lead_run(&o, &summary, &n_wrong);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    char *bytes = NULL;
    size_t n = 0;
    st = file_read(output, 100, &bytes, &n);
    CU_ASSERT_EQUAL(n, 4); /* the old output is not truncated before the input has been opened */
    mem_free(&bytes);
    o = util_lead_options(NULL, input, input);
    st = util_lead_run(&o, &summary, &n_wrong);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "expected another file"));
    o = util_lead_options(NULL, input, "/dev/full");
    st = util_lead_run(&o, &summary, &n_wrong);
    CU_ASSERT_EQUAL(st.code, STATUS_IO);
    o = util_lead_options(NULL, input, output);
    o.n_blocks = 3;
    st = util_lead_run(&o, &summary, &n_wrong);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "--max-model-len"));
    o = util_lead_options(NULL, input, output);
    o.defaults.min_p = 2;
    st = util_lead_run(&o, &summary, &n_wrong);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    o = util_lead_options(NULL, input, output);
    st = util_lead_run(&o, &summary, &n_wrong);
    CU_ASSERT_FALSE(status_failed(&st));
    CU_ASSERT_EQUAL(summary.n_rows, 1);
    util_file_remove(input);
    util_file_remove(output);
}

static void empty_inputs_give_empty_outputs(void)
{
    static struct serve_summary summary;
    struct strbuf in, out;
    strbuf_init(&in);
    strbuf_init(&out);
    struct lead_options o = util_lead_options(NULL, NULL, NULL);
    o.n_groups = 3;
    util_lead_run_text(&o, &in, &summary, &out);
    CU_ASSERT_EQUAL(out.n, 0);
    CU_ASSERT_EQUAL(summary.n_rows, 0);
    strbuf_fini(&in);
    strbuf_fini(&out);
}

/* The second of two lines is written while the first runs. Between them the pipe is open and empty.
 */
static void a_slow_pipe_does_not_hold_up_what_runs(void)
{
    static const char first[] = "{\"prompt_token_ids\":[9,8,7],\"max_tokens\":150}\n";
    static const char second[] = "{\"prompt_token_ids\":[9,8],\"max_tokens\":1}\n";
    int ends[2];
    char input[UTIL_PATH_MAX], output[UTIL_PATH_MAX];
    struct lead *lead = NULL;
    struct fake_engine engine;
    struct step_plan plan;
    struct step_result result;
    static struct serve_summary summary;
    CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
    snprintf(input, sizeof input, "/proc/self/fd/%d", ends[0]);
    util_file_create(output, "", 0);
    struct lead_options o = util_lead_options(NULL, input, output);
    o.n_end_ids = 0; /* so that no end token ends the first line */
    struct status st = lead_create(&o, &lead);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = step_plan_init(&plan, 1);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    step_result_init(&result);
    fake_engine_init(&engine, 1, o.n_blocks);
    CU_ASSERT_EQUAL(write(ends[1], first, strlen(first)), (ssize_t)strlen(first));
    bool done = false;
    size_t n_most = 0;
    uint64_t step = 0;
    for (; !done && step < 1000; step++) {
        if (step == 50) {
            CU_ASSERT_EQUAL(write(ends[1], second, strlen(second)), (ssize_t)strlen(second));
            close(ends[1]);
        }
        st = lead_next(lead, 0, step, &plan, &done);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        if (done) break;
        CU_ASSERT(plan.n_seqs > 0);
        if (plan.n_seqs > n_most) n_most = plan.n_seqs;
        fake_engine_run(&engine, &plan, &result);
        st = lead_commit(lead, 0, &result);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
    }
    CU_ASSERT(done);
    CU_ASSERT_EQUAL(step, 150);
    CU_ASSERT_EQUAL(n_most, 2);
    st = lead_finish(lead, &summary);
    CU_ASSERT_FALSE(status_failed(&st));
    CU_ASSERT_EQUAL(summary.n_rows, 2);
    CU_ASSERT_EQUAL(summary.ttft.n, 2);
    CU_ASSERT_EQUAL(summary.tpot.n, 1);
    const struct arrival_latencies *a = &summary.since_arrival;
    CU_ASSERT(a->queue.n == 2 && a->ttft.n == 2 && a->e2e.n == 2);
    CU_ASSERT_EQUAL(a->ttft.sum_ns, a->queue.sum_ns + summary.ttft.sum_ns);
    CU_ASSERT_EQUAL(a->e2e.sum_ns, a->queue.sum_ns + summary.e2e.sum_ns);
    fake_engine_fini(&engine);
    step_result_fini(&result);
    step_plan_fini(&plan);
    lead_destroy(&lead);
    close(ends[0]);
    util_file_remove(output);
}

static void a_line_over_the_limit_is_a_row(void)
{
    enum { N = 20000000 };
    static struct serve_summary summary;
    static const char good[] = "{\"prompt_token_ids\":[3],\"max_tokens\":1}\n";
    struct strbuf in, out;
    strbuf_init(&in);
    strbuf_init(&out);
    strbuf_puts(&in, good);
    for (int i = 0; i < N / 10; i++) strbuf_puts(&in, "0123456789");
    strbuf_puts(&in, "\n");
    strbuf_puts(&in, good);
    struct lead_options o = util_lead_options(NULL, NULL, NULL);
    util_lead_run_text(&o, &in, &summary, &out);
    CU_ASSERT_EQUAL(summary.n_rows, 3);
    CU_ASSERT_EQUAL(summary.n_error_rows, 1);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(out.data, "\n{\"custom_id\":\"2\",\"error\":{\"code\":\"line_too_long\",\"message\":"
                         "\"the line has 20000000 bytes, expected at most 16777216\"}}\n"));
    strbuf_fini(&in);
    strbuf_fini(&out);
}

enum { HEAVY = 4 };

/* The first line of `in` runs for one step. Each of the HEAVY lines after it needs more work to
 * read, for its grammar or template, than a line may take, and becomes an error row. Only one of
 * them may be read before each step. */
static void run_heavy_lines(struct lead_options o, const struct strbuf *in)
{
    static struct serve_summary summary;
    char input[UTIL_PATH_MAX], output[UTIL_PATH_MAX];
    struct lead *lead = NULL;
    struct fake_engine engine;
    struct step_plan plan;
    struct step_result result;
    util_file_create(input, in->data, in->n);
    util_file_create(output, "", 0);
    o.input_path = input;
    o.output_path = output;
    CU_ASSERT_EQUAL_FATAL(lead_create(&o, &lead).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(step_plan_init(&plan, 1).code, STATUS_OK);
    step_result_init(&result);
    fake_engine_init(&engine, 1, o.n_blocks);
    bool done = false;
    for (uint64_t step = 0; !done && step < 1000; step++) {
        CU_ASSERT_EQUAL_FATAL(lead_next(lead, 0, step, &plan, &done).code, STATUS_OK);
        CU_ASSERT_EQUAL(plan.n_seqs, step == 0 ? 1 : 0);
        lead_summary(lead, &summary);
        CU_ASSERT(summary.n_rows <= step + 2);
        if (done || plan.n_seqs == 0) continue;
        fake_engine_run(&engine, &plan, &result);
        CU_ASSERT_EQUAL_FATAL(lead_commit(lead, 0, &result).code, STATUS_OK);
    }
    CU_ASSERT(done);
    CU_ASSERT_EQUAL(lead_finish(lead, &summary).code, STATUS_OK);
    CU_ASSERT_EQUAL(summary.n_rows, 1 + HEAVY);
    CU_ASSERT_EQUAL(summary.n_error_rows, HEAVY);
    fake_engine_fini(&engine);
    step_result_fini(&result);
    step_plan_fini(&plan);
    lead_destroy(&lead);
    util_file_remove(input);
    util_file_remove(output);
}

static void large_grammars_do_not_hold_up_what_runs(void)
{
    struct strbuf in;
    struct tokenizer *t = util_byte_tokenizer();
    strbuf_init(&in);
    strbuf_puts(&in, "{\"prompt_token_ids\":[9,8,7],\"max_tokens\":1}\n");
    for (int i = 0; i < HEAVY; i++)
        strbuf_printf(
            &in,
            "{\"prompt\":\"q\",\"guided_json\":{\"type\":\"array\",\"maxItems\":40000,"
            "\"items\":{\"enum\":[\"%d\"],\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){8}"
            "\"}}}\n",
            i);
    run_heavy_lines(util_lead_options(t, NULL, NULL), &in);
    tokenizer_destroy(&t);
    strbuf_fini(&in);
}

static void long_templates_do_not_hold_up_what_runs(void)
{
    static const char endless[] = "{% for a in range(99999) %}{% for b in range(99999) %}"
                                  "{% endfor %}{% endfor %}";
    struct strbuf in;
    struct chat *chat = NULL;
    struct tokenizer *t = util_byte_tokenizer();
    CU_ASSERT_EQUAL_FATAL(chat_create(endless, sizeof endless - 1, NULL, "endless", &chat).code,
                          STATUS_OK);
    strbuf_init(&in);
    strbuf_puts(&in, "{\"prompt_token_ids\":[9,8,7],\"max_tokens\":1}\n");
    for (int i = 0; i < HEAVY; i++)
        strbuf_puts(&in, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}\n");
    struct lead_options o = util_lead_options(t, NULL, NULL);
    o.chat = chat;
    run_heavy_lines(o, &in);
    chat_destroy(&chat);
    tokenizer_destroy(&t);
    strbuf_fini(&in);
}

/* A second line with the same id is refused, even if the row of the first is an error. The last
 * line has no id. Its number, 4, would be its default id, but another line has that id; so its row
 * is named "line 4". */
static void ids_count_once_whatever_their_rows(void)
{
    static struct serve_summary summary;
    struct strbuf in, out;
    strbuf_init(&in);
    strbuf_init(&out);
    strbuf_puts(&in, "{\"custom_id\":\"a\",\"prompt_token_ids\":[]}\n"
                     "{\"custom_id\":\"a\",\"prompt_token_ids\":[3]}\n"
                     "{\"custom_id\":\"4\",\"prompt_token_ids\":[3],\"max_tokens\":1}\n"
                     "{\"prompt_token_ids\":[3]}");
    struct lead_options o = util_lead_options(NULL, NULL, NULL);
    util_lead_run_text(&o, &in, &summary, &out);
    CU_ASSERT_EQUAL(summary.n_rows, 4);
    CU_ASSERT_EQUAL(summary.n_error_rows, 2);
    const char *row = strchr(out.data, '\n') + 1;
    const char *says = "{\"custom_id\":\"a\",\"error\":{\"code\":\"duplicate_id\"";
    CU_ASSERT_EQUAL(strncmp(row, says, strlen(says)), 0);
    row = strchr(strchr(row, '\n') + 1, '\n') + 1;
    says = "{\"custom_id\":\"line 4\",\"text\"";
    CU_ASSERT_EQUAL(strncmp(row, says, strlen(says)), 0);
    strbuf_fini(&in);
    strbuf_fini(&out);
}

void suite_lead_input(CU_pSuite suite);
void suite_lead_input(CU_pSuite suite)
{
    CU_add_test(suite, "files that cannot be used are refused",
                files_that_cannot_be_used_are_refused);
    CU_add_test(suite, "empty inputs give empty outputs", empty_inputs_give_empty_outputs);
    CU_add_test(suite, "a slow pipe does not hold up what runs",
                a_slow_pipe_does_not_hold_up_what_runs);
    CU_add_test(suite, "a line over the limit is a row", a_line_over_the_limit_is_a_row);
    CU_add_test(suite, "large grammars do not hold up what runs",
                large_grammars_do_not_hold_up_what_runs);
    CU_add_test(suite, "long templates do not hold up what runs",
                long_templates_do_not_hold_up_what_runs);
    CU_add_test(suite, "ids count once whatever their rows", ids_count_once_whatever_their_rows);
}
