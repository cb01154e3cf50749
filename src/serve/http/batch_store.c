/* Reads and writes the entries of the folder. An entry is the JSON object that clients see; a
 * batch's entry also has the id of its output. */
#include "serve/http/batch_store.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ENTRY_BYTES_MAX = 1 << 20 };
static const char entry_ending[] = ".json"; /* the ending of an entry's name */

static const char *const status_names[BATCH_STATUS_COUNT] = {[BATCH_RUNNING] = "in_progress",
                                                             [BATCH_CANCELLING] = "cancelling",
                                                             [BATCH_COMPLETED] = "completed",
                                                             [BATCH_FAILED] = "failed",
                                                             [BATCH_CANCELLED] = "cancelled"};

int64_t batch_now_s(void)
{
    return (int64_t)time(NULL);
}

/* ---- entries as JSON ---- */

static void add_string(struct strbuf *out, const char *key, const char *value)
{
    strbuf_printf(out, "\"%s\":", key);
    strbuf_json_string(out, value, strlen(value));
    strbuf_puts(out, ",");
}

/* Appends the time of the batch's end or, if it has not ended with `status`, null. */
static void add_end(struct strbuf *out, const char *key, const struct batch *b,
                    enum batch_status status)
{
    if (b->status == status) strbuf_printf(out, "\"%s\":%lld,", key, (long long)b->ended_s);
    if (b->status != status) strbuf_printf(out, "\"%s\":null,", key);
}

void batch_file_write(const struct batch_file *f, struct strbuf *out)
{
    strbuf_puts(out, "{");
    add_string(out, "id", f->id);
    strbuf_printf(out, "\"object\":\"file\",\"bytes\":%lld,\"created_at\":%lld,",
                  (long long)f->n_bytes, (long long)f->created_s);
    add_string(out, "filename", f->name);
    add_string(out, "purpose", f->purpose);
    strbuf_puts(out, "\"status\":\"processed\"}");
}

static void add_errors(struct strbuf *out, const struct batch *b)
{
    if (b->error[0] == '\0') {
        strbuf_puts(out, "\"errors\":null,");
        return;
    }
    strbuf_puts(out, "\"errors\":{\"object\":\"list\",\"data\":[{");
    add_string(out, "message", b->error);
    strbuf_puts(out, "\"code\":\"batch_failed\",\"param\":null,\"line\":null}]},");
}

static bool has_output(const struct batch *b)
{
    return b->status == BATCH_COMPLETED || b->status == BATCH_CANCELLED;
}

void batch_write(const struct batch *b, struct strbuf *out)
{
    strbuf_puts(out, "{");
    add_string(out, "id", b->id);
    strbuf_puts(out, "\"object\":\"batch\",");
    add_string(out, "endpoint", b->endpoint);
    add_errors(out, b);
    add_string(out, "input_file_id", b->input);
    add_string(out, "completion_window", b->window);
    add_string(out, "status", status_names[b->status]);
    if (has_output(b)) add_string(out, "output_file_id", b->output);
    if (!has_output(b)) strbuf_puts(out, "\"output_file_id\":null,");
    strbuf_printf(out, "\"error_file_id\":null,\"created_at\":%lld,\"in_progress_at\":%lld,",
                  (long long)b->created_s, (long long)b->created_s);
    add_end(out, "completed_at", b, BATCH_COMPLETED);
    add_end(out, "failed_at", b, BATCH_FAILED);
    add_end(out, "cancelled_at", b, BATCH_CANCELLED);
    strbuf_printf(out, "\"request_counts\":{\"total\":%llu,\"completed\":%llu,\"failed\":%llu},",
                  (unsigned long long)b->n_lines, (unsigned long long)b->n_completed,
                  (unsigned long long)b->n_failed);
    strbuf_printf(out, "\"metadata\":%s}", b->metadata != NULL ? b->metadata : "null");
}

static bool take_string(const struct js_node *root, const char *key, char *out, size_t capacity)
{
    size_t n;
    const char *text = js_string(js_get(root, key), &n);
    if (text != NULL) (void)utf8_copy(out, capacity, text, n);
    return text != NULL;
}

/* Copies an id, which becomes a part of a file's name. False: it is not a valid id. */
static bool take_member_id(const struct js_node *root, const char *key, char out[BATCH_ID_MAX])
{
    size_t n;
    const char *text = js_string(js_get(root, key), &n);
    if (text == NULL || n == 0 || n >= BATCH_ID_MAX) return false;
    if (strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != n)
        return false;
    memcpy(out, text, n + 1);
    return true;
}

static uint64_t take_count(const struct js_node *root, const char *key)
{
    int64_t n = 0;
    return js_int(js_get(root, key), &n) && n > 0 ? (uint64_t)n : 0;
}

