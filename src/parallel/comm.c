/* Axes over MPI communicators and host groups, and the collectives that the rooms above use. */
#define COMM_INSIDE /* functions are defined here, not wrapped */
#include "parallel/comm.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "parallel/collective_check.h"
#include "parallel/host_group.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct comm {
    bool owns_mpi; /* started here, so ended here */
    MPI_Comm axes[COMM_AXIS_COUNT];
    int ranks[COMM_AXIS_COUNT];
    int sizes[COMM_AXIS_COUNT];
    struct comm_stats stats[COMM_AXIS_COUNT];
    struct host_group
        *groups[COMM_AXIS_COUNT]; /* NULL: over MPI; axes of the same ranks share one */
    bool uses_memory[COMM_AXIS_COUNT];
    struct flight *flight; /* &own_flight, or borrowed: comm_record_in */
    struct flight own_flight;
    struct team *team;     /* borrowed; NULL: none */
    struct trace *trace;   /* borrowed; NULL: none is kept */
    bool has_stages;       /* ranks send each other messages while they compute */
    const char *site_file; /* debug builds: who calls */
    int site_line;
};

static const char *const axis_names[COMM_AXIS_COUNT] = {"world", "host", "stage",
                                                        "tp",    "ep",   "etp"};

const char *comm_axis_name(uint32_t axis)
{
    return axis < COMM_AXIS_COUNT ? axis_names[axis] : "an unknown axis";
}

/* No transfer may carry more than this many elements: counts are ints, and some transports want
 * less than 2 GiB at once. */
enum { ELEMS_AT_ONCE = 1 << 27 };

static void check(struct comm *c, int rc, const char *op, enum comm_axis axis)
{
    if (rc == MPI_SUCCESS) return;
    char reason[MPI_MAX_ERROR_STRING] = "";
    char host[256] = "";
    int n = 0;
    MPI_Error_string(rc, reason, &n);
    gethostname(host, sizeof host - 1);
    char last[256];
    const struct flight_event e = flight_last(c->flight);
    flight_print(&e, comm_axis_name(e.axis), last, sizeof last);
    log_line(LOG_ERROR, "host %s: %s over %s failed: %s; last: %s", host, op, axis_names[axis],
             reason, last);
    comm_abort(c, status_exit(STATUS_LOST));
}

void comm_mark_step(struct comm *c, uint64_t step)
{
    flight_mark_step(c->flight, step);
}

void comm_mark_layer(struct comm *c, int32_t layer)
{
    flight_mark_layer(c->flight, layer);
}

const struct flight *comm_flight(const struct comm *c)
{
    return c->flight;
}

void comm_record_in(struct comm *c, struct flight *f)
{
    memcpy(f, c->flight, sizeof *f);
    c->flight = f;
}

void comm_trace_in(struct comm *c, struct trace *t)
{
    c->trace = t;
}

struct trace *comm_trace(const struct comm *c)
{
    return c->trace;
}

/* An operation ends. */
static void end(struct comm *c, uint64_t now)
{
    flight_end(c->flight, now);
    trace_add_comm(c->trace, c->flight);
}

/* An operation begins: recorded, and its time is returned for account. */
static uint64_t begin(struct comm *c, enum flight_op op, enum comm_axis axis, uint64_t count)
{
    const uint64_t now = clock_ns();
    flight_begin(c->flight, op, axis, count, now);
    return now;
}

#ifdef SHOAL_DEBUG
struct comm *comm_site(struct comm *c, const char *file, int line)
{
    c->site_file = file;
    c->site_line = line;
    return c;
}

struct status comm_agree_at(struct comm *c, struct status mine, const char *file, int line)
{
    return comm_agree(comm_site(c, file, line), mine);
}

/* All ranks must be about to do the same. */
static void agree_on_call(struct comm *c, const char *op, enum comm_axis axis, uint64_t count,
                          size_t elem_bytes, int root)
{
    struct collective_call call;
    collective_call_init(&call, op, c->site_file != NULL ? c->site_file : "?", c->site_line);
    call.count = count;
    call.elem_bytes = elem_bytes;
    call.root = root;
    const struct status st = collective_check(c->axes[axis], &call);
    if (!status_failed(&st)) return;
    log_line(LOG_ERROR, "axis %s: %s", axis_names[axis], st.text);
    comm_abort(c, status_exit(st.code));
}
#else
static void agree_on_call(struct comm *c, const char *op, enum comm_axis axis, uint64_t count,
                          size_t elem_bytes, int root)
{
    (void)c, (void)op, (void)axis, (void)count, (void)elem_bytes, (void)root;
}
#endif

