/* Batches that a lead runs over the fake engine: with memory that fails, resumed, with a lost
 * folder, with lines that take long to read, and with another list of adapters. */
#include "serve/http/batches.h"

#include "base/file.h"
#include "base/mem.h"
#include "serve/http/batch_adapters.h"
#include "serve/http/batch_store.h"
#include "serve/lead/lead_port.h"
#include "serve/output/progress.h"
#include "util_compress.h"
#include "util_folder.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const endpoints[] = {"/v1/completions", "/v1/chat/completions", NULL};

/* A lead's port that has batches only. */
struct runner {
    struct batches *batches;
    struct file_claims *claims;       /* NULL: none */
    const struct util_folder *losing; /* another server takes it before each read; NULL: no */
    struct status failed;
    uint64_t fail_at;         /* number of the allocation that fails in the first read; 0: none */
    size_t n_read_one;        /* lines that the lead has after the first read */
    int n_reads, n_reads_max; /* after n_reads_max reads no more lines are read; 0: no limit */
    const char *settings;     /* NULL: none */
    const struct request_adapter *adapters; /* [n_adapters] */
    size_t n_adapters;
};

static struct status run_read(void *user, struct lead *l)
{
    struct runner *r = user;
    if (r->losing != NULL) {
        util_folder_unlink(r->losing, "server.lease");
        util_folder_write(r->losing, "server.lease", "{}");
        file_claims_renew(r->claims);
    }
    if (r->n_reads++ == 0) (void)mem_fail_after(r->fail_at);
    const struct status st = batches_read(r->batches, l);
    (void)mem_fail_after(0);
    TRY(st);
    TRY(lead_order(l));
    const struct scheduler_load load = lead_load(l);
    if (r->n_reads == 1) r->n_read_one = (size_t)(load.n_running + load.n_waiting);
    if (r->n_reads == r->n_reads_max) batches_stop(r->batches);
    return status_ok();
}

static bool run_is_at_end(const void *user)
{
    return !batches_has_work(((const struct runner *)user)->batches);
}

static struct status run_put(void *user, struct lead *l, const struct request *request)
{
    batches_put(((struct runner *)user)->batches, l, request);
    return status_ok();
}

static struct status run_commit(void *user, struct lead *l, int32_t group)
{
    (void)l;
    (void)group;
    batches_commit(((struct runner *)user)->batches);
    return status_ok();
}

static struct status run_close(void *user)
{
    batches_close(((struct runner *)user)->batches);
    return status_ok();
}

static void run_view(const void *user, struct progress_view *v)
{
    (void)user;
    (void)v;
}

static void run_sum(const void *user, struct serve_summary *s)
{
    (void)user;
    (void)s;
}

/* Runs the folder's batches as a server does from its start to its end. */
static void run_batches(struct runner *r, const char *folder, struct tokenizer *t)
{
    static struct serve_summary summary;
    const struct lead_port port = {.user = r,
                                   .read = run_read,
                                   .is_at_end = run_is_at_end,
                                   .put = run_put,
                                   .commit = run_commit,
                                   .close = run_close,
                                   .view = run_view,
                                   .sum = run_sum};
    uint64_t n_wrong = 0;
    struct lead_options o = util_lead_options(t, NULL, NULL);
    o.port = &port;
    o.adapters = r->adapters;
    o.n_adapters = r->n_adapters;
    const char *settings = r->settings != NULL ? r->settings : "";
    r->failed = batches_create(folder, settings, endpoints, r->claims, &r->batches);
    CU_ASSERT_FALSE_FATAL(status_failed(&r->failed));
    r->failed = util_lead_run(&o, &summary, &n_wrong);
    CU_ASSERT_EQUAL(n_wrong, 0);
    batches_destroy(&r->batches);
}

