/* An NCCL between processes of one host, over sockets, on the emulated driver's stream. A rank's
 * data is sent without its host thread; a receive waits for its peer. A peer that exits is an error
 * of the communicator; one that hangs is waited for until an abort. It says nothing about NCCL
 * itself. SHOAL_EMULATED sets faults:
 *
 *   nccl_missing=1                     there is no library
 *   nccl_id_error=, nccl_open_error=   the error of that call
 *   nccl_rank=                         the rank that the next four affect, after N operations:
 *   nccl_silent=N, nccl_gone=N         its GPU hangs; it disconnects
 *   nccl_stuck=N, nccl_dies=N          its host hangs; its GPU is lost
 *   nccl_late=                         the least milliseconds of each operation */
#include "nccl_emulated.h"

#include "kernels/cuda/nccl_table.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { NOT_FOUND = -1, OF_CUDA = 1, IN_TURN = 5, REMOTE = 6 };
enum { GROUP_MAX = 256, RANKS_MAX = 64, STILL_MS = 2 };

struct emulated_comm {
    int n_ranks, rank, listener;
    char id[NCCL_ID_BYTES];
    int sockets[RANKS_MAX]; /* -1: not connected yet */
    uint64_t n_ops, n_asked;
    _Atomic bool aborted;
    _Atomic int error;
};

/* One direction of a transfer, through memory of the host. */
struct piece {
    int peer;
    bool is_send;
    void *device; /* where received bytes go */
    char *bytes;  /* [n] owned */
    size_t n, at;
};

enum operation { OP_MOVE, OP_SUM, OP_SUM_PART, OP_MAX };

struct call {
    struct emulated_comm *comm;
    void *stream;
    enum operation op;
    const void *sources[GROUP_MAX]; /* device memory to send */
    struct piece pieces[GROUP_MAX];
    int n_pieces;
    void *buf; /* the array of a reduction */
    size_t n_bytes;
};

static struct call *group; /* the group that is being gathered */

/* --- sockets ------------------------------------------------------------------------------- */

static socklen_t address_of(const char *id, int rank, struct sockaddr_un *a)
{
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    const int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "shoal-%s-%d", id, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static void connect_to(struct emulated_comm *c, int rank)
{
    struct sockaddr_un a;
    const socklen_t n = address_of(c->id, rank, &a);
    const int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0) return;
    const int32_t me = c->rank;
    if (connect(s, (struct sockaddr *)&a, n) != 0 || write(s, &me, sizeof me) != sizeof me) {
        close(s);
        return;
    }
    fcntl(s, F_SETFL, O_NONBLOCK);
    c->sockets[rank] = s;
}

static void accept_one(struct emulated_comm *c)
{
    const int s = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC);
    int32_t from = -1;
    if (s < 0) return;
    const bool told = read(s, &from, sizeof from) == sizeof from;
    assert(told && from > c->rank && from < c->n_ranks);
    fcntl(s, F_SETFL, O_NONBLOCK);
    c->sockets[from] = s;
}

static int emu_load(void)
{
    return emulated_word("nccl_missing=") != 0 ? NOT_FOUND : 0;
}

static int emu_new_id(char id[NCCL_ID_BYTES])
{
    static unsigned n;
    memset(id, 0, NCCL_ID_BYTES);
    snprintf(id, NCCL_ID_BYTES, "%d-%u", (int)getpid(), n++);
    return (int)emulated_word("nccl_id_error=");
}

static int emu_open(void **comm, int n_ranks, const char id[NCCL_ID_BYTES], int rank)
{
    const int error = (int)emulated_word("nccl_open_error=");
    if (error != 0) return error;
    struct emulated_comm *c = calloc(1, sizeof *c);
    struct sockaddr_un a;
    assert(c != NULL && n_ranks <= RANKS_MAX);
    c->n_ranks = n_ranks;
    c->rank = rank;
    memcpy(c->id, id, NCCL_ID_BYTES);
    for (int r = 0; r < n_ranks; r++) c->sockets[r] = -1;
    c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const socklen_t n = address_of(c->id, rank, &a);
    if (c->listener < 0 || bind(c->listener, (struct sockaddr *)&a, n) != 0 ||
        listen(c->listener, n_ranks) != 0)
        abort();
    *comm = c;
    return 0;
}

/* Whether this rank is the one that fails. Ranks have the launcher's numbers. */
static bool is_faulty_rank(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    return rank != NULL && strtoull(rank, NULL, 10) == emulated_word("nccl_rank=");
}

static bool fault(uint64_t n, const char *word)
{
    const uint64_t after = emulated_word(word);
    return after > 0 && is_faulty_rank() && n > after;
}

static int emu_poll(void *comm, bool *busy)
{
    struct emulated_comm *c = comm;
    *busy = false;
    for (int r = 0; r < c->n_ranks && c->error == 0; r++) {
        if (r < c->rank && c->sockets[r] < 0) connect_to(c, r);
        if (r > c->rank && c->sockets[r] < 0) accept_one(c);
    }
    for (int r = 0; r < c->n_ranks; r++) *busy = *busy || (r != c->rank && c->sockets[r] < 0);
    return c->error;
}

