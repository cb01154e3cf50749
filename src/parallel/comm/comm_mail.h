/* Messages between the hosts of an axis: in one direction, one message for each pair of hosts. The
 * ranks of a host write what they send to their shared memory; one of them sends it for all, and
 * the ranks of the receiving host read it in shared memory. The other hosts are dealt to a
 * host's ranks in turn.
 *
 *     host 0: rank a [ for 1 | for 2 ]   a sends both ranks' "for 1" --> host 1, as one message
 *             rank b [ for 1 | for 2 ]   b sends both ranks' "for 2" --> host 2
 *
 * Messages carry bytes and no counts: the receiver probes their size. An axis may have two mails,
 * with memory and messages of their own, so that one travels while the other is read. Called by
 * src/moe. */
#ifndef SHOAL_PARALLEL_COMM_COMM_MAIL_H
#define SHOAL_PARALLEL_COMM_COMM_MAIL_H

#include "parallel/comm/comm.h"

struct comm_mail;

enum { COMM_MAILS = 2 };

/* Local. Opens mail `number`, below COMM_MAILS. *out = NULL when the axis has one rank, or when its
 * shared memory may not be used. The same on all ranks of the axis. Close it before comm_stop.
 * Errors: STATUS_MEMORY. */
struct status comm_mail_open(struct comm *c, enum comm_axis axis, int number,
                             struct comm_mail **out);

/* Local. Accepts NULL. A mail that was started and not finished is ended first, so that MPI no
 * longer uses its memory and the next mail of its number receives none of its messages: then all
 * ranks of the axis must have started it, and finish or close it. */
void comm_mail_close(struct comm_mail **m);

/* Where the ranks of the axis are. Arrays are borrowed from the communicator. */
struct comm_mail_places {
    int n_hosts, host;   /* host: this rank's */
    int n_local, local;  /* ranks on this host; this rank's number among them */
    const int *host_of;  /* [ranks] */
    const int *local_of; /* [ranks] */
    const int *n_on;     /* [n_hosts] ranks of each host */
};

/* Local. */
struct comm_mail_places comm_mail_places_of(const struct comm_mail *m);

/* Local. Returns this rank's memory of a mail for one purpose, at least n_bytes, which the ranks of
 * its host can read. `lane` is COMM_LANE_ROWS_OUT, _ROWS_BACK, _EXPERT_OUTPUTS or _MAIL also for
 * the second mail, which has lanes of its own. On a host of one rank a larger call may lose the
 * content and move the memory. Ends the job when there is no memory. comm_mail_memory_of: that of a
 * rank of this host. Barriers order the accesses. */
void *comm_mail_memory(struct comm_mail *m, enum comm_lane lane, size_t n_bytes);
const void *comm_mail_memory_of(const struct comm_mail *m, enum comm_lane lane, int local);

/* Local. Bytes of this rank's memory for all purposes and for the messages that it has received. */
uint64_t comm_mail_bytes(const struct comm_mail *m);

/* **Collective (host's ranks of the axis)**. */
void comm_mail_barrier(struct comm_mail *m);

/* A part of what a rank sends to a host: n_bytes of the rank's memory, from `offset` on. */
struct comm_mail_piece {
    uint64_t offset, n_bytes;
};

/* Local. Bytes at the start of this rank's memory that a mail needs for its list of n_pieces pieces
 * for each host; a multiple of 64. */
size_t comm_mail_head_bytes(const struct comm_mail *m, size_t n_pieces);

/* **Collective (axis)**, this and the next. Sends the pieces [n_hosts, n_pieces] of this rank's
 * memory `lane` to each host, in their order, after those of the ranks before it on this host.
 * Pieces for this host are not sent. Returns when the pieces of other ranks of this host may be
 * read; messages may still be under way. Until comm_mail_finish they move whenever this rank is
 * inside MPI: comm_poll and the team's calling thread see to it (team_poll_with), because most
 * libraries move large messages only then. A host must send another less than 2 GiB. A mail is
 * started again only after its comm_mail_finish. */
void comm_mail_start(struct comm *c, struct comm_mail *m, enum comm_lane lane,
                     const struct comm_mail_piece *pieces, size_t n_pieces);

/* Returns when all messages to this host are readable, and all that this rank sent have left.
 * *sent_bytes: what this rank sent to other hosts. */
void comm_mail_finish(struct comm *c, struct comm_mail *m, size_t *sent_bytes);

/* Local, until the next comm_mail_start. Returns the message of another host, and its bytes. */
const void *comm_mail_message(const struct comm_mail *m, int host, size_t *n_bytes);

/* Local, after comm_mail_start, until that rank may write its memory again. Returns a rank's first
 * piece for a host, and its bytes. */
const void *comm_mail_piece_of(const struct comm_mail *m, enum comm_lane lane, int local, int host,
                               size_t *n_bytes);

#if defined SHOAL_DEBUG && !defined COMM_INSIDE
#define comm_mail_start(c, ...)  comm_mail_start(COMM_SITE(c), __VA_ARGS__)
#define comm_mail_finish(c, ...) comm_mail_finish(COMM_SITE(c), __VA_ARGS__)
#endif

#endif