/* Makes a batch of these lines. */
static void add_batch(const char *folder, const struct strbuf *lines)
{
    struct batch_store s = {.folder = NULL};
    struct batch_file *file;
    struct batch *b;
    struct status st = batch_store_open(&s, folder, NULL);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = batch_store_add_file(&s, "f", "batch", lines->data, lines->n, &file);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = batch_store_add_batch(&s, &b);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    strcpy(b->input, file->id);
    st = batch_store_save(&s, b);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    batch_store_close(&s);
}

/* Returns the status of the folder's batch. If the batch is completed, checks that its output is
 * `rows` and that it has n_lines lines. */
static enum batch_status check_batch(const char *folder, const struct strbuf *rows, size_t n_lines)
{
    struct batch_store s = {.folder = NULL};
    char *path, *bytes = NULL;
    size_t n = 0;
    struct status st = batch_store_open(&s, folder, NULL);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_PTR_NOT_NULL_FATAL(s.batches);
    const struct batch b = *s.batches;
    if (b.status == BATCH_COMPLETED) {
        st = batch_store_path(&s, b.output, ".jsonl", &path);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        st = file_read(path, 1 << 22, &bytes, &n);
        CU_ASSERT_FALSE(status_failed(&st));
        CU_ASSERT(n == rows->n && memcmp(bytes, rows->data, n) == 0);
        CU_ASSERT(b.n_lines == n_lines && b.n_completed + b.n_failed == n_lines);
        mem_free(&bytes);
        mem_free(&path);
    } else if (b.status == BATCH_FAILED) {
        printf("\n  %s\n", b.error);
    }
    batch_store_close(&s);
    return b.status;
}

/* Sets rows to the output of a job with these lines. */
static void make_rows(const struct strbuf *lines, struct tokenizer *t, struct strbuf *rows)
{
    static struct serve_summary summary;
    struct lead_options o = util_lead_options(t, NULL, NULL);
    strbuf_init(rows);
    util_lead_run_text(&o, lines, &summary, rows);
}

static void add_lines(struct strbuf *lines, int n, const char *more)
{
    for (int i = 0; i < n; i++)
        strbuf_printf(lines,
                      "{\"custom_id\":\"c%d\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                      "\"body\":{\"model\":\"m\",\"prompt\":\"w%d\",\"max_tokens\":%d%s}}\n",
                      i, i, 1 + i % 9, more);
}

/* Every second allocation of a batch's first read fails once. The batch never fails for good: it
 * ends with its rows, or the next server ends it. */
static void a_batch_without_memory_is_postponed(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct strbuf lines, rows;
    int n_left = 0, n_ended = 0;
    strbuf_init(&lines);
    add_lines(&lines, 1, "");
    make_rows(&lines, t, &rows);
    for (uint64_t i = 1; i < 400 && n_ended < 2; i += 2) {
        struct util_folder f;
        struct runner failing = {.fail_at = i}, next = {.fail_at = 0};
        util_folder_make(&f);
        add_batch(f.path, &lines);
        run_batches(&failing, f.path, t);
        const enum batch_status status = check_batch(f.path, &rows, 1);
        CU_ASSERT(status == BATCH_RUNNING || status == BATCH_COMPLETED);
        n_left += status == BATCH_RUNNING && !status_failed(&failing.failed);
        n_ended = status == BATCH_COMPLETED ? n_ended + 1 : 0; /* the fault came too late */
        run_batches(&next, f.path, t);
        CU_ASSERT_FALSE(status_failed(&next.failed));
        CU_ASSERT_EQUAL(check_batch(f.path, &rows, 1), BATCH_COMPLETED);
        util_folder_remove(&f);
    }
    CU_ASSERT(n_left > 10 && n_ended == 2);
    strbuf_fini(&rows);
    strbuf_fini(&lines);
    tokenizer_destroy(&t);
}

/* When another server has taken its folder, a server ends and leaves the batch to the
 * other. */