static bool read_file_entry(const struct js_node *root, struct batch_file *f)
{
    return take_member_id(root, "id", f->id) &&
           take_string(root, "filename", f->name, sizeof f->name) &&
           take_string(root, "purpose", f->purpose, sizeof f->purpose) &&
           js_int(js_get(root, "bytes"), &f->n_bytes) &&
           js_int(js_get(root, "created_at"), &f->created_s);
}

static struct status read_stored_metadata(const struct js_node *root, struct batch *b)
{
    size_t n;
    const struct js_node *node = js_get(root, "metadata");
    return js_type(node) == JS_OBJECT ? js_dump(node, &b->metadata, &n) : status_ok();
}

/* Reads a batch's entry. "output" is the id of the output file, which clients see only once the
 * batch has been completed or cancelled. */
static bool read_batch_entry(const struct js_node *root, struct batch *b)
{
    static const char *const ends[] = {"completed_at", "failed_at", "cancelled_at"};
    const struct js_node *counts = js_get(root, "request_counts");
    char status[BATCH_ID_MAX];
    bool is_good = take_member_id(root, "id", b->id) &&
                   take_member_id(root, "input_file_id", b->input) &&
                   take_member_id(root, "output", b->output) &&
                   take_string(root, "endpoint", b->endpoint, sizeof b->endpoint) &&
                   take_string(root, "completion_window", b->window, sizeof b->window) &&
                   take_string(root, "status", status, sizeof status) &&
                   js_int(js_get(root, "created_at"), &b->created_s);
    const struct js_node *errors = js_get(js_get(root, "errors"), "data");
    (void)take_string(js_at(errors, 0), "message", b->error, sizeof b->error);
    for (int i = 0; i < 3; i++) (void)js_int(js_get(root, ends[i]), &b->ended_s);
    b->n_lines = take_count(counts, "total");
    b->n_completed = take_count(counts, "completed");
    b->n_failed = take_count(counts, "failed");
    b->status = BATCH_STATUS_COUNT;
    for (int i = 0; i < BATCH_STATUS_COUNT && is_good; i++)
        if (strcmp(status, status_names[i]) == 0) b->status = (enum batch_status)i;
    return is_good && b->status != BATCH_STATUS_COUNT;
}

/* ---- the folder ---- */

struct status batch_store_path(const struct batch_store *s, const char *id, const char *ending,
                               char **out)
{
    char name[BATCH_ID_MAX + 16];
    snprintf(name, sizeof name, "%s%s", id, ending);
    return file_join(s->folder, name, out);
}

/* Writes a temporary file, and replaces `path` by it once it is durable. */
static struct status write_batch_file(const struct batch_store *s, const char *path,
                                      const char *bytes, size_t n)
{
    struct strbuf temporary;
    TRY(file_claims_check(s->claims));
    strbuf_init(&temporary);
    strbuf_printf(&temporary, "%s.tmp", path);
    struct status st = strbuf_status(&temporary);
    FILE *file = status_failed(&st) ? NULL : file_create_regular(temporary.data);
    if (!status_failed(&st)) {
        const bool is_written = file != NULL && fwrite(bytes, 1, n, file) == n;
        const bool is_closed = file != NULL && fclose(file) == 0;
        if (!is_written || !is_closed)
            st = status_make(STATUS_IO, "%s: cannot be written: %s", path, strerror(errno));
    }
    if (!status_failed(&st)) st = file_commit(temporary.data, path);
    if (status_failed(&st) && temporary.data != NULL) (void)unlink(temporary.data);
    strbuf_fini(&temporary);
    return st;
}

static struct status write_entry(const struct batch_store *s, const char *id,
                                 const struct strbuf *text)
{
    char *path = NULL;
    TRY(strbuf_status(text));
    TRY(batch_store_path(s, id, entry_ending, &path));
    const struct status st = write_batch_file(s, path, text->data, text->n);
    mem_free(&path);
    return st;
}

static struct status save_file(const struct batch_store *s, const struct batch_file *f)
{
    struct strbuf text;
    strbuf_init(&text);
    batch_file_write(f, &text);
    const struct status st = write_entry(s, f->id, &text);
    strbuf_fini(&text);
    return st;
}

struct status batch_store_save(const struct batch_store *s, const struct batch *b)
{
    struct strbuf text;
    strbuf_init(&text);
    batch_write(b, &text);
    if (text.n > 0) text.n--; /* the closing brace */
    strbuf_puts(&text, ",");
    add_string(&text, "output", b->output);
    if (text.n > 0) text.n--; /* the comma */
    strbuf_puts(&text, "}\n");
    const struct status st = write_entry(s, b->id, &text);
    strbuf_fini(&text);
    return st;
}

static void free_batch(struct batch *b)
{
    if (b != NULL) mem_free(&b->metadata);
    mem_free(&b);
}

