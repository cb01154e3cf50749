/* A rank's memory begins with the list of its pieces, and its COMM_LANE_MAIL with the list of the
 * messages that it received, so that the other ranks of the host find both. A rank alone on its
 * host uses memory of its own instead of shared memory. */
#define COMM_INSIDE
#include "parallel/comm/comm_mail.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "parallel/comm/comm_hosts.h"
#include "parallel/comm/comm_private.h"
#include "parallel/wire/exchange_memory.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

enum {
    TAG_MAIL = 16,    /* tag of the first mail; the second mail has the next one */
    LINE = 64,        /* messages in shared memory begin at multiples of this many bytes */
    POLL_NS = 100000, /* the shortest time between two polls of a rank at work */
    POLL_REST = 32,   /* after a poll, none follows for this many times its duration */
};

/* Memory of a rank without shared memory. */
struct own_memory {
    char *bytes; /* owned */
    size_t n_bytes;
};

struct comm_mail {
    struct comm *c;
    enum comm_axis axis;
    int number;                 /* the mail's number, below COMM_MAILS */
    const struct comm_hosts *h; /* borrowed */
    struct own_memory own[COMM_LANES];
    struct own_memory *messages; /* [n_hosts] received, on a host of one rank */
    size_t *message_bytes;       /* [n_hosts] bytes of each of these messages */
    int *lengths;                /* [n_pieces_max] bytes of each piece of the message being made */
    MPI_Aint *addresses;         /* [n_pieces_max] */
    size_t n_pieces_max;
    MPI_Request *sends, *recvs; /* [n_hosts] */
    bool *is_posted;            /* [n_hosts] the receive of this mail's message has begun */
    size_t received_bytes;      /* bytes of COMM_LANE_MAIL that this mail's messages fill so far */
    size_t sent_bytes;
};

/* The place, in a rank's COMM_LANE_MAIL, of a message that the rank received from another host. */
struct arrived {
    uint64_t offset, n_bytes;
};

static size_t cache_lines(size_t n_bytes)
{
    return (n_bytes + LINE - 1) / LINE * LINE;
}

/* Returns this mail's segment for the purpose `lane`, which names the first mail's segment. */
static enum comm_lane own_lane(const struct comm_mail *m, enum comm_lane lane)
{
    if (m->number == 0) return lane;
    switch (lane) {
    case COMM_LANE_ROWS_OUT:
        return COMM_LANE_ROWS_OUT_2;
    case COMM_LANE_ROWS_BACK:
        return COMM_LANE_ROWS_BACK_2;
    case COMM_LANE_EXPERT_OUTPUTS:
        return COMM_LANE_EXPERT_OUTPUTS_2;
    default:
        assert(lane == COMM_LANE_MAIL);
        return COMM_LANE_MAIL_2;
    }
}

struct status comm_mail_open(struct comm *c, enum comm_axis axis, int number,
                             struct comm_mail **out)
{
    _Static_assert((int)COMM_MAILS == (int)MAILS_UNDER_WAY, "comm_private.h knows all mails");
    *out = NULL;
    const struct comm_hosts *h = c->hosts[axis];
    if (h == NULL || !c->uses_memory[axis]) return status_ok();
    struct comm_mail *m = NULL;
    struct status st;
    TRY(mem_alloc(&m, 1, sizeof *m, "mail between hosts"));
    m->c = c;
    m->axis = axis;
    m->number = number;
    m->h = h;
    const size_t n = (size_t)h->n_hosts;
    TRY_GOTO(st, mem_alloc(&m->messages, n, sizeof *m->messages, "mail between hosts"), failed);
    TRY_GOTO(st, mem_alloc(&m->message_bytes, n, sizeof(size_t), "mail between hosts"), failed);
    TRY_GOTO(st, mem_alloc(&m->sends, n, sizeof *m->sends, "mail between hosts"), failed);
    TRY_GOTO(st, mem_alloc(&m->recvs, n, sizeof *m->recvs, "mail between hosts"), failed);
    TRY_GOTO(st, mem_alloc(&m->is_posted, n, sizeof *m->is_posted, "mail between hosts"), failed);
    for (size_t i = 0; i < n; i++) m->sends[i] = m->recvs[i] = MPI_REQUEST_NULL;
    *out = m;
    return status_ok();
failed:
    comm_mail_close(&m);
    return st;
}

