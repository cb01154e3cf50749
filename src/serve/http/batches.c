/* Answers calls for files and batches, and begins, runs and ends batches. */
#include "serve/http/batches.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "serve/http/batch_run.h"
#include "serve/http/multipart.h"
#include "serve/input/line_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COUNTED_BYTES = 16 << 20 };

struct batches {
    struct batch_store store;
    char *settings; /* owned */
    const char *const *endpoints;
    struct batch *running; /* NULL: none */
    struct batch_run *run; /* open files of the running batch; owned; NULL: none */
    pthread_mutex_t lock;  /* guards the pointer `run`, because the watchdog's thread may save the
                              run at any time */
    struct status failure; /* why the running batch fails; set while its requests are being
                              cancelled */
    bool is_stopped;
};

/* Closes the open run and replaces it by `run`. */
static void set_run(struct batches *b, struct batch_run *run)
{
    pthread_mutex_lock(&b->lock);
    batch_run_destroy(&b->run);
    b->run = run;
    pthread_mutex_unlock(&b->lock);
}

struct status batches_create(const char *folder, const char *settings, const char *const *endpoints,
                             struct file_claims *claims, struct batches **out)
{
    struct batches *b = NULL;
    *out = NULL;
    TRY(mem_alloc(&b, 1, sizeof *b, "batches"));
    b->endpoints = endpoints;
    pthread_mutex_init(&b->lock, NULL);
    struct status st = mem_strndup(&b->settings, settings, strlen(settings));
    if (!status_failed(&st) && folder != NULL) st = batch_store_open(&b->store, folder, claims);
    if (status_failed(&st)) batches_destroy(&b);
    *out = b;
    return st;
}

void batches_destroy(struct batches **batches)
{
    struct batches *b = *batches;
    if (b == NULL) return;
    set_run(b, NULL);
    batch_store_close(&b->store);
    pthread_mutex_destroy(&b->lock);
    mem_free(&b->settings);
    mem_free(batches);
}

/* ---- the batch that runs ---- */

static bool is_open(const struct batch *b)
{
    return b->status == BATCH_RUNNING || b->status == BATCH_CANCELLING;
}

/* Returns the oldest batch that waits to run, NULL if none does; the list has the newest first. */
static struct batch *next_batch(const struct batches *b)
{
    struct batch *found = NULL;
    for (struct batch *at = b->store.batches; at != NULL; at = at->next)
        if (is_open(at) && !at->is_postponed) found = at;
    return found;
}

bool batches_has_work(const struct batches *b)
{
    return !b->is_stopped && (b->running != NULL || next_batch(b) != NULL);
}

/* Records how the running batch ended. If its entry cannot be written, a later server resumes the
 * batch. */
static void record_end(struct batches *b, enum batch_status status)
{
    struct batch *at = b->running;
    char *journal = NULL;
    at->status = status;
    at->ended_s = batch_now_s();
    struct status st = batch_store_save(&b->store, at);
    if (!status_failed(&st)) st = batch_store_path(&b->store, at->id, ".journal", &journal);
    if (!status_failed(&st)) (void)unlink(journal);
    if (status_failed(&st)) log_line(LOG_ERROR, "batch %s: %s", at->id, st.text);
    mem_free(&journal);
    b->running = NULL;
    b->failure = status_ok();
}

static struct status enter_output(struct batches *b)
{
    struct batch_file *output;
    char name[BATCH_NAME_MAX];
    if (batch_store_file(&b->store, b->running->output) != NULL) return status_ok();
    snprintf(name, sizeof name, "%s_output.jsonl", b->running->id);
    return batch_store_enter_file(&b->store, b->running->output, name, "batch_output", &output);
}

/* Stops the running batch, which lacks memory; its entry and journal stay for the next start. */
static void postpone(struct batches *b, const struct status *why)
{
    log_line(LOG_ERROR, "batch %s: %s; it stays in progress, and the next start continues it",
             b->running->id, why->text);
    b->running->is_postponed = true;
    b->running = NULL;
    b->failure = status_ok();
}