static void account(struct comm *c, enum comm_axis axis, uint64_t since, size_t n_bytes)
{
    const uint64_t now = clock_ns();
    struct comm_stats *s = &c->stats[axis];
    end(c, now);
    s->n_calls++;
    s->n_bytes += n_bytes;
    s->ns += now - since;
}

static void set_axis(struct comm *c, enum comm_axis axis, MPI_Comm handle)
{
    c->axes[axis] = handle;
    MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN);
    MPI_Comm_rank(handle, &c->ranks[axis]);
    MPI_Comm_size(handle, &c->sizes[axis]);
}

struct status comm_start(int *argc, char ***argv, struct comm **out)
{
    *out = NULL;
    int provided, running = 0;
    MPI_Initialized(&running);
    if (!running && MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        return status_make(STATUS_LOST, "MPI could not start");
    }
    struct comm *c = NULL;
    TRY(mem_alloc(&c, 1, sizeof *c, "communicators"));
    for (int i = 0; i < COMM_AXIS_COUNT; i++) c->axes[i] = MPI_COMM_NULL;
    c->owns_mpi = !running;
    flight_init(&c->own_flight);
    c->flight = &c->own_flight;
    MPI_Comm world;
    MPI_Comm_dup(MPI_COMM_WORLD, &world);
    set_axis(c, COMM_WORLD, world);
    *out = c;
    return status_ok();
}

struct status comm_gather_topo(struct comm *c, struct topo **out)
{
    *out = NULL;
    struct topo_self mine;
    struct topo_self *all = NULL;
    struct status st = topo_self_read(&mine);
    TRY(comm_agree(c, st));
    st = mem_alloc(&all, (size_t)c->sizes[COMM_WORLD], sizeof *all, "topology");
    TRY(comm_agree(c, st));
    comm_gather_bytes(c, COMM_WORLD, &mine, sizeof mine, all);
    st = topo_join(all, (uint32_t)c->sizes[COMM_WORLD], out);
    mem_free(&all);
    return comm_agree(c, st);
}

/* Splits `parent` by color; the new ranks follow `key`. */
static void split_axis(struct comm *c, enum comm_axis axis, MPI_Comm parent, int color, int key)
{
    MPI_Comm made;
    begin(c, FLIGHT_SPLIT, axis, 0);
    check(c, MPI_Comm_split(parent, color, key, &made), "split", axis);
    end(c, clock_ns());
    set_axis(c, axis, made);
}

/* Another rank's message may need this one's MPI to move while it waits in shared memory. */
static void poll_mpi(void *ctx)
{
    const struct comm *c = ctx;
    int found;
    MPI_Iprobe(MPI_ANY_SOURCE, COMM_TAG_POLL, c->axes[COMM_WORLD], &found, MPI_STATUS_IGNORE);
}

void comm_poll(struct comm *c)
{
    if (c->has_stages) poll_mpi(c);
}

/* **Collective (host)**. More ranks than the units they may run on: waiting must not take them. */
static bool is_crowded(struct comm *c)
{
    cpu_set_t units;
    CPU_ZERO(&units);
    if (sched_getaffinity(0, sizeof units, &units) != 0) memset(&units, 0xff, sizeof units);
    MPI_Allreduce(MPI_IN_PLACE, &units, (int)sizeof units, MPI_BYTE, MPI_BOR, c->axes[COMM_HOST]);
    return c->sizes[COMM_HOST] > CPU_COUNT(&units);
}

/* **Collective (world)**. Shared memory for the axes that stand on one host. */
static void share_hosts(struct comm *c)
{
    const bool crowded = is_crowded(c);
    for (int i = COMM_STAGE; i < COMM_AXIS_COUNT; i++) {
        c->uses_memory[i] = true;
        if (c->sizes[i] == 1) continue;
        for (int k = COMM_STAGE; k < i && c->groups[i] == NULL; k++) {
            int same = MPI_UNEQUAL;
            MPI_Comm_compare(c->axes[i], c->axes[k], &same);
            if (same == MPI_CONGRUENT) c->groups[i] = c->groups[k];
        }
        if (c->groups[i] == NULL) {
            c->groups[i] = host_group_open(c->axes[i], crowded, poll_mpi, c);
        }
    }
}

struct team *comm_team(const struct comm *c)
{
    return c->team;
}

