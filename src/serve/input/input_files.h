/* The files of an input, in order: paths as they were given, and patterns of paths. Reads no file.
 * Called by the job, the lead, and the commands merge, plan and status; line_reader.h and
 * input_part.h read the files one after the other. */
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
    char *name; /* names all of them in sentences: "a.jsonl", "a.jsonl and 2 more"; owned */
};

/* Local. Returns a list of one file. It borrows `path`, so do not free it with input_files_fini. */
struct input_files input_files_one(const char *const *path);

/* Local. Makes the list of the paths `given` [n_given], at least one. A path with *, ? or [ that
 * names no file is a pattern; it stands for the matching paths, sorted by their bytes. In
 * FILE.h5:/PATH only FILE may be a pattern. A single input may be anything, even "-"; several
 * inputs must be different regular files or datasets. Errors: STATUS_INPUT (a pattern without a
 * match or with a folder that cannot be read; one of several inputs is missing or no regular file),
 * STATUS_USAGE (a file given twice; "-" beside others; more than INPUT_FILES_MAX), STATUS_MEMORY.
 */
struct status input_files_expand(const char *const *given, size_t n_given, struct input_files *out);
void input_files_fini(struct input_files *f);

/* Local. True when `given` is a pattern, or an existing regular file or its dataset; false for a
 * pipe, a device, stdin and a missing file. */
bool input_files_is_stored(const char *given);

/* Local. True when `given` is a pattern, with or without a dataset's :/PATH, that will match the
 * file `name` in `folder` once that file exists. */
bool input_files_will_match(const char *given, const char *folder, const char *name);

/* Local. Calls stat(2) for a path; if it names a dataset, for the dataset's file. */
int input_files_stat(const char *path, struct stat *info);

/* Local. Appends the names of several inputs to `out`, as settings of a journal. Appends nothing
 * for one input, which may be renamed. */
void input_files_settings(const struct input_files *f, struct strbuf *out);

/* Local. Returns the bytes of all files on the disk; a file that cannot be found counts 0. */
uint64_t input_files_size(const struct input_files *f);

/* Local. Returns the first of the inputs that is the regular file `path` (by device and inode);
 * NULL: none. */
const char *input_files_find(const struct input_files *f, const char *path);

#endif