/* Reads an entry and adds it to the list. *is_good: the entry is valid and has the id that its file
 * is named after. */
static struct status take_file(struct batch_store *s, const struct js_node *root, const char *id,
                               bool *is_good)
{
    struct batch_file *f = NULL;
    TRY(mem_alloc(&f, 1, sizeof *f, "batches"));
    *is_good = read_file_entry(root, f) && strcmp(f->id, id) == 0;
    struct batch_file **at = &s->files;
    while (*is_good && *at != NULL && (*at)->created_s > f->created_s) at = &(*at)->next;
    f->next = *at;
    if (*is_good) *at = f;
    if (!*is_good) mem_free(&f);
    return status_ok();
}

static struct status take_batch(struct batch_store *s, const struct js_node *root, const char *id,
                                bool *is_good)
{
    struct batch *b = NULL;
    TRY(mem_alloc(&b, 1, sizeof *b, "batches"));
    *is_good = read_batch_entry(root, b) && strcmp(b->id, id) == 0;
    const struct status st = read_stored_metadata(root, b);
    if (!*is_good || status_failed(&st)) {
        free_batch(b);
        return st;
    }
    struct batch **at = &s->batches;
    while (*at != NULL && (*at)->created_s > b->created_s) at = &(*at)->next;
    b->next = *at;
    *at = b;
    return st;
}

static bool is_entry(const char *name)
{
    const size_t n = strlen(name), n_ending = sizeof entry_ending - 1;
    return n > n_ending && strcmp(name + n - n_ending, entry_ending) == 0 &&
           (strncmp(name, "file-", 5) == 0 || strncmp(name, "batch_", 6) == 0);
}

static struct status read_entry(struct batch_store *s, const char *name)
{
    char *path = NULL, *text = NULL, id[BATCH_ID_MAX] = "";
    size_t n;
    struct js_doc *doc = NULL;
    bool is_good = false;
    const size_t n_id = strlen(name) - (sizeof entry_ending - 1);
    if (n_id < sizeof id) memcpy(id, name, n_id); /* with a longer id the entry is refused below */
    TRY(file_join(s->folder, name, &path));
    struct status st = file_read(path, ENTRY_BYTES_MAX, &text, &n);
    if (!status_failed(&st)) st = js_parse(text, n, path, &doc);
    if (!status_failed(&st) && strncmp(name, "file-", 5) == 0)
        st = take_file(s, js_root(doc), id, &is_good);
    else if (!status_failed(&st))
        st = take_batch(s, js_root(doc), id, &is_good);
    if (!status_failed(&st) && !is_good)
        st = status_make(STATUS_INPUT, "%s: expected the entry of a file or a batch", path);
    js_destroy(&doc);
    mem_free(&text);
    mem_free(&path);
    return st;
}

static struct status read_entries(struct batch_store *s)
{
    DIR *dir = opendir(s->folder);
    struct status st = status_ok();
    if (dir == NULL)
        return status_make(STATUS_USAGE, "--batch-dir %s: cannot be read: %s", s->folder,
                           strerror(errno));
    for (struct dirent *e = readdir(dir); e != NULL && st.code != STATUS_MEMORY; e = readdir(dir)) {
        st = is_entry(e->d_name) ? read_entry(s, e->d_name) : status_ok();
        if (status_failed(&st) && st.code != STATUS_MEMORY)
            log_line(LOG_WARN, "--batch-dir: %s; the entry is left out", st.text);
    }
    closedir(dir);
    return st.code == STATUS_MEMORY ? st : status_ok();
}

