/* Makes and ends the axes (MPI communicators and host groups), and records and counts operations.
 * The operations are in comm_collective.c, comm_message.c and comm_mail.c. */
#define COMM_INSIDE /* comm.h then defines no macros that record call sites (debug builds) */
#include "parallel/comm/comm_private.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc_thread.h"
#include "parallel/comm/collective_check.h"
#include "parallel/comm/comm_hosts.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>
#include <unistd.h>

static const char *const axis_names[COMM_AXIS_COUNT] = {"world", "host", "stage",
                                                        "tp",    "ep",   "etp"};

const char *comm_axis_name(uint32_t axis)
{
    return axis < COMM_AXIS_COUNT ? axis_names[axis] : "an unknown axis";
}

void comm_check(struct comm *c, int rc, const char *op, enum comm_axis axis)
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

/* Records the end of an operation. */
void comm_end(struct comm *c, uint64_t now)
{
    flight_end(c->flight, now);
    trace_add_comm(c->trace, c->flight);
}

/* Records the start of an operation; returns the time, for comm_account. */
uint64_t comm_begin(struct comm *c, enum flight_op op, enum comm_axis axis, uint64_t count)
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

/* Ends the job unless all ranks make the same call. */
void comm_agree_on_call(struct comm *c, const char *op, enum comm_axis axis, uint64_t count,
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
void comm_agree_on_call(struct comm *c, const char *op, enum comm_axis axis, uint64_t count,
                        size_t elem_bytes, int root)
{
    (void)c, (void)op, (void)axis, (void)count, (void)elem_bytes, (void)root;
}
#endif

void comm_account(struct comm *c, enum comm_axis axis, uint64_t since, size_t n_bytes)
{
    const uint64_t now = clock_ns();
    struct comm_stats *s = &c->stats[axis];
    comm_end(c, now);
    s->n_calls++;
    s->n_bytes += n_bytes;
    s->ns += now - since;
    const struct comm_hosts *h = c->hosts[axis];
    if (h != NULL && h->group != NULL) s->wait_ns += host_group_take_wait(h->group);
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
    if (!running) config_spare_mpi();
    if (!running && MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        return status_make(STATUS_LOST, "MPI could not start");
    }
    struct comm *c = NULL;
    TRY(mem_alloc(&c, 1, sizeof *c, "communicators"));
    for (int i = 0; i < COMM_AXIS_COUNT; i++) c->axes[i] = MPI_COMM_NULL;
    c->owns_mpi = !running;
    flight_init(&c->own_flight);
    c->flight = &c->own_flight;
    c->pretended_host = -1;
    MPI_Comm world;
    MPI_Comm_dup(MPI_COMM_WORLD, &world);
    set_axis(c, COMM_WORLD, world);
    *out = c;
    return status_ok();
}

struct status comm_alone(const struct comm *c, struct comm **out)
{
    struct comm *alone = NULL;
    *out = NULL;
    TRY(mem_alloc(&alone, 1, sizeof *alone, "communicators"));
    const struct status st = mem_alloc(&alone->parts, 2, sizeof *alone->parts, "communicators");
    if (status_failed(&st)) {
        mem_free(&alone);
        return st;
    }
    flight_init(&alone->own_flight);
    alone->flight = &alone->own_flight;
    alone->pretended_host = -1;
    alone->team = c->team;
    alone->has_stages =
        c->has_stages; /* messages of the other stages move by this rank's polling */
    for (int i = 0; i < COMM_AXIS_COUNT; i++) {
        MPI_Comm self;
        comm_check(alone, MPI_Comm_dup(MPI_COMM_SELF, &self), "dup", (enum comm_axis)i);
        set_axis(alone, (enum comm_axis)i, self);
    }
    *out = alone;
    return st;
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

/* Makes an axis of the ranks of `parent` with the same color, in the order of key. */
static void split_axis(struct comm *c, enum comm_axis axis, MPI_Comm parent, int color, int key)
{
    MPI_Comm made;
    comm_begin(c, FLIGHT_SPLIT, axis, 0);
    comm_check(c, MPI_Comm_split(parent, color, key, &made), "split", axis);
    comm_end(c, clock_ns());
    set_axis(c, axis, made);
}

/* Lets MPI make progress while this rank waits in shared memory or its team computes: a message of
 * another rank may move only while this rank is inside MPI. */
static void poll_mpi(void *ctx)
{
    struct comm *c = ctx;
    int found;
    if (comm_mail_advance(c, true)) return;
    MPI_Iprobe(MPI_ANY_SOURCE, COMM_TAG_POLL, c->axes[COMM_WORLD], &found, MPI_STATUS_IGNORE);
}

void comm_poll_mpi(struct comm *c)
{
    poll_mpi(c);
}

void comm_poll(struct comm *c)
{
    if (c->has_stages)
        poll_mpi(c);
    else
        comm_mail_poll(c, false);
}

/* **Collective (host)**. True when the host has more ranks than processing units, so waiting ranks
 * must not spin. */
static bool is_crowded(struct comm *c)
{
    cpu_set_t units;
    CPU_ZERO(&units);
    if (sched_getaffinity(0, sizeof units, &units) != 0) memset(&units, 0xff, sizeof units);
    MPI_Allreduce(MPI_IN_PLACE, &units, (int)sizeof units, MPI_BYTE, MPI_BOR, c->axes[COMM_HOST]);
    return c->sizes[COMM_HOST] > CPU_COUNT(&units);
}

/* **Collective (host)**. Returns how many ranks may be threads of this process, as in some MPI
 * libraries: 1, or all of the world when two ranks of this host see the same random bytes. The
 * system gives each process that it starts 16 random bytes; the first 8 are compared. */
static int ranks_of_process(struct comm *c)
{
    const size_t n = (size_t)c->sizes[COMM_HOST];
    const uint64_t *random = (const uint64_t *)(uintptr_t)getauxval(AT_RANDOM);
    uint64_t *all = NULL;
    if (random == NULL) return 1;
    const struct status st = mem_alloc(&all, n, sizeof *all, "processes of a host");
    comm_check_memory(c, !status_failed(&st), "hosts", COMM_HOST);
    comm_check(c, MPI_Allgather(random, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, c->axes[COMM_HOST]),
               "all-gather", COMM_HOST);
    bool same = false;
    for (size_t i = 1; i < n; i++)
        for (size_t k = 0; k < i; k++) same |= all[i] == all[k];
    mem_free(&all);
    return same ? c->sizes[COMM_WORLD] : 1;
}

/* Returns the hosts of an axis; if an earlier axis has the same ranks, returns that axis's hosts.
 */
static struct comm_hosts *hosts_of_axis(struct comm *c, int axis, int host_id,
                                        struct host_group_waiting w)
{
    for (int k = COMM_STAGE; k < axis; k++) {
        int same = MPI_UNEQUAL;
        MPI_Comm_compare(c->axes[axis], c->axes[k], &same);
        if (same == MPI_CONGRUENT) return c->hosts[k];
    }
    struct comm_hosts *h = comm_hosts_open(c->axes[axis], host_id, w);
    comm_check_memory(c, h != NULL, "hosts", (enum comm_axis)axis);
    return h;
}

/* **Collective (world)**. Opens shared memory for the ranks of each axis that are on one host. */
static void share_hosts(struct comm *c)
{
    const struct host_group_waiting w = {
        .crowded = is_crowded(c), .n_in_process = ranks_of_process(c), .poll = poll_mpi, .ctx = c};
    int host_id = c->ranks[COMM_WORLD]; /* the first rank of the host */
    comm_check(c, MPI_Bcast(&host_id, 1, MPI_INT, 0, c->axes[COMM_HOST]), "broadcast", COMM_HOST);
    for (int i = COMM_STAGE; i < COMM_AXIS_COUNT; i++) {
        c->uses_memory[i] = true;
        if (c->sizes[i] == 1) continue;
        c->hosts[i] = hosts_of_axis(c, i, host_id, w);
        if (c->hosts[i]->n_hosts == 1) c->groups[i] = c->hosts[i]->group;
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
        if (c->hosts[i] != NULL && c->hosts[i]->group != NULL)
            host_group_use_team(c->hosts[i]->group, team);
}

static void close_hosts(struct comm *c)
{
    for (int i = 0; i < COMM_AXIS_COUNT; i++) {
        struct comm_hosts *h = c->hosts[i];
        for (int k = 0; k < COMM_AXIS_COUNT; k++) {
            if (c->hosts[k] == h) c->hosts[k] = NULL;
        }
        comm_hosts_close(&h);
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

bool comm_lane_is_huge(const struct comm *c, enum comm_axis axis, enum comm_lane lane)
{
    return c->groups[axis] != NULL && host_group_lane_is_huge(c->groups[axis], lane);
}

void comm_release_lane(struct comm *c, enum comm_axis axis, enum comm_lane lane)
{
    if (c->groups[axis] != NULL) host_group_release_lane(c->groups[axis], lane);
}

const void *comm_lane_of(const struct comm *c, enum comm_axis axis, enum comm_lane lane, int rank)
{
    return host_group_lane_at(c->groups[axis], lane, rank);
}

void *comm_common_lane(struct comm *c, enum comm_axis axis, enum comm_lane lane, size_t n_bytes)
{
    struct host_group *g = c->groups[axis];
    if (c->ranks[axis] == 0)
        comm_check_memory(c, host_group_lane(g, lane, n_bytes) != NULL, "lane", axis);
    comm_barrier(c, axis);
    return host_group_lane_at(g, lane, 0);
}

/* Returns the host group that an operation uses; NULL: it uses MPI. */
struct host_group *comm_group_of(const struct comm *c, enum comm_axis axis)
{
    return c->uses_memory[axis] ? c->groups[axis] : NULL;
}

void comm_check_memory(struct comm *c, bool ok, const char *op, enum comm_axis axis)
{
    if (ok) return;
    log_line(LOG_ERROR, "%s over %s: this host has no memory left for it", op, axis_names[axis]);
    comm_abort(c, status_exit(STATUS_MEMORY));
}

/* **Collective (world)**. Makes COMM_HOST, divided further as comm_pretend_host asks. */
static void split_hosts(struct comm *c, int key)
{
    MPI_Comm host;
    comm_check(
        c,
        MPI_Comm_split_type(c->axes[COMM_WORLD], MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, &host),
        "split", COMM_HOST);
    set_axis(c, COMM_HOST, host);
    if (c->pretended_host < 0) return;
    split_axis(c, COMM_HOST, host, c->pretended_host, key);
    MPI_Comm_free(&host);
}

void comm_pretend_host(struct comm *c, int host)
{
    c->pretended_host = host;
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
    const struct status st =
        mem_alloc(&c->parts, 2 * (size_t)l->n_ranks, sizeof *c->parts, "communicators");
    MPI_Comm launched = c->axes[COMM_WORLD];
    split_axis(c, COMM_WORLD, launched, 0, mine);
    MPI_Comm_free(&launched);
    const MPI_Comm world = c->axes[COMM_WORLD];
    const struct layout_place p = layout_place_of(l, (uint32_t)mine);
    c->has_stages = l->pp > 1;
    const int in_stage = (int)(p.dp * l->tp + p.tp);
    const int ep_color = (int)(p.pp * l->n_expert_replicas + p.expert_replica);
    split_hosts(c, mine);
    split_axis(c, COMM_STAGE, world, (int)p.pp, in_stage);
    split_axis(c, COMM_TP, world, (int)(p.dp * l->pp + p.pp), (int)p.tp);
    split_axis(c, COMM_EP, world, ep_color, (int)(p.ep * l->etp + p.etp));
    split_axis(c, COMM_ETP, world, (int)((uint32_t)ep_color * l->ep + p.ep), (int)p.etp);
    share_hosts(c);
    return st;
}

/* Ends MPI. Open MPI's mpirun counts a rank as failed when the rank exits before mpirun has read
 * its farewell message, and the rank waits only two seconds for the reply (PMIx_Finalize of
 * OpenPMIx 4). So when that wait has run out, the rank stays until the launcher is idle, for at
 * most STAY_MS. */
static void finalize(void)
{
    enum { ANSWER_MS = 1900, STAY_MS = 30000, LOOK_MS = 50, NS_PER_MS = 1000000 };
    const struct timespec look = {.tv_nsec = LOOK_MS * NS_PER_MS};
    /* otherwise the time measured below would include waiting for the slowest rank */
    MPI_Barrier(MPI_COMM_WORLD);
    const uint64_t from = clock_ns();
    MPI_Finalize();
    if (clock_ns() - from < (uint64_t)ANSWER_MS * NS_PER_MS) return;
    for (int ms = 0; ms < STAY_MS && proc_is_busy(getppid()); ms += LOOK_MS) nanosleep(&look, NULL);
}

void comm_stop(struct comm **c)
{
    const bool owns_mpi = *c == NULL || (*c)->owns_mpi;
    if (*c != NULL) {
        close_hosts(*c);
        mem_free(&(*c)->sum_memory.bytes);
        for (int i = 0; i < COMM_AXIS_COUNT; i++) {
            if ((*c)->axes[i] != MPI_COMM_NULL) MPI_Comm_free(&(*c)->axes[i]);
        }
        mem_free(&(*c)->parts);
        mem_free(c);
    }
    int started = 0, ended = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&ended);
    if (owns_mpi && started && !ended) finalize();
}

void comm_abort(struct comm *c, int exit_status)
{
    (void)c; /* which may have only this rank (comm_alone) */
    MPI_Abort(MPI_COMM_WORLD, exit_status);
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

struct comm_stats comm_stats_of_steps(const struct comm *c)
{
    struct comm_stats all = {0};
    for (int i = COMM_STAGE; i < COMM_AXIS_COUNT; i++) {
        all.n_calls += c->stats[i].n_calls;
        all.n_bytes += c->stats[i].n_bytes;
        all.wire_bytes += c->stats[i].wire_bytes;
        all.ns += c->stats[i].ns;
        all.wait_ns += c->stats[i].wait_ns;
    }
    return all;
}

struct status comm_agree(struct comm *c, struct status mine)
{
    /* the maximum of this key belongs to the worst code and, among ranks with it, to the lowest
     * rank */
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