static void a_lost_folder_ends_the_run(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct strbuf lines, rows;
    struct util_folder f;
    struct runner r = {.losing = &f};
    strbuf_init(&lines);
    add_lines(&lines, 3, "");
    make_rows(&lines, t, &rows);
    util_folder_make(&f);
    add_batch(f.path, &lines);
    CU_ASSERT_EQUAL_FATAL(file_claims_create(NULL, 0, &r.claims).code, STATUS_OK);
    run_batches(&r, f.path, t);
    CU_ASSERT(r.failed.code == STATUS_IO && strstr(r.failed.text, "took it over") != NULL);
    CU_ASSERT_EQUAL(check_batch(f.path, &rows, 3), BATCH_RUNNING);
    file_claims_destroy(&r.claims);
    util_folder_remove(&f);
    strbuf_fini(&lines);
    strbuf_fini(&rows);
    tokenizer_destroy(&t);
}

/* A line that is too long takes a reader of compressed data several calls, also when a batch is
 * resumed after it. */
static void a_long_line_is_resumed(void)
{
    enum { PIECE = 10 << 20, N_PIECES = 13 };
    struct tokenizer *t = util_byte_tokenizer();
    struct strbuf lines, packed, rows;
    int n_resumed = 0;
    strbuf_init(&lines);
    strbuf_init(&packed);
    add_lines(&lines, 1, "");
    util_compress(UTIL_ZSTD, lines.data, lines.n, &packed);
    char *blanks = malloc(PIECE);
    CU_ASSERT_PTR_NOT_NULL_FATAL(blanks);
    memset(blanks, ' ', PIECE);
    for (int i = 0; i < N_PIECES; i++) util_compress(UTIL_ZSTD, blanks, PIECE, &packed);
    free(blanks);
    strbuf_clear(&lines);
    strbuf_puts(&lines, "\n");
    add_lines(&lines, 80, "");
    util_compress(UTIL_ZSTD, lines.data, lines.n, &packed);
    make_rows(&packed, t, &rows);
    strbuf_fini(&lines);
    for (int n_reads = 1; n_reads < 5; n_reads++) {
        struct util_folder f;
        struct runner first = {.n_reads_max = n_reads}, next = {.fail_at = 0};
        util_folder_make(&f);
        add_batch(f.path, &packed);
        run_batches(&first, f.path, t);
        CU_ASSERT_FALSE(status_failed(&first.failed));
        n_resumed += check_batch(f.path, &rows, 82) == BATCH_RUNNING;
        run_batches(&next, f.path, t);
        CU_ASSERT_FALSE(status_failed(&next.failed));
        CU_ASSERT_EQUAL(check_batch(f.path, &rows, 82), BATCH_COMPLETED);
        util_folder_remove(&f);
    }
    CU_ASSERT(n_resumed > 2);
    strbuf_fini(&packed);
    strbuf_fini(&rows);
    tokenizer_destroy(&t);
}

/* Lines whose grammars take long to compile are not all read before the first step. */
static void grammars_are_compiled_in_steps(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct strbuf lines, rows;
    struct util_folder f;
    struct runner r = {.fail_at = 0};
    strbuf_init(&lines);
    for (int i = 0; i < 40; i++)
        strbuf_printf(&lines,
                      "{\"custom_id\":\"g%d\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                      "\"body\":{\"model\":\"m\",\"prompt\":\"a\",\"max_tokens\":3,"
                      "\"guided_regex\":\"[ab]{0,%d}a[ab]{9}\"}}\n",
                      i, i + 3);
    make_rows(&lines, t, &rows);
    util_folder_make(&f);
    add_batch(f.path, &lines);
    run_batches(&r, f.path, t);
    CU_ASSERT(r.n_read_one > 0 && r.n_read_one < 30);
    CU_ASSERT_EQUAL(check_batch(f.path, &rows, 40), BATCH_COMPLETED);
    util_folder_remove(&f);
    strbuf_fini(&lines);
    strbuf_fini(&rows);
    tokenizer_destroy(&t);
}

#define ADAPTER_A "--adapter a=file with digest 1\n"
#define ADAPTER_B "--adapter b=file with digest 2\n"
#define ADAPTER_C "--adapter ab=file with digest 3\n"