void comm_use_team(struct comm *c, struct team *team)
{
    c->team = team;
    for (int i = 0; i < COMM_AXIS_COUNT; i++)
        if (c->groups[i] != NULL) host_group_use_team(c->groups[i], team);
}

static void close_groups(struct comm *c)
{
    for (int i = 0; i < COMM_AXIS_COUNT; i++) {
        struct host_group *g = c->groups[i];
        for (int k = 0; k < COMM_AXIS_COUNT; k++) {
            if (c->groups[k] == g) c->groups[k] = NULL;
        }
        host_group_close(&g);
    }
}

bool comm_shares_memory(const struct comm *c, enum comm_axis axis)
{
    return c->groups[axis] != NULL && c->uses_memory[axis];
}

void comm_use_memory(struct comm *c, enum comm_axis axis, bool on)
{
    c->uses_memory[axis] = on;
}

void *comm_lane(struct comm *c, enum comm_axis axis, enum comm_lane lane, size_t n_bytes)
{
    return c->groups[axis] != NULL ? host_group_lane(c->groups[axis], lane, n_bytes) : NULL;
}

/* The group that an operation goes through; NULL: MPI. */
static struct host_group *group_of(const struct comm *c, enum comm_axis axis)
{
    return c->uses_memory[axis] ? c->groups[axis] : NULL;
}

static void check_memory(struct comm *c, bool ok, const char *op, enum comm_axis axis)
{
    if (ok) return;
    log_line(LOG_ERROR, "%s over %s: this host has no memory left for it", op, axis_names[axis]);
    comm_abort(c, status_exit(STATUS_MEMORY));
}

struct status comm_split(struct comm *c, const struct layout *l, const uint32_t *order)
{
    int mine = -1;
    for (uint32_t r = 0; r < l->n_ranks; r++) {
        if ((int)order[r] == c->ranks[COMM_WORLD]) mine = (int)r;
    }
    if (mine < 0 || (int)l->n_ranks != c->sizes[COMM_WORLD]) {
        return status_make(STATUS_BUG, "layout: %u ranks, %d started", l->n_ranks,
                           c->sizes[COMM_WORLD]);
    }
    MPI_Comm launched = c->axes[COMM_WORLD];
    split_axis(c, COMM_WORLD, launched, 0, mine);
    MPI_Comm_free(&launched);
    const MPI_Comm world = c->axes[COMM_WORLD];
    const struct layout_place p = layout_place_of(l, (uint32_t)mine);
    c->has_stages = l->pp > 1;
    const int in_stage = (int)(p.dp * l->tp + p.tp);
    const int ep_color = (int)(p.pp * l->n_expert_replicas + p.expert_replica);
    MPI_Comm host;
    check(c, MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, mine, MPI_INFO_NULL, &host), "split",
          COMM_HOST);
    set_axis(c, COMM_HOST, host);
    split_axis(c, COMM_STAGE, world, (int)p.pp, in_stage);
    split_axis(c, COMM_TP, world, (int)(p.dp * l->pp + p.pp), (int)p.tp);
    split_axis(c, COMM_EP, world, ep_color, (int)(p.ep * l->etp + p.etp));
    split_axis(c, COMM_ETP, world, (int)((uint32_t)ep_color * l->ep + p.ep), (int)p.etp);
    share_hosts(c);
    return status_ok();
}

void comm_stop(struct comm **c)
{
    const bool owns_mpi = *c == NULL || (*c)->owns_mpi;
    if (*c != NULL) {
        close_groups(*c);
        for (int i = 0; i < COMM_AXIS_COUNT; i++) {
            if ((*c)->axes[i] != MPI_COMM_NULL) MPI_Comm_free(&(*c)->axes[i]);
        }
        mem_free(c);
    }
    int started = 0, ended = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&ended);
    if (owns_mpi && started && !ended) MPI_Finalize();
}

void comm_abort(struct comm *c, int exit_status)
{
    MPI_Abort(c != NULL ? c->axes[COMM_WORLD] : MPI_COMM_WORLD, exit_status);
    _exit(exit_status);
}

int comm_rank(const struct comm *c, enum comm_axis axis)
{
    return c->ranks[axis];
}

int comm_size(const struct comm *c, enum comm_axis axis)
{
    return c->sizes[axis];
}

MPI_Comm comm_handle(const struct comm *c, enum comm_axis axis)
{
    return c->axes[axis];
}

struct comm_stats comm_stats_of(const struct comm *c, enum comm_axis axis)
{
    return c->stats[axis];
}

