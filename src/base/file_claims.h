/* Keeps two jobs from writing one file. A job claims each file before it writes to it; the second
 * job is refused at once, with the first one's host, pid and job id. A claim is a lease file beside
 * the real file (symlinks are followed), named FILE.lease, locked and renewed by a thread
 * (file_lease.h); a killed job's lease is void for every later job of the same host, and for other
 * hosts after LEASE_STALE_S. Does not lock the file itself: its writer does.
 * Called by main's commands; asked by the lead before each write. */
#ifndef SHOAL_BASE_FILE_CLAIMS_H
#define SHOAL_BASE_FILE_CLAIMS_H

#include "base/status.h"

#include <stdint.h>

struct file_claims;

/* Local. No claim yet. job names this job for others ("Slurm job 17"); NULL: none. launcher: the
 * MPI launcher that was the parent process at the start of the program, without which this process
 * ends; 0: none. Errors: STATUS_MEMORY. */
struct status file_claims_create(const char *job, int32_t launcher, struct file_claims **out);

/* Local. Claims the file `path`; `what` names it in sentences ("output"). Does nothing for
 * something that is no regular file (a device, a pipe). Where no lease can be made beside the file,
 * a warning says so. May wait, after a sentence: up to 15 s for a process whose launcher is gone,
 * up to LEASE_STALE_S for a lease of another host. Errors: STATUS_USAGE (another process has the
 * file; the sentence names it), STATUS_IO, STATUS_MEMORY. */
struct status file_claims_add(struct file_claims *c, const char *what, const char *path);

/* Local, any thread. Errors: STATUS_IO when another job took a claim over, because this process was
 * held for longer than LEASE_STALE_S: it must not write any more. NULL is accepted. */
struct status file_claims_check(struct file_claims *c);

/* Local, any thread. Renews all leases now; the thread does so every LEASE_RENEW_S. One that
 * somebody removed is made again; one that is another job's is lost for good. */
void file_claims_renew(struct file_claims *c);

/* Local. Removes the leases. NULL is accepted. */
void file_claims_destroy(struct file_claims **c);

#endif
