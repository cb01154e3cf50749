/* Runs that are ended anywhere and resumed with other options: the bytes of an uninterrupted run.
 * Journals that are torn, damaged, or of another job. */
#include "serve/lead.h"

#include "base/file.h"
#include "base/mem.h"
#include "serve/failpoint.h"
#include "serve/id_set.h"
#include "serve/journal.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_LINES = 40, GROUPS_MAX = 4, REPLICAS_MAX = 3, TO_THE_END = 1 << 30 };

static const char settings[] = "checkpoint=1\n--seed=5\n--temperature=0.8\n";

/* A job's files, and what an uninterrupted run without a journal makes of them. */
struct job {
    char folder[64], input[96], output[96], journal[96];
    struct tokenizer *tokenizer;
    struct lead_options o;
    struct strbuf expected;
    bool bad_arithmetic; /* some rows come to numeric errors */
};

/* One run: where it stopped. */
struct outcome {
    struct status st;
    bool done;
    size_t n_wrong;
    struct serve_summary summary;
};

static void write_file(const char *path, const char *bytes, size_t n)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CU_ASSERT_FATAL(fd >= 0);
    CU_ASSERT_EQUAL(write(fd, bytes, n), (ssize_t)n);
    close(fd);
}

static void read_file(const char *path, struct strbuf *out)
{
    char *bytes = NULL;
    size_t n = 0;
    const struct status st = file_read(path, (size_t)1 << 28, &bytes, &n);
    strbuf_clear(out);
    if (!status_failed(&st)) strbuf_add(out, bytes, n);
    mem_free(&bytes);
}

static void make_lines(struct strbuf *s, int n_lines)
{
    uint64_t x = 12;
    for (int i = 0; i < n_lines; i++) {
        if (i % 17 == 14) {
            strbuf_printf(s,
                          "{\"custom_id\":\"r%d\",\"prompt\":\"again\",\"temperature\":0,"
                          "\"max_tokens\":%d}\n",
                          i, 20 + i);
        } else if (i % 13 == 7) {
            strbuf_puts(s, "{\"custom_id\":\"c3\",\"prompt\":\"twice or bad\",\"n\":9}\n");
        } else if (i % 11 == 5) {
            strbuf_puts(s, "{\"prompt_token_ids\":[5,1,5]}\n"); /* 1: bad arithmetic */
        } else {
            strbuf_printf(s, "{\"custom_id\":\"c%d\",\"prompt\":\"", i);
            for (int64_t k = fake_between(&x, 1, 12); k > 0; k--)
                strbuf_printf(s, "word%d ", (int)fake_between(&x, 0, 99));
            /* several answers begin anew with each run, so they must be short */
            const bool is_short = i % 16 == 2 || i % 16 == 6;
            strbuf_printf(s, "\",\"max_tokens\":%d%s}\n",
                          (int)fake_between(&x, 1, is_short ? 4 : 90),
                          i % 4 == 1    ? ",\"stop\":[\"ab\",\"Q\"]"
                          : i % 16 == 2 ? ",\"n\":3,\"logprobs\":1"
                          : i % 16 == 6 ? ",\"num_beams\":3,\"n\":2"
                                        : "");
        }
    }
}

/* Runs for at most n_steps; then the process "dies": nothing is flushed. drains: it ends in order.
 */
