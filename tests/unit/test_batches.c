/* Files and batches without a model: calls over a socket of this process, and batches that a lead
 * runs over the fake engine, with memory that fails, and resumed. */
#include "serve/http/batches.h"

#include "base/file.h"
#include "base/mem.h"
#include "serve/http/batch_store.h"
#include "serve/lead/lead_port.h"
#include "serve/output/progress.h"
#include "util_compress.h"
#include "util_folder.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ANSWER_MAX = 1 << 18 };

/* ---- calls ---- */

struct place {
    struct util_folder folder;
    struct http_server *server;
    struct batches *batches;
    char answer[ANSWER_MAX]; /* the body of the last one */
    char type[96];           /* the Content-Type of calls */
};

static void open_batches(struct place *p)
{
    const struct status st = batches_create(p->folder.path, "", NULL, &p->batches);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
}

static void place_open(struct place *p)
{
    const struct http_flags f = {.host = "127.0.0.1",
                                 .max_body_bytes = 1 << 20,
                                 .timeout_s = 60,
                                 .max_connections = 8,
                                 .max_requests = 8};
    util_folder_make(&p->folder);
    struct status st = http_server_create(&f, "model", &p->server);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = http_server_start(p->server);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    strcpy(p->type, "application/json");
    open_batches(p);
}

static void place_close(struct place *p)
{
    batches_destroy(&p->batches);
    http_server_destroy(&p->server);
    util_folder_remove(&p->folder);
}