/* Ends the running batch. The lead must have none of its requests. */
static void end_batch(struct batches *b)
{
    struct batch *at = b->running;
    struct status st = b->failure;
    if (!status_failed(&st)) st = batch_run_close(b->run);
    if (!status_failed(&st)) st = enter_output(b);
    set_run(b, NULL);
    if (!status_failed(&st)) {
        record_end(b, at->status == BATCH_CANCELLING ? BATCH_CANCELLED : BATCH_COMPLETED);
        return;
    }
    if (st.code == STATUS_MEMORY) {
        postpone(b, &st);
        return;
    }
    log_line(LOG_ERROR, "batch %s failed: %s", at->id, st.text);
    (void)utf8_copy(at->error, sizeof at->error, st.text, strlen(st.text));
    record_end(b, BATCH_FAILED);
}

/* Opens the next batch. False: it cannot be opened, and has failed or is postponed. */
static bool begin_next(struct batches *b)
{
    struct batch_run *run = NULL;
    b->running = next_batch(b);
    b->failure = batch_run_create(&b->store, b->running, b->settings, &run);
    set_run(b, run);
    if (!status_failed(&b->failure)) return true;
    end_batch(b);
    return false;
}

struct status batches_read(struct batches *b, struct lead *l)
{
    TRY(file_claims_check(b->store.claims));
    if (!batches_has_work(b)) return status_ok();
    if (b->running == NULL && !begin_next(b)) return status_ok();
    const bool goes_on = b->running->status != BATCH_CANCELLING || batch_run_resumes(b->run);
    if (goes_on && !status_failed(&b->failure)) {
        struct status failure;
        const struct status st = batch_run_read(b->run, l, &failure);
        if (!status_failed(&b->failure)) b->failure = failure; /* batches_put may have set it */
        TRY(st);
        if (!status_failed(&b->failure) && batch_run_is_done(b->run)) end_batch(b);
        return status_ok();
    }
    TRY(batch_run_cancel(b->run, l));
    if (batch_run_n_open(b->run) == 0) end_batch(b);
    return status_ok();
}

void batches_put(struct batches *b, struct lead *l, const struct request *r)
{
    const struct status st = batch_run_put(b->run, l, r);
    if (status_failed(&st) && !status_failed(&b->failure)) b->failure = st;
}

void batches_commit(struct batches *b)
{
    if (b->run == NULL || status_failed(&b->failure)) return;
    b->failure = batch_run_commit(b->run, false);
}

void batches_stop(struct batches *b)
{
    b->is_stopped = true;
}

void batches_close(struct batches *b)
{
    if (b->run == NULL || status_failed(&b->failure)) return;
    const struct status st = batch_run_commit(b->run, true);
    if (status_failed(&st)) log_line(LOG_ERROR, "batch %s: %s", b->running->id, st.text);
}

void batches_save(struct batches *b)
{
    pthread_mutex_lock(&b->lock);
    if (b->run != NULL) batch_run_save(b->run);
    pthread_mutex_unlock(&b->lock);
}

/* ---- calls ---- */

/* An answer that is being made. */
struct answer {
    enum http_status status;
    struct strbuf body;
};

static const char *error_code_of(enum http_status status)
{
    if (status == HTTP_NOT_FOUND) return "not_found";
    if (status == HTTP_UNAVAILABLE) return HTTP_MEMORY_CODE;
    return status == HTTP_INTERNAL ? "internal_error" : "invalid_request";
}

static void refuse_batch(struct answer *a, enum http_status status, const char *message)
{
    a->status = status;
    strbuf_clear(&a->body);
    http_error(status, error_code_of(status), message, &a->body);
}

/* True when st is ok; otherwise refuses the call with the text of st. */
static bool is_good(struct answer *a, const struct status *st)
{
    const enum http_status status = st->code == STATUS_MEMORY  ? HTTP_UNAVAILABLE
                                    : st->code == STATUS_INPUT ? HTTP_BAD_REQUEST
                                                               : HTTP_INTERNAL;
    if (status_failed(st)) refuse_batch(a, status, st->text);
    return !status_failed(st);
}

