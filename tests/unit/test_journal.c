/* Runs that end anywhere and are resumed with other options give the bytes of an uninterrupted run.
 * Journals that are torn, damaged or of another job are detected. */
#include "base/failpoint.h"
#include "base/mem.h"
#include "serve/journal/journal.h"
#include "util_cases.h"
#include "util_journal.h"

#include <CUnit/CUnit.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_LINES = 40 };

static void random_options(struct util_job *job, uint64_t *x)
{
    struct lead_options *o = &job->o;
    o->n_replicas = (int32_t)fake_between(x, 1, UTIL_REPLICAS_MAX);
    o->n_groups = (int32_t)fake_between(x, 1, UTIL_GROUPS_MAX);
    o->n_blocks = (o->max_model_len + 63) / 64 + (int32_t)fake_between(x, 0, 40);
    o->schedule.max_batch = fake_between(x, 0, 1) ? 0 : (int32_t)fake_between(x, 1, 9);
    o->schedule.chunk_tokens = fake_between(x, 0, 1) ? 0 : (int32_t)fake_between(x, 1, 70);
    o->window_rows = fake_between(x, 0, 1) ? 0 : (size_t)fake_between(x, 1, 20);
    o->flags.checkpoint_tokens = (int32_t)fake_between(x, 0, 9);
    o->journal.commit_bytes = fake_between(x, 0, 2) ? 1 : (size_t)fake_between(x, 1, 5000);
    o->schedule.prefix_cache = fake_between(x, 0, 1);
    o->flags.result_cache = fake_between(x, 0, 1);
    o->schedule.order = (enum order_kind)fake_between(x, 0, ORDER_KIND_COUNT - 1);
}

/* Ends and resumes a job until it is complete or fails. Returns the number of runs; -1: more than
 * 499 are needed. */
static int run_until_done(struct util_job *job, uint64_t *x, unsigned *n_wrong, uint64_t *n_resumed)
{
    for (int n = 1; n < 500; n++) {
        struct util_outcome out;
        random_options(job, x);
        util_job_run(job, fake_between(x, 0, 60), fake_between(x, 0, 2) == 0, &out);
        *n_wrong += status_failed(&out.st) || out.n_wrong > 0 || !util_job_is_prefix(job);
        *n_resumed += out.summary.n_resumed_tokens;
        if (out.done || status_failed(&out.st)) return n;
    }
    return -1;
}

