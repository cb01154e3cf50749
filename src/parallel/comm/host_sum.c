/* A sum runs window by window: while the messages of one window travel, the next one is added,
 * packed and sent. */
#define COMM_INSIDE /* comm.h then defines no macros that record call sites (debug builds) */
#include "parallel/comm/host_sum.h"

#include "base/add.h"
#include "base/log.h"
#include "base/mem.h"
#include "parallel/comm/comm_hosts.h"
#include "parallel/wire/wire_ints.h"

#include <stdatomic.h>
#include <string.h>

enum {
    /* values of a message: 60 KiB at 4 bytes each; Open MPI sends up to 64 KiB over TCP without
     * asking the receiver first */
    ITEM = 240 * WIRE_INTS_BLOCK,
    ITEMS_MAX = 8,     /* messages for one peer in one window, with up to 3 peers */
    ITEMS_OF_ALL = 24, /* messages for all peers in one window, with 4 to 24 peers */
    SLOTS = 2,         /* windows under way */
    STEP = 1024,       /* values added at a time; they stay in the first-level cache */
    TAKES_WORTH_WAKING = 32,
    TAG_INTS = 1, /* tags on the axis's communicator, on which only mails send other messages */
    TAG_WORDS,
};

/* Messages of one window. */
struct window_slot {
    MPI_Request *sends, *recvs; /* [n_peers, n_items] */
    char *out, *in;             /* [n_peers, n_items, wire_ints_bound(ITEM)] */
    char *words;                /* [window, word_bytes]; only if this rank is alone on its host */
};

/* A sum under way. */
struct host_sum {
    struct comm *c;
    enum comm_axis axis;
    const struct comm_hosts *h;
    const struct comm_sum *s;
    size_t word_bytes, sent_bytes;
    bool one_round;
    int n_channels; /* ranks of each host that send; its other ranks only work in shared memory */
    int n_peers;    /* the other hosts; 0 for a rank that does not send */
    size_t n_items; /* messages of a part */
    size_t window;  /* values of a window */
    size_t n_windows;
    int *peers;                   /* [n_peers] axis ranks, from the next host on */
    int *lengths;                 /* [n_peers, n_items] bytes packed, then bytes received */
    MPI_Status *states;           /* [n_peers, n_items] */
    MPI_Request *words_under_way; /* [2 * n_peers] */
    int64_t *totals;              /* [n_items, ITEM] */
    struct window_slot slots[SLOTS];
};

/* Consecutive values of the sum. */
struct span {
    size_t first, n;
};

/* --- the way ------------------------------------------------------------------------------- */

enum host_sum_way host_sum_way_of(const struct comm *c, enum comm_axis axis, size_t n)
{
    /* With H hosts, a host sends (H - 1) n values of 4 bytes in one round, and 2 (H - 1) / H n in
     * two rounds. So one round sends (H - 1) (H - 2) / H n values more, but saves the latency of a
     * message: about 15 us over TCP, in which a port of 25 Gbit/s sends 48 KiB. Two rounds take
     * 2 (H - 1) messages of a rank. MPI's reduction takes log2(ranks) rounds with 8-byte sums of
     * every rank. Parts of fewer than 256 values are not worth a message. */
    enum { LATENCY_BYTES = 48 << 10, PEERS_MAX = 7, PART_MIN = 256 };
    const struct comm_hosts *h = c->hosts[axis];
    if (h == NULL || !c->uses_memory[axis] || h->n_hosts == 1) return HOST_SUM_FLAT;
    const size_t hosts = (size_t)h->n_hosts;
    const size_t more_bytes = (hosts - 1) * (hosts - 2) * 4 * n / hosts;
    const bool fits = n <= (size_t)h->n_least * ITEM;
    if (fits && hosts - 1 <= PEERS_MAX && more_bytes <= LATENCY_BYTES) return HOST_SUM_ONE_ROUND;
    return n >= PART_MIN * hosts ? HOST_SUM_TWO_ROUNDS : HOST_SUM_FLAT;
}

/* --- where things are ------------------------------------------------------------------------ */

