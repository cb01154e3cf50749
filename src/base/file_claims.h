/* Keeps two jobs from writing one file. A job claims each file before it writes to it. A second job
 * is refused, with a sentence that names the first job's host, pid and job id. A claim is a lease:
 * a file named FILE.lease beside the real file (symlinks are followed), locked, and renewed by a
 * thread (file_lease.h). When a job is killed, later jobs on the same host may take over its lease
 * at once, jobs on other hosts after LEASE_STALE_S. Does not lock the file itself; its writer does.
 * Called by jobs and by `shoal merge`; the lead and the server's batches check their claims before
 * each write. */
#ifndef SHOAL_BASE_FILE_CLAIMS_H
#define SHOAL_BASE_FILE_CLAIMS_H

#include "base/status.h"

#include <stdint.h>

struct file_claims;

/* Local. Makes an empty set of claims. job: the batch job's name, for other jobs to read ("Slurm
 * job 17"); NULL: none. launcher: the pid of the MPI launcher that started this process, so that
 * other jobs can tell when it is gone; 0: none. Errors: STATUS_MEMORY. */
struct status file_claims_create(const char *job, int32_t launcher, struct file_claims **out);

/* Local. Claims the file `path`; `what` (borrowed) names it in sentences ("output"). Does nothing
 * for a device or a pipe. When no lease can be made beside the file, logs a warning and goes on
 * without one. May wait: up to 0.3 s for any other process to end; after a log line up to 15 s for
 * one that was killed or whose launcher is gone, and up to LEASE_STALE_S for a lease of another
 * host. Errors: STATUS_USAGE (another process has the file; the sentence names it), STATUS_IO,
 * STATUS_MEMORY. */
struct status file_claims_add(struct file_claims *c, const char *what, const char *path);

/* Local, any thread. Errors: STATUS_IO when another job has taken over a claim because this process
 * was suspended for longer than LEASE_STALE_S: it must not write any more. Accepts NULL. */
struct status file_claims_check(struct file_claims *c);

/* Local, any thread. Renews all leases now; the renewing thread does so every LEASE_RENEW_S. Makes
 * a lease again that was removed. A lease that another job holds is lost for good; one that cannot
 * be reached for a while is not. */
void file_claims_renew(struct file_claims *c);

/* Local. Removes the leases. Accepts NULL. */
void file_claims_destroy(struct file_claims **c);

#endif
