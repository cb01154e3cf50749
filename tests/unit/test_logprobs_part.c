/* The file of --save-logprobs, with and without hidden rows: its codes; the same bytes from jobs
 * that die after every few steps, in other batches and pipelines; records that are torn, damaged or
 * missing. tests/e2e/distill.py and hidden.py check the values in the file. */
#include "base/file_claims.h"
#include "base/mem.h"
#include "serve/output/logprobs_part.h"
#include "util_journal.h"

#include <CUnit/CUnit.h>
#include <hdf5.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { K = 6, N_LINES = 40 };

/* ---- codes ---- */

static void codes_are_the_nearest_ones(void)
{
    const struct {
        float x;
        uint16_t half;
        uint8_t code;
    } rows[] = {
        {0, 0x0000, 0},
        {-0.03125f, 0xA800, 0},     /* half-way between 0 and 1: the larger probability */
        {-0.031250004f, 0xA800, 1}, /* just past half-way */
        {-0.09375f, 0xAE00, 1},     /* half-way between 1 and 2 */
        {-0.0625f, 0xAC00, 1},
        {-1, 0xBC00, 16},
        {-1.00048828125f, 0xBC00, 16}, /* half-way between two f16 numbers: the even one */
        {-1.00146484375f, 0xBC02, 16}, /* the next such tie */
        {-15.875f, 0xCBF0, 254},
        {-16, 0xCC00, 254},     /* beyond the last code, which is the nearest */
        {-100000, 0xFBFF, 254}, /* finite: not infinite in f16 */
        {-INFINITY, 0xFC00, LOGPROBS_U8_NONE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint16_t half;
        uint8_t code;
        logprobs_encode(LOGPROBS_F16, &rows[i].x, 1, &half);
        logprobs_encode(LOGPROBS_U8, &rows[i].x, 1, &code);
        CU_ASSERT_EQUAL(half, rows[i].half);
        CU_ASSERT_EQUAL(code, rows[i].code);
    }
    CU_ASSERT_EQUAL(logprobs_bytes(LOGPROBS_F16), 2);
    CU_ASSERT_EQUAL(logprobs_bytes(LOGPROBS_U8), 1);
}

/* ---- whole jobs ---- */

/* A job that saves, and the file of an uninterrupted run without a journal. */
struct saving {
    struct util_job job;
    struct logprobs_options save;
    struct failpoint failpoint;
    char path[96], part[104];
    struct strbuf expected, found;
};

static void add_lines(struct strbuf *s)
{
    for (int i = 0; i < N_LINES; i++) {
        if (i % 9 == 4) {
            strbuf_puts(s, "{\"prompt\":\"bad\",\"top_p\":9}\n");
        } else if (i % 11 == 7) {
            strbuf_puts(
                s, "{\"prompt_token_ids\":[5,1,5],\"max_tokens\":40}\n"); /* fails while it runs */
        } else {
            strbuf_printf(s,
                          "{\"custom_id\":\"c%d\",\"prompt\":\"word%d and\",\"max_tokens\":%d%s}\n",
                          i, 7 * i, 1 + 13 * i % 60,
                          i % 5 == 1   ? ",\"n\":3,\"logprobs\":2"
                          : i % 5 == 3 ? ",\"logprobs\":3,\"prompt_logprobs\":9"
                                       : ",\"ignore_eos\":true");
        }
    }
}

/* Hidden rows of two layers, 8 bytes in all, as many as a hidden row of the fake engine has. */
static const struct logprobs_hidden two_layers = {
    .layers = {.n = 2, .at = {0, 4}, .type = DTYPE_BF16}, .n_layers = 4, .width = 2};

/* Makes a job over `text` and runs it once, without a journal, for the file to expect. hidden NULL:
 * no hidden rows are saved. */
static void init_job(struct saving *s, const char *text, size_t n,
                     const struct logprobs_hidden *hidden, enum hidden_span span)
{
    struct util_outcome out;
    memset(s, 0, sizeof *s);
    strbuf_init(&s->expected);
    strbuf_init(&s->found);
    util_job_init_text(&s->job, text, n, true);
    snprintf(s->path, sizeof s->path, "%s/t.h5", s->job.folder);
    snprintf(s->part, sizeof s->part, "%s.part", s->path);
    s->save = (struct logprobs_options){
        .path = s->path,
        .shape = {.model = "fake", .checkpoint = "0", .k = K, .vocab = FAKE_VOCAB},
        .span = span,
        .failpoint = &s->failpoint};
    if (hidden != NULL) s->save.shape.hidden = *hidden;
    s->job.o.save = &s->save;
    s->job.o.journal.path = NULL;
    util_job_run(&s->job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_TRUE_FATAL(out.done && !status_failed(&out.st));
    CU_ASSERT_TRUE(util_job_is_expected(&s->job)); /* rows do not change */
    CU_ASSERT_NOT_EQUAL(access(s->part, F_OK), 0);
    util_read_file(s->path, &s->expected);
    CU_ASSERT_FATAL(s->expected.n > 2048);
    unlink(s->path);
    util_job_remove(&s->job);
    s->job.o.journal.path = s->job.journal;
}

static void init_hidden(struct saving *s, const struct logprobs_hidden *hidden,
                        enum hidden_span span)
{
    struct strbuf text;
    strbuf_init(&text);
    add_lines(&text);
    init_job(s, text.data, text.n, hidden, span);
    strbuf_fini(&text);
}

static void init_lines(struct saving *s)
{
    init_hidden(s, NULL, HIDDEN_ALL);
}

static void forget(struct saving *s)
{
    unlink(s->path);
    unlink(s->part);
    util_job_remove(&s->job);
}

static void fini(struct saving *s)
{
    forget(s);
    strbuf_fini(&s->expected);
    strbuf_fini(&s->found);
    util_job_fini(&s->job);
}

static bool is_expected(struct saving *s)
{
    util_read_file(s->path, &s->found);
    return s->found.n == s->expected.n &&
           memcmp(s->found.data, s->expected.data, s->found.n) == 0 &&
           util_job_is_expected(&s->job);
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* Runs a job in pieces, each of which is killed, or, for even i, drained. */
static void run_in_pieces(struct saving *s, int i)
{
    struct util_outcome out = {.done = false};
    const bool drains = i % 2 == 0;
    int n_runs = 0;
    s->job.o.schedule.max_batch = i < 4 ? 5 : 2;
    s->job.o.n_groups = 1 + i % 3;
    s->job.o.n_replicas = 1 + i / 4;
    s->job.o.flags.checkpoint_tokens = drains ? 0 : 3;
    while (!out.done && n_runs++ < 400) {
        util_job_run(&s->job, 9 + 4 * i, drains, &out);
        CU_ASSERT_FALSE_FATAL(status_failed(&out.st) || out.n_wrong > 0);
        CU_ASSERT_EQUAL(exists(s->path), out.done);
    }
    CU_ASSERT_TRUE(out.done && n_runs > 3);
    CU_ASSERT_TRUE(is_expected(s));
    CU_ASSERT_TRUE(exists(s->part)); /* it stays, because error rows can run again */
    forget(s);
}

static void a_job_that_dies_often_makes_the_same_file(void)
{
    struct saving s;
    init_lines(&s);
    for (int i = 0; i < 8; i++) run_in_pieces(&s, i);
    fini(&s);
}

static void hidden_rows_survive_kills_too(void)
{
    struct saving s;
    for (int span = HIDDEN_ALL; span <= HIDDEN_ANSWERS; span++) {
        init_hidden(&s, &two_layers, (enum hidden_span)span);
        for (int i = span; i < 8; i += 3) run_in_pieces(&s, i);
        fini(&s);
    }
}

static void error_rows_that_run_again_join_the_others(void)
{
    struct saving s;
    struct util_outcome out;
    init_lines(&s);
    s.job.bad_arithmetic = true;
    util_job_run(&s.job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_TRUE(is_expected(&s));
    s.job.bad_arithmetic = false; /* as after a repair of the machine */
    s.job.o.flags.retry_errors = true;
    util_job_run(&s.job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_FALSE(status_failed(&out.st));
    util_read_file(s.path, &s.found);
    CU_ASSERT(s.found.n > s.expected.n);
    fini(&s);
}

/* The journal is only rewritten for a retry that can succeed. */
static void a_retry_without_its_part_changes_nothing(void)
{
    struct saving s;
    struct util_outcome out;
    struct strbuf journal;
    strbuf_init(&journal);
    init_lines(&s);
    util_job_run(&s.job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_TRUE(is_expected(&s));
    util_read_file(s.job.journal, &journal);
    CU_ASSERT_EQUAL(unlink(s.part), 0);
    s.job.o.flags.retry_errors = true;
    util_job_run(&s.job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_EQUAL(out.st.code, STATUS_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(out.st.text, ".part is gone"));
    util_read_file(s.job.journal, &s.found);
    CU_ASSERT_EQUAL_FATAL(s.found.n, journal.n);
    CU_ASSERT_EQUAL(memcmp(s.found.data, journal.data, journal.n), 0);
    s.job.o.flags.retry_errors = false;
    util_job_run(&s.job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_TRUE(!status_failed(&out.st) && is_expected(&s));
    strbuf_fini(&journal);
    fini(&s);
}

/* Runs the first 60 steps of a job, and reads the bytes of its part into s->found. */
static void run_half(struct saving *s)
{
    struct util_outcome out;
    forget(s);
    s->job.o.schedule.max_batch = 5;
    util_job_run(&s->job, 60, true, &out);
    CU_ASSERT_FALSE(status_failed(&out.st) || out.done);
    util_read_file(s->part, &s->found);
    CU_ASSERT_FATAL(s->found.n > 3000);
}

/* Both rounds append the beginning of a step's rows to the part, as a kill leaves it; the first
 * also damages rows. */
static void damaged_hidden_rows_are_named_and_torn_ones_cut(void)
{
    struct saving s;
    struct util_outcome out;
    init_hidden(&s, &two_layers, HIDDEN_ALL);
    for (int i = 0; i < 2; i++) {
        run_half(&s);
        if (i == 0) s.found.data[40] ^= 1;      /* in the rows of the first step */
        strbuf_add(&s.found, s.found.data, 30); /* the head and a piece of that step's rows */
        util_write_file(s.part, s.found.data, s.found.n);
        util_job_run(&s.job, UTIL_TO_THE_END, false, &out);
        CU_ASSERT_EQUAL(out.st.code, i == 0 ? STATUS_INPUT : STATUS_OK);
        CU_ASSERT_EQUAL(exists(s.path), i == 1);
        CU_ASSERT_TRUE(i == 0 ? strstr(out.st.text, "is damaged") != NULL : is_expected(&s));
    }
    fini(&s);
}

static void torn_records_are_cut_and_missing_ones_are_named(void)
{
    struct saving s;
    struct util_outcome out;
    init_lines(&s);
    run_half(&s);
    strbuf_puts(&s.found, "SHOALP1\n and half a record");
    util_write_file(s.part, s.found.data, s.found.n);
    util_job_run(&s.job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_TRUE(out.done && is_expected(&s));
    for (int i = 0; i < 3; i++) {
        run_half(&s);
        s.found.data[i == 0 ? 10 : 200] ^= 1; /* 0: a byte of the head; 1: of the data */
        util_write_file(s.part, s.found.data, i == 2 ? 0 : s.found.n); /* 2: all is gone */
        util_job_run(&s.job, UTIL_TO_THE_END, false, &out);
        CU_ASSERT_EQUAL(out.st.code, STATUS_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(out.st.text, "it lacks line 1,"));
        CU_ASSERT_FALSE(exists(s.path));
    }
    fini(&s);
}

/* A row is not committed before its record is durable. */
static void a_failed_sync_commits_no_row(void)
{
    struct saving s;
    struct util_outcome out;
    struct stat info;
    init_lines(&s);
    s.failpoint =
        (struct failpoint){.name = FAILPOINT_LOGPROBS_FSYNC, .n_left = 1, .error = 5 /* EIO */};
    util_job_run(&s.job, UTIL_TO_THE_END, true, &out);
    CU_ASSERT_EQUAL(out.st.code, STATUS_IO);
    CU_ASSERT_PTR_NOT_NULL(strstr(out.st.text, ".part: fsync"));
    CU_ASSERT(stat(s.job.output, &info) == 0 && info.st_size == 0);
    util_job_run(&s.job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_TRUE(out.done && is_expected(&s));
    fini(&s);
}

/* While the job was stopped for long, another host took its files: the part is now that host's. */
static void a_job_that_lost_its_files_adds_nothing_to_the_part(void)
{
    static const char other[] = "another job's lease";
    struct saving s;
    struct file_claims *claims = NULL;
    struct lead *lead = NULL;
    struct fake_engine engine;
    struct step_plan plan;
    struct step_result result;
    char lease[128], mine[128];
    bool done = false;
    init_hidden(&s, &two_layers, HIDDEN_ALL);
    snprintf(lease, sizeof lease, "%s.lease", s.job.output);
    snprintf(mine, sizeof mine, "%s.mine", s.job.output);
    CU_ASSERT_EQUAL_FATAL(file_claims_create(NULL, 0, &claims).code, STATUS_OK);
    CU_ASSERT_EQUAL(file_claims_add(claims, "output", s.job.output).code, STATUS_OK);
    s.job.o.journal.claims = claims;
    CU_ASSERT_EQUAL_FATAL(lead_create(&s.job.o, &lead).code, STATUS_OK);
    fake_engine_init(&engine, 1, s.job.o.n_blocks);
    CU_ASSERT_EQUAL(step_plan_init(&plan, 1).code, STATUS_OK);
    step_result_init(&result);
    CU_ASSERT_EQUAL_FATAL(lead_next(lead, 0, 0, &plan, &done).code, STATUS_OK);
    fake_engine_run(&engine, &plan, &result);
    CU_ASSERT_EQUAL(rename(lease, mine), 0);
    util_write_file(lease, other, sizeof other - 1);
    file_claims_renew(claims);
    CU_ASSERT_EQUAL(lead_commit(lead, 0, &result).code, STATUS_IO);
    util_read_file(s.part, &s.found);
    CU_ASSERT_EQUAL(s.found.n, 0);
    step_result_fini(&result);
    step_plan_fini(&plan);
    fake_engine_fini(&engine);
    lead_destroy(&lead);
    file_claims_destroy(&claims);
    unlink(mine);
    unlink(lease);
    s.job.o.journal.claims = NULL;
    fini(&s);
}

static void a_complete_job_keeps_its_file(void)
{
    static const char line[] = "{\"custom_id\":\"a\",\"prompt\":\"only a good line, so that no "
                               "part must stay for retries\",\"max_tokens\":50,\"n\":2}\n";
    struct saving s;
    struct util_outcome out;
    init_job(&s, line, sizeof line - 1, NULL, HIDDEN_ALL);
    util_job_run(&s.job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_TRUE(is_expected(&s));
    CU_ASSERT_FALSE(exists(s.part));
    util_job_run(&s.job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_FALSE(status_failed(&out.st));
    CU_ASSERT_TRUE(is_expected(&s));
    unlink(s.path);
    util_job_run(&s.job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_EQUAL(out.st.code, STATUS_USAGE);
    s.job.o.flags.restart = true;
    util_job_run(&s.job, UTIL_TO_THE_END, false, &out);
    CU_ASSERT_TRUE(is_expected(&s));
    fini(&s);
}

/* ---- one request ---- */

static void read_set(hid_t file, const char *name, hid_t type, void *out)
{
    const hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
    CU_ASSERT_FATAL(set >= 0 && H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, out) >= 0);
    H5Dclose(set);
}

/* A request over a vocabulary of 3 tokens, for which 5 candidates are to be saved; two of its
 * log-probabilities are equal. */
static struct request *small_request(struct tokenizer *t)
{
    struct request_rules rules = util_request_rules(t);
    const struct plan_top prompt[] = {{2, -0.5f}, {0, -1}, {1, -4}};
    const struct plan_top drawn[] = {{0, -1}, {1, -1}, {2, -1.5f}};
    rules.vocab_size = 3;
    rules.n_saved_tops = 5;
    rules.n_end_ids = 0;
    struct request *r = util_request_parse(
        &rules, "{\"custom_id\":\"x\",\"prompt_token_ids\":[1,2],\"max_tokens\":1}");
    CU_ASSERT_FATAL(r->error.code == NULL && r->ask->n_tops == 3 && r->ask->n_prompt_tops == 3);
    CU_ASSERT(r->ask->n_logprobs == -1 && r->ask->n_prompt_logprobs == -1);
    memcpy(r->logprobs.prompt_tops + 3, prompt, sizeof prompt);
    r->logprobs.scores[1] = -0.5f;
    struct status st = request_take_logprob(r, -1.5f, drawn);
    CU_ASSERT(!status_failed(&st));
    st = request_take_token(r, &rules, 2);
    CU_ASSERT(!status_failed(&st));
    return r;
}

/* Writes the log-probabilities of one request to the file `path`. */
static struct status save_one(const char *path, const struct request *r)
{
    const struct logprobs_options o = {
        .path = path,
        .shape = {.model = "m", .checkpoint = "c", .k = 5, .vocab = 3, .type = LOGPROBS_U8}};
    struct logprobs_part *p = NULL;
    TRY(logprobs_part_open(&o, false, &p));
    struct status st = logprobs_part_put(p, r);
    if (!status_failed(&st)) st = logprobs_part_finish(p);
    logprobs_part_destroy(&p);
    logprobs_part_remove(path);
    return st;
}

static void every_failed_allocation_is_a_status(void)
{
    char path[UTIL_PATH_MAX];
    struct tokenizer *t = util_byte_tokenizer();
    struct request *r = small_request(t);
    unsigned n_failed = 0, n_wrong = 0;
    util_file_create(path, "", 0);
    for (uint64_t n = 1;; n++) {
        mem_fail_after(n);
        const struct status st = save_one(path, r);
        mem_fail_after(0);
        if (!status_failed(&st)) break;
        n_failed++;
        n_wrong += st.code != STATUS_MEMORY;
    }
    CU_ASSERT(n_failed > 8);
    CU_ASSERT_EQUAL(n_wrong, 0);
    logprobs_part_remove(
        path); /* in the last round, save_one lacked memory only to name the part, and left it */
    util_file_remove(path);
    request_destroy(&r);
    tokenizer_destroy(&t);
}

static void a_vocabulary_smaller_than_k_leaves_places_empty(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct request *r = small_request(t);
    char path[UTIL_PATH_MAX];
    util_file_create(path, "", 0);
    const struct status st = save_one(path, r);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));

    const int32_t want_ids[] = {-1, -1, -1, -1, -1, 2, 0, 1, -1, -1, 0, 1, 2, -1, -1};
    const uint8_t want_codes[] = {255, 255, 255, 255, 255, 8,   16, 64,
                                  255, 255, 16,  16,  24,  255, 255};
    int32_t ids[15], tokens[3];
    uint8_t codes[15], generated[3];
    float logprobs[3];
    const hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    CU_ASSERT_FATAL(file >= 0);
    read_set(file, "top_ids", H5T_NATIVE_INT32, ids);
    read_set(file, "top_logprobs", H5T_NATIVE_UINT8, codes);
    read_set(file, "tokens", H5T_NATIVE_INT32, tokens);
    read_set(file, "is_generated", H5T_NATIVE_UINT8, generated);
    read_set(file, "token_logprobs", H5T_NATIVE_FLOAT, logprobs);
    H5Fclose(file);
    CU_ASSERT_EQUAL(memcmp(ids, want_ids, sizeof ids), 0);
    CU_ASSERT_EQUAL(memcmp(codes, want_codes, sizeof codes), 0);
    CU_ASSERT(tokens[0] == 1 && tokens[1] == 2 && tokens[2] == 2);
    CU_ASSERT(generated[0] == 0 && generated[1] == 0 && generated[2] == 1);
    CU_ASSERT(isnan(logprobs[0]) && logprobs[1] == -0.5f && logprobs[2] == -1.5f);
    util_file_remove(path);
    request_destroy(&r);
    tokenizer_destroy(&t);
}

/* Puts the records of lines 1 and 2; a later run knows only line 1's row from the journal. */
static void records_of_lines_without_a_row_stay_out(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct request *r = small_request(t);
    struct logprobs_part *p = NULL;
    char path[UTIL_PATH_MAX];
    int64_t offsets[2] = {0, 0};
    util_file_create(path, "", 0);
    const struct logprobs_options o = {
        .path = path, .shape = {.model = "m", .checkpoint = "c", .k = 5, .vocab = 3}};
    struct status st = logprobs_part_open(&o, false, &p);
    for (r->line = 1; r->line <= 2 && !status_failed(&st); r->line++) st = logprobs_part_put(p, r);
    logprobs_part_destroy(&p);
    if (!status_failed(&st)) st = logprobs_part_open(&o, true, &p);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = logprobs_part_check(p, 1, r->line_digest);
    if (!status_failed(&st)) st = logprobs_part_finish(p);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    logprobs_part_destroy(&p);
    const hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    const hid_t set = H5Dopen2(file, "row_offsets", H5P_DEFAULT), space = H5Dget_space(set);
    CU_ASSERT_EQUAL_FATAL(H5Sget_simple_extent_npoints(space), 2);
    H5Sclose(space);
    H5Dclose(set);
    read_set(file, "row_offsets", H5T_NATIVE_INT64, offsets);
    H5Fclose(file);
    CU_ASSERT(offsets[0] == 0 && offsets[1] == 3);
    logprobs_part_remove(path);
    util_file_remove(path);
    request_destroy(&r);
    tokenizer_destroy(&t);
}

void suite_logprobs_part(CU_pSuite suite);

void suite_logprobs_part(CU_pSuite suite)
{
    CU_add_test(suite, "codes are the nearest ones", codes_are_the_nearest_ones);
    CU_add_test(suite, "every failed allocation is a status", every_failed_allocation_is_a_status);
    CU_add_test(suite, "a vocabulary smaller than k leaves places empty",
                a_vocabulary_smaller_than_k_leaves_places_empty);
    CU_add_test(suite, "records of lines without a row stay out",
                records_of_lines_without_a_row_stay_out);
    CU_add_test(suite, "a job that dies often makes the same file",
                a_job_that_dies_often_makes_the_same_file);
    CU_add_test(suite, "hidden rows survive kills too", hidden_rows_survive_kills_too);
    CU_add_test(suite, "damaged hidden rows are named and torn ones cut",
                damaged_hidden_rows_are_named_and_torn_ones_cut);
    CU_add_test(suite, "error rows that run again join the others",
                error_rows_that_run_again_join_the_others);
    CU_add_test(suite, "a retry without its part changes nothing",
                a_retry_without_its_part_changes_nothing);
    CU_add_test(suite, "torn records are cut and missing ones are named",
                torn_records_are_cut_and_missing_ones_are_named);
    CU_add_test(suite, "a failed sync commits no row", a_failed_sync_commits_no_row);
    CU_add_test(suite, "a job that lost its files adds nothing to the part",
                a_job_that_lost_its_files_adds_nothing_to_the_part);
    CU_add_test(suite, "a complete job keeps its file", a_complete_job_keeps_its_file);
}
