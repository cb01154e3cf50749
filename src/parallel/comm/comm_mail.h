/* Messages between the hosts of an axis. In one mail each host sends each other host one message.
 * The ranks of a host write their data to shared memory; one of them sends it for all, and the
 * ranks of the receiving host read it in shared memory. The ranks of a host take turns: each one
 * exchanges messages with some of the other hosts.
 *
 *     host 0: rank a [ for 1 | for 2 ]   a sends both ranks' "for 1" --> host 1, as one message
 *             rank b [ for 1 | for 2 ]   b sends both ranks' "for 2" --> host 2
 *
 * Messages carry bytes and no counts: the receiver probes their size. An axis may have two mails,
 * each with its own memory and messages, so that one travels while the other is read. Called by
 * src/moe. */
#ifndef SHOAL_PARALLEL_COMM_COMM_MAIL_H
#define SHOAL_PARALLEL_COMM_COMM_MAIL_H

#include "parallel/comm/comm.h"

struct comm_mail;

enum { COMM_MAILS = 2 };

/* Local. Opens mail `number`, below COMM_MAILS. *out is NULL when the axis has one rank or may not
 * use shared memory; this is the same on all ranks of the axis. Close the mail before comm_stop.
 * Errors: STATUS_MEMORY. */
struct status comm_mail_open(struct comm *c, enum comm_axis axis, int number,
                             struct comm_mail **out);

/* Local. Frees the mail; accepts NULL. First ends a mail that was started and not finished, so that
 * MPI no longer uses its memory and the next mail with its number receives none of its messages. In
 * that case all ranks of the axis must have started it, and must finish or close it. */
void comm_mail_close(struct comm_mail **m);

/* The host of each rank of the axis. The arrays are borrowed from the communicator. */
struct comm_mail_places {
    int n_hosts, host;   /* host: this rank's */
    int n_local, local;  /* ranks on this host; this rank's number among them */
    const int *host_of;  /* [ranks] */
    const int *local_of; /* [ranks] */
    const int *n_on;     /* [n_hosts] ranks of each host */
};

/* Local. Returns where the ranks of the mail's axis are. */
struct comm_mail_places comm_mail_places_of(const struct comm_mail *m);

/* Local. comm_mail_memory returns this rank's memory for one purpose, at least n_bytes, which the
 * ranks of its host can read. `lane` is COMM_LANE_ROWS_OUT, _ROWS_BACK, _EXPERT_OUTPUTS or _MAIL,
 * for the second mail too, which then uses the segments _2. On a host of one rank a larger call may
 * lose the content and move the memory. Ends the job when memory runs out. comm_mail_memory_of
 * returns the memory of the rank with number `local` on this host. Barriers order the accesses. */
void *comm_mail_memory(struct comm_mail *m, enum comm_lane lane, size_t n_bytes);
const void *comm_mail_memory_of(const struct comm_mail *m, enum comm_lane lane, int local);

/* Local. Returns the bytes of this rank's memory for all purposes, with the received messages. */
uint64_t comm_mail_bytes(const struct comm_mail *m);

/* **Collective (ranks of the axis on this host)**. */
void comm_mail_barrier(struct comm_mail *m);

/* A piece of a message: n_bytes of the sending rank's memory, from `offset` on. */
struct comm_mail_piece {
    uint64_t offset, n_bytes;
};

/* Local. Returns the bytes, a multiple of 64, that a mail needs at the start of this rank's memory
 * for its list of n_pieces pieces for each host. */
size_t comm_mail_head_bytes(const struct comm_mail *m, size_t n_pieces);

/* **Collective (axis)**. Sends the pieces [n_hosts, n_pieces] of this rank's memory `lane` to each
 * other host, in their order, after the pieces of the ranks before it on this host. Pieces for this
 * host are not sent. Returns when the pieces of other ranks of this host may be read; messages may
 * still be under way. They move only while this rank is inside MPI. So comm_poll and the team's
 * calling thread (team_poll_with) call MPI until comm_mail_finish. A message must be shorter than
 * 2 GiB. A mail is started again only after its comm_mail_finish. */
void comm_mail_start(struct comm *c, struct comm_mail *m, enum comm_lane lane,
                     const struct comm_mail_piece *pieces, size_t n_pieces);

/* **Collective (axis)**. Returns when all messages to this host can be read and all messages from
 * this rank have left. *sent_bytes: the bytes that this rank sent to other hosts. */
void comm_mail_finish(struct comm *c, struct comm_mail *m, size_t *sent_bytes);

/* Local. Returns the message from another host, and its bytes; valid from comm_mail_finish until
 * the next comm_mail_start. */
const void *comm_mail_message(const struct comm_mail *m, int host, size_t *n_bytes);

/* Local. Returns the first piece that rank `local` of this host has for `host`, and its bytes.
 * Valid from comm_mail_start until rank `local` may write its memory again. */
const void *comm_mail_piece_of(const struct comm_mail *m, enum comm_lane lane, int local, int host,
                               size_t *n_bytes);

#if defined SHOAL_DEBUG && !defined COMM_INSIDE
#define comm_mail_start(c, ...)  comm_mail_start(COMM_SITE(c), __VA_ARGS__)
#define comm_mail_finish(c, ...) comm_mail_finish(COMM_SITE(c), __VA_ARGS__)
#endif

#endif
