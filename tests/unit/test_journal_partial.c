/* Rows that take longer than any single run, with several answers, beam searches and
 * log-probabilities; and journals whose record of an unfinished row does not fit the row. */
#include "base/mem.h"
#include "serve/journal/journal.h"
#include "util_journal.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

static const char *const kinds[] = {
    "\"temperature\":0.7",
    "\"logprobs\":3,\"prompt_logprobs\":2",
    "\"n\":3,\"temperature\":0.7,\"stop\":[\"zz\"]",
    "\"n\":5,\"logprobs\":1,\"seed\":9",
    "\"num_beams\":4,\"n\":2",
    "\"num_beams\":3,\"early_stopping\":\"never\",\"length_penalty\":2",
    /* the first answers end in an earlier run than the last one, and the prompt's
     * log-probabilities belong to the first answer */
    "\"n\":5,\"prompt_logprobs\":2,\"seed\":9",
};
enum { N_KINDS = sizeof kinds / sizeof *kinds, N_TOKENS = 90 };

static void init(struct util_job *job, size_t kind)
{
    char line[256];
    const int n =
        snprintf(line, sizeof line,
                 "{\"prompt\":\"of kind %zu\",\"max_tokens\":%d,\"ignore_eos\":true,%s}\n", kind,
                 N_TOKENS, kinds[kind]);
    util_job_init_text(job, line, (size_t)n, false);
    job->o.schedule.max_batch = 3; /* so that some answers wait */
}

static void a_row_longer_than_every_run_comes_to_its_end(void)
{
    enum { N_STEPS = 11 };
    for (size_t i = 0; i < 2 * N_KINDS; i++) {
        const bool drains = i % 2 == 0;
        struct util_job job;
        struct util_outcome out = {.done = false};
        uint64_t n_resumed = 0;
        unsigned n_wrong = 0;
        int n_runs = 0;
        init(&job, i / 2);
        job.o.flags.checkpoint_tokens = drains ? 0 : 4;
        while (!out.done && n_runs++ < 400 && n_wrong == 0) {
            util_job_run(&job, N_STEPS, drains, &out);
            n_wrong += status_failed(&out.st) || out.n_wrong > 0;
            n_resumed += out.summary.n_resumed_tokens;
        }
        CU_ASSERT_TRUE(out.done);
        CU_ASSERT_EQUAL(n_wrong, 0);
        CU_ASSERT(n_runs >= N_TOKENS / N_STEPS);
        CU_ASSERT(!drains || n_resumed > N_TOKENS);
        CU_ASSERT_TRUE(util_job_is_expected(&job));
        util_job_fini(&job);
    }
}

/* Tokens that a drain wrote are not sampled again, except one token if the prompt has to be
 * computed again. */
static void nothing_is_computed_twice(void)
{
    for (size_t kind = 0; kind < N_KINDS; kind++) {
        struct util_job job;
        struct util_outcome whole, first, second;
        init(&job, kind);
        job.o.flags.checkpoint_tokens = 0;
        job.o.schedule.max_batch = 0;
        util_job_run(&job, UTIL_TO_THE_END, true, &whole);
        CU_ASSERT_TRUE(whole.done);
        util_job_remove(&job);
        util_job_run(&job, N_TOKENS / 2, true, &first);
        util_job_run(&job, UTIL_TO_THE_END, true, &second);
        CU_ASSERT_TRUE(second.done);
        CU_ASSERT_TRUE(util_job_is_expected(&job));
        CU_ASSERT(first.summary.n_generated_tokens > N_TOKENS / 3);
        const bool has_prompt = strstr(kinds[kind], "prompt_logprobs") != NULL;
        CU_ASSERT_EQUAL(first.summary.n_generated_tokens + second.summary.n_generated_tokens,
                        whole.summary.n_generated_tokens + has_prompt);
        util_job_fini(&job);
    }
}

/* Resumes a job whose journal has `record` as the only record of its line. */
static void run_behind(struct util_job *job, struct journal_record record, struct util_outcome *out)
{
    struct journal *j = NULL;
    struct strbuf text;
    const struct journal_options o = {.path = job->journal, .settings = util_job_settings};
    strbuf_init(&text);
    util_read_file(job->input, &text);
    const struct line line = {.kind = LINE_OK, .number = 1, .text = text.data, .n = text.n - 1};
    record.type = JOURNAL_PARTIAL;
    record.line = 1;
    record.digest = line_digest_of(&line);
    util_job_remove(job);
    struct status st = journal_open(&o, &j);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = journal_add(j, &record);
    if (!status_failed(&st)) st = journal_commit(j, 1, text.n);
    CU_ASSERT_FALSE(status_failed(&st));
    journal_destroy(&j);
    strbuf_fini(&text);
    util_job_run(job, UTIL_TO_THE_END, false, out);
}

