/* Small-file reading and atomic replacement. */
#include "base/file.h"

#include "base/mem.h"
#include "base/strbuf.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct status check_regular(int fd, const char *path, size_t max_bytes, size_t *n)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return status_make(STATUS_INPUT, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        return status_make(STATUS_INPUT, "%s: expected a regular file", path);
    }
    if ((uint64_t)info.st_size > max_bytes) {
        return status_make(STATUS_INPUT, "%s: %lld bytes, expected at most %zu", path,
                           (long long)info.st_size, max_bytes);
    }
    *n = (size_t)info.st_size;
    return status_ok();
}

static struct status read_all(int fd, const char *path, char *out, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = read(fd, out + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return status_make(STATUS_INPUT, "%s: %s", path, strerror(errno));
        if (got == 0) {
            return status_make(STATUS_INPUT, "%s: ends after %zu of %zu bytes", path, done, n);
        }
        done += (size_t)got;
    }
    return status_ok();
}

struct status file_read(const char *path, size_t max_bytes, char **out, size_t *n)
{
    *out = NULL;
    *n = 0;
    /* O_NONBLOCK: opening a FIFO must not hang; it is refused right after */
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return status_make(STATUS_INPUT, "%s: %s", path, strerror(errno));
    struct status st = check_regular(fd, path, max_bytes, n);
    if (!status_failed(&st)) st = mem_alloc(out, *n + 1, 1, path);
    if (!status_failed(&st)) st = read_all(fd, path, *out, *n);
    close(fd);
    if (status_failed(&st)) mem_free(out);
    return st;
}

bool file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static struct status sync_path(const char *path, int flags)
{
    const int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0) return status_make(STATUS_IO, "%s: %s", path, strerror(errno));
    const int failed = fsync(fd);
    const int reason = errno;
    close(fd);
    if (failed) return status_make(STATUS_IO, "%s: fsync: %s", path, strerror(reason));
    return status_ok();
}

struct status file_commit(const char *temporary, const char *path)
{
    TRY(sync_path(temporary, O_RDWR));
    if (rename(temporary, path) != 0) {
        return status_make(STATUS_IO, "%s: rename to %s: %s", temporary, path, strerror(errno));
    }
    char *copy = NULL;
    TRY(mem_strndup(&copy, path, strlen(path)));
    const struct status st = sync_path(dirname(copy), O_RDONLY | O_DIRECTORY);
    mem_free(&copy);
    return st;
}

struct status file_join(const char *folder, const char *name, char **out)
{
    struct strbuf s;
    strbuf_init(&s);
    strbuf_printf(&s, "%s/%s", folder, name);
    *out = s.data;
    return strbuf_status(&s);
}