static struct span window_at(const struct host_sum *j, size_t w)
{
    const size_t first = w * j->window, left = j->s->n - first;
    return (struct span){first, left < j->window ? left : j->window};
}

/* Returns the part of a window that `host` totals for all hosts, within the slice of a channel. In
 * one round every host totals the whole slice. */
static struct span part_of(const struct host_sum *j, size_t w, int host, int channel)
{
    const struct span all = window_at(j, w);
    const size_t n_hosts = j->one_round ? 1 : (size_t)j->h->n_hosts;
    const size_t n_parts = n_hosts * (size_t)j->n_channels;
    const size_t p = (j->one_round ? 0 : (size_t)host) * (size_t)j->n_channels + (size_t)channel;
    const size_t n_units = (all.n + WIRE_INTS_BLOCK - 1) / WIRE_INTS_BLOCK;
    const size_t begin = n_units * p / n_parts * WIRE_INTS_BLOCK;
    size_t end = n_units * (p + 1) / n_parts * WIRE_INTS_BLOCK;
    if (end > all.n) end = all.n;
    return (struct span){all.first + begin, end - begin};
}

static struct span my_part(const struct host_sum *j, size_t w)
{
    return part_of(j, w, j->h->host, j->h->local);
}

static struct span item_of(struct span part, size_t item)
{
    const size_t at = item * ITEM, left = at < part.n ? part.n - at : 0;
    return (struct span){part.first + at, left < ITEM ? left : ITEM};
}

/* Returns where a channel of this host writes the words of a window. */
static char *channel_words(const struct host_sum *j, size_t w, int channel)
{
    if (j->h->group == NULL) return j->slots[w % SLOTS].words;
    char *room = host_group_room(j->h->group, channel, j->s->n * sizeof(int64_t));
    return room + w % SLOTS * j->window * j->word_bytes;
}

static char *words_at(const struct host_sum *j, size_t w, int channel, size_t value)
{
    return channel_words(j, w, channel) + (value - w * j->window) * j->word_bytes;
}

static size_t index_of(const struct host_sum *j, int peer, size_t item)
{
    return (size_t)peer * j->n_items + item;
}

static int peer_host(const struct host_sum *j, int peer)
{
    return (j->h->host + 1 + peer) % j->h->n_hosts;
}

/* --- the host's own sums --------------------------------------------------------------------- */

/* Returns the sums of this host for the values v: `acc` [v.n] or, if this rank is alone on its
 * host, its own sums. */
static const int64_t *host_sums(const struct host_sum *j, struct span v, int64_t *acc)
{
    const int64_t *sums = j->s->sums + v.first;
    for (int r = 0; r < j->h->n_local; r++) {
        if (r == j->h->local) continue;
        const int64_t *other = host_group_offered(j->h->group, r);
        add_i64_to(acc, sums, other + v.first, v.n);
        sums = acc;
    }
    return sums;
}

static size_t pack_sums(const struct host_sum *j, struct span v, char *to)
{
    int64_t acc[STEP];
    size_t n_bytes = 0;
    for (size_t at = 0; at < v.n; at += STEP) {
        const struct span now = {v.first + at, v.n - at < STEP ? v.n - at : STEP};
        n_bytes += wire_ints_pack(host_sums(j, now, acc), now.n, to + n_bytes);
    }
    return n_bytes;
}

/* --- work that threads share ------------------------------------------------------------------ */

/* Independent pieces of work on a window. */
struct pieces {
    struct host_sum *j;
    size_t window;
    int peer;
    size_t n, n_shares;
    void (*work)(struct pieces *p, size_t piece);
    _Atomic bool is_bad;
};

static void work_on_share(void *job, uint32_t share)
{
    struct pieces *p = job;
    const size_t end = (share + 1) * p->n / p->n_shares;
    for (size_t i = share * p->n / p->n_shares; i < end; i++) p->work(p, i);
}

/* Runs the pieces; on this thread alone when there are fewer than n_worth. */
static void pieces_run(struct pieces *p, size_t n_worth)
{
    struct team *team = p->n < n_worth ? NULL : p->j->c->team;
    p->n_shares = team_size(team);
    team_run(team, 1, work_on_share, p);
}