static void what_does_not_fit_a_row_is_left_or_refused(void)
{
    struct util_job job;
    struct util_outcome out;
    int32_t words[64] = {'a', 'b', 'c', 'd'};
    const char *bytes = (const char *)words;
    const struct journal_record left[] = {
        {.values = {0, 0, 0, 12}, .bytes = bytes, .n_bytes = 24},   /* items of another size */
        {.values = {3, 0, 0, 4}, .bytes = bytes, .n_bytes = 16},    /* its beginning is missing */
        {.values = {0, 0, 9, 4}, .bytes = bytes, .n_bytes = 16},    /* one answer more than the
                                                                       line has */
        {.values = {0, 0, 1000, 4}, .bytes = bytes, .n_bytes = 16}, /* an answer that does not
                                                                       exist */
        {.values = {0, 0, UINT64_MAX, UINT64_MAX}, .bytes = bytes, .n_bytes = 16},
        {.values = {0, 0, 0, 4}, .bytes = bytes, .n_bytes = 15}, /* not a whole number of items */
        {.values = {0, 0, 0, 4}},
    };
    for (size_t kind = 0; kind < 5; kind += 2) { /* tokens; answers; a search */
        init(&job, kind);
        for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
            run_behind(&job, left[i], &out);
            CU_ASSERT_TRUE(out.done);
            CU_ASSERT_EQUAL(out.n_wrong, 0);
            CU_ASSERT_TRUE(util_job_is_expected(&job));
        }
        words[2] = FAKE_VOCAB; /* for a search this is not a valid state */
        const struct journal_record bad = {
            .values = {0, 0, 0, kind == 4 ? 1 : 4}, .bytes = bytes, .n_bytes = 16};
        run_behind(&job, bad, &out);
        CU_ASSERT_EQUAL(out.st.code, STATUS_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(out.st.text, "line 1: "));
        words[2] = 'c';
        util_job_fini(&job);
    }
}

/* A search's state is cut or changed at any byte. Either the job refuses the state, or it runs to
 * its end. */
static void a_search_in_a_damaged_state_does_no_harm(void)
{
    struct util_job job;
    struct util_outcome out;
    struct strbuf journal;
    unsigned n_refused = 0, n_taken = 0;
    init(&job, 4);
    job.o.flags.checkpoint_tokens = 0;
    util_job_run(&job, 5, true, &out);
    strbuf_init(&journal);
    util_read_file(job.journal, &journal);
    /* finds the record with the search's state */
    uint32_t n_state = 0;
    size_t at = JOURNAL_MAGIC_BYTES, state = 0;
    for (; at + JOURNAL_FRAME_BYTES < journal.n; at += JOURNAL_FRAME_BYTES + n_state) {
        uint32_t type;
        memcpy(&type, journal.data + at, sizeof type);
        memcpy(&n_state, journal.data + at + sizeof type, sizeof n_state);
        if (type == JOURNAL_PARTIAL) break;
    }
    state = at + JOURNAL_FRAME_BYTES;
    CU_ASSERT_FATAL(n_state > 50 && state + n_state <= journal.n);
    for (size_t i = 0; i < 2 * (size_t)n_state; i++) {
        const bool cut = i >= n_state;
        char *byte = &journal.data[state + i % n_state];
        *byte ^= cut ? 0 : (char)(1 << i % 8);
        run_behind(&job,
                   (struct journal_record){.values = {0, 0, 0, 1},
                                           .bytes = journal.data + state,
                                           .n_bytes = cut ? i - n_state : n_state},
                   &out);
        *byte ^= cut ? 0 : (char)(1 << i % 8);
        n_refused += out.st.code == STATUS_INPUT;
        n_taken += out.done;
        CU_ASSERT(out.done || out.st.code == STATUS_INPUT);
    }
    CU_ASSERT(n_refused > n_state);
    CU_ASSERT(n_taken > n_state / 4);
    strbuf_fini(&journal);
    util_job_fini(&job);
}

void suite_journal_partial(CU_pSuite suite);
void suite_journal_partial(CU_pSuite suite)
{
    CU_add_test(suite, "a row longer than every run comes to its end",
                a_row_longer_than_every_run_comes_to_its_end);
    CU_add_test(suite, "nothing is computed twice", nothing_is_computed_twice);
    CU_add_test(suite, "what does not fit a row is left or refused",
                what_does_not_fit_a_row_is_left_or_refused);
    CU_add_test(suite, "a search in a damaged state does no harm",
                a_search_in_a_damaged_state_does_no_harm);
}