static bool is_part(const struct multipart_part *p, const char *name)
{
    return p->n_name == strlen(name) && memcmp(p->name, name, p->n_name) == 0;
}

static void add_file(struct batches *b, struct exchange *x, struct answer *a)
{
    struct multipart m;
    struct multipart_part part, file = {.data = NULL};
    char purpose[BATCH_ID_MAX] = "batch", name[BATCH_NAME_MAX] = "file.jsonl";
    struct batch_file *entry;
    size_t n, at = 0;
    const char *body = exchange_body(x, &n);
    if (!multipart_init(&m, exchange_content_type(x), body, n)) {
        refuse_batch(a, HTTP_BAD_REQUEST, "expected multipart/form-data with a boundary");
        return;
    }
    while (multipart_next(&m, &at, &part)) {
        if (is_part(&part, "purpose")) (void)utf8_copy(purpose, sizeof purpose, part.data, part.n);
        if (is_part(&part, "file")) file = part;
    }
    if (file.data == NULL || strcmp(purpose, "batch") != 0) {
        refuse_batch(a, HTTP_BAD_REQUEST,
                     "expected the parts file and purpose, which must be batch");
        return;
    }
    if (file.n_file_name > 0) (void)utf8_copy(name, sizeof name, file.file_name, file.n_file_name);
    const struct status st =
        batch_store_add_file(&b->store, name, purpose, file.data, file.n, &entry);
    if (is_good(a, &st)) batch_file_write(entry, &a->body);
}

static void list_page(struct batches *b, bool of_batches, struct answer *a)
{
    const char *comma = "";
    strbuf_puts(&a->body, "{\"object\":\"list\",\"data\":[");
    for (struct batch_file *f = b->store.files; f != NULL && !of_batches; f = f->next) {
        strbuf_puts(&a->body, comma);
        batch_file_write(f, &a->body);
        comma = ",";
    }
    for (struct batch *at = b->store.batches; at != NULL && of_batches; at = at->next) {
        strbuf_puts(&a->body, comma);
        batch_write(at, &a->body);
        comma = ",";
    }
    strbuf_puts(&a->body, "],\"has_more\":false}");
}

static bool is_used(const struct batches *b, const char *file)
{
    for (struct batch *at = b->store.batches; at != NULL; at = at->next)
        if (is_open(at) && strcmp(at->input, file) == 0) return true;
    return false;
}

static void delete_file(struct batches *b, const char *id, struct answer *a)
{
    if (is_used(b, id)) {
        refuse_batch(a, HTTP_CONFLICT, "a batch that has not ended reads this file");
        return;
    }
    batch_store_remove_file(&b->store, id);
    strbuf_printf(&a->body, "{\"id\":\"%s\",\"object\":\"file\",\"deleted\":true}", id);
}

/* Sends a file's bytes and ends the call. If the file cannot be opened, only refuses the call and
 * returns false. */
static bool send_file(struct batches *b, struct exchange *x, const char *id, struct answer *a)
{
    char *path = NULL;
    struct stat info;
    struct status st = batch_store_path(&b->store, id, ".jsonl", &path);
    const int fd = status_failed(&st) ? -1 : file_open_regular(path, O_RDONLY);
    if (!status_failed(&st) && (fd < 0 || fstat(fd, &info) != 0))
        st = status_make(STATUS_IO, "the file cannot be read: %s", strerror(errno));
    mem_free(&path);
    if (!is_good(a, &st)) {
        if (fd >= 0) close(fd);
        return false;
    }
    exchange_answer_file(x, fd, (uint64_t)info.st_size);
    return true;
}

/* Errors: STATUS_INPUT if a batch may not name this endpoint; the sentence lists those that it may.
 */