struct status comm_agree(struct comm *c, struct status mine)
{
    /* the worst code, and among equals the lowest rank, is the maximum of this */
    const int rank = c->ranks[COMM_WORLD];
    uint64_t key = (uint64_t)mine.code << 32 | (uint32_t)(INT_MAX - rank);
    comm_max_u64(c, COMM_WORLD, &key, 1);
    if (key >> 32 == STATUS_OK) return status_ok();
    const int from = INT_MAX - (int)(uint32_t)key;
    struct status worst = mine;
    comm_broadcast(c, COMM_WORLD, from, &worst, sizeof worst);
    if (from == rank || c->sizes[COMM_WORLD] == 1 || from == 0) return worst;
    return status_wrap(worst, "rank %d", from);
}

/* What an all-reduce is for MPI and for a host group. */
struct reduction {
    size_t elem_bytes;
    MPI_Datatype type;
    MPI_Op op;
    enum host_reduction on_host;
};

static void reduce_by_mpi(struct comm *c, enum comm_axis axis, void *buf, size_t n,
                          const struct reduction *r)
{
    char *at = buf;
    for (size_t left = n; left > 0;) {
        const size_t now = left < ELEMS_AT_ONCE ? left : ELEMS_AT_ONCE;
        check(c, MPI_Allreduce(MPI_IN_PLACE, at, (int)now, r->type, r->op, c->axes[axis]),
              "all-reduce", axis);
        at += now * r->elem_bytes;
        left -= now;
    }
}

static void reduce(struct comm *c, enum comm_axis axis, void *buf, size_t n,
                   const struct reduction *r)
{
    if (c->sizes[axis] == 1) return;
    agree_on_call(c, "all-reduce", axis, n, r->elem_bytes, -1);
    const uint64_t since = begin(c, FLIGHT_ALL_REDUCE, axis, n);
    struct host_group *g = group_of(c, axis);
    if (g != NULL) {
        check_memory(c, host_group_reduce(g, r->on_host, buf, n), "all-reduce", axis);
    } else {
        reduce_by_mpi(c, axis, buf, n, r);
    }
    account(c, axis, since, n * r->elem_bytes);
}

static const struct reduction sum_i64 = {sizeof(int64_t), MPI_INT64_T, MPI_SUM, HOST_SUM_I64};
static const struct reduction or_u32 = {sizeof(uint32_t), MPI_UINT32_T, MPI_BOR, HOST_OR_U32};
static const struct reduction max_u64 = {sizeof(uint64_t), MPI_UINT64_T, MPI_MAX, HOST_MAX_U64};
static const struct reduction min_u64 = {sizeof(uint64_t), MPI_UINT64_T, MPI_MIN, HOST_MIN_U64};

void comm_sum_i64(struct comm *c, enum comm_axis axis, int64_t *buf, size_t n)
{
    reduce(c, axis, buf, n, &sum_i64);
}

void comm_or_u32(struct comm *c, enum comm_axis axis, uint32_t *buf, size_t n)
{
    reduce(c, axis, buf, n, &or_u32);
}

void comm_max_u64(struct comm *c, enum comm_axis axis, uint64_t *buf, size_t n)
{
    reduce(c, axis, buf, n, &max_u64);
}

void comm_min_u64(struct comm *c, enum comm_axis axis, uint64_t *buf, size_t n)
{
    reduce(c, axis, buf, n, &min_u64);
}

/* Sums that are here already, as words to take. */
static void take_words(const struct comm_sum *s)
{
    uint32_t words[1024];
    const size_t at_once = sizeof words / sizeof *words;
    for (size_t i = 0; i < s->n; i += at_once) {
        const size_t n = s->n - i < at_once ? s->n - i : at_once;
        s->convert(s->ctx, s->sums + i, i, n, words);
        s->take(s->ctx, words, i, n);
    }
}

void comm_sum_words(struct comm *c, enum comm_axis axis, const struct comm_sum *s)
{
    if (c->sizes[axis] == 1) {
        take_words(s);
        return;
    }
    agree_on_call(c, "all-reduce to words", axis, s->n, sizeof *s->sums, -1);
    const uint64_t since = begin(c, FLIGHT_ALL_REDUCE, axis, s->n);
    struct host_group *g = group_of(c, axis);
    if (g != NULL) {
        check_memory(c, host_group_sum_words(g, s), "all-reduce", axis);
    } else {
        reduce_by_mpi(c, axis, s->sums, s->n, &sum_i64);
        take_words(s);
    }
    account(c, axis, since, s->n * sizeof *s->sums);
}