/* --- round 1: packed integers ----------------------------------------------------------------- */

static void pack_item(struct pieces *p, size_t item)
{
    struct host_sum *j = p->j;
    const struct span part = part_of(j, p->window, peer_host(j, p->peer), j->h->local);
    const size_t i = index_of(j, p->peer, item);
    char *to = j->slots[p->window % SLOTS].out + i * wire_ints_bound(ITEM);
    j->lengths[i] = (int)pack_sums(j, item_of(part, item), to);
}

static void receive_ints(struct host_sum *j, size_t w)
{
    struct window_slot *slot = &j->slots[w % SLOTS];
    const struct span part = my_part(j, w);
    for (int q = 0; q < j->n_peers; q++) {
        for (size_t k = 0; k < j->n_items; k++) {
            const size_t i = index_of(j, q, k), bound = wire_ints_bound(ITEM);
            if (item_of(part, k).n == 0) continue;
            comm_check(j->c,
                       MPI_Irecv(slot->in + i * bound, (int)bound, MPI_BYTE, j->peers[q], TAG_INTS,
                                 j->c->axes[j->axis], &slot->recvs[i]),
                       "all-reduce", j->axis);
        }
    }
}

static void send_ints(struct host_sum *j, size_t w, int peer, int packed_for)
{
    struct window_slot *slot = &j->slots[w % SLOTS];
    const struct span part = part_of(j, w, peer_host(j, peer), j->h->local);
    for (size_t k = 0; k < j->n_items && item_of(part, k).n > 0; k++) {
        const size_t i = index_of(j, peer, k), from = index_of(j, packed_for, k);
        comm_check(j->c,
                   MPI_Isend(slot->out + from * wire_ints_bound(ITEM), j->lengths[from], MPI_BYTE,
                             j->peers[peer], TAG_INTS, j->c->axes[j->axis], &slot->sends[i]),
                   "all-reduce", j->axis);
        j->sent_bytes += (size_t)j->lengths[from];
    }
}

static void wait_for_messages(struct host_sum *j, MPI_Request *requests, size_t n,
                              MPI_Status *states)
{
    comm_check(j->c, MPI_Waitall((int)n, requests, states), "all-reduce", j->axis);
}

/* Begins a window: sends the host's sums of every other host's part. */
static void begin_window(struct host_sum *j, size_t w)
{
    struct window_slot *slot = &j->slots[w % SLOTS];
    const size_t n = (size_t)j->n_peers * j->n_items;
    wait_for_messages(j, slot->sends, n, MPI_STATUSES_IGNORE);
    receive_ints(j, w);
    for (int q = 0; q < j->n_peers; q++) {
        const int packed_for = j->one_round ? 0 : q;
        struct pieces p = {.j = j, .window = w, .peer = q, .n = j->n_items, .work = pack_item};
        if (packed_for == q) pieces_run(&p, 2);
        send_ints(j, w, q, packed_for);
    }
}

/* --- totals, and round 2: words --------------------------------------------------------------- */

/* Adds the other hosts' sums to this host's, and converts them. */
static void total_item(struct pieces *p, size_t item)
{
    struct host_sum *j = p->j;
    const struct window_slot *slot = &j->slots[p->window % SLOTS];
    const struct span v = item_of(my_part(j, p->window), item);
    int64_t *totals = j->totals + item * ITEM;
    if (v.n == 0) return;
    const int64_t *own = host_sums(j, v, totals);
    if (own != totals) memcpy(totals, own, v.n * sizeof *totals);
    for (int q = 0; q < j->n_peers; q++) {
        const size_t i = index_of(j, q, item), n_bytes = (size_t)j->lengths[i];
        const char *in = slot->in + i * wire_ints_bound(ITEM);
        if (wire_ints_add(in, n_bytes, totals, v.n) != n_bytes) p->is_bad = true;
    }
    void *words = words_at(j, p->window, j->h->local, v.first);
    j->s->convert(j->s->ctx, totals, v.first, v.n, words);
}