struct comm_mail_places comm_mail_places_of(const struct comm_mail *m)
{
    const struct comm_hosts *h = m->h;
    return (struct comm_mail_places){.n_hosts = h->n_hosts,
                                     .host = h->host,
                                     .n_local = h->n_local,
                                     .local = h->local,
                                     .host_of = h->host_of,
                                     .local_of = h->local_of,
                                     .n_on = h->n_on};
}

/* --- memory ----------------------------------------------------------------------------------- */

static char *own_grow(struct comm_mail *m, struct own_memory *o, size_t n_bytes)
{
    if (o->bytes != NULL && n_bytes <= o->n_bytes) return o->bytes;
    mem_free(&o->bytes);
    o->n_bytes = exchange_grown_bytes(n_bytes);
    const struct status st = mem_alloc(&o->bytes, o->n_bytes, 1, "mail between hosts");
    comm_check_memory(m->c, !status_failed(&st), "mail", m->axis);
    return o->bytes;
}

void *comm_mail_memory(struct comm_mail *m, enum comm_lane lane, size_t n_bytes)
{
    if (m->h->group == NULL) return own_grow(m, &m->own[lane], n_bytes);
    void *at = host_group_lane(m->h->group, own_lane(m, lane), n_bytes);
    comm_check_memory(m->c, at != NULL, "mail", m->axis);
    return at;
}

const void *comm_mail_memory_of(const struct comm_mail *m, enum comm_lane lane, int local)
{
    if (m->h->group == NULL) return m->own[lane].bytes;
    return host_group_lane_at(m->h->group, own_lane(m, lane), local);
}

uint64_t comm_mail_bytes(const struct comm_mail *m)
{
    static const enum comm_lane mine[] = {COMM_LANE_ROWS_OUT, COMM_LANE_ROWS_BACK,
                                          COMM_LANE_EXPERT_OUTPUTS, COMM_LANE_MAIL};
    uint64_t n = 0;
    for (size_t i = 0; m->h->group != NULL && i < sizeof mine / sizeof mine[0]; i++)
        n += host_group_lane_bytes(m->h->group, own_lane(m, mine[i]));
    for (int i = 0; i < COMM_LANES; i++) n += m->own[i].n_bytes;
    for (int i = 0; i < m->h->n_hosts; i++) n += m->messages[i].n_bytes;
    return n;
}

void comm_mail_barrier(struct comm_mail *m)
{
    if (m->h->group != NULL) host_group_barrier(m->h->group);
}

/* --- pieces ----------------------------------------------------------------------------------- */

/* The head of a rank's memory: the number of pieces for each host, then the pieces. */
struct head {
    uint64_t n_pieces;
    struct comm_mail_piece pieces[]; /* [n_hosts, n_pieces] */
};

size_t comm_mail_head_bytes(const struct comm_mail *m, size_t n_pieces)
{
    _Static_assert(sizeof(struct head) == sizeof(uint64_t) &&
                       sizeof(struct comm_mail_piece) == EXCHANGE_PIECE_BYTES,
                   "a plan counts by these sizes");
    return exchange_head_bytes((size_t)m->h->n_hosts, n_pieces);
}

static const struct comm_mail_piece *mail_pieces(const struct head *head, int host)
{
    return head->pieces + (size_t)host * head->n_pieces;
}

const void *comm_mail_piece_of(const struct comm_mail *m, enum comm_lane lane, int local, int host,
                               size_t *n_bytes)
{
    const char *memory = comm_mail_memory_of(m, lane, local);
    const struct comm_mail_piece *p = mail_pieces((const void *)memory, host);
    *n_bytes = p->n_bytes;
    return memory + p->offset;
}