static void gather_by_mpi(struct comm *c, enum comm_axis axis, void *all, const int *counts,
                          const int *displs)
{
    check(c,
          MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, counts, displs, MPI_UINT32_T,
                         c->axes[axis]),
          "all-gather", axis);
}

void comm_gather_words(struct comm *c, enum comm_axis axis, void *all, const int *counts,
                       const int *displs)
{
    if (c->sizes[axis] == 1) return;
    agree_on_call(c, "all-gather", axis, 0, 4, -1);
    const uint64_t since = begin(c, FLIGHT_ALL_GATHER, axis, (uint64_t)counts[c->ranks[axis]]);
    struct host_group *g = group_of(c, axis);
    if (g != NULL) {
        check_memory(c, host_group_gather_words(g, all, counts, displs), "all-gather", axis);
    } else {
        gather_by_mpi(c, axis, all, counts, displs);
    }
    account(c, axis, since, (size_t)counts[c->ranks[axis]] * 4);
}

void comm_gather_bytes(struct comm *c, enum comm_axis axis, const void *mine, size_t n_bytes,
                       void *all)
{
    agree_on_call(c, "all-gather", axis, n_bytes, 1, -1);
    const uint64_t since = begin(c, FLIGHT_ALL_GATHER, axis, n_bytes);
    const int n = (int)n_bytes;
    struct host_group *g = group_of(c, axis);
    if (g != NULL) {
        check_memory(c, host_group_gather_bytes(g, mine, n_bytes, all), "all-gather", axis);
    } else {
        check(c, MPI_Allgather(mine, n, MPI_BYTE, all, n, MPI_BYTE, c->axes[axis]), "all-gather",
              axis);
    }
    account(c, axis, since, n_bytes);
}

void comm_exchange_i32(struct comm *c, enum comm_axis axis, const int32_t *send, int32_t *recv,
                       size_t n)
{
    if (c->sizes[axis] == 1) {
        memcpy(recv, send, n * sizeof *send);
        return;
    }
    agree_on_call(c, "all-to-all of counts", axis, n, 4, -1);
    const uint64_t since = begin(c, FLIGHT_ALL_TO_ALL, axis, n);
    struct host_group *g = group_of(c, axis);
    if (g != NULL) {
        check_memory(c, host_group_exchange_i32(g, send, recv, n), "all-to-all of counts", axis);
    } else {
        check(c, MPI_Alltoall(send, (int)n, MPI_INT32_T, recv, (int)n, MPI_INT32_T, c->axes[axis]),
              "all-to-all of counts", axis);
    }
    account(c, axis, since, n * sizeof *send * (size_t)c->sizes[axis]);
}

static void exchange_by_mpi(struct comm *c, enum comm_axis axis, const struct comm_exchange *x)
{
    MPI_Datatype row; /* so that displacements beyond 2^31 words fit an int */
    check(c, MPI_Type_contiguous((int)x->row_words, MPI_UINT32_T, &row), "row type", axis);
    check(c, MPI_Type_commit(&row), "row type", axis);
    check(c,
          MPI_Alltoallv(x->send, x->send_counts, x->send_displs, row, x->recv, x->recv_counts,
                        x->recv_displs, row, c->axes[axis]),
          "all-to-all", axis);
    check(c, MPI_Type_free(&row), "row type", axis);
}

void comm_exchange_rows(struct comm *c, enum comm_axis axis, const struct comm_exchange *x)
{
    const size_t row_bytes = x->row_words * 4;
    if (c->sizes[axis] == 1) {
        const char *from = (const char *)x->send + (size_t)x->send_displs[0] * row_bytes;
        char *to = (char *)x->recv + (size_t)x->recv_displs[0] * row_bytes;
        memcpy(to, from, (size_t)x->send_counts[0] * row_bytes);
        return;
    }
    size_t n_rows = 0;
    for (int i = 0; i < c->sizes[axis]; i++) n_rows += (size_t)x->send_counts[i];
    agree_on_call(c, "all-to-all", axis, 0, x->row_words * 4, -1);
    const uint64_t since = begin(c, FLIGHT_ALL_TO_ALL, axis, n_rows * x->row_words);
    struct host_group *g = group_of(c, axis);
    if (g != NULL) {
        check_memory(c, host_group_exchange_rows(g, x), "all-to-all", axis);
    } else {
        exchange_by_mpi(c, axis, x);
    }
    account(c, axis, since, n_rows * row_bytes);
}

