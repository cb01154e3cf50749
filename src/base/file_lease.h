/* A lease is a small text file that names the process which writes the file beside it: host,
 * kernel, pid, launcher, batch job. Makes, reads and judges leases; file_claims.c takes and renews
 * them.
 *
 * A lock alone does not reach every host (NFS mounted with nolock or local_lock, Lustre with
 * localflock). A lease alone cannot tell at once that its owner was killed. So both are used:
 *
 *   lease locked by another process of this kernel   held
 *   lease not locked, its owner's kernel is this one  void: the owner is gone
 *   lease of another kernel, renewed within 60 s      not known: perhaps no lock reaches that host
 *   lease of another kernel, older                    void
 *
 * A kernel is named by its boot id, so that a container's host name does not matter. */
#ifndef SHOAL_BASE_FILE_LEASE_H
#define SHOAL_BASE_FILE_LEASE_H

#include "base/status.h"

#include <stdint.h>
#include <sys/types.h>

enum { LEASE_RENEW_S = 10, LEASE_STALE_S = 60 };

/* The owner of a lease. Texts are cut to fit. */
struct lease_owner {
    char host[72], kernel[40], job[72]; /* job: "Slurm job 17"; empty: none */
    int32_t pid;                        /* 0: the lease could not be read */
    int32_t launcher; /* the parent process at the start, if a launcher; else 0; -1: it was gone by
                         then */
    uint64_t started; /* of the process, as in struct proc_thread */
};

/* Local. This process as an owner. job may be NULL; launcher: the parent process at the start of
 * the program, if it is a launcher, else 0. */
struct lease_owner lease_owner_self(const char *job, int32_t launcher);

/* Local. "host n017, pid 4242, Slurm job 17", for sentences. */
void lease_owner_describe(const struct lease_owner *o, char *out, size_t n_bytes);

enum lease_state {
    LEASE_GONE,    /* there is no lease */
    LEASE_VOID,    /* its owner is gone */
    LEASE_HELD,    /* its owner runs */
    LEASE_ENDING,  /* held, but the owner has died or lost its launcher: it ends within seconds */
    LEASE_UNKNOWN, /* fresh, and of another kernel */
};

/* A lease that was looked at. */
struct lease_view {
    enum lease_state state;
    struct lease_owner owner;
    int fd;         /* open, and locked where locks work; -1: LEASE_GONE */
    bool is_locked; /* by fd */
    ino_t inode;
    int64_t renewed_ns; /* when, on the file system's clock */
    double age_s;
};

/* Local. Looks at the lease `path`. now_fd is a file of the same file system that may be touched:
 * its time stamp tells what the file system's clock says. Close with lease_view_close. Errors:
 * STATUS_IO (the lease cannot be opened), STATUS_USAGE (the file is no lease). */
struct status lease_look(const char *path, int now_fd, struct lease_view *out);
void lease_view_close(struct lease_view *v);

/* Local. Makes a locked file `path` that names `o`; *fd keeps the lock. To be linked or renamed
 * into its place, so that no lease is ever empty or unlocked. Returns 0 or the errno. */
int lease_make(const char *path, const struct lease_owner *o, int *fd);

/* Local. True when the file that stands at `path` is the open file fd. */
bool lease_is_at(const char *path, int fd);

#endif
