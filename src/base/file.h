/* Reads small files whole, opens regular files without waiting, follows symlinks, and replaces a
 * file safely. */
#ifndef SHOAL_BASE_FILE_H
#define SHOAL_BASE_FILE_H

#include "base/status.h"

#include <stddef.h>
#include <stdio.h>

/* Local. Reads a regular file of at most max_bytes. *out is NUL-terminated, freed with mem_free.
 * Errors: STATUS_INPUT names the path and why (missing, a FIFO, too large); STATUS_MEMORY. */
struct status file_read(const char *path, size_t max_bytes, char **out, size_t *n);

/* Local. As open(2), but opens regular files only, and never waits (open(2) does for a FIFO without
 * a writer). flags: also O_CREAT, whose mode is 0666; O_CLOEXEC is added. On failure returns -1 and
 * sets errno (EINVAL: it is no regular file). */
int file_open_regular(const char *path, int flags);

/* Local. As fopen(path, "we"), but opens regular files only and never waits (file_open_regular). */
FILE *file_create_regular(const char *path);

/* Local. True when the path leads to a regular file. */
bool file_exists(const char *path);

/* Local. Finds the file to which a write to `path` goes: follows symlinks, also to a target that
 * does not exist yet. A new file renamed to *out leaves the link in place. *out is freed with
 * mem_free. Errors: STATUS_IO (a loop of links, a link that cannot be read), STATUS_MEMORY. */
struct status file_target(const char *path, char **out);

/* Local. As file_target, for a file that will be replaced as a whole. Errors: also STATUS_USAGE
 * when the target exists and is not a regular file (a device, a pipe, a folder), because a rename
 * would destroy it. */
struct status file_target_regular(const char *path, char **out);

/* Local. fsyncs `temporary`, renames it to `path` and fsyncs the folder, where the file system can:
 * the last step of a write that must be all or nothing, also if the machine stops. Errors:
 * STATUS_IO, STATUS_MEMORY. */
struct status file_commit(const char *temporary, const char *path);

/* Local. Sets *out to "folder/name" in new memory (mem_free). Errors: STATUS_MEMORY. */
struct status file_join(const char *folder, const char *name, char **out);

#endif