static void run(struct job *job, int64_t n_steps, bool drains, struct outcome *out)
{
    struct lead *lead = NULL;
    struct fake_engine engine;
    struct step_plan plan;
    struct step_result results[GROUPS_MAX][REPLICAS_MAX];
    memset(out, 0, sizeof *out);
    out->st = lead_create(&job->o, &lead);
    if (status_failed(&out->st)) return;
    fake_engine_init(&engine, job->o.n_replicas, job->o.n_blocks);
    engine.shares = job->o.prefix_cache;
    engine.bad_token = job->bad_arithmetic ? 1 : -1;
    struct status st = step_plan_init(&plan, job->o.n_replicas);
    for (int g = 0; g < GROUPS_MAX; g++)
        for (int r = 0; r < REPLICAS_MAX; r++) step_result_init(&results[g][r]);
    const int64_t n_groups = job->o.n_groups;
    int64_t last = INT64_MAX; /* step behind the last that was planned */
    for (int64_t step = 0; !out->done && !status_failed(&st); step++) {
        const int32_t g = (int32_t)(step % n_groups);
        if (last != INT64_MAX && (!drains || step - last >= n_groups)) break;
        for (int32_t r = 0; r < job->o.n_replicas && step >= n_groups && !status_failed(&st); r++)
            st = lead_commit(lead, g, &results[g][r]);
        if (step >= n_steps && last == INT64_MAX) last = step;
        if (last != INT64_MAX || status_failed(&st)) continue;
        st = lead_next(lead, g, (uint64_t)step, &plan, &out->done);
        if (!status_failed(&st) && !out->done) fake_engine_run(&engine, &plan, results[g]);
    }
    if (!status_failed(&st) && drains && !out->done) st = lead_drain(lead);
    if (out->done || drains) {
        const struct status finished = lead_finish(lead, &out->summary);
        if (!status_failed(&st)) st = finished;
    }
    if (st.code == STATUS_BUG) printf("\n  %s\n", st.text);
    out->st = st;
    out->n_wrong = engine.n_wrong;
    for (int g = 0; g < GROUPS_MAX; g++)
        for (int r = 0; r < REPLICAS_MAX; r++) step_result_fini(&results[g][r]);
    fake_engine_fini(&engine);
    step_plan_fini(&plan);
    lead_destroy(&lead);
}

static void remove_results(const struct job *job)
{
    unlink(job->output);
    unlink(job->journal);
}

static void job_init(struct job *job, int n_lines, bool bad_arithmetic)
{
    memset(job, 0, sizeof *job);
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(job->folder, sizeof job->folder, "%s/shoal-journal-XXXXXX", base);
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(job->folder));
    snprintf(job->input, sizeof job->input, "%s/in", job->folder);
    snprintf(job->output, sizeof job->output, "%s/out", job->folder);
    snprintf(job->journal, sizeof job->journal, "%s/out.journal", job->folder);
    struct strbuf lines;
    strbuf_init(&lines);
    make_lines(&lines, n_lines);
    write_file(job->input, lines.data, lines.n);
    strbuf_fini(&lines);
    job->tokenizer = util_byte_tokenizer();
    job->bad_arithmetic = bad_arithmetic;
    job->o = util_lead_options(job->tokenizer, job->input, job->output);
    struct outcome out;
    run(job, TO_THE_END, false, &out);
    CU_ASSERT_TRUE_FATAL(out.done);
    strbuf_init(&job->expected);
    read_file(job->output, &job->expected);
    CU_ASSERT_FATAL(job->expected.n > 100);
    remove_results(job);
    job->o.journal_path = job->journal;
    job->o.settings = settings;
    job->o.session = "a test";
    job->o.commit_bytes = 1;
}

static void job_fini(struct job *job)
{
    remove_results(job);
    unlink(job->input);
    CU_ASSERT_EQUAL(rmdir(job->folder), 0); /* no other file was left behind */
    strbuf_fini(&job->expected);
    tokenizer_destroy(&job->tokenizer);
}

static bool output_is_expected(const struct job *job)
{
    struct strbuf found;
    strbuf_init(&found);
    read_file(job->output, &found);
    const bool same =
        found.n == job->expected.n && memcmp(found.data, job->expected.data, found.n) == 0;
    strbuf_fini(&found);
    return same;
}

/* At any moment the output is a prefix of what it will be. */
static bool output_is_prefix(const struct job *job)
{
    struct strbuf found;
    strbuf_init(&found);
    read_file(job->output, &found);
    const bool is = found.n <= job->expected.n &&
                    (found.n == 0 || memcmp(found.data, job->expected.data, found.n) == 0);
    strbuf_fini(&found);
    return is;
}