static int connect_to(const struct place *p)
{
    const struct sockaddr_in a = {.sin_family = AF_INET,
                                  .sin_port = htons(http_server_port(p->server)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    CU_ASSERT_FATAL(fd >= 0 && connect(fd, (const struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

static void send_all(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        const ssize_t got = send(fd, bytes, n, MSG_NOSIGNAL);
        CU_ASSERT_FATAL(got > 0);
        bytes += got;
        n -= (size_t)got;
    }
}

/* Reads the whole answer. Returns its status; its body is p->answer. */
static int read_answer(struct place *p, int fd)
{
    size_t n = 0;
    int status = 0;
    for (ssize_t got = 1; got > 0 && n < sizeof p->answer - 1; n += (size_t)got) {
        got = recv(fd, p->answer + n, sizeof p->answer - 1 - n, 0);
        if (got < 0) got = 0;
    }
    p->answer[n] = '\0';
    (void)sscanf(p->answer, "HTTP/1.1 %d", &status);
    const char *body = strstr(p->answer, "\r\n\r\n");
    if (body != NULL) memmove(p->answer, body + 4, strlen(body + 4) + 1);
    return status;
}

/* One call, which this thread answers as the lead does. fail_at: the allocation of the answering
 * that fails; 0: none. Returns the status of the answer. */
static int call_failing(struct place *p, const char *method_path, const char *body, size_t n,
                        uint64_t fail_at)
{
    char head[512];
    const int fd = connect_to(p);
    const int n_head = snprintf(head, sizeof head,
                                "%s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                                "Content-Type: %s\r\nContent-Length: %zu\r\n\r\n",
                                method_path, p->type, n);
    send_all(fd, head, (size_t)n_head);
    send_all(fd, body, n);
    struct exchange *x = http_server_take(p->server, 60000000000u);
    CU_ASSERT_PTR_NOT_NULL_FATAL(x);
    (void)mem_fail_after(fail_at);
    const struct status st = batches_call(p->batches, x);
    (void)mem_fail_after(0);
    CU_ASSERT_FALSE(status_failed(&st));
    const int status = read_answer(p, fd);
    close(fd);
    return status;
}

static int call(struct place *p, const char *method_path, const char *body)
{
    return call_failing(p, method_path, body, strlen(body), 0);
}

/* Uploads a file; id = its id. */
static int upload(struct place *p, const char *name, const char *bytes, size_t n,
                  char id[BATCH_ID_MAX])
{
    struct strbuf body;
    strbuf_init(&body);
    strbuf_puts(&body, "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n");
    strbuf_printf(&body,
                  "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"%s\"\r\n\r\n",
                  name);
    strbuf_add(&body, bytes, n);
    strbuf_puts(&body, "\r\n--b--\r\n");
    strcpy(p->type, "multipart/form-data; boundary=b");
    const int status = call_failing(p, "POST /v1/files", body.data, body.n, 0);
    strcpy(p->type, "application/json");
    id[0] = '\0';
    (void)sscanf(p->answer, "{\"id\":\"%47[^\"]", id);
    strbuf_fini(&body);
    return status;
}

/* Asks for a batch of the file; `more`: further fields. id = the batch's. */
static int begin(struct place *p, const char *file, const char *more, uint64_t fail_at,
                 char id[BATCH_ID_MAX])
{
    struct strbuf body;
    strbuf_init(&body);
    strbuf_printf(&body, "{\"input_file_id\":\"%s\",\"endpoint\":\"/v1/completions\"%s}", file,
                  more);
    const int status = call_failing(p, "POST /v1/batches", body.data, body.n, fail_at);
    id[0] = '\0';
    (void)sscanf(p->answer, "{\"id\":\"%47[^\"]", id);
    strbuf_fini(&body);
    return status;
}

static const char *path_of(const char *format, const char *id)
{
    static char path[128];
    snprintf(path, sizeof path, format, id);
    return path;
}

static struct place place; /* too large for the stack */

/* The entry that a server gives before and after its restart. */
static void check_restart(const char *path)
{
    struct place *p = &place;
    CU_ASSERT_EQUAL(call(p, path, ""), 200);
    char *before = strdup(p->answer);
    batches_destroy(&p->batches);
    open_batches(p);
    CU_ASSERT_EQUAL(call(p, path, ""), 200);
    CU_ASSERT_STRING_EQUAL(p->answer, before);
    free(before);
}

static void texts_of_clients_survive_a_restart(void)
{
    struct place *p = &place;
    char name[400], *more = NULL, file[BATCH_ID_MAX], id[BATCH_ID_MAX];
    place_open(p);
    memset(name, 0xE9, sizeof name - 1);
    name[sizeof name - 1] = '\0';
    CU_ASSERT_EQUAL(upload(p, name, "{}\n{}", 5, file), 200);
    check_restart(path_of("GET /v1/files/%s", file));
    CU_ASSERT_EQUAL_FATAL(asprintf(&more,
                                   ",\"completion_window\":\"%.43s\xE2\x82\xAC\xE2\x82\xAC\","
                                   "\"metadata\":{\"m\":\"%60000s\"}",
                                   "0123456789012345678901234567890123456789012345", "") > 0,
                          true);
    CU_ASSERT_EQUAL(begin(p, file, more, 0, id), 200);
    CU_ASSERT_PTR_NOT_NULL(strstr(p->answer, "\"total\":2,"));
    check_restart(path_of("GET /v1/batches/%s", id));
    free(more);
    place_close(p);
}

static void metadata_are_checked(void)
{
    struct place *p = &place;
    char *more = NULL, file[BATCH_ID_MAX], id[BATCH_ID_MAX];
    place_open(p);
    CU_ASSERT_EQUAL(upload(p, "f", "{}\n", 3, file), 200);
    CU_ASSERT_FATAL(asprintf(&more, ",\"metadata\":{\"m\":\"%65537s\"}", "") > 0);
    CU_ASSERT_EQUAL(begin(p, file, more, 0, id), 400);
    CU_ASSERT_PTR_NOT_NULL(strstr(p->answer, "metadata: expected at most 65536 bytes"));
    CU_ASSERT_EQUAL(begin(p, file, ",\"metadata\":\"m\"", 0, id), 400);
    CU_ASSERT_EQUAL(begin(p, file, ",\"metadata\":null", 0, id), 200);
    CU_ASSERT_EQUAL(call(p, "GET /v1/batches", ""), 200);
    CU_ASSERT_PTR_NULL(strstr(strstr(p->answer, "\"batch_") + 1, "\"batch_")); /* one batch */
    free(more);
    place_close(p);
}

static void lines_are_counted(void)
{
    static const char text[] = "{}\r\n\n{}\n{}";
    struct place *p = &place;
    struct strbuf gz;
    char file[BATCH_ID_MAX], id[BATCH_ID_MAX];
    place_open(p);
    strbuf_init(&gz);
    util_compress(UTIL_GZIP, text, sizeof text - 1, &gz);
    CU_ASSERT_EQUAL(upload(p, "f.gz", gz.data, gz.n, file), 200);
    CU_ASSERT_EQUAL(begin(p, file, "", 0, id), 200);
    CU_ASSERT_PTR_NOT_NULL(strstr(p->answer, "\"total\":4,"));
    CU_ASSERT_EQUAL(upload(p, "f.gz", gz.data, gz.n - 9, file), 200);
    CU_ASSERT_EQUAL(begin(p, file, "", 0, id), 400);
    CU_ASSERT_PTR_NOT_NULL(strstr(p->answer, "gzip"));
    CU_ASSERT_EQUAL(upload(p, "f", "PAR1", 4, file), 200);
    CU_ASSERT_EQUAL(begin(p, file, "", 0, id), 400);
    CU_ASSERT_EQUAL(upload(p, "f", "", 0, file), 200);
    CU_ASSERT_EQUAL(begin(p, file, "", 0, id), 200);
    CU_ASSERT_PTR_NOT_NULL(strstr(p->answer, "\"total\":0,"));
    strbuf_fini(&gz);
    place_close(p);
}

/* A folder in the place of the entry's temporary file lets no entry be written. */
static void a_cancellation_that_is_not_stored_is_none(void)
{
    struct place *p = &place;
    char file[BATCH_ID_MAX], id[BATCH_ID_MAX], way[256];
    place_open(p);
    CU_ASSERT_EQUAL(upload(p, "f", "{}\n", 3, file), 200);
    CU_ASSERT_EQUAL(begin(p, file, "", 0, id), 200);
    snprintf(way, sizeof way, "%.63s/%s.json.tmp", p->folder.path, id);
    CU_ASSERT_EQUAL(mkdir(way, 0700), 0);
    CU_ASSERT_EQUAL(call(p, path_of("POST /v1/batches/%s/cancel", id), ""), 500);
    CU_ASSERT_PTR_NOT_NULL(strstr(p->answer, "\"internal_error\""));
    CU_ASSERT_EQUAL(call(p, path_of("GET /v1/batches/%s", id), ""), 200);
    CU_ASSERT_PTR_NOT_NULL(strstr(p->answer, "\"status\":\"in_progress\""));
    CU_ASSERT_EQUAL(rmdir(way), 0);
    CU_ASSERT_EQUAL(call(p, path_of("POST /v1/batches/%s/cancel", id), ""), 200);
    CU_ASSERT_PTR_NOT_NULL(strstr(p->answer, "\"status\":\"cancelling\""));
    place_close(p);
}

/* Each allocation of POST /v1/batches fails once: the client is told so, and the folder has what
 * the server shows. */
static void calls_without_memory_are_refused(void)
{
    struct place *p = &place;
    char file[BATCH_ID_MAX], id[BATCH_ID_MAX];
    int status = 0, n_refused = 0;
    place_open(p);
    CU_ASSERT_EQUAL(upload(p, "f", "{}\n", 3, file), 200);
    for (uint64_t i = 1; i < 200 && status != 200; i++) {
        status = begin(p, file, ",\"metadata\":{\"a\":\"b\"}", i, id);
        CU_ASSERT(status == 200 || status == 503);
        if (status != 503) continue;
        CU_ASSERT_PTR_NOT_NULL(strstr(p->answer, "\"out_of_memory\""));
        n_refused++;
    }
    CU_ASSERT(status == 200 && n_refused > 5);
    check_restart("GET /v1/batches");
    place_close(p);
}

/* ---- running ---- */

/* A lead's port that has batches only. */
struct runner {
    struct batches *batches;
    struct file_claims *claims;       /* NULL: none */
    const struct util_folder *losing; /* another server takes it before the first read; NULL: no */
    struct status failed;
    uint64_t fail_at;         /* the allocation of the first read that fails; 0: none */
    size_t n_read_one;        /* lines that the lead has after the first read */
    int n_reads, n_reads_max; /* after the last one no more lines are read; 0: no limit */
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
    r->failed = batches_create(folder, "", r->claims, &r->batches);
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

/* Compares the folder's batch, and once it has ended its output. Returns its status. */
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

/* The rows of a job with these lines. */
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

/* A server whose folder another one has taken ends, and leaves the batch to the other. */
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
 * resumed behind it. */
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

void suite_batches(CU_pSuite suite);
void suite_batches(CU_pSuite suite)
{
    CU_add_test(suite, "texts of clients survive a restart", texts_of_clients_survive_a_restart);
    CU_add_test(suite, "metadata are checked", metadata_are_checked);
    CU_add_test(suite, "lines are counted", lines_are_counted);
    CU_add_test(suite, "a cancellation that is not stored is none",
                a_cancellation_that_is_not_stored_is_none);
    CU_add_test(suite, "calls without memory are refused", calls_without_memory_are_refused);
    CU_add_test(suite, "a batch without memory is postponed", a_batch_without_memory_is_postponed);
    CU_add_test(suite, "a lost folder ends the run", a_lost_folder_ends_the_run);
    CU_add_test(suite, "a long line is resumed", a_long_line_is_resumed);
    CU_add_test(suite, "grammars are compiled in steps", grammars_are_compiled_in_steps);
}
