/* A lease is a small text file beside a file that a job writes. It names the writing process: host,
 * kernel, pid, launcher, batch job. file_lease.c makes, reads and judges leases, file_claims.c
 * takes and renews them.
 *
 * A lock alone does not reach every host (NFS mounted with nolock or local_lock, Lustre with
 * localflock). A lease alone cannot tell at once that its owner was killed. So both are used:
 *
 *   locked by another process                       held
 *   not locked, owner on this kernel                void: the owner is gone
 *   not locked, owner on another kernel:
 *       renewed within LEASE_STALE_S                unknown: perhaps no lock reaches that host
 *       older                                       void
 *
 * If flock fails, /proc says whether an owner on this kernel still runs. A kernel is named by its
 * boot id, so that a container's host name does not matter. */
#ifndef SHOAL_BASE_FILE_LEASE_H
#define SHOAL_BASE_FILE_LEASE_H

#include "base/status.h"

#include <stdint.h>
#include <sys/types.h>

enum { LEASE_RENEW_S = 10, LEASE_STALE_S = 60 };

/* The owner of a lease. Texts are truncated to fit. */
struct lease_owner {
    char host[72], kernel[40], job[72]; /* job: "Slurm job 17"; empty: none */
    int32_t pid;                        /* 0: the lease could not be read */
    int32_t launcher; /* parent process at the start, if it is a launcher; 0: none; -1: it had
                         already ended */
    uint64_t started; /* start time of the process, as in struct proc_thread */
};

/* Local. Describes this process as an owner. job may be NULL; launcher: the parent process at the
 * start of the program, if it is a launcher, else 0. */
struct lease_owner lease_owner_self(const char *job, int32_t launcher);

/* Local. Writes "host n017, pid 4242, Slurm job 17", for sentences; for pid 0, "it left no lease
 * that says which". */
void lease_owner_describe(const struct lease_owner *o, char *out, size_t n_bytes);

enum lease_state {
    LEASE_GONE,    /* there is no lease, or it was replaced during the look */
    LEASE_VOID,    /* its owner is gone */
    LEASE_HELD,    /* its owner runs */
    LEASE_ENDING,  /* held, but the owner was killed or lost its launcher: it ends within seconds */
    LEASE_UNKNOWN, /* not locked, recently renewed, owner on another kernel */
};

/* The result of lease_look. */
struct lease_view {
    enum lease_state state;
    struct lease_owner owner;
    int fd;         /* the lease that was opened; -1: there was none */
    bool is_locked; /* the lock is held by fd */
    ino_t inode;
    int64_t renewed_ns; /* time of the last renewal, on the file system's clock */
    double age_s;
};

/* Local. Opens, locks where possible, reads and judges the lease `path`. now_fd: an open file on
 * the same file system whose time stamp may be set; setting it reads the file system's clock. Close
 * with lease_view_close. Errors: STATUS_IO (the lease cannot be opened), STATUS_USAGE (the file is
 * not a lease). */
struct status lease_look(const char *path, int now_fd, struct lease_view *out);
void lease_view_close(struct lease_view *v);

/* Local. Makes a file `path` that names `o`, locked where locks work; *fd keeps the lock. The
 * caller links or renames it into place, so that no process sees an unfinished lease. Returns 0 or
 * the errno. */
int lease_make(const char *path, const struct lease_owner *o, int *fd);

/* Local. True when `path` is the open file fd. */
bool lease_is_at(const char *path, int fd);

#endif
