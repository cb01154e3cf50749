/* The files of an input, in order: paths as they were given, and patterns of paths. Reads no file.
 * Called by the job and by merge; line_reader.h and input_part.h read the files one after the
 * other. */
#ifndef SHOAL_SERVE_INPUT_INPUT_FILES_H
#define SHOAL_SERVE_INPUT_INPUT_FILES_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum { INPUT_FILES_MAX = 4096 };

struct input_files {
    char **paths; /* [n], owned; at least one */
    size_t n;
    char *name; /* of all, for sentences: "a.jsonl", "a.jsonl and 2 more"; owned */
};

/* Local. Returns the list of the one file *path, which it borrows; do not free it. */
struct input_files input_files_one(const char *const *path);

/* Local. Makes the list of `given` [n_given], at least one. A path with *, ? or [ that is no file
 * stands for the paths that match it, sorted by their bytes; of FILE.h5:/PATH, only FILE is a
 * pattern. One input may be anything, even "-"; several must be regular files or datasets, each
 * there once. Errors: STATUS_INPUT (a pattern without a match, or in a folder that cannot be read;
 * of several, one that is missing or no regular file), STATUS_USAGE (a file given twice; "-" beside
 * others; more than INPUT_FILES_MAX), STATUS_MEMORY. */
struct status input_files_expand(const char *const *given, size_t n_given, struct input_files *out);
void input_files_fini(struct input_files *f);

/* Local. Whether `given` is a stored file, dataset or pattern, and no pipe, device or stdin. */
bool input_files_is_stored(const char *given);

/* Local. stat(2) of a path, or of the file of the dataset that it names. */
int input_files_stat(const char *path, struct stat *info);

/* Local. Appends the journal's settings, the names of several inputs, to `out`; nothing for one
 * input, which may be renamed. */
void input_files_settings(const struct input_files *f, struct strbuf *out);

/* Local. Returns the bytes of all files on the disk; 0 for one that cannot be found. */
uint64_t input_files_size(const struct input_files *f);

/* Local. Returns the first of the inputs that is the regular file `path` (by device and inode);
 * NULL: none. */
const char *input_files_find(const struct input_files *f, const char *path);

#endif