static struct status check_endpoint(const struct batches *all, const char *endpoint)
{
    const char *const *e = all->endpoints;
    for (int i = 0; endpoint != NULL && e[i] != NULL; i++)
        if (strcmp(endpoint, e[i]) == 0) return status_ok();
    return status_make(STATUS_INPUT, "endpoint: expected %s%s%s", e[0], e[1] != NULL ? " or " : "",
                       e[1] != NULL ? e[1] : "");
}

/* Reads the call's fields into b. Errors: STATUS_INPUT. */
static struct status read_batch(const struct batches *all, const struct js_node *root,
                                struct batch *b)
{
    size_t n_input = 0, n_endpoint = 0, n_window = 0;
    const char *input = js_string(js_get(root, "input_file_id"), &n_input);
    const char *endpoint = js_string(js_get(root, "endpoint"), &n_endpoint);
    const char *window = js_string(js_get(root, "completion_window"), &n_window);
    if (input == NULL || batch_store_file(&all->store, input) == NULL)
        return status_make(STATUS_INPUT, "input_file_id: there is no such file");
    TRY(check_endpoint(all, endpoint));
    (void)utf8_copy(b->input, sizeof b->input, input, n_input);
    (void)utf8_copy(b->endpoint, sizeof b->endpoint, endpoint, n_endpoint);
    (void)utf8_copy(b->window, sizeof b->window, window != NULL ? window : "24h",
                    window != NULL ? n_window : 3);
    return status_ok();
}

/* Counts the lines in about the first COUNTED_BYTES of a file (decompressed), because a call must
 * not take long. Errors: STATUS_INPUT (no lines of text, damaged), STATUS_IO, STATUS_MEMORY. */
static struct status count_lines(const struct batches *b, const char *id, uint64_t *n)
{
    char *path = NULL;
    struct line_reader *reader = NULL;
    struct line line = {.kind = LINE_OK};
    *n = 0;
    TRY(batch_store_path(&b->store, id, ".jsonl", &path));
    struct status st = line_reader_create(path, 0, &reader);
    mem_free(&path);
    if (!status_failed(&st)) st = line_reader_check(reader);
    while (!status_failed(&st) && line_reader_offset(reader) < COUNTED_BYTES) {
        st = line_reader_next(reader, false, &line);
        if (status_failed(&st) || line.kind == LINE_END || line.kind == LINE_WAIT) break;
        *n = line.number;
    }
    line_reader_destroy(&reader);
    return st;
}

/* Reads the call's metadata into b, which then owns them. */
static struct status read_metadata(const struct js_node *root, struct batch *b)
{
    size_t n;
    const struct js_node *node = js_get(root, "metadata");
    if (js_type(node) == JS_NULL) return status_ok();
    if (js_type(node) != JS_OBJECT)
        return status_make(STATUS_INPUT, "metadata: expected an object");
    TRY(js_dump(node, &b->metadata, &n));
    if (n <= BATCH_METADATA_MAX) return status_ok();
    return status_make(STATUS_INPUT, "metadata: expected at most %d bytes, found %zu",
                       BATCH_METADATA_MAX, n);
}

/* Adds the batch that a call asked for; takes ownership of asked->metadata. */
static struct status begin_batch(struct batches *b, struct batch *asked, struct batch **out)
{
    struct batch *made;
    TRY(count_lines(b, asked->input, &asked->n_lines));
    TRY(batch_store_add_batch(&b->store, &made));
    memcpy(made->input, asked->input, sizeof made->input);
    memcpy(made->endpoint, asked->endpoint, sizeof made->endpoint);
    memcpy(made->window, asked->window, sizeof made->window);
    made->n_lines = asked->n_lines;
    made->metadata = asked->metadata;
    asked->metadata = NULL;
    const struct status st = batch_store_save(&b->store, made);
    if (status_failed(&st)) batch_store_remove_batch(&b->store, made);
    *out = made;
    return st;
}

