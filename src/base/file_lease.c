/* Lease files: their text, their locks, and the judgement on them. */
#include "base/file_lease.h"

#include "base/proc_thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LEASE_BYTES = 512 };

static void read_first_line(const char *path, char *out, size_t n_bytes)
{
    FILE *f = fopen(path, "re");
    out[0] = '\0';
    if (f == NULL) return;
    if (fgets(out, (int)n_bytes, f) != NULL) out[strcspn(out, "\n")] = '\0';
    fclose(f);
}

/* Describes this process. If the launcher was killed before this process read its parent's pid,
 * that pid is 1; then the process is an orphan from the start. */
struct lease_owner lease_owner_self(const char *job, int32_t launcher)
{
    enum { INIT = 1, NOBODY = -1 };
    struct lease_owner o = {.pid = (int32_t)getpid(),
                            .launcher = launcher == INIT ? NOBODY : launcher};
    struct proc_thread me;
    if (gethostname(o.host, sizeof o.host - 1) != 0 || o.host[0] == '\0') strcpy(o.host, "unknown");
    read_first_line("/proc/sys/kernel/random/boot_id", o.kernel, sizeof o.kernel);
    if (o.kernel[0] == '\0') snprintf(o.kernel, sizeof o.kernel, "%.32s", o.host);
    if (proc_thread_read(o.pid, o.pid, &me)) o.started = me.started;
    if (job != NULL) snprintf(o.job, sizeof o.job, "%s", job);
    o.job[strcspn(o.job, "\n")] = '\0';
    return o;
}

void lease_owner_describe(const struct lease_owner *o, char *out, size_t n_bytes)
{
    if (o->pid == 0) {
        snprintf(out, n_bytes, "it left no lease that says which");
    } else {
        snprintf(out, n_bytes, "host %s, pid %d%s%s", o->host, o->pid,
                 o->job[0] != '\0' ? ", " : "", o->job);
    }
}

static struct lease_owner owner_read(int fd)
{
    struct lease_owner o = {.pid = 0};
    char text[LEASE_BYTES + 1];
    unsigned long long started = 0;
    const ssize_t n = pread(fd, text, LEASE_BYTES, 0);
    if (n <= 0) return o;
    text[n] = '\0';
    const char *job = strstr(text, "\njob ");
    const int n_read =
        sscanf(text, "shoal lease\nhost %71s\nkernel %39s\npid %d\nstarted %llu\nlauncher %d",
               o.host, o.kernel, &o.pid, &started, &o.launcher);
    if (n_read != 5 || o.pid <= 0) return (struct lease_owner){.pid = 0};
    o.started = started;
    if (job != NULL) snprintf(o.job, sizeof o.job, "%.*s", (int)strcspn(job + 5, "\n"), job + 5);
    return o;
}

int lease_make(const char *path, const struct lease_owner *o, int *fd)
{
    char text[LEASE_BYTES];
    const int n =
        snprintf(text, sizeof text,
                 "shoal lease\nhost %s\nkernel %s\npid %d\nstarted %llu\nlauncher %d\njob %s\n",
                 o->host, o->kernel, o->pid, (unsigned long long)o->started, o->launcher, o->job);
    *fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (*fd < 0) return errno;
    int error = 0;
    if (flock(*fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) error = errno;
    if (error == 0 && write(*fd, text, (size_t)n) != n) error = errno != 0 ? errno : EIO;
    if (error == 0) return 0;
    close(*fd);
    *fd = -1;
    unlink(path);
    return error;
}

bool lease_is_at(const char *path, int fd)
{
    struct stat there, mine;
    return stat(path, &there) == 0 && fstat(fd, &mine) == 0 && there.st_ino == mine.st_ino &&
           there.st_dev == mine.st_dev;
}

static int64_t renewed_ns(const struct stat *info)
{
    return (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec;
}

/* Touches the file of now_fd to learn the time of its file system's clock, which may be another
 * host's; 0: it cannot be told. */
static int64_t now_ns(int now_fd)
{
    struct stat info;
    if (futimens(now_fd, NULL) != 0 || fstat(now_fd, &info) != 0) return 0;
    return renewed_ns(&info);
}

static bool is_running(const struct lease_owner *o, struct proc_thread *out)
{
    return proc_thread_read(o->pid, o->pid, out) && out->started == o->started &&
           out->state != 'Z' && out->state != 'X';
}

/* Judges the lease as file_lease.h says. is_busy: another open file holds its lock. */
static enum lease_state file_lease_judge(const struct lease_view *v, bool is_busy)
{
    const struct lease_owner self = lease_owner_self(NULL, 0);
    const bool is_here = v->owner.pid != 0 && strcmp(v->owner.kernel, self.kernel) == 0;
    struct proc_thread owner;
    if (is_busy) {
        if (!is_here) return LEASE_HELD;
        const bool runs = is_running(&v->owner, &owner);
        const bool is_orphan = runs && v->owner.launcher != 0 && owner.parent != v->owner.launcher;
        return runs && !is_orphan ? LEASE_HELD : LEASE_ENDING;
    }
    if (is_here && (v->is_locked || !is_running(&v->owner, &owner))) return LEASE_VOID;
    if (is_here) return LEASE_HELD;
    return v->age_s >= LEASE_STALE_S ? LEASE_VOID : LEASE_UNKNOWN;
}

struct status lease_look(const char *path, int now_fd, struct lease_view *out)
{
    struct stat info;
    *out = (struct lease_view){.state = LEASE_GONE};
    out->fd = open(path, O_RDWR | O_CLOEXEC |
                             O_NONBLOCK); /* opened anew each time, so that NFS asks its server */
    if (out->fd < 0 && errno == ENOENT) return status_ok();
    if (out->fd < 0 || fstat(out->fd, &info) != 0) {
        const int error = errno;
        lease_view_close(out);
        return status_make(STATUS_IO,
                           "lease %s: cannot be opened: %s; remove it if nobody writes that file",
                           path, strerror(error));
    }
    const bool locked = flock(out->fd, LOCK_EX | LOCK_NB) == 0;
    const bool is_busy = !locked && errno == EWOULDBLOCK;
    out->is_locked = locked;
    out->owner = owner_read(out->fd);
    out->inode = info.st_ino;
    out->renewed_ns = renewed_ns(&info);
    out->age_s = (double)(now_ns(now_fd) - out->renewed_ns) * 1e-9;
    if (out->owner.pid == 0 && info.st_size > 0) {
        lease_view_close(out);
        return status_make(STATUS_USAGE,
                           "%s: expected a lease of shoal's, found another file, which is left "
                           "alone; rename it, or name another output",
                           path);
    }
    out->state = file_lease_judge(out, is_busy);
    if (!is_busy && !lease_is_at(path, out->fd)) out->state = LEASE_GONE; /* replaced meanwhile */
    return status_ok();
}

void lease_view_close(struct lease_view *v)
{
    if (v->fd >= 0) close(v->fd);
    v->fd = -1;
}
