/* Replaces a report file as a whole: readers see the old file or the new one, never a part. Follows
 * symlinks, writes into pipes and devices. Does not fsync: a crash of the machine may lose the
 * report (file_commit prevents that). */
#ifndef SHOAL_BASE_FILE_REPLACE_H
#define SHOAL_BASE_FILE_REPLACE_H

#include "base/status.h"

#include <stdio.h>

struct file_replace {
    FILE *file;       /* the caller writes to it; NULL: none is open */
    const char *path; /* borrowed */
    char *target;     /* `path` without symlinks; owned */
    char *temporary;  /* beside the target; owned; NULL: the target itself is open */
};

/* Local. Opens TARGET.tmp for writing; TARGET is the file to which `path` leads. A target that
 * exists and is not a regular file (a pipe, /dev/stderr) is itself opened. Errors: STATUS_IO,
 * STATUS_MEMORY; then nothing is open. */
struct status file_replace_begin(struct file_replace *f, const char *path);

/* Local. Closes the file. If `st` is ok and all writes succeeded, renames the temporary file to the
 * target; otherwise removes it. Returns st, or STATUS_IO. */
struct status file_replace_end(struct file_replace *f, struct status st);

#endif