static void add_batch(struct batches *b, struct exchange *x, struct answer *a)
{
    struct js_doc *doc = NULL;
    struct batch asked = {.status = BATCH_RUNNING}, *made = NULL;
    size_t n;
    const char *body = exchange_body(x, &n);
    struct status st = js_parse(body, n, "body", &doc);
    if (!status_failed(&st)) st = read_batch(b, js_root(doc), &asked);
    if (!status_failed(&st)) st = read_metadata(js_root(doc), &asked);
    if (!status_failed(&st)) st = begin_batch(b, &asked, &made);
    if (is_good(a, &st)) {
        batch_write(made, &a->body);
        st = strbuf_status(&a->body); /* without an answer the client would not know the batch's
                                         id */
        if (status_failed(&st)) batch_store_remove_batch(&b->store, made);
    }
    mem_free(&asked.metadata);
    js_destroy(&doc);
}

static void cancel_batch(struct batches *b, struct batch *at, struct answer *a)
{
    if (at->status == BATCH_RUNNING) {
        at->status = BATCH_CANCELLING;
        const struct status st = batch_store_save(&b->store, at);
        if (status_failed(&st)) at->status = BATCH_RUNNING;
        if (!is_good(a, &st)) return;
        at->is_postponed = false; /* cancelling may need less memory than running */
    }
    batch_write(at, &a->body);
}

bool batches_has(enum http_endpoint endpoint)
{
    return endpoint >= HTTP_FILE_ADD && endpoint <= HTTP_BATCH_CANCEL;
}

/* Answers a call that names a file. Returns whether the call has ended. */
static bool answer_file(struct batches *b, struct exchange *x, struct answer *a)
{
    const struct batch_file *f = batch_store_file(&b->store, exchange_item(x));
    if (f == NULL) {
        refuse_batch(a, HTTP_NOT_FOUND, "there is no such file");
    } else if (exchange_endpoint(x) == HTTP_FILE_CONTENT) {
        return send_file(b, x, f->id, a);
    } else if (exchange_endpoint(x) == HTTP_FILE_DELETE) {
        delete_file(b, exchange_item(x), a);
    } else {
        batch_file_write(f, &a->body);
    }
    return false;
}

static void answer_batch(struct batches *b, struct exchange *x, struct answer *a)
{
    struct batch *at = batch_store_batch(&b->store, exchange_item(x));
    if (at == NULL) {
        refuse_batch(a, HTTP_NOT_FOUND, "there is no such batch");
    } else if (exchange_endpoint(x) == HTTP_BATCH_CANCEL) {
        cancel_batch(b, at, a);
    } else {
        batch_write(at, &a->body);
    }
}

/* Makes the answer to a call, except for a file's bytes, which are sent at once. Returns whether
 * the call has ended. */
static bool answer_call(struct batches *b, struct exchange *x, struct answer *a)
{
    const enum http_endpoint e = exchange_endpoint(x);
    if (b->store.folder == NULL) {
        refuse_batch(a, HTTP_NOT_FOUND, "this server has no --batch-dir");
    } else if (e == HTTP_FILE_ADD) {
        add_file(b, x, a);
    } else if (e == HTTP_BATCH_ADD) {
        add_batch(b, x, a);
    } else if (e == HTTP_FILE_LIST || e == HTTP_BATCH_LIST) {
        list_page(b, e == HTTP_BATCH_LIST, a);
    } else if (e == HTTP_BATCH_GET || e == HTTP_BATCH_CANCEL) {
        answer_batch(b, x, a);
    } else {
        return answer_file(b, x, a);
    }
    return false;
}

struct status batches_call(struct batches *b, struct exchange *x)
{
    struct answer a = {.status = HTTP_OK};
    strbuf_init(&a.body);
    const bool has_ended = answer_call(b, x, &a);
    struct status st = strbuf_status(&a.body);
    if (!is_good(&a, &st)) st = strbuf_status(&a.body);
    if (!has_ended) exchange_answer(x, a.status, "application/json", &a.body);
    strbuf_fini(&a.body);
    return st;
}
