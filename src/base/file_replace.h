/* A file that is written anew as a whole: readers see the old one or the new one, never a part. For
 * reports, which may be lost with the machine: nothing is fsynced (file_commit is the safe way). */
#ifndef SHOAL_BASE_FILE_REPLACE_H
#define SHOAL_BASE_FILE_REPLACE_H

#include "base/status.h"

#include <stdio.h>

struct file_replace {
    FILE *file;       /* to be written to; NULL: none is open */
    const char *path; /* borrowed */
    char *temporary;  /* owned; NULL: `path` itself is open */
};

/* Local. Opens path.tmp; a path that exists and is no regular file (a pipe, /dev/stderr) is opened
 * itself. Errors: STATUS_IO, STATUS_MEMORY; nothing is left to close then. */
struct status file_replace_begin(struct file_replace *f, const char *path);

/* Local. Closes, and puts the new file in the old one's place when `st` and all writes went well;
 * else takes the temporary file away. Returns st, or STATUS_IO. */
struct status file_replace_end(struct file_replace *f, struct status st);

#endif