/* Returns which rank of `host`, by its number on the host, exchanges messages with `other`. */
static int sender_for(const struct comm_mail *m, int host, int other)
{
    const int n_hosts = m->h->n_hosts;
    return (other - host - 1 + n_hosts) % n_hosts % m->h->n_on[host];
}

static bool sends_to(const struct comm_mail *m, int other)
{
    return other != m->h->host && sender_for(m, m->h->host, other) == m->h->local;
}

static int peer_of(const struct comm_mail *m, int other)
{
    return comm_hosts_rank_of(m->h, other, sender_for(m, other, m->h->host));
}

/* --- sending ---------------------------------------------------------------------------------- */

static void room_for_pieces(struct comm_mail *m, size_t n)
{
    if (n <= m->n_pieces_max) return;
    mem_free(&m->lengths);
    mem_free(&m->addresses);
    struct status st = mem_alloc(&m->lengths, n, sizeof *m->lengths, "mail between hosts");
    if (!status_failed(&st))
        st = mem_alloc(&m->addresses, n, sizeof *m->addresses, "mail between hosts");
    comm_check_memory(m->c, !status_failed(&st), "mail", m->axis);
    m->n_pieces_max = n;
}

/* Appends to the message being made the pieces that a rank has for a host. Returns their bytes. */
static size_t add_pieces(struct comm_mail *m, const char *memory, int host, size_t *n)
{
    const struct head *head = (const void *)memory;
    const struct comm_mail_piece *p = mail_pieces(head, host);
    size_t n_bytes = 0;
    for (size_t i = 0; i < head->n_pieces; i++) {
        n_bytes += p[i].n_bytes;
        if (p[i].n_bytes == 0 || p[i].n_bytes > INT_MAX) continue;
        m->lengths[*n] = (int)p[i].n_bytes;
        m->addresses[(*n)++] = (MPI_Aint)(uintptr_t)(memory + p[i].offset);
    }
    return n_bytes;
}

static void check_size(struct comm_mail *m, size_t n_bytes, int host)
{
    if (n_bytes <= INT_MAX) return;
    log_line(LOG_ERROR,
             "mail over %s: %zu bytes for the host of rank %d, expected less than 2 GiB; smaller "
             "steps have fewer rows",
             comm_axis_name(m->axis), n_bytes, comm_hosts_rank_of(m->h, host, 0));
    comm_abort(m->c, status_exit(STATUS_LOST));
}

/* Sends the pieces of all ranks of this host for another host, as one message. */
static void send_to(struct comm_mail *m, enum comm_lane lane, int host)
{
    const MPI_Comm axis = m->c->axes[m->axis];
    size_t n = 0, n_all = 0, n_bytes = 0;
    for (int r = 0; r < m->h->n_local; r++)
        n_all += ((const struct head *)comm_mail_memory_of(m, lane, r))->n_pieces;
    room_for_pieces(m, n_all);
    for (int r = 0; r < m->h->n_local; r++)
        n_bytes += add_pieces(m, comm_mail_memory_of(m, lane, r), host, &n);
    check_size(m, n_bytes, host);
    MPI_Datatype type;
    comm_check(m->c, MPI_Type_create_hindexed((int)n, m->lengths, m->addresses, MPI_BYTE, &type),
               "mail", m->axis);
    comm_check(m->c, MPI_Type_commit(&type), "mail", m->axis);
    comm_check(m->c,
               MPI_Isend(MPI_BOTTOM, 1, type, peer_of(m, host), TAG_MAIL + m->number, axis,
                         &m->sends[host]),
               "mail", m->axis);
    MPI_Type_free(&type);
    m->sent_bytes += n_bytes;
}

/* --- receiving -------------------------------------------------------------------------------- */

/* True when a message of n_bytes fits in the memory already allocated for received messages. */
static bool has_room(const struct comm_mail *m, int host, size_t n_bytes)
{
    if (m->h->group == NULL) return n_bytes <= m->messages[host].n_bytes;
    return m->received_bytes + cache_lines(n_bytes) <=
           host_group_lane_bytes(m->h->group, own_lane(m, COMM_LANE_MAIL));
}