static void runs_ended_anywhere_come_to_the_same_bytes(void)
{
    struct util_job job;
    util_job_init(&job, N_LINES, true);
    uint64_t x = 5, n_resumed = 0;
    unsigned n_wrong = 0, n_different = 0;
    int n_runs = 0;
    for (uint64_t i = 0; i < util_cases(120); i++) {
        n_runs += run_until_done(&job, &x, &n_wrong, &n_resumed);
        n_different += !util_job_is_expected(&job);
        util_job_remove(&job);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT_EQUAL(n_different, 0);
    CU_ASSERT(n_runs > (int)util_cases(500));
    CU_ASSERT(n_resumed > util_cases(100));
    util_job_fini(&job);
}

/* Makes the journal and the output of a job that was drained half-way. */
static void half_a_job(struct util_job *job, struct strbuf *journal, struct strbuf *output)
{
    struct util_outcome out;
    job->o.flags.checkpoint_tokens = 4;
    job->o.schedule.max_batch = 4;
    job->o.schedule.order = ORDER_INPUT; /* so that the output has some rows already */
    util_job_run(job, 60, true, &out);
    CU_ASSERT_FALSE_FATAL(status_failed(&out.st));
    CU_ASSERT_FALSE(out.done);
    CU_ASSERT(out.summary.n_rows > 2);
    strbuf_init(journal);
    strbuf_init(output);
    util_read_file(job->journal, journal);
    util_read_file(job->output, output);
    CU_ASSERT_FATAL(journal->n > 1000);
}

/* Returns the next byte to damage: each byte of the header and the first records, then every few
 * bytes, because the rest has the same form. */
static size_t next_byte(size_t n)
{
    return n + (n < util_cases(2048) ? 1 : 29 / util_cases(4));
}

static void a_journal_torn_at_any_byte_is_good_up_to_there(void)
{
    struct util_job job;
    struct strbuf journal, output;
    unsigned n_refused = 0, n_wrong = 0;
    util_job_init(&job, 12, true);
    half_a_job(&job, &journal, &output);
    const size_t header = JOURNAL_MAGIC_BYTES + JOURNAL_FRAME_BYTES + strlen(util_job_settings);
    for (size_t n = 0; n < journal.n; n = next_byte(n)) {
        struct util_outcome out;
        util_write_file(job.journal, journal.data, n);
        util_write_file(job.output, output.data, output.n);
        util_job_run(&job, UTIL_TO_THE_END, false, &out);
        n_refused += out.st.code == STATUS_INPUT;
        n_wrong += (out.st.code == STATUS_INPUT) != (n < header);
        n_wrong += !status_failed(&out.st) && !util_job_is_expected(&job);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT_EQUAL(n_refused, header);
    strbuf_fini(&journal);
    strbuf_fini(&output);
    util_job_fini(&job);
}

static void flipped_bits_never_reach_the_output(void)
{
    struct util_job job;
    struct strbuf journal, output;
    unsigned n_refused = 0, n_wrong = 0;
    util_job_init(&job, 12, true);
    half_a_job(&job, &journal, &output);
    for (size_t n = 0; n < journal.n; n = next_byte(n)) {
        struct util_outcome out;
        journal.data[n] ^= (char)(1 << n % 8);
        util_write_file(job.journal, journal.data, journal.n);
        journal.data[n] ^= (char)(1 << n % 8);
        util_write_file(job.output, output.data, output.n);
        util_job_run(&job, UTIL_TO_THE_END, false, &out);
        n_refused += out.st.code == STATUS_INPUT;
        n_wrong +=
            status_failed(&out.st) ? out.st.code != STATUS_INPUT : !util_job_is_expected(&job);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT_EQUAL(n_refused,
                    JOURNAL_MAGIC_BYTES + JOURNAL_FRAME_BYTES + strlen(util_job_settings));
    strbuf_fini(&journal);
    strbuf_fini(&output);
    util_job_fini(&job);
}

static void a_damaged_output_is_mended(void)
{
    struct util_job job;
    struct strbuf journal, output;
    struct util_outcome out;
    unsigned n_wrong = 0;
    util_job_init(&job, 12, true);
    half_a_job(&job, &journal, &output);
    CU_ASSERT_FATAL(output.n > 20);
    for (size_t n = 0; n <= output.n; n += 7) { /* torn output, longer output, changed bytes */
        util_write_file(job.journal, journal.data, journal.n);
        util_write_file(job.output, output.data, n);
        if (n % 3 == 1) util_write_file(job.output, job.expected.data, job.expected.n);
        if (n % 3 == 2) {
            output.data[n - 1] ^= 2;
            util_write_file(job.output, output.data, output.n);
            output.data[n - 1] ^= 2;
        }
        util_job_run(&job, UTIL_TO_THE_END, false, &out);
        n_wrong += status_failed(&out.st) || !util_job_is_expected(&job);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    unlink(job.output); /* the output is mended also after the end of the job */
    util_job_run(&job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_FALSE(status_failed(&out.st));
    CU_ASSERT_TRUE(util_job_is_expected(&job));
    strbuf_fini(&journal);
    strbuf_fini(&output);
    util_job_fini(&job);
}

static void a_finished_job_does_nothing_again(void)
{
    struct util_job job;
    struct util_outcome out;
    struct lead *lead = NULL;
    util_job_init(&job, N_LINES, true);
    util_job_run(&job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_TRUE_FATAL(out.done);
    struct stat before, after;
    CU_ASSERT_EQUAL(stat(job.journal, &before), 0);
    job.o.n_blocks = 0; /* so no scheduler is created; a complete job needs none */
    struct status st = lead_create(&job.o, &lead);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_TRUE(lead_is_complete(lead));
    st = lead_finish(lead, &out.summary);
    CU_ASSERT_FALSE(status_failed(&st));
    CU_ASSERT_EQUAL(out.summary.n_rows, N_LINES);
    CU_ASSERT_EQUAL(out.summary.n_resumed_rows, N_LINES);
    CU_ASSERT_EQUAL(out.summary.n_generated_tokens, 0);
    lead_destroy(&lead);
    CU_ASSERT_EQUAL(stat(job.journal, &after), 0);
    CU_ASSERT_EQUAL(before.st_size, after.st_size);
    CU_ASSERT_TRUE(util_job_is_expected(&job));
    util_job_fini(&job);
}

/* Runs the job with its input, followed by the text `more`, on stdin, from a pipe or a file. */
static void run_from_elsewhere(struct util_job *job, const char *more, bool is_file,
                               int64_t n_steps, struct util_outcome *out)
{
    struct strbuf lines;
    int ends[2];
    const int kept = dup(STDIN_FILENO);
    strbuf_init(&lines);
    util_read_file(job->input, &lines);
    strbuf_puts(&lines, more);
    CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
    if (is_file) {
        char path[UTIL_PATH_MAX];
        close(ends[0]);
        util_file_create(path, lines.data, lines.n);
        ends[0] = open(path, O_RDONLY);
        util_file_remove(path);
    } else {
        CU_ASSERT_FATAL(lines.n < 60000); /* less than a pipe's capacity, so write does not wait */
        CU_ASSERT_EQUAL(write(ends[1], lines.data, lines.n), (ssize_t)lines.n);
    }
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    job->o.input_path = "-";
    util_job_run(job, n_steps, true, out);
    job->o.input_path = job->input;
    dup2(kept, STDIN_FILENO);
    close(kept);
    close(ends[0]);
    strbuf_fini(&lines);
}

/* Standard input can be read only once, so its lines are compared with the journal while they
 * arrive. */
static void stdin_is_compared_as_it_comes(void)
{
    for (int is_file = 0; is_file < 2; is_file++) {
        struct util_job job;
        struct util_outcome out;
        util_job_init(&job, N_LINES, true);
        run_from_elsewhere(&job, "", is_file, 20, &out);
        CU_ASSERT_FALSE(out.done);
        for (int i = 0; i < 2; i++) { /* first resumed, then already complete */
            run_from_elsewhere(&job, "", is_file, UTIL_TO_THE_END, &out);
            CU_ASSERT_FALSE(status_failed(&out.st));
            CU_ASSERT_TRUE(util_job_is_expected(&job));
        }
        CU_ASSERT_EQUAL(out.summary.n_resumed_rows, N_LINES);
        run_from_elsewhere(&job, "{}\n", is_file, UTIL_TO_THE_END, &out);
        CU_ASSERT_EQUAL(out.st.code, STATUS_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(out.st.text, "found more"));
        CU_ASSERT_TRUE(util_job_is_expected(&job));
        util_job_fini(&job);
    }
}

/* Line 2, an error row, is in the journal while line 1 still runs. Then stdin has a single line,
 * whose row is written before the input turns out to be too short. */
static void an_input_that_is_too_short_completes_nothing(void)
{
    static const char text[] = "{\"custom_id\":\"a\",\"prompt\":\"long\",\"max_tokens\":90,"
                               "\"ignore_eos\":true}\n{\"custom_id\":\"b\",\"top_p\":9}\n";
    static const char single[] = "{\"custom_id\":\"b\",\"top_p\":9}\n";
    struct util_job job;
    struct util_outcome out;
    struct journal_facts facts;
    util_job_init_text(&job, text, sizeof text - 1, false);
    job.o.flags.checkpoint_tokens = 0;
    util_job_run(&job, 4, false, &out);
    CU_ASSERT_FALSE(status_failed(&out.st) || out.done);
    util_write_file(job.input, single, sizeof single - 1);
    run_from_elsewhere(&job, "", false, UTIL_TO_THE_END, &out);
    CU_ASSERT_EQUAL(out.st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(out.st.text, "line 2: it changed"));
    const int fd = open(job.journal, O_RDONLY);
    CU_ASSERT_EQUAL_FATAL(journal_facts_read(fd, job.journal, &facts).code, STATUS_OK);
    CU_ASSERT_EQUAL(facts.n_rows, 2);
    CU_ASSERT_FALSE(facts.is_complete);
    journal_facts_fini(&facts);
    close(fd);
    util_job_fini(&job);
}

static void refused(struct util_job *job, enum status_code code, const char *words)
{
    struct util_outcome out;
    util_job_run(job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_EQUAL(out.st.code, code);
    CU_ASSERT_PTR_NOT_NULL(strstr(out.st.text, words));
    if (out.st.code != code || strstr(out.st.text, words) == NULL)
        printf("\n  found: %s\n", out.st.text);
}

static void a_changed_input_is_refused(void)
{
    struct util_job job;
    struct strbuf lines, journal, output, now;
    util_job_init(&job, N_LINES, false);
    half_a_job(&job, &journal, &output);
    strbuf_init(&lines);
    strbuf_init(&now);
    util_read_file(job.input, &lines);
    char *second = strchr(lines.data, '\n') + 1;
    second[3] ^= 1;
    util_write_file(job.input, lines.data, lines.n);
    refused(&job, STATUS_INPUT, "line 2: it changed");
    second[3] ^= 1;
    util_write_file(job.input, lines.data, (size_t)(second - lines.data));
    refused(&job, STATUS_INPUT, "found fewer");
    util_read_file(job.output, &now); /* no file was changed */
    CU_ASSERT_EQUAL(now.n, output.n);
    util_read_file(job.journal, &now);
    CU_ASSERT_EQUAL(now.n, journal.n);
    util_write_file(job.input, lines.data, lines.n);
    struct util_outcome out;
    util_job_run(&job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_TRUE(out.done);
    CU_ASSERT_TRUE(util_job_is_expected(&job));
    strbuf_puts(&lines, "{\"prompt\":\"more\"}\n");
    util_write_file(job.input, lines.data, lines.n);
    refused(&job, STATUS_INPUT, "found more");
    strbuf_fini(&lines);
    strbuf_fini(&now);
    strbuf_fini(&journal);
    strbuf_fini(&output);
    util_job_fini(&job);
}

static void changed_settings_are_refused_by_name(void)
{
    struct util_job job;
    struct strbuf journal, output;
    struct util_outcome out;
    util_job_init(&job, N_LINES, false);
    half_a_job(&job, &journal, &output);
    job.o.journal.settings = "checkpoint=1\n--seed=5\n--temperature=1\n";
    refused(&job, STATUS_USAGE, "--temperature was 0.8 when the job began and is 1 now");
    job.o.journal.settings = "checkpoint=12\n--seed=5\n--temperature=0.8\n";
    refused(&job, STATUS_INPUT, "checkpoint was 1 when");
    job.o.journal.settings = "checkpoint=1\n--seed=5\n--temperature=0.8\n--stop=\"x\"\n";
    refused(&job, STATUS_USAGE, "--stop");
    job.o.journal.settings = "checkpoint=1\n--seed=5\n";
    refused(&job, STATUS_INPUT, "does not know");
    refused(&job, STATUS_INPUT, "it has --temperature=0.8, which this run does not set");
    job.o.flags.restart = true;
    util_job_run(&job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_TRUE(out.done);
    CU_ASSERT_EQUAL(out.summary.n_resumed_rows, 0);
    CU_ASSERT_TRUE(util_job_is_expected(&job));
    strbuf_fini(&journal);
    strbuf_fini(&output);
    util_job_fini(&job);
}

static void files_of_others_are_not_overwritten(void)
{
    struct util_job job;
    struct util_outcome out;
    util_job_init(&job, N_LINES, false);
    util_write_file(job.output, "mine\n", 5);
    refused(&job, STATUS_USAGE, "no journal");
    CU_ASSERT_NOT_EQUAL(access(job.journal, F_OK), 0);
    job.o.flags.retry_errors = true;
    unlink(job.output);
    refused(&job, STATUS_USAGE, "--retry-errors");
    job.o.flags.retry_errors = false;
    util_write_file(job.journal, "a diary, no journal", 19);
    refused(&job, STATUS_INPUT, "no journal of this version");
    job.o.flags.restart = true;
    refused(&job, STATUS_INPUT, "no journal of this version");
    unlink(job.journal);
    util_write_file(job.output, "mine\n", 5);
    util_job_run(&job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_TRUE(out.done);
    CU_ASSERT_TRUE(util_job_is_expected(&job));
    util_job_fini(&job);
}

static void error_rows_can_be_run_again(void)
{
    struct util_job job;
    struct util_outcome out;
    util_job_init(&job, N_LINES, false); /* the expected output, with correct arithmetic */
    uint64_t x = 77;
    unsigned n_wrong = 0, n_retried = 0;
    for (int i = 0; i < 40; i++) {
        random_options(&job, &x);
        job.bad_arithmetic = true;
        util_job_run(&job, i % 2 ? UTIL_TO_THE_END : 40, true, &out);
        n_wrong += status_failed(&out.st);
        const uint64_t n_bad = out.summary.n_error_rows;
        job.bad_arithmetic = false;
        job.o.flags.retry_errors = true;
        /* also after several interruptions */
        for (int n = 0; n < 100 && !out.done + (n == 0) > 0; n++) {
            random_options(&job, &x);
            util_job_run(&job, fake_between(&x, 0, 3) ? fake_between(&x, 0, 60) : UTIL_TO_THE_END,
                         false, &out);
            n_wrong += status_failed(&out.st);
        }
        n_retried += n_bad > out.summary.n_error_rows;
        n_wrong += !util_job_is_expected(&job);
        job.o.flags.retry_errors = false;
        util_job_remove(&job);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT(n_retried > 10);
    util_job_fini(&job);
}

static void failing_writes_end_the_run_and_nothing_is_lost(void)
{
    static const enum failpoint_name points[] = {FAILPOINT_JOURNAL_WRITE, FAILPOINT_JOURNAL_FSYNC,
                                                 FAILPOINT_OUTPUT_WRITE, FAILPOINT_OUTPUT_FSYNC,
                                                 FAILPOINT_JOURNAL_RENAME};
    struct util_job job;
    struct util_outcome out;
    util_job_init(&job, N_LINES, true);
    unsigned n_wrong = 0, n_failed[FAILPOINT_COUNT] = {0};
    for (int i = 0; i < 200; i++) {
        struct failpoint f = {
            .name = points[i % 5], .n_left = 1 + (uint64_t)(i / 5), .error = i % 2 ? EIO : ENOSPC};
        job.o.journal.failpoint = &f;
        util_job_run(&job, UTIL_TO_THE_END, false, &out);
        n_failed[f.name] += status_failed(&out.st);
        n_wrong += status_failed(&out.st) &&
                   (out.st.code != STATUS_IO || strstr(out.st.text, strerror(f.error)) == NULL);
        n_wrong += !util_job_is_prefix(&job);
        job.o.journal.failpoint = NULL;
        util_job_run(&job, UTIL_TO_THE_END, false, &out);
        n_wrong += status_failed(&out.st) || !util_job_is_expected(&job);
        util_job_remove(&job);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    for (int i = 0; i < 5; i++) CU_ASSERT(n_failed[points[i]] > 0);
    util_job_fini(&job);
}

static void failing_allocations_are_statuses(void)
{
    struct util_job job;
    struct strbuf journal, output;
    struct util_outcome out;
    unsigned n_failed = 0, n_wrong = 0;
    util_job_init(&job, 12, true);
    half_a_job(&job, &journal, &output);
    for (uint64_t n = 1; n < 100000; n++) {
        struct lead *lead = NULL;
        util_write_file(job.journal, journal.data, journal.n);
        util_write_file(job.output, output.data, output.n);
        (void)mem_fail_after(n);
        const struct status st = lead_create(&job.o, &lead);
        const bool passed = mem_fail_after(0) < n;
        lead_destroy(&lead);
        if (passed) break;
        n_failed++;
        n_wrong += st.code != STATUS_MEMORY;
    }
    CU_ASSERT(n_failed > 20);
    CU_ASSERT_EQUAL(n_wrong, 0);
    util_job_run(&job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_TRUE(util_job_is_expected(&job));
    strbuf_fini(&journal);
    strbuf_fini(&output);
    util_job_fini(&job);
}

void suite_journal(CU_pSuite suite);
void suite_journal(CU_pSuite suite)
{
    CU_add_test(suite, "runs ended anywhere come to the same bytes",
                runs_ended_anywhere_come_to_the_same_bytes);
    CU_add_test(suite, "a journal torn at any byte is good up to there",
                a_journal_torn_at_any_byte_is_good_up_to_there);
    CU_add_test(suite, "flipped bits never reach the output", flipped_bits_never_reach_the_output);
    CU_add_test(suite, "a damaged output is mended", a_damaged_output_is_mended);
    CU_add_test(suite, "a finished job does nothing again", a_finished_job_does_nothing_again);
    CU_add_test(suite, "stdin is compared as it comes", stdin_is_compared_as_it_comes);
    CU_add_test(suite, "an input that is too short completes nothing",
                an_input_that_is_too_short_completes_nothing);
    CU_add_test(suite, "a changed input is refused", a_changed_input_is_refused);
    CU_add_test(suite, "changed settings are refused by name",
                changed_settings_are_refused_by_name);
    CU_add_test(suite, "files of others are not overwritten", files_of_others_are_not_overwritten);
    CU_add_test(suite, "error rows can be run again", error_rows_can_be_run_again);
    CU_add_test(suite, "failing writes end the run and nothing is lost",
                failing_writes_end_the_run_and_nothing_is_lost);
    CU_add_test(suite, "failing allocations are statuses", failing_allocations_are_statuses);
}
