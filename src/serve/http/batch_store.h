/* The folder of --batch-dir: uploaded files and batches, which survive a restart of the server.
 * Each has an entry, a small JSON file that is replaced as a whole:
 *
 *   file-ID.json     its name, purpose and size        file-ID.jsonl      its bytes
 *   batch_ID.json    its files, status and times       batch_ID.journal   while it runs
 *
 * Knows no requests and no HTTP. Called by batches.c and batch_run.c, on the lead's thread. */
#ifndef SHOAL_SERVE_HTTP_BATCH_STORE_H
#define SHOAL_SERVE_HTTP_BATCH_STORE_H

#include "base/file_claims.h"
#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

/* The sizes in bytes of an id, a name and an error, with their NUL, and of the longest metadata. */
enum {
    BATCH_ID_MAX = 48,
    BATCH_NAME_MAX = 256,
    BATCH_ERROR_MAX = 512,
    BATCH_METADATA_MAX = 64 << 10
};

/* An uploaded file, or the output of a batch. An id has letters, digits, '-' and '_'; the other
 * texts are UTF-8 (utf8_copy), which JSON stores unchanged. */
struct batch_file {
    char id[BATCH_ID_MAX];
    char name[BATCH_NAME_MAX], purpose[BATCH_ID_MAX];
    int64_t n_bytes, created_s; /* created_s: seconds since 1970 */
    struct batch_file *next;
};

/* The values of a batch's status in OpenAI's interface. */
enum batch_status {
    BATCH_RUNNING,    /* "in_progress": it runs, or waits for earlier ones */
    BATCH_CANCELLING, /* its requests are being cancelled */
    BATCH_COMPLETED,
    BATCH_FAILED,
    BATCH_CANCELLED,
    BATCH_STATUS_COUNT
};

struct batch {
    char id[BATCH_ID_MAX], input[BATCH_ID_MAX], output[BATCH_ID_MAX]; /* input, output: files */
    char endpoint[BATCH_ID_MAX], window[BATCH_ID_MAX];
    char *metadata; /* JSON; owned; NULL: none */
    enum batch_status status;
    char error[BATCH_ERROR_MAX]; /* why it failed; "": it did not */
    int64_t created_s, ended_s;
    uint64_t n_lines, n_completed, n_failed;
    bool is_postponed; /* memory ran out, so the batch waits for the server's next start or until
                          it is cancelled; not stored */
    struct batch *next;
};

struct batch_store {
    char *folder; /* owned; NULL: there is no --batch-dir */
    /* borrowed; once the claim on the folder is lost, nothing is written */
    struct file_claims *claims;
    struct batch_file *files; /* lists, the newest first; owned */
    struct batch *batches;
};

/* Local. Makes the folder if it is missing (mode 700), claims it, then reads its entries. A damaged
 * entry is left out, and the log names it. claims NULL: claims nothing. Errors: STATUS_USAGE (the
 * folder cannot be made, read or written, or another server has it, which the sentence names),
 * STATUS_IO, STATUS_MEMORY. */
struct status batch_store_open(struct batch_store *s, const char *folder,
                               struct file_claims *claims);
void batch_store_close(struct batch_store *s);

/* Local. Return the entry with this id; NULL: none. */
struct batch_file *batch_store_file(const struct batch_store *s, const char *id);
struct batch *batch_store_batch(const struct batch_store *s, const char *id);

/* Local. Sets *out to the path of an entry's file with this ending (".jsonl", ".journal"), in new
 * memory. Errors: STATUS_MEMORY. */
struct status batch_store_path(const struct batch_store *s, const char *id, const char *ending,
                               char **out);

/* Local. Writes n bytes as a new file, durably, and adds its entry (*out). Errors: STATUS_IO,
 * STATUS_MEMORY. */
struct status batch_store_add_file(struct batch_store *s, const char *name, const char *purpose,
                                   const char *bytes, size_t n, struct batch_file **out);

/* Local. Adds the entry (*out) for the file that already exists in the folder under this id.
 * Errors: STATUS_IO, STATUS_MEMORY. */
struct status batch_store_enter_file(struct batch_store *s, const char *id, const char *name,
                                     const char *purpose, struct batch_file **out);

/* Local. Removes a file and its entry; ignores errors. */
void batch_store_remove_file(struct batch_store *s, const char *id);

/* Local. Adds a batch. *out has a new id, a new output id and the time; the caller fills in
 * everything else and then calls batch_store_save. Errors: STATUS_IO, STATUS_MEMORY. */
struct status batch_store_add_batch(struct batch_store *s, struct batch **out);

/* Local. Removes and frees a batch that batch_store_add_batch has made; ignores errors. */
void batch_store_remove_batch(struct batch_store *s, struct batch *b);

/* Local. Writes a batch's entry durably. Errors: STATUS_IO, STATUS_MEMORY. */
struct status batch_store_save(const struct batch_store *s, const struct batch *b);

/* Local. Append an entry as a JSON object in OpenAI's form; errors stay in `out`. */
void batch_file_write(const struct batch_file *f, struct strbuf *out);
void batch_write(const struct batch *b, struct strbuf *out);

/* Local. Returns the time now, in seconds since 1970. */
int64_t batch_now_s(void);

#endif