/* Makes room for the message of n_bytes from a host, and returns its address. */
static void *place_message(struct comm_mail *m, int host, size_t n_bytes)
{
    if (m->h->group == NULL) {
        m->message_bytes[host] = n_bytes;
        return own_grow(m, &m->messages[host], n_bytes);
    }
    const size_t offset = m->received_bytes;
    m->received_bytes += cache_lines(n_bytes);
    char *memory = comm_mail_memory(m, COMM_LANE_MAIL, m->received_bytes);
    ((struct arrived *)(void *)memory)[host] = (struct arrived){offset, n_bytes};
    return memory + offset;
}

/* Begins to receive the probed message. While the team runs a job (in_job), leaves a message for
 * which memory would have to grow. */
static void receive_from(struct comm_mail *m, int host, const MPI_Status *probed, bool in_job)
{
    int n_bytes;
    comm_check(m->c, MPI_Get_count(probed, MPI_BYTE, &n_bytes), "mail", m->axis);
    if (in_job && !has_room(m, host, (size_t)n_bytes)) return; /* growing runs a job of the team */
    void *to = place_message(m, host, (size_t)n_bytes);
    comm_check(m->c,
               MPI_Irecv(to, n_bytes, MPI_BYTE, peer_of(m, host), TAG_MAIL + m->number,
                         m->c->axes[m->axis], &m->recvs[host]),
               "mail", m->axis);
    m->is_posted[host] = true;
}

/* Begins to receive every message of one mail that has arrived. A message above the eager limit
 * moves only after its receive has begun. Returns whether it called MPI. */
static bool advance_mail(struct comm_mail *m, bool in_job)
{
    const MPI_Comm axis = m->c->axes[m->axis];
    bool called = false;
    for (int host = 0; host < m->h->n_hosts; host++) {
        MPI_Status state;
        int found;
        if (!sends_to(m, host) || m->is_posted[host]) continue;
        comm_check(m->c, MPI_Iprobe(peer_of(m, host), TAG_MAIL + m->number, axis, &found, &state),
                   "mail", m->axis);
        if (found) receive_from(m, host, &state, in_job);
        called = true;
    }
    return called;
}

bool comm_mail_advance(struct comm *c, bool in_job)
{
    bool called = false;
    for (int i = 0; i < COMM_MAILS; i++)
        if (c->mails[i] != NULL) called = advance_mail(c->mails[i], in_job) || called;
    return called;
}

/* A poll may cost far more than its work: libraries that yield when idle give the core to other
 * processes. So polls take at most about 1 / POLL_REST of a rank's time. */
void comm_mail_poll(struct comm *c, bool in_job)
{
    bool any = false;
    for (int i = 0; i < COMM_MAILS; i++) any = any || c->mails[i] != NULL;
    const uint64_t now = any ? clock_ns() : 0;
    if (!any || now < c->next_poll_ns) return;
    if (!comm_mail_advance(c, in_job)) comm_poll_mpi(c);
    const uint64_t end = clock_ns(), rest = (end - now) * POLL_REST;
    c->next_poll_ns = end + (rest > POLL_NS ? rest : POLL_NS);
}

/* The team's calling thread calls this after each part of a job. */
static void poll_in_job(void *c)
{
    comm_mail_poll(c, true);
}

static void set_under_way(struct comm_mail *m, bool is)
{
    struct comm *c = m->c;
    bool any = false;
    c->mails[m->number] = is ? m : NULL;
    for (int i = 0; i < COMM_MAILS; i++) any = any || c->mails[i] != NULL;
    team_poll_with(c->team, any ? poll_in_job : NULL, c);
}

/* --- sending and receiving -------------------------------------------------------------------- */