static void more_adapters_agree(void)
{
    static const char few[] = "x=1\n" ADAPTER_A "y=2\n";
    CU_ASSERT(batch_adapters_agree(few, few));
    CU_ASSERT(batch_adapters_agree("", ""));
    CU_ASSERT(batch_adapters_agree("x=1\ny=2\n", few));
    CU_ASSERT(batch_adapters_agree(few, "x=1\n" ADAPTER_A ADAPTER_C ADAPTER_B "y=2\n"));
    CU_ASSERT(batch_adapters_agree(few, "x=1\n" ADAPTER_C ADAPTER_A "y=2\n"));
    CU_ASSERT_FALSE(batch_adapters_agree(few, "x=1\ny=2\n")); /* one fewer */
    CU_ASSERT_FALSE(batch_adapters_agree(few, "x=1\n--adapter a=file with digest 2\ny=2\n"));
    CU_ASSERT_FALSE(batch_adapters_agree(few, "x=1\n" ADAPTER_A ADAPTER_B "y=3\n"));
    CU_ASSERT_FALSE(batch_adapters_agree(few, "x=1\n" ADAPTER_A));
    CU_ASSERT_FALSE(batch_adapters_agree(few, ""));
}

/* A batch that was begun with adapter a completes under a server that also has adapter ab; its
 * lines cannot use ab. Under a server without a, or with another file named a, the batch fails. */
static void a_batch_keeps_its_adapters(void)
{
    static const struct request_adapter adapters[] = {{.name = "a", .key = 1},
                                                      {.name = "ab", .key = 3}};
    struct tokenizer *t = util_byte_tokenizer();
    struct strbuf lines, rows;
    struct lead_options o = util_lead_options(t, NULL, NULL);
    static struct serve_summary summary;
    strbuf_init(&lines);
    strbuf_init(&rows);
    add_lines(&lines, 100, ",\"adapter\":\"a\"");
    strbuf_puts(&lines, "{\"custom_id\":\"u\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                        "\"body\":{\"model\":\"m\",\"prompt\":\"a\",\"adapter\":\"ab\"}}\n");
    o.adapters = adapters;
    o.n_adapters = 1;
    util_lead_run_text(&o, &lines, &summary, &rows);
    CU_ASSERT_PTR_NOT_NULL(strstr(rows.data, "none with this name"));
    static const char *const later[] = {ADAPTER_A ADAPTER_C, ADAPTER_C,
                                        "--adapter a=file with digest 4\n" ADAPTER_C};
    for (int i = 0; i < 3; i++) {
        struct util_folder f;
        struct runner first = {
            .n_reads_max = 1, .settings = ADAPTER_A, .adapters = adapters, .n_adapters = 1};
        struct runner next = {.settings = later[i], .adapters = adapters, .n_adapters = 2};
        util_folder_make(&f);
        add_batch(f.path, &lines);
        run_batches(&first, f.path, t);
        CU_ASSERT_EQUAL(check_batch(f.path, &rows, 101), BATCH_RUNNING);
        run_batches(&next, f.path, t);
        CU_ASSERT_FALSE(status_failed(&next.failed));
        CU_ASSERT_EQUAL(check_batch(f.path, &rows, 101), i == 0 ? BATCH_COMPLETED : BATCH_FAILED);
        util_folder_remove(&f);
    }
    strbuf_fini(&lines);
    strbuf_fini(&rows);
    tokenizer_destroy(&t);
}

void suite_batch_run(CU_pSuite suite);
void suite_batch_run(CU_pSuite suite)
{
    CU_add_test(suite, "a batch without memory is postponed", a_batch_without_memory_is_postponed);
    CU_add_test(suite, "a lost folder ends the run", a_lost_folder_ends_the_run);
    CU_add_test(suite, "a long line is resumed", a_long_line_is_resumed);
    CU_add_test(suite, "grammars are compiled in steps", grammars_are_compiled_in_steps);
    CU_add_test(suite, "more adapters agree", more_adapters_agree);
    CU_add_test(suite, "a batch keeps its adapters", a_batch_keeps_its_adapters);
}