static void random_options(struct job *job, uint64_t *x)
{
    struct lead_options *o = &job->o;
    o->n_replicas = (int32_t)fake_between(x, 1, REPLICAS_MAX);
    o->n_groups = (int32_t)fake_between(x, 1, GROUPS_MAX);
    o->n_blocks = (o->max_model_len + 63) / 64 + (int32_t)fake_between(x, 0, 40);
    o->max_batch = fake_between(x, 0, 1) ? 0 : (int32_t)fake_between(x, 1, 9);
    o->chunk_tokens = fake_between(x, 0, 1) ? 0 : (int32_t)fake_between(x, 1, 70);
    o->window_rows = fake_between(x, 0, 1) ? 0 : (size_t)fake_between(x, 1, 20);
    o->checkpoint_tokens = (int32_t)fake_between(x, 0, 9);
    o->commit_bytes = fake_between(x, 0, 2) ? 1 : (size_t)fake_between(x, 1, 5000);
    o->prefix_cache = fake_between(x, 0, 1);
    o->result_cache = fake_between(x, 0, 1);
    o->order = (enum order_kind)fake_between(x, 0, ORDER_KIND_COUNT - 1);
}

/* Ends and resumes a job until it is done. Returns the number of runs. */
static int run_until_done(struct job *job, uint64_t *x, unsigned *n_wrong, uint64_t *n_resumed)
{
    for (int n = 1; n < 500; n++) {
        struct outcome out;
        random_options(job, x);
        run(job, fake_between(x, 0, 60), fake_between(x, 0, 2) == 0, &out);
        *n_wrong += status_failed(&out.st) || out.n_wrong > 0 || !output_is_prefix(job);
        *n_resumed += out.summary.n_resumed_tokens;
        if (out.done || status_failed(&out.st)) return n;
    }
    return -1;
}