void comm_mail_start(struct comm *c, struct comm_mail *m, enum comm_lane lane,
                     const struct comm_mail_piece *pieces, size_t n_pieces)
{
    comm_agree_on_call(c, "mail", m->axis, lane, 1, -1);
    const uint64_t since = comm_begin(c, FLIGHT_ALL_TO_ALL, m->axis, n_pieces);
    char *memory = comm_mail_memory(m, lane, comm_mail_head_bytes(m, n_pieces));
    struct head *head = (void *)memory;
    head->n_pieces = n_pieces;
    memcpy(head->pieces, pieces, (size_t)m->h->n_hosts * n_pieces * sizeof *pieces);
    m->sent_bytes = 0;
    m->received_bytes = cache_lines((size_t)m->h->n_hosts * sizeof(struct arrived));
    memset(m->is_posted, 0, (size_t)m->h->n_hosts * sizeof *m->is_posted);
    comm_mail_barrier(m);
    for (int i = 1; i < m->h->n_hosts; i++) {
        const int host = (m->h->host + i) % m->h->n_hosts;
        if (sends_to(m, host)) send_to(m, lane, host);
    }
    if (m->h->n_hosts > 1) set_under_way(m, true);
    comm_account(c, m->axis, since, m->sent_bytes);
}

/* Returns when all messages to this rank have arrived and all messages from it have left. */
static void end_mail(struct comm_mail *m)
{
    const int n_hosts = m->h->n_hosts;
    struct comm *c = m->c;
    for (int i = 1; i < n_hosts; i++) {
        const int host = (m->h->host - i + n_hosts) % n_hosts;
        MPI_Status state;
        if (!sends_to(m, host) || m->is_posted[host]) continue;
        comm_check(c, MPI_Probe(peer_of(m, host), TAG_MAIL + m->number, c->axes[m->axis], &state),
                   "mail", m->axis);
        receive_from(m, host, &state, false);
    }
    comm_check(c, MPI_Waitall(n_hosts, m->recvs, MPI_STATUSES_IGNORE), "mail", m->axis);
    comm_check(c, MPI_Waitall(n_hosts, m->sends, MPI_STATUSES_IGNORE), "mail", m->axis);
    if (n_hosts > 1) set_under_way(m, false);
}

void comm_mail_finish(struct comm *c, struct comm_mail *m, size_t *sent_bytes)
{
    comm_agree_on_call(c, "mail", m->axis, 0, 1, -1);
    const uint64_t since = comm_begin(c, FLIGHT_ALL_TO_ALL, m->axis, 0);
    end_mail(m);
    if (m->h->n_hosts > 1) comm_mail_barrier(m); /* on one host no message arrives */
    *sent_bytes = m->sent_bytes;
    c->stats[m->axis].wire_bytes += m->sent_bytes;
    comm_account(c, m->axis, since, 0);
}

void comm_mail_close(struct comm_mail **m)
{
    if (*m == NULL) return;
    if ((*m)->c->mails[(*m)->number] == *m) end_mail(*m);
    for (int i = 0; i < COMM_LANES; i++) mem_free(&(*m)->own[i].bytes);
    for (int i = 0; (*m)->messages != NULL && i < (*m)->h->n_hosts; i++)
        mem_free(&(*m)->messages[i].bytes);
    mem_free(&(*m)->messages);
    mem_free(&(*m)->message_bytes);
    mem_free(&(*m)->lengths);
    mem_free(&(*m)->addresses);
    mem_free(&(*m)->sends);
    mem_free(&(*m)->recvs);
    mem_free(&(*m)->is_posted);
    mem_free(m);
}

const void *comm_mail_message(const struct comm_mail *m, int host, size_t *n_bytes)
{
    if (m->h->group == NULL) {
        *n_bytes = m->message_bytes[host];
        return m->messages[host].bytes;
    }
    const char *memory = comm_mail_memory_of(m, COMM_LANE_MAIL, sender_for(m, m->h->host, host));
    const struct arrived a = ((const struct arrived *)(const void *)memory)[host];
    *n_bytes = a.n_bytes;
    return memory + a.offset;
}