/* Makes the folder, and claims the name "server" in it, so that no other server uses the folder. */
static struct status make_folder(const char *folder, struct file_claims *claims)
{
    struct stat info;
    char *path = NULL;
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return status_make(STATUS_USAGE, "--batch-dir %s: cannot be made: %s", folder,
                           strerror(errno));
    const bool is_there = stat(folder, &info) == 0;
    if (is_there && !S_ISDIR(info.st_mode))
        return status_make(STATUS_USAGE, "--batch-dir %s: expected a folder, found a file", folder);
    if (is_there && (info.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        log_line(LOG_WARN, "--batch-dir %s: others may enter it; chmod 700 keeps it secret",
                 folder);
    if (access(folder, W_OK | X_OK) != 0)
        return status_make(STATUS_USAGE, "--batch-dir %s: cannot be written: %s", folder,
                           strerror(errno));
    if (claims == NULL) return status_ok();
    TRY(file_join(folder, "server", &path));
    const struct status st = file_claims_add(claims, "--batch-dir", path);
    mem_free(&path);
    return st;
}

struct status batch_store_open(struct batch_store *s, const char *folder,
                               struct file_claims *claims)
{
    TRY(make_folder(folder, claims));
    TRY(mem_strndup(&s->folder, folder, strlen(folder)));
    s->claims = claims;
    return read_entries(s);
}

void batch_store_close(struct batch_store *s)
{
    while (s->files != NULL) {
        struct batch_file *f = s->files;
        s->files = f->next;
        mem_free(&f);
    }
    while (s->batches != NULL) {
        struct batch *b = s->batches;
        s->batches = b->next;
        free_batch(b);
    }
    mem_free(&s->folder);
}

struct batch_file *batch_store_file(const struct batch_store *s, const char *id)
{
    struct batch_file *f = s->files;
    while (f != NULL && strcmp(f->id, id) != 0) f = f->next;
    return f;
}

struct batch *batch_store_batch(const struct batch_store *s, const char *id)
{
    struct batch *b = s->batches;
    while (b != NULL && strcmp(b->id, id) != 0) b = b->next;
    return b;
}

/* Makes an id with 96 random bits: an entry of another server is unlikely to have the same id. */
static struct status make_id(const char *kind, char id[BATCH_ID_MAX])
{
    uint64_t random[2];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return status_make(STATUS_IO, "random numbers cannot be read: %s", strerror(errno));
    snprintf(id, BATCH_ID_MAX, "%s%08llx%016llx", kind,
             (unsigned long long)(random[0] & 0xFFFFFFFF), (unsigned long long)random[1]);
    return status_ok();
}

struct status batch_store_enter_file(struct batch_store *s, const char *id, const char *name,
                                     const char *purpose, struct batch_file **out)
{
    struct batch_file *f = NULL;
    char *path = NULL;
    struct stat info;
    *out = NULL;
    TRY(mem_alloc(&f, 1, sizeof *f, "batches"));
    snprintf(f->id, sizeof f->id, "%s", id);
    (void)utf8_copy(f->name, sizeof f->name, name, strlen(name));
    (void)utf8_copy(f->purpose, sizeof f->purpose, purpose, strlen(purpose));
    f->created_s = batch_now_s();
    struct status st = batch_store_path(s, id, ".jsonl", &path);
    if (!status_failed(&st) && stat(path, &info) != 0)
        st = status_make(STATUS_IO, "%s: %s", path, strerror(errno));
    if (!status_failed(&st)) f->n_bytes = (int64_t)info.st_size;
    if (!status_failed(&st)) st = save_file(s, f);
    mem_free(&path);
    if (status_failed(&st)) {
        mem_free(&f);
        return st;
    }
    f->next = s->files;
    s->files = *out = f;
    return st;
}

struct status batch_store_add_file(struct batch_store *s, const char *name, const char *purpose,
                                   const char *bytes, size_t n, struct batch_file **out)
{
    char id[BATCH_ID_MAX], *path = NULL;
    *out = NULL;
    TRY(make_id("file-", id));
    TRY(batch_store_path(s, id, ".jsonl", &path));
    struct status st = write_batch_file(s, path, bytes, n);
    if (!status_failed(&st)) st = batch_store_enter_file(s, id, name, purpose, out);
    if (status_failed(&st)) (void)unlink(path);
    mem_free(&path);
    return st;
}

/* Removes an entry's file with this ending, unless another server has taken the folder. */
static void remove_path(const struct batch_store *s, const char *id, const char *ending)
{
    char *path = NULL;
    struct status st = file_claims_check(s->claims);
    if (!status_failed(&st)) st = batch_store_path(s, id, ending, &path);
    if (!status_failed(&st)) (void)unlink(path);
    mem_free(&path);
}

void batch_store_remove_file(struct batch_store *s, const char *id)
{
    struct batch_file **at = &s->files;
    remove_path(s, id, entry_ending);
    remove_path(s, id, ".jsonl");
    while (*at != NULL && strcmp((*at)->id, id) != 0) at = &(*at)->next;
    if (*at == NULL) return;
    struct batch_file *f = *at;
    *at = f->next;
    mem_free(&f);
}

struct status batch_store_add_batch(struct batch_store *s, struct batch **out)
{
    struct batch *b = NULL;
    *out = NULL;
    TRY(mem_alloc(&b, 1, sizeof *b, "batches"));
    struct status st = make_id("batch_", b->id);
    if (!status_failed(&st)) st = make_id("file-", b->output);
    if (status_failed(&st)) {
        mem_free(&b);
        return st;
    }
    b->created_s = batch_now_s();
    b->next = s->batches;
    s->batches = *out = b;
    return st;
}

void batch_store_remove_batch(struct batch_store *s, struct batch *b)
{
    struct batch **at = &s->batches;
    remove_path(s, b->id, entry_ending);
    while (*at != b) at = &(*at)->next;
    *at = b->next;
    free_batch(b);
}
