/* Calls about files and batches, over a socket of this process; no batch runs. */
#include "serve/http/batches.h"

#include "base/mem.h"
#include "serve/http/batch_store.h"
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

static const char *const endpoints[] = {"/v1/completions", "/v1/chat/completions", NULL};

static const char *const models[] = {"model", NULL};

enum { ANSWER_MAX = 1 << 18 };

struct place {
    struct util_folder folder;
    struct http_server *server;
    struct batches *batches;
    char answer[ANSWER_MAX]; /* the body of the last answer */
    char type[96];           /* the Content-Type of calls */
};

static void open_batches(struct place *p)
{
    const struct status st = batches_create(p->folder.path, "", endpoints, NULL, &p->batches);
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
    struct status st = http_server_create(&f, models, &p->server);
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

/* Sends a call, which this thread answers as the lead does. fail_at: while it answers, this
 * allocation fails; 0: none. Returns the connection. */
static int send_call(struct place *p, const char *method_path, const char *body, size_t n,
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
    return fd;
}

/* As send_call; also reads the answer into p->answer, and returns its status. */
static int call_failing(struct place *p, const char *method_path, const char *body, size_t n,
                        uint64_t fail_at)
{
    const int fd = send_call(p, method_path, body, n, fail_at);
    const int status = read_answer(p, fd);
    close(fd);
    return status;
}

static int call(struct place *p, const char *method_path, const char *body)
{
    return call_failing(p, method_path, body, strlen(body), 0);
}

/* Uploads a file. Sets id to the file's id; returns the answer's status. */
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

/* Asks for a batch of the file; `more`: further fields. Sets id to the batch's id; returns the
 * answer's status. */
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

/* Checks that a server gives the same answer before and after a restart. */
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

/* A file of 256 MiB is not read into memory to send it. */
static void files_are_sent_in_pieces(void)
{
    enum { FILE_MIB = 256, PEAK_MIB = 32 };
    struct place *p = &place;
    char file[BATCH_ID_MAX], path[256];
    size_t n = 0;
    place_open(p);
    CU_ASSERT_EQUAL(upload(p, "f", "{}\n", 3, file), 200);
    snprintf(path, sizeof path, "%.63s/%s.jsonl", p->folder.path, file);
    CU_ASSERT_EQUAL(truncate(path, (off_t)FILE_MIB << 20), 0);
    const uint64_t before = util_peak_restart();
    const int fd = send_call(p, path_of("GET /v1/files/%s/content", file), "", 0, 0);
    for (ssize_t got = 1; got > 0; n += got > 0 ? (size_t)got : 0)
        got = recv(fd, p->answer, sizeof p->answer, 0);
    close(fd);
    CU_ASSERT(n > (size_t)FILE_MIB << 20 && n < ((size_t)FILE_MIB << 20) + 1024);
    CU_ASSERT(mem_peak_bytes() < before + ((uint64_t)PEAK_MIB << 20));
    place_close(p);
}

/* Nobody writes to the FIFO, and the server does not wait. */
static void a_fifo_in_a_file_s_place_is_refused(void)
{
    struct place *p = &place;
    char file[BATCH_ID_MAX], path[256];
    place_open(p);
    CU_ASSERT_EQUAL(upload(p, "f", "{}\n", 3, file), 200);
    snprintf(path, sizeof path, "%.63s/%s.jsonl", p->folder.path, file);
    CU_ASSERT_EQUAL_FATAL(unlink(path) + mkfifo(path, 0600), 0);
    alarm(60); /* a call that waits ends the test */
    CU_ASSERT_EQUAL(call(p, path_of("GET /v1/files/%s/content", file), ""), 500);
    CU_ASSERT_PTR_NOT_NULL(strstr(p->answer, "cannot be read"));
    alarm(0);
    place_close(p);
}

/* A folder in place of the entry's temporary file keeps the entry from being written. */
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

void suite_batches(CU_pSuite suite);
void suite_batches(CU_pSuite suite)
{
    CU_add_test(suite, "texts of clients survive a restart", texts_of_clients_survive_a_restart);
    CU_add_test(suite, "metadata are checked", metadata_are_checked);
    CU_add_test(suite, "lines are counted", lines_are_counted);
    CU_add_test(suite, "files are sent in pieces", files_are_sent_in_pieces);
    CU_add_test(suite, "a FIFO in a file's place is refused", a_fifo_in_a_file_s_place_is_refused);
    CU_add_test(suite, "a cancellation that is not stored is none",
                a_cancellation_that_is_not_stored_is_none);
    CU_add_test(suite, "calls without memory are refused", calls_without_memory_are_refused);
}