static void hang_up(struct emulated_comm *c)
{
    for (int r = 0; r < c->n_ranks; r++) {
        if (c->sockets[r] >= 0) shutdown(c->sockets[r], SHUT_RDWR);
    }
}

static int emu_finish(void *comm)
{
    (void)comm;
    return 0;
}

static int emu_destroy(void *comm)
{
    struct emulated_comm *c = comm;
    for (int r = 0; r < c->n_ranks; r++) {
        if (c->sockets[r] >= 0) close(c->sockets[r]);
    }
    close(c->listener);
    free(c);
    return 0;
}

/* Keeps the memory, because a call may still use it. */
static int emu_abort(void *comm)
{
    struct emulated_comm *c = comm;
    c->aborted = true;
    hang_up(c);
    return 0;
}

/* --- what runs on the stream ----------------------------------------------------------------- */

/* Moves as many bytes as possible. False: the peer failed. */
static bool advance(const struct emulated_comm *c, struct piece *p)
{
    if (p->at == p->n) return true;
    const int s = c->sockets[p->peer];
    const ssize_t n = p->is_send ? send(s, p->bytes + p->at, p->n - p->at, MSG_NOSIGNAL)
                                 : recv(s, p->bytes + p->at, p->n - p->at, 0);
    if (n > 0) p->at += (size_t)n;
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* Whether piece i may move: it is the first unfinished piece to or from its peer, because the
 * pieces of a direction share a socket. */
static bool is_next(const struct call *call, int i)
{
    for (int k = 0; k < i; k++) {
        const struct piece *a = &call->pieces[k], *b = &call->pieces[i];
        if (a->peer == b->peer && a->is_send == b->is_send && a->at < a->n) return false;
    }
    return true;
}

/* Spins until an abort, as a device does whose peer is lost. */
static void spin(const struct emulated_comm *c)
{
    while (!c->aborted) nanosleep(&(struct timespec){.tv_nsec = STILL_MS * 1000000}, NULL);
}

static bool move_all(struct call *call)
{
    struct emulated_comm *c = call->comm;
    for (bool more = true; more;) {
        more = false;
        size_t moved = 0;
        for (int i = 0; i < call->n_pieces; i++) {
            struct piece *p = &call->pieces[i];
            const size_t before = p->at;
            if (!is_next(call, i)) continue;
            if (c->aborted || !advance(c, p)) {
                c->error = REMOTE;
                spin(c);
                return false;
            }
            moved += p->at - before;
        }
        for (int i = 0; i < call->n_pieces; i++)
            more = more || call->pieces[i].at < call->pieces[i].n;
        if (more && moved == 0) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return true;
}

static void reduce(const struct call *call)
{
    int64_t *sums = malloc(call->n_bytes + 1);
    assert(sums != NULL);
    uint32_t *words = (uint32_t *)sums;
    emulated_read(sums, call->buf, call->n_bytes);
    for (int i = 0; i < call->n_pieces; i++) {
        const struct piece *p = &call->pieces[i];
        if (p->is_send) continue;
        const int64_t *more = (const int64_t *)p->bytes;
        const uint32_t *other = (const uint32_t *)p->bytes;
        for (size_t k = 0; call->op != OP_MAX && k < call->n_bytes / 8; k++) sums[k] += more[k];
        for (size_t k = 0; call->op == OP_MAX && k < call->n_bytes / 4; k++)
            words[k] = words[k] > other[k] ? words[k] : other[k];
    }
    emulated_write(call->buf, sums, call->n_bytes);
    memset(sums, 0x5A, call->n_bytes); /* the other parts must not be read any more */
    for (int i = 0; call->op == OP_SUM_PART && i < call->n_pieces; i++) {
        if (call->pieces[i].is_send) emulated_write((void *)call->sources[i], sums, call->n_bytes);
    }
    free(sums);
}

static void run_call(void *arg)
{
    struct call *call = arg;
    struct emulated_comm *c = call->comm;
    const long late_ms = (long)emulated_word("nccl_late=");
    c->n_ops++;
    if (late_ms > 0) nanosleep(&(struct timespec){.tv_nsec = late_ms * 1000000}, NULL);
    if (fault(c->n_ops, "nccl_gone=")) hang_up(c);
    if (fault(c->n_ops, "nccl_silent=")) {
        spin(c);
    } else {
        for (int i = 0; i < call->n_pieces; i++) {
            struct piece *p = &call->pieces[i];
            if (p->is_send) emulated_read(p->bytes, call->sources[i], p->n);
        }
        const bool all = move_all(call);
        for (int i = 0; all && call->op == OP_MOVE && i < call->n_pieces; i++) {
            const struct piece *p = &call->pieces[i];
            if (!p->is_send) emulated_write(p->device, p->bytes, p->n);
        }
        if (all && call->op != OP_MOVE) reduce(call);
    }
    for (int i = 0; i < call->n_pieces; i++) free(call->pieces[i].bytes);
    free(call);
}

/* --- queueing calls ----------------------------------------------------------------------------
 */

static struct call *call_of(void *comm, void *stream)
{
    struct call *call = calloc(1, sizeof *call);
    assert(call != NULL);
    call->comm = comm;
    call->stream = stream;
    return call;
}

static void add_piece(struct call *call, int peer, const void *from, void *to, size_t n_bytes)
{
    assert(call->n_pieces < GROUP_MAX && peer != call->comm->rank && peer < call->comm->n_ranks);
    call->sources[call->n_pieces] = from;
    struct piece *p = &call->pieces[call->n_pieces++];
    *p = (struct piece){.peer = peer, .is_send = to == NULL, .device = to, .n = n_bytes};
    p->bytes = malloc(n_bytes + 1);
    assert(p->bytes != NULL);
}

static int submit(struct call *call)
{
    if (fault(++call->comm->n_asked, "nccl_stuck=")) {
        for (;;) pause();
    }
    if (fault(call->comm->n_asked, "nccl_dies=")) emulated_lose();
    return emulated_call(call->stream, run_call, call) != 0 ? OF_CUDA : 0;
}

static int emu_group_begin(void)
{
    assert(group == NULL);
    group = call_of(NULL, NULL);
    return 0;
}

static int emu_group_end(void)
{
    struct call *call = group;
    group = NULL;
    if (call->n_pieces > 0) return submit(call);
    free(call);
    return 0;
}

static int emu_send(const void *buf, size_t n_bytes, int to, void *comm, void *stream)
{
    struct call *call = group != NULL ? group : call_of(comm, stream);
    call->comm = comm;
    call->stream = stream;
    add_piece(call, to, buf, NULL, n_bytes);
    return group != NULL ? 0 : submit(call);
}

static int emu_receive(void *buf, size_t n_bytes, int from, void *comm, void *stream)
{
    struct call *call = group != NULL ? group : call_of(comm, stream);
    call->comm = comm;
    call->stream = stream;
    add_piece(call, from, NULL, buf, n_bytes);
    return group != NULL ? 0 : submit(call);
}

/* Sends everything to all ranks and receives everything from them. */
static int reduction(void *buf, size_t n_bytes, struct emulated_comm *c, enum operation op,
                     void *stream)
{
    struct call *call = call_of(c, stream);
    call->op = op;
    call->buf = buf;
    call->n_bytes = n_bytes;
    for (int r = 0; r < c->n_ranks; r++) {
        if (r == c->rank) continue;
        add_piece(call, r, buf, NULL, n_bytes);
        add_piece(call, r, NULL, buf, n_bytes);
    }
    return submit(call);
}

static int emu_sum_i64(void *buf, size_t n, void *comm, void *stream)
{
    return reduction(buf, n * sizeof(int64_t), comm, OP_SUM, stream);
}

static int emu_sum_part_i64(int64_t *parts, size_t n, int rank, void *comm, void *stream)
{
    struct emulated_comm *c = comm;
    struct call *call = call_of(c, stream);
    assert(rank == c->rank);
    call->op = OP_SUM_PART;
    call->buf = parts + (size_t)rank * n;
    call->n_bytes = n * sizeof *parts;
    for (int r = 0; r < c->n_ranks; r++) {
        if (r == c->rank) continue;
        add_piece(call, r, parts + (size_t)r * n, NULL, call->n_bytes);
        add_piece(call, r, NULL, call->buf, call->n_bytes);
    }
    return submit(call);
}

static int emu_max_u32(void *buf, size_t n, void *comm, void *stream)
{
    return reduction(buf, n * sizeof(uint32_t), comm, OP_MAX, stream);
}

static int emu_gather(void *all, size_t n_bytes, int rank, void *comm, void *stream)
{
    struct emulated_comm *c = comm;
    struct call *call = call_of(c, stream);
    assert(rank == c->rank);
    for (int r = 0; r < c->n_ranks; r++) {
        if (r == c->rank) continue;
        add_piece(call, r, (char *)all + (size_t)rank * n_bytes, NULL, n_bytes);
        add_piece(call, r, NULL, (char *)all + (size_t)r * n_bytes, n_bytes);
    }
    return submit(call);
}

static const char *emu_error_text(int error)
{
    if (error == NOT_FOUND) return "libnccl.so.2 is not found";
    if (error == OF_CUDA) return "unhandled cuda error";
    if (error == REMOTE) return "remote process exited or there was a network error";
    return error == IN_TURN ? "invalid usage" : "unhandled system error";
}

static const struct nccl_table table = {
    .name = "NCCL emulated on the CPU for tests",
    .load = emu_load,
    .new_id = emu_new_id,
    .open = emu_open,
    .poll = emu_poll,
    .finish = emu_finish,
    .destroy = emu_destroy,
    .abort = emu_abort,
    .group_begin = emu_group_begin,
    .group_end = emu_group_end,
    .sum_i64 = emu_sum_i64,
    .sum_part_i64 = emu_sum_part_i64,
    .max_u32 = emu_max_u32,
    .gather = emu_gather,
    .send = emu_send,
    .receive = emu_receive,
    .error_text = emu_error_text,
};

const struct nccl_table *nccl_table_here(void)
{
    return &table;
}