static void total_part(struct host_sum *j, size_t w)
{
    struct window_slot *slot = &j->slots[w % SLOTS];
    const size_t n = (size_t)j->n_peers * j->n_items;
    wait_for_messages(j, slot->recvs, n, j->states);
    for (size_t i = 0; i < n; i++) MPI_Get_count(&j->states[i], MPI_BYTE, &j->lengths[i]);
    struct pieces p = {.j = j, .window = w, .n = j->n_items, .work = total_item};
    pieces_run(&p, 2);
    if (!p.is_bad) return;
    log_line(LOG_ERROR, "all-reduce over %s: a message with the sums of another host is damaged",
             comm_axis_name(j->axis));
    comm_abort(j->c, status_exit(STATUS_LOST));
}

static void exchange_words(struct host_sum *j, size_t w)
{
    const MPI_Comm axis = j->c->axes[j->axis];
    const struct span mine = my_part(j, w);
    char *words = words_at(j, w, j->h->local, mine.first);
    for (int q = 0; q < j->n_peers; q++) {
        const struct span theirs = part_of(j, w, peer_host(j, q), j->h->local);
        MPI_Request *requests = j->words_under_way + 2 * q;
        comm_check(j->c,
                   MPI_Irecv(words_at(j, w, j->h->local, theirs.first),
                             (int)(theirs.n * j->word_bytes), MPI_BYTE, j->peers[q], TAG_WORDS,
                             axis, &requests[0]),
                   "all-reduce", j->axis);
        comm_check(j->c,
                   MPI_Isend(words, (int)(mine.n * j->word_bytes), MPI_BYTE, j->peers[q], TAG_WORDS,
                             axis, &requests[1]),
                   "all-reduce", j->axis);
        j->sent_bytes += mine.n * j->word_bytes;
    }
    wait_for_messages(j, j->words_under_way, 2 * (size_t)j->n_peers, MPI_STATUSES_IGNORE);
}

/* --- taking the words ------------------------------------------------------------------------ */

static size_t takes_of_part(const struct host_sum *j)
{
    return (j->n_items * ITEM + STEP - 1) / STEP;
}

static void take_piece(struct pieces *p, size_t piece)
{
    const struct host_sum *j = p->j;
    const size_t part = piece / takes_of_part(j), at = piece % takes_of_part(j) * STEP;
    const int host = (int)(part / (size_t)j->n_channels);
    const int channel = (int)(part % (size_t)j->n_channels);
    const struct span v = part_of(j, p->window, host, channel);
    if (at >= v.n) return;
    const size_t first = v.first + at, n = v.n - at < STEP ? v.n - at : STEP;
    const void *words = words_at(j, p->window, channel, first);
    j->s->take(j->s->ctx, words, first, n);
}

static void take_words(struct host_sum *j, size_t w)
{
    const size_t n_hosts = j->one_round ? 1 : (size_t)j->h->n_hosts;
    struct pieces p = {.j = j, .window = w, .work = take_piece};
    p.n = n_hosts * (size_t)j->n_channels * takes_of_part(j);
    pieces_run(&p, TAKES_WORTH_WAKING);
}

/* --- memory, and the whole ------------------------------------------------------------------- */

/* Returns the array of n_bytes that begins at *at, and moves *at past its last cache line. With
 * base NULL only counts bytes. */
