/* Reads small files and replaces files atomically. */
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

enum { LINKS_MAX = 40 }; /* the limit of Linux */

static const char *file_kind_of(mode_t mode)
{
    if (S_ISDIR(mode)) return "folder";
    if (S_ISFIFO(mode)) return "pipe";
    if (S_ISSOCK(mode)) return "socket";
    return S_ISCHR(mode) || S_ISBLK(mode) ? "device" : "file of another kind";
}

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

int file_open_regular(const char *path, int flags)
{
    struct stat info;
    const int fd = open(path, flags | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd < 0) {
        if (errno == ENXIO) errno = EINVAL; /* a socket, or a FIFO without a reader */
        return -1;
    }
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) return fd;
    close(fd);
    errno = EINVAL;
    return -1;
}

FILE *file_create_regular(const char *path)
{
    const int fd = file_open_regular(path, O_WRONLY | O_CREAT | O_TRUNC);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && f == NULL) close(fd);
    return f;
}

bool file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* Replaces *path, a symlink, with its target. A relative target is relative to the link's folder.
 */
static struct status follow_link(char **path)
{
    char target[4096];
    struct strbuf s;
    const ssize_t n = readlink(*path, target, sizeof target);
    if (n < 0) return status_make(STATUS_IO, "%s: %s", *path, strerror(errno));
    if ((size_t)n == sizeof target) {
        return status_make(STATUS_IO, "%s: a link to a path of %zu bytes or more", *path,
                           sizeof target);
    }
    const char *slash = target[0] == '/' ? NULL : strrchr(*path, '/');
    strbuf_init(&s);
    if (slash != NULL) strbuf_add(&s, *path, (size_t)(slash - *path) + 1);
    strbuf_add(&s, target, (size_t)n);
    mem_free(path);
    *path = s.data;
    return strbuf_status(&s);
}

struct status file_target(const char *path, char **out)
{
    struct stat info;
    TRY(mem_strndup(out, path, strlen(path)));
    struct status st = status_ok();
    int n_links = 0;
    while (!status_failed(&st) && lstat(*out, &info) == 0 && S_ISLNK(info.st_mode)) {
        st = n_links++ < LINKS_MAX ? follow_link(out)
                                   : status_make(STATUS_IO, "%s: %s", path, strerror(ELOOP));
    }
    if (status_failed(&st)) mem_free(out);
    return st;
}

struct status file_target_regular(const char *path, char **out)
{
    struct stat info;
    TRY(file_target(path, out));
    if (lstat(*out, &info) != 0 || S_ISREG(info.st_mode)) return status_ok();
    mem_free(out);
    return status_make(STATUS_USAGE,
                       "%s: expected a regular file, or none, found a %s, which is left alone",
                       path, file_kind_of(info.st_mode));
}

/* Some file systems cannot sync a folder, and say so with EINVAL or ENOTSUP. */
static struct status sync_path(const char *path, int flags)
{
    const int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0) return status_make(STATUS_IO, "%s: %s", path, strerror(errno));
    const int failed = fsync(fd);
    const int reason = errno;
    close(fd);
    if (failed && (flags & O_DIRECTORY) != 0 && (reason == EINVAL || reason == ENOTSUP))
        return status_ok();
    if (failed) return status_make(STATUS_IO, "%s: fsync: %s", path, strerror(reason));
    return status_ok();
}

struct status file_commit(const char *temporary, const char *path)
{
    char *copy = NULL; /* made before the rename, after which only the disk may fail */
    TRY(mem_strndup(&copy, path, strlen(path)));
    struct status st = sync_path(temporary, O_RDWR);
    if (!status_failed(&st) && rename(temporary, path) != 0)
        st = status_make(STATUS_IO, "%s: rename to %s: %s", temporary, path, strerror(errno));
    if (!status_failed(&st)) st = sync_path(dirname(copy), O_RDONLY | O_DIRECTORY);
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