static void broadcast_by_mpi(struct comm *c, enum comm_axis axis, int root, void *buf,
                             size_t n_bytes)
{
    char *at = buf;
    for (size_t left = n_bytes; left > 0;) {
        const size_t now = left < ELEMS_AT_ONCE ? left : ELEMS_AT_ONCE;
        check(c, MPI_Bcast(at, (int)now, MPI_BYTE, root, c->axes[axis]), "broadcast", axis);
        at += now;
        left -= now;
    }
}

void comm_broadcast(struct comm *c, enum comm_axis axis, int root, void *buf, size_t n_bytes)
{
    if (c->sizes[axis] == 1) return;
    agree_on_call(c, "broadcast", axis, n_bytes, 1, root);
    const uint64_t since = begin(c, FLIGHT_BROADCAST, axis, n_bytes);
    struct host_group *g = group_of(c, axis);
    if (g != NULL) {
        check_memory(c, host_group_broadcast(g, root, buf, n_bytes), "broadcast", axis);
    } else {
        broadcast_by_mpi(c, axis, root, buf, n_bytes);
    }
    account(c, axis, since, n_bytes);
}

void comm_barrier(struct comm *c, enum comm_axis axis)
{
    agree_on_call(c, "barrier", axis, 0, 0, -1);
    const uint64_t since = begin(c, FLIGHT_BARRIER, axis, 0);
    struct host_group *g = group_of(c, axis);
    if (g != NULL) {
        host_group_barrier(g);
    } else {
        check(c, MPI_Barrier(c->axes[axis]), "barrier", axis);
    }
    account(c, axis, since, 0);
}

void comm_send_start(struct comm *c, int to, enum comm_tag tag, const void *buf, size_t n_bytes,
                     struct comm_request *r)
{
    if (n_bytes > INT_MAX) {
        log_line(LOG_ERROR, "a message of %zu bytes is larger than 2 GiB", n_bytes);
        comm_abort(c, status_exit(STATUS_BUG));
    }
    begin(c, FLIGHT_SEND, COMM_WORLD, n_bytes);
    check(c, MPI_Isend(buf, (int)n_bytes, MPI_BYTE, to, tag, c->axes[COMM_WORLD], &r->mpi), "send",
          COMM_WORLD);
    end(c, clock_ns());
    r->active = true;
}

void comm_recv_start(struct comm *c, int from, enum comm_tag tag, void *buf, size_t max_bytes,
                     struct comm_request *r)
{
    const int n = max_bytes > INT_MAX ? INT_MAX : (int)max_bytes;
    check(c, MPI_Irecv(buf, n, MPI_BYTE, from, tag, c->axes[COMM_WORLD], &r->mpi), "receive",
          COMM_WORLD);
    r->active = true;
}

size_t comm_wait(struct comm *c, struct comm_request *r)
{
    if (!r->active) return 0;
    const uint64_t since = begin(c, FLIGHT_WAIT, COMM_WORLD, 0);
    MPI_Status status;
    check(c, MPI_Wait(&r->mpi, &status), "wait", COMM_WORLD);
    r->active = false;
    int n = 0;
    MPI_Get_count(&status, MPI_BYTE, &n);
    if (n < 0) n = 0;
    account(c, COMM_WORLD, since, (size_t)n);
    return (size_t)n;
}

void comm_cancel(struct comm *c, struct comm_request *r)
{
    if (!r->active) return;
    check(c, MPI_Cancel(&r->mpi), "cancel", COMM_WORLD);
    check(c, MPI_Wait(&r->mpi, MPI_STATUS_IGNORE), "wait", COMM_WORLD);
    r->active = false;
}

size_t comm_probe(struct comm *c, int from, enum comm_tag tag)
{
    const uint64_t since = begin(c, FLIGHT_PROBE, COMM_WORLD, 0);
    MPI_Status status;
    check(c, MPI_Probe(from, tag, c->axes[COMM_WORLD], &status), "probe", COMM_WORLD);
    int n = 0;
    MPI_Get_count(&status, MPI_BYTE, &n);
    account(c, COMM_WORLD, since, 0);
    return (size_t)n;
}

void comm_recv(struct comm *c, int from, enum comm_tag tag, void *buf, size_t n_bytes)
{
    begin(c, FLIGHT_RECEIVE, COMM_WORLD, n_bytes);
    check(c,
          MPI_Recv(buf, (int)n_bytes, MPI_BYTE, from, tag, c->axes[COMM_WORLD], MPI_STATUS_IGNORE),
          "receive", COMM_WORLD);
    end(c, clock_ns());
}