static void *carve(char *base, size_t *at, size_t n_bytes)
{
    void *p = base != NULL ? base + *at : NULL;
    *at += (n_bytes + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
    return p;
}

/* Lays the arrays out from `base` on; returns their bytes. */
static size_t lay_out(struct host_sum *j, char *base)
{
    const size_t peers = (size_t)j->n_peers, n = peers * j->n_items;
    size_t at = 0;
    j->peers = carve(base, &at, peers * sizeof *j->peers);
    j->lengths = carve(base, &at, n * sizeof *j->lengths);
    j->states = carve(base, &at, n * sizeof *j->states);
    j->words_under_way = carve(base, &at, 2 * peers * sizeof *j->words_under_way);
    j->totals = carve(base, &at, peers > 0 ? j->n_items * ITEM * sizeof *j->totals : 0);
    for (int i = 0; i < SLOTS; i++) {
        struct window_slot *slot = &j->slots[i];
        slot->sends = carve(base, &at, n * sizeof *slot->sends);
        slot->recvs = carve(base, &at, n * sizeof *slot->recvs);
        slot->out = carve(base, &at, n * wire_ints_bound(ITEM));
        slot->in = carve(base, &at, n * wire_ints_bound(ITEM));
        slot->words = carve(base, &at, j->h->group == NULL ? j->window * j->word_bytes : 0);
    }
    return at;
}

static void get_memory(struct host_sum *j)
{
    struct host_sum_memory *m = &j->c->sum_memory;
    const size_t n_bytes = lay_out(j, NULL);
    if (n_bytes > m->n_bytes) {
        m->n_bytes = 0;
        mem_free(&m->bytes);
        const struct status st = mem_alloc(&m->bytes, n_bytes, 1, "messages of sums");
        comm_check_memory(j->c, !status_failed(&st), "all-reduce", j->axis);
        m->n_bytes = n_bytes;
    }
    lay_out(j, m->bytes);
    for (int q = 0; q < j->n_peers; q++)
        j->peers[q] = comm_hosts_rank_of(j->h, peer_host(j, q), j->h->local);
    for (size_t i = 0; i < SLOTS * (size_t)j->n_peers * j->n_items; i++) {
        const size_t n = (size_t)j->n_peers * j->n_items;
        j->slots[i / n].sends[i % n] = MPI_REQUEST_NULL;
        j->slots[i / n].recvs[i % n] = MPI_REQUEST_NULL;
    }
}

/* Sets the sizes of windows and messages, no larger than n needs. */
static void cut(struct host_sum *j)
{
    const size_t n = j->s->n, hosts = (size_t)j->h->n_hosts;
    const size_t channels = (size_t)j->n_channels,
                 n_parts = j->one_round ? channels : hosts * channels;
    size_t items = ITEMS_OF_ALL / (hosts - 1);
    if (items > ITEMS_MAX) items = ITEMS_MAX;
    if (items < 1) items = 1;
    const size_t needed = (n + n_parts * ITEM - 1) / (n_parts * ITEM);
    j->n_items = items < needed ? items : needed;
    j->window = n_parts * j->n_items * ITEM;
    j->n_windows = (n + j->window - 1) / j->window;
    j->n_peers = j->h->local < j->n_channels ? j->h->n_hosts - 1 : 0;
}

static void meet(const struct host_sum *j)
{
    if (j->h->group != NULL) host_group_barrier(j->h->group);
}

static void run_windows(struct host_sum *j)
{
    meet(j);
    if (j->n_peers > 0) begin_window(j, 0);
    for (size_t w = 0; w < j->n_windows; w++) {
        if (j->n_peers > 0) {
            if (w + 1 < j->n_windows) begin_window(j, w + 1);
            total_part(j, w);
            if (!j->one_round) exchange_words(j, w);
        }
        meet(j);
        take_words(j, w);
    }
    for (int i = 0; i < SLOTS; i++)
        wait_for_messages(j, j->slots[i].sends, (size_t)j->n_peers * j->n_items,
                          MPI_STATUSES_IGNORE);
}

size_t host_sum(struct comm *c, enum comm_axis axis, const struct comm_sum *s,
                enum host_sum_way way, size_t word_bytes)
{
    struct host_sum j = {.c = c,
                         .axis = axis,
                         .h = c->hosts[axis],
                         .s = s,
                         .word_bytes = word_bytes,
                         .one_round = way == HOST_SUM_ONE_ROUND,
                         .n_channels = c->hosts[axis]->n_least};
    if (s->n == 0) return 0;
    cut(&j);
    get_memory(&j);
    struct host_group *g = j.h->group;
    const size_t n_bytes = s->n * sizeof *s->sums;
    const size_t room = (j.n_windows > 1 ? SLOTS : 1) * j.window * word_bytes;
    if (g != NULL)
        comm_check_memory(c, host_group_offer(g, s->sums, n_bytes, room), "all-reduce", axis);
    run_windows(&j);
    return j.sent_bytes;
}