static void runs_ended_anywhere_come_to_the_same_bytes(void)
{
    struct job job;
    job_init(&job, N_LINES, true);
    uint64_t x = 5, n_resumed = 0;
    unsigned n_wrong = 0, n_different = 0;
    int n_runs = 0;
    for (int i = 0; i < 120; i++) {
        n_runs += run_until_done(&job, &x, &n_wrong, &n_resumed);
        n_different += !output_is_expected(&job);
        remove_results(&job);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT_EQUAL(n_different, 0);
    CU_ASSERT(n_runs > 500);
    CU_ASSERT(n_resumed > 100);
    job_fini(&job);
}

/* A journal with rows and tokens of a job that was drained in its middle. */
static void half_a_job(struct job *job, struct strbuf *journal, struct strbuf *output)
{
    struct outcome out;
    job->o.checkpoint_tokens = 4;
    job->o.max_batch = 4;
    job->o.order = ORDER_INPUT; /* so that there are rows in the output */
    run(job, 60, true, &out);
    CU_ASSERT_FALSE_FATAL(status_failed(&out.st));
    CU_ASSERT_FALSE(out.done);
    CU_ASSERT(out.summary.n_rows > 2);
    strbuf_init(journal);
    strbuf_init(output);
    read_file(job->journal, journal);
    read_file(job->output, output);
    CU_ASSERT_FATAL(journal->n > 1000);
}

static void a_journal_torn_at_any_byte_is_good_up_to_there(void)
{
    struct job job;
    struct strbuf journal, output;
    unsigned n_refused = 0, n_wrong = 0;
    job_init(&job, 12, true);
    half_a_job(&job, &journal, &output);
    const size_t header = JOURNAL_MAGIC_BYTES + JOURNAL_FRAME_BYTES + strlen(settings);
    for (size_t n = 0; n < journal.n; n++) {
        struct outcome out;
        write_file(job.journal, journal.data, n);
        write_file(job.output, output.data, output.n);
        run(&job, TO_THE_END, false, &out);
        n_refused += out.st.code == STATUS_INPUT;
        n_wrong += (out.st.code == STATUS_INPUT) != (n < header);
        n_wrong += !status_failed(&out.st) && !output_is_expected(&job);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT_EQUAL(n_refused, header);
    strbuf_fini(&journal);
    strbuf_fini(&output);
    job_fini(&job);
}

static void flipped_bits_never_reach_the_output(void)
{
    struct job job;
    struct strbuf journal, output;
    unsigned n_refused = 0, n_wrong = 0;
    job_init(&job, 12, true);
    half_a_job(&job, &journal, &output);
    for (size_t n = 0; n < journal.n; n++) {
        struct outcome out;
        journal.data[n] ^= (char)(1 << n % 8);
        write_file(job.journal, journal.data, journal.n);
        journal.data[n] ^= (char)(1 << n % 8);
        write_file(job.output, output.data, output.n);
        run(&job, TO_THE_END, false, &out);
        n_refused += out.st.code == STATUS_INPUT;
        n_wrong += status_failed(&out.st) ? out.st.code != STATUS_INPUT : !output_is_expected(&job);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT_EQUAL(n_refused, JOURNAL_MAGIC_BYTES + JOURNAL_FRAME_BYTES + strlen(settings));
    strbuf_fini(&journal);
    strbuf_fini(&output);
    job_fini(&job);
}

static void a_damaged_output_is_mended(void)
{
    struct job job;
    struct strbuf journal, output;
    struct outcome out;
    unsigned n_wrong = 0;
    job_init(&job, 12, true);
    half_a_job(&job, &journal, &output);
    CU_ASSERT_FATAL(output.n > 20);
    for (size_t n = 0; n <= output.n; n += 7) { /* torn, longer, other bytes */
        write_file(job.journal, journal.data, journal.n);
        write_file(job.output, output.data, n);
        if (n % 3 == 1) write_file(job.output, job.expected.data, job.expected.n);
        if (n % 3 == 2) {
            output.data[n - 1] ^= 2;
            write_file(job.output, output.data, output.n);
            output.data[n - 1] ^= 2;
        }
        run(&job, TO_THE_END, false, &out);
        n_wrong += status_failed(&out.st) || !output_is_expected(&job);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    unlink(job.output); /* after the end, too */
    run(&job, TO_THE_END, false, &out);
    CU_ASSERT_FALSE(status_failed(&out.st));
    CU_ASSERT_TRUE(output_is_expected(&job));
    strbuf_fini(&journal);
    strbuf_fini(&output);
    job_fini(&job);
}

static void a_finished_job_does_nothing_again(void)
{
    struct job job;
    struct outcome out;
    struct lead *lead = NULL;
    job_init(&job, N_LINES, true);
    run(&job, TO_THE_END, false, &out);
    CU_ASSERT_TRUE_FATAL(out.done);
    struct stat before, after;
    CU_ASSERT_EQUAL(stat(job.journal, &before), 0);
    job.o.n_blocks = 0; /* no scheduler is needed to find that out */
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
    CU_ASSERT_TRUE(output_is_expected(&job));
    job_fini(&job);
}

static void refused(struct job *job, enum status_code code, const char *words)
{
    struct outcome out;
    run(job, TO_THE_END, false, &out);
    CU_ASSERT_EQUAL(out.st.code, code);
    CU_ASSERT_PTR_NOT_NULL(strstr(out.st.text, words));
    if (out.st.code != code || strstr(out.st.text, words) == NULL)
        printf("\n  found: %s\n", out.st.text);
}

static void a_changed_input_is_refused(void)
{
    struct job job;
    struct strbuf lines, journal, output, now;
    job_init(&job, N_LINES, false);
    half_a_job(&job, &journal, &output);
    strbuf_init(&lines);
    strbuf_init(&now);
    read_file(job.input, &lines);
    char *second = strchr(lines.data, '\n') + 1;
    second[3] ^= 1;
    write_file(job.input, lines.data, lines.n);
    refused(&job, STATUS_INPUT, "line 2: it changed");
    second[3] ^= 1;
    write_file(job.input, lines.data, (size_t)(second - lines.data));
    refused(&job, STATUS_INPUT, "found fewer");
    read_file(job.output, &now); /* nothing was touched */
    CU_ASSERT_EQUAL(now.n, output.n);
    read_file(job.journal, &now);
    CU_ASSERT_EQUAL(now.n, journal.n);
    write_file(job.input, lines.data, lines.n);
    struct outcome out;
    run(&job, TO_THE_END, false, &out);
    CU_ASSERT_TRUE(out.done);
    CU_ASSERT_TRUE(output_is_expected(&job));
    strbuf_puts(&lines, "{\"prompt\":\"more\"}\n");
    write_file(job.input, lines.data, lines.n);
    refused(&job, STATUS_INPUT, "found more");
    strbuf_fini(&lines);
    strbuf_fini(&now);
    strbuf_fini(&journal);
    strbuf_fini(&output);
    job_fini(&job);
}

static void changed_settings_are_refused_by_name(void)
{
    struct job job;
    struct strbuf journal, output;
    struct outcome out;
    job_init(&job, N_LINES, false);
    half_a_job(&job, &journal, &output);
    job.o.settings = "checkpoint=1\n--seed=5\n--temperature=1\n";
    refused(&job, STATUS_USAGE, "--temperature was 0.8 when the job began and is 1 now");
    job.o.settings = "checkpoint=12\n--seed=5\n--temperature=0.8\n";
    refused(&job, STATUS_INPUT, "checkpoint was 1 when");
    job.o.settings = "checkpoint=1\n--seed=5\n--temperature=0.8\n--stop=\"x\"\n";
    refused(&job, STATUS_USAGE, "--stop");
    job.o.settings = "checkpoint=1\n--seed=5\n";
    refused(&job, STATUS_INPUT, "does not know");
    job.o.restart = true;
    run(&job, TO_THE_END, false, &out);
    CU_ASSERT_TRUE(out.done);
    CU_ASSERT_EQUAL(out.summary.n_resumed_rows, 0);
    CU_ASSERT_TRUE(output_is_expected(&job));
    strbuf_fini(&journal);
    strbuf_fini(&output);
    job_fini(&job);
}

static void files_of_others_are_not_overwritten(void)
{
    struct job job;
    struct outcome out;
    job_init(&job, N_LINES, false);
    write_file(job.output, "mine\n", 5);
    refused(&job, STATUS_USAGE, "no journal");
    CU_ASSERT_NOT_EQUAL(access(job.journal, F_OK), 0);
    job.o.retry_errors = true;
    unlink(job.output);
    refused(&job, STATUS_USAGE, "--retry-errors");
    job.o.retry_errors = false;
    write_file(job.journal, "a diary, no journal", 19);
    refused(&job, STATUS_INPUT, "no journal of this version");
    job.o.restart = true;
    refused(&job, STATUS_INPUT, "no journal of this version");
    unlink(job.journal);
    write_file(job.output, "mine\n", 5);
    run(&job, TO_THE_END, false, &out);
    CU_ASSERT_TRUE(out.done);
    CU_ASSERT_TRUE(output_is_expected(&job));
    job_fini(&job);
}

static void error_rows_can_be_run_again(void)
{
    struct job job;
    struct outcome out;
    job_init(&job, N_LINES, false); /* what comes out when the arithmetic is good */
    uint64_t x = 77;
    unsigned n_wrong = 0, n_retried = 0;
    for (int i = 0; i < 40; i++) {
        random_options(&job, &x);
        job.bad_arithmetic = true;
        run(&job, i % 2 ? TO_THE_END : 40, true, &out);
        n_wrong += status_failed(&out.st);
        const uint64_t n_bad = out.summary.n_error_rows;
        job.bad_arithmetic = false;
        job.o.retry_errors = true;
        /* ended a few times, too */
        for (int n = 0; n < 100 && !out.done + (n == 0) > 0; n++) {
            random_options(&job, &x);
            run(&job, fake_between(&x, 0, 3) ? fake_between(&x, 0, 60) : TO_THE_END, false, &out);
            n_wrong += status_failed(&out.st);
        }
        n_retried += n_bad > out.summary.n_error_rows;
        n_wrong += !output_is_expected(&job);
        job.o.retry_errors = false;
        remove_results(&job);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT(n_retried > 10);
    job_fini(&job);
}

static void failing_writes_end_the_run_and_nothing_is_lost(void)
{
    static const enum failpoint_name points[] = {FAILPOINT_JOURNAL_WRITE, FAILPOINT_JOURNAL_FSYNC,
                                                 FAILPOINT_OUTPUT_WRITE, FAILPOINT_OUTPUT_FSYNC,
                                                 FAILPOINT_JOURNAL_RENAME};
    struct job job;
    struct outcome out;
    job_init(&job, N_LINES, true);
    unsigned n_wrong = 0, n_failed[FAILPOINT_COUNT] = {0};
    for (int i = 0; i < 200; i++) {
        struct failpoint f = {
            .name = points[i % 5], .n_left = 1 + (uint64_t)(i / 5), .error = i % 2 ? EIO : ENOSPC};
        job.o.failpoint = &f;
        run(&job, TO_THE_END, false, &out);
        n_failed[f.name] += status_failed(&out.st);
        n_wrong += status_failed(&out.st) &&
                   (out.st.code != STATUS_IO || strstr(out.st.text, strerror(f.error)) == NULL);
        n_wrong += !output_is_prefix(&job);
        job.o.failpoint = NULL;
        run(&job, TO_THE_END, false, &out);
        n_wrong += status_failed(&out.st) || !output_is_expected(&job);
        remove_results(&job);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    for (int i = 0; i < 5; i++) CU_ASSERT(n_failed[points[i]] > 0);
    job_fini(&job);
}

static void failpoints_are_parsed(void)
{
    struct failpoint f;
    struct status st = failpoint_parse("journal_fsync:12:EIO", &f);
    CU_ASSERT_FALSE(status_failed(&st));
    CU_ASSERT_EQUAL(f.name, FAILPOINT_JOURNAL_FSYNC);
    CU_ASSERT_EQUAL(f.n_left, 12);
    CU_ASSERT_EQUAL(f.error, EIO);
    static const char *const bad[] = {"", "step", "step:", "step:0", "step:x", "no:1", "step:1:E"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        st = failpoint_parse(bad[i], &f);
        CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    }
    CU_ASSERT_FALSE(failpoint_due(NULL, FAILPOINT_STEP));
}

static void failing_allocations_are_statuses(void)
{
    struct job job;
    struct strbuf journal, output;
    struct outcome out;
    unsigned n_failed = 0, n_wrong = 0;
    job_init(&job, 12, true);
    half_a_job(&job, &journal, &output);
    for (uint64_t n = 1; n < 100000; n++) {
        struct lead *lead = NULL;
        write_file(job.journal, journal.data, journal.n);
        write_file(job.output, output.data, output.n);
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
    run(&job, TO_THE_END, false, &out);
    CU_ASSERT_TRUE(output_is_expected(&job));
    strbuf_fini(&journal);
    strbuf_fini(&output);
    job_fini(&job);
}

/* Rows are missing in the last window only, as where a run was ended. */
enum { N = 300000, WINDOW = 4096 };

static bool is_done(uint64_t line)
{
    return line < N - WINDOW || line % 100 != 0;
}

/* An index over rows in a shuffled order within a window finds them all in small memory. */
static void a_long_journal_is_read_in_bounded_memory(void)
{
    char path[] = "/tmp/shoal-journal-XXXXXX";
    const int fd = mkstemp(path);
    struct strbuf s;
    strbuf_init(&s);
    static uint64_t lines[WINDOW];
    struct journal_facts facts;
    struct journal_index *index = NULL;
    uint64_t x = 3, offset = 0;
    struct journal_record header = {.type = JOURNAL_HEADER};
    strbuf_add(&s, JOURNAL_MAGIC, JOURNAL_MAGIC_BYTES);
    struct status st = journal_record_add(&s, &header, JOURNAL_MAGIC_BYTES);
    for (uint64_t line = 0; line < (uint64_t)N; line += WINDOW) {
        for (uint64_t i = 0; i < WINDOW; i++) lines[i] = line + i + 1;
        for (uint64_t i = WINDOW - 1; i > 0; i--) {
            const uint64_t k = fake_random(&x) % (i + 1), was = lines[i];
            lines[i] = lines[k];
            lines[k] = was;
        }
        for (uint64_t i = 0; i < WINDOW; i++) {
            char text[64];
            const int n = snprintf(text, sizeof text, "row %llu", (unsigned long long)lines[i]);
            const struct journal_record r = {
                .type = JOURNAL_ROW, .line = lines[i], .bytes = text, .n_bytes = (size_t)n};
            if (is_done(lines[i])) st = journal_record_add(&s, &r, offset + s.n);
        }
        CU_ASSERT_EQUAL(write(fd, s.data, s.n), (ssize_t)s.n);
        offset += s.n;
        strbuf_clear(&s);
    }
    CU_ASSERT_FALSE(status_failed(&st));
    st = journal_facts_read(fd, path, &facts);
    CU_ASSERT_EQUAL(facts.good_bytes, offset);
    const uint64_t before = mem_peak_bytes();
    st = journal_index_create(fd, path, &facts, &index);
    unsigned n_wrong = 0;
    for (uint64_t line = 1; line <= N; line++) {
        struct journal_hit hit;
        char text[64];
        const int n = snprintf(text, sizeof text, "row %llu", (unsigned long long)line);
        st = journal_index_find(index, line, &hit);
        const bool wanted = is_done(line);
        n_wrong += status_failed(&st) || (hit.kind == JOURNAL_HIT_ROW) != wanted ||
                   (wanted && (hit.n_text != (size_t)n || memcmp(hit.text, text, hit.n_text) != 0));
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT(mem_peak_bytes() - before < (uint64_t)4 << 20);
    journal_index_destroy(&index);
    journal_facts_fini(&facts);
    strbuf_fini(&s);
    close(fd);
    unlink(path);
}

/* Ids that are line numbers cost a bit; whatever they are, the first of equal ones is fresh, also
 * when the first half came from a journal. */
static void equal_ids_are_found_of_every_kind(void)
{
    enum { N_IDS = 4000 };
    static char ids[N_IDS][24];
    struct id_set all = {0}, resumed = {0};
    uint64_t x = 9;
    unsigned n_wrong = 0, n_repeated = 0;
    for (int i = 0; i < N_IDS; i++) {
        const int64_t kind = fake_between(&x, 0, 9);
        const int number = kind < 6 ? i + 1 : (int)fake_between(&x, 0, N_IDS + 50);
        snprintf(ids[i], sizeof ids[i], kind == 9 ? "id-%d" : kind == 8 ? "0%d" : "%d", number);
        bool repeated = false, fresh;
        for (int k = 0; k < i && !repeated; k++) repeated = strcmp(ids[k], ids[i]) == 0;
        struct status st = id_set_add(&all, ids[i], strlen(ids[i]), &fresh);
        n_wrong += status_failed(&st) || fresh == repeated;
        n_repeated += repeated;
        if (i < N_IDS / 2) {
            st = id_set_add_hash(&resumed, id_hash_of(ids[i], strlen(ids[i])));
        } else {
            st = id_set_add(&resumed, ids[i], strlen(ids[i]), &fresh);
            n_wrong += fresh == repeated;
        }
        n_wrong += status_failed(&st);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT(n_repeated > 200);
    CU_ASSERT(all.n < N_IDS / 2);
    id_set_fini(&all);
    id_set_fini(&resumed);
}

void suite_journal(CU_pSuite suite);
void suite_journal(CU_pSuite suite)
{
    CU_add_test(suite, "a long journal is read in bounded memory",
                a_long_journal_is_read_in_bounded_memory);
    CU_add_test(suite, "runs ended anywhere come to the same bytes",
                runs_ended_anywhere_come_to_the_same_bytes);
    CU_add_test(suite, "a journal torn at any byte is good up to there",
                a_journal_torn_at_any_byte_is_good_up_to_there);
    CU_add_test(suite, "flipped bits never reach the output", flipped_bits_never_reach_the_output);
    CU_add_test(suite, "a damaged output is mended", a_damaged_output_is_mended);
    CU_add_test(suite, "a finished job does nothing again", a_finished_job_does_nothing_again);
    CU_add_test(suite, "a changed input is refused", a_changed_input_is_refused);
    CU_add_test(suite, "changed settings are refused by name",
                changed_settings_are_refused_by_name);
    CU_add_test(suite, "files of others are not overwritten", files_of_others_are_not_overwritten);
    CU_add_test(suite, "error rows can be run again", error_rows_can_be_run_again);
    CU_add_test(suite, "failing writes end the run and nothing is lost",
                failing_writes_end_the_run_and_nothing_is_lost);
    CU_add_test(suite, "equal ids are found of every kind", equal_ids_are_found_of_every_kind);
    CU_add_test(suite, "failpoints are parsed", failpoints_are_parsed);
    CU_add_test(suite, "failing allocations are statuses", failing_allocations_are_statuses);
}
