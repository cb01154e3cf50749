/* Makes the files of test jobs and runs their steps. */
#include "util_journal.h"

#include "base/file.h"
#include "base/mem.h"
#include "util_write.h"

#include <CUnit/CUnit.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char util_job_settings[] = "checkpoint=1\n--seed=5\n--temperature=0.8\n";

void util_write_file(const char *path, const char *bytes, size_t n)
{
    CU_ASSERT_FATAL(util_write(path, bytes, n));
}

void util_read_file(const char *path, struct strbuf *out)
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
            strbuf_puts(s,
                        "{\"prompt_token_ids\":[5,1,5]}\n"); /* token 1 fails with bad_arithmetic */
        } else {
            strbuf_printf(s, "{\"custom_id\":\"c%d\",\"prompt\":\"", i);
            for (int64_t k = fake_between(&x, 1, 12); k > 0; k--)
                strbuf_printf(s, "word%d ", (int)fake_between(&x, 0, 99));
            strbuf_printf(s, "\",\"max_tokens\":%d%s}\n", (int)fake_between(&x, 1, 90),
                          i % 4 == 1     ? ",\"stop\":[\"ab\",\"Q\"]"
                          : i % 16 == 2  ? ",\"n\":3,\"logprobs\":1"
                          : i % 16 == 6  ? ",\"num_beams\":3,\"n\":2"
                          : i % 16 == 10 ? ",\"logprobs\":2,\"prompt_logprobs\":1"
                          : i % 16 == 12 ? ",\"n\":4,\"ignore_eos\":true"
                                         : "");
        }
    }
}

void util_job_run(struct util_job *job, int64_t n_steps, bool drains, struct util_outcome *out)
{
    struct lead *lead = NULL;
    struct fake_engine engine;
    struct step_plan plan;
    struct step_result results[UTIL_GROUPS_MAX][UTIL_REPLICAS_MAX];
    memset(out, 0, sizeof *out);
    out->st = lead_create(&job->o, &lead);
    if (status_failed(&out->st)) return;
    fake_engine_init(&engine, job->o.n_replicas, job->o.n_blocks);
    engine.shares = job->o.schedule.prefix_cache;
    engine.bad_token = job->bad_arithmetic ? 1 : -1;
    struct status st = step_plan_init(&plan, job->o.n_replicas);
    for (int g = 0; g < UTIL_GROUPS_MAX; g++)
        for (int r = 0; r < UTIL_REPLICAS_MAX; r++) step_result_init(&results[g][r]);
    const int64_t n_groups = job->o.n_groups;
    int64_t last = INT64_MAX; /* the step after the last that was planned */
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
    for (int g = 0; g < UTIL_GROUPS_MAX; g++)
        for (int r = 0; r < UTIL_REPLICAS_MAX; r++) step_result_fini(&results[g][r]);
    fake_engine_fini(&engine);
    step_plan_fini(&plan);
    lead_destroy(&lead);
}

void util_job_remove(const struct util_job *job)
{
    unlink(job->output);
    unlink(job->journal);
}

void util_job_init_text(struct util_job *job, const char *text, size_t n, bool bad_arithmetic)
{
    memset(job, 0, sizeof *job);
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(job->folder, sizeof job->folder, "%s/shoal-journal-XXXXXX", base);
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(job->folder));
    snprintf(job->input, sizeof job->input, "%s/in", job->folder);
    snprintf(job->output, sizeof job->output, "%s/out", job->folder);
    snprintf(job->journal, sizeof job->journal, "%s/out.journal", job->folder);
    util_write_file(job->input, text, n);
    job->tokenizer = util_byte_tokenizer();
    job->bad_arithmetic = bad_arithmetic;
    job->o = util_lead_options(job->tokenizer, job->input, job->output);
    struct util_outcome out;
    util_job_run(job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_TRUE_FATAL(out.done);
    strbuf_init(&job->expected);
    util_read_file(job->output, &job->expected);
    CU_ASSERT_FATAL(job->expected.n > 100);
    util_job_remove(job);
    job->o.journal.path = job->journal;
    job->o.journal.settings = util_job_settings;
    job->o.journal.session = "a test";
    job->o.journal.commit_bytes = 1;
}

void util_job_init(struct util_job *job, int n_lines, bool bad_arithmetic)
{
    struct strbuf lines;
    strbuf_init(&lines);
    make_lines(&lines, n_lines);
    util_job_init_text(job, lines.data, lines.n, bad_arithmetic);
    strbuf_fini(&lines);
}

void util_job_fini(struct util_job *job)
{
    util_job_remove(job);
    unlink(job->input);
    CU_ASSERT_EQUAL(rmdir(job->folder), 0); /* no other file was left */
    strbuf_fini(&job->expected);
    tokenizer_destroy(&job->tokenizer);
}

bool util_job_is_expected(const struct util_job *job)
{
    struct strbuf found;
    strbuf_init(&found);
    util_read_file(job->output, &found);
    const bool same =
        found.n == job->expected.n && memcmp(found.data, job->expected.data, found.n) == 0;
    strbuf_fini(&found);
    return same;
}

bool util_job_is_prefix(const struct util_job *job)
{
    struct strbuf found;
    strbuf_init(&found);
    util_read_file(job->output, &found);
    const bool is = found.n <= job->expected.n &&
                    (found.n == 0 || memcmp(found.data, job->expected.data, found.n) == 0);
    strbuf_fini(&found);
    return is;
}
