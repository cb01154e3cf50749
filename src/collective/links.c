/* Communicators between GPUs: which ranks can have one, opening, failures, and their end.
 * Operations: links_run.c, links_sum.c. */
#include "collective/links_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "kernels/cuda/device_state.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { NAP_NS = 20000, ABORT_S = 5, FINISH_S = 10, NAMED_MAX = 4 };

static const enum comm_axis linked[LINK_AXES] = {COMM_TP, COMM_EP, COMM_ETP};

/* --- which communicators are possible --------------------------------------------------------- */

bool links_possible(const struct link_member *members, const int *world, int n, char *why,
                    size_t why_bytes)
{
    for (int i = 0; i < n; i++) {
        const struct link_member *m = &members[world[i]];
        if (!m->has_nccl) {
            snprintf(why, why_bytes, "rank %d has no NCCL", world[i]);
            return false;
        }
        for (int k = 0; k < i; k++) {
            const struct link_member *o = &members[world[k]];
            if (strcmp(m->pci, o->pci) != 0 || strcmp(m->host, o->host) != 0) continue;
            snprintf(why, why_bytes, "ranks %d and %d share GPU %s of %s", world[k], world[i],
                     m->pci, m->host);
            return false;
        }
    }
    return true;
}

static struct status gather_members(struct device *d, struct links *l, const char *host)
{
    struct link_member mine = {.has_nccl = l->nccl != NULL && l->nccl->load() == 0};
    snprintf(mine.host, sizeof mine.host, "%s", host);
    snprintf(mine.pci, sizeof mine.pci, "%s", d->facts.pci);
    const size_t n = (size_t)comm_size(l->comm, COMM_WORLD);
    const struct status st = mem_alloc(&l->members, n, sizeof *l->members, "GPUs of all ranks");
    TRY(comm_agree(l->comm, st));
    comm_gather_bytes(l->comm, COMM_WORLD, &mine, sizeof mine, l->members);
    return st;
}

/* --- failures ------------------------------------------------------------------------------- */

static void name_ranks(const struct links *l, const struct link *link, struct strbuf *out)
{
    const char *before = " with ";
    for (int i = 0, n = 0; i < link->n_ranks; i++) {
        if (i == link->rank) continue;
        if (n++ == NAMED_MAX) {
            strbuf_printf(out, " and %d more", link->n_ranks - 1 - NAMED_MAX);
            return;
        }
        strbuf_printf(out, "%srank %d on %s", before, link->world[i],
                      l->members[link->world[i]].host);
        before = ", ";
    }
}

static void name_operation(const struct links *l, const struct link *link, struct strbuf *out)
{
    strbuf_puts(out, link->last);
    if (link->axis != COMM_WORLD) strbuf_printf(out, " over %s", comm_axis_name(link->axis));
    name_ranks(l, link, out);
}

/* Records the first failure, with the operation and the other ranks that took part. */
static void links_fail(struct device *d, const struct link *link, enum status_code code,
                       const char *why)
{
    struct strbuf text;
    if (device_is_lost(d)) return;
    strbuf_init(&text);
    name_operation(d->links, link, &text);
    d->failed = status_make(code, "GPU %d (%s, %s): %s: %s", d->index, d->facts.name, d->facts.pci,
                            text.data != NULL ? text.data : link->last, why);
    strbuf_fini(&text);
}

static void fail_late(struct device *d, const struct link *link, uint64_t waited_ns)
{
    char why[64];
    snprintf(why, sizeof why, "no answer for %llu s",
             (unsigned long long)(waited_ns / 1000000000u));
    links_fail(d, link, STATUS_LOST, why);
}

/* Sets the device's failure for a failed NCCL call. NCCL only knows that CUDA failed; the device's
 * own error, if there is one, says why. */
static void fail_call(struct device *d, const struct link *link, int error, enum status_code code)
{
    bool done;
    const int own = d->driver->event_query(d->waits, &done);
    if (own != 0) {
        links_fail(d, link, d->driver->error_class(own), d->driver->error_text(own));
    } else {
        links_fail(d, link, code, d->links->nccl->error_text(error));
    }
}

bool links_settle(struct device *d, const struct link *link, int error, enum status_code code)
{
    const struct nccl_table *nccl = d->links->nccl;
    const uint64_t since = clock_ns();
    bool busy = true;
    if (error == 0) error = nccl->poll(link->comm, &busy);
    while (error == 0 && busy) {
        const uint64_t waited = clock_ns() - since;
        if (waited > d->deadline_ns) {
            fail_late(d, link, waited);
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        error = nccl->poll(link->comm, &busy);
    }
    if (error != 0) fail_call(d, link, error, code);
    return error == 0;
}

/* --- opening ------------------------------------------------------------------------------- */

/* Sent by the first rank of a communicator to its other ranks. */
struct invitation {
    char id[NCCL_ID_BYTES];
    int32_t error;
};

static struct status set_ranks(struct links *l, struct link *link, enum comm_axis axis)
{
    link->axis = axis;
    link->n_ranks = comm_size(l->comm, axis);
    link->rank = comm_rank(l->comm, axis);
    link->last = "opening a communicator";
    int *world = NULL;
    const struct status st = mem_alloc(&world, (size_t)link->n_ranks, sizeof *world, "ranks");
    TRY(comm_agree(l->comm, st));
    const int mine = comm_rank(l->comm, COMM_WORLD);
    comm_gather_bytes(l->comm, axis, &mine, sizeof mine, world);
    link->world = world;
    return st;
}

static struct status set_pair(struct links *l, struct link *link, int lower, int upper)
{
    link->axis = COMM_WORLD;
    link->last = "opening a communicator";
    if (lower < 0 || upper < 0) return status_ok();
    int *world = NULL;
    TRY(mem_alloc(&world, 2, sizeof *world, "ranks"));
    world[0] = lower;
    world[1] = upper;
    link->world = world;
    link->n_ranks = 2;
    link->rank = comm_rank(l->comm, COMM_WORLD) == upper;
    return status_ok();
}

/* Returns an earlier axis with the same ranks, so that both can use one communicator; NULL when
 * there is none. */
static const struct link *twin_of(const struct links *l, const struct link *link)
{
    for (const struct link *o = l->axes; o < link && o < l->axes + LINK_AXES; o++) {
        if (o->n_ranks == link->n_ranks &&
            memcmp(o->world, link->world, (size_t)o->n_ranks * sizeof *o->world) == 0)
            return o;
    }
    return NULL;
}

static void open_one(struct device *d, struct link *link, const struct invitation *from)
{
    const struct nccl_table *nccl = d->links->nccl;
    if (from->error != 0) {
        links_fail(d, link, STATUS_USAGE, nccl->error_text(from->error));
        return;
    }
    const int error = nccl->open(&link->comm, link->n_ranks, from->id, link->rank);
    if (error != 0 && link->comm == NULL) {
        links_fail(d, link, STATUS_USAGE, nccl->error_text(error));
        return;
    }
    (void)links_settle(d, link, error, STATUS_USAGE);
}

/* **Collective (axis)**. Opens an axis's communicator, or takes over its twin's. */
static void open_axis(struct device *d, struct link *link)
{
    struct links *l = d->links;
    const struct link *twin = twin_of(l, link);
    if (twin != NULL) {
        link->comm = twin->comm;
        return;
    }
    struct invitation invitation = {.error = 0};
    if (link->rank == 0) invitation.error = l->nccl->new_id(invitation.id);
    comm_broadcast(l->comm, link->axis, 0, &invitation, sizeof invitation);
    if (!device_is_lost(d)) open_one(d, link, &invitation);
}

/* Opens the communicators of pairs. The lower rank of a pair invites the upper one; all ranks send
 * before they receive, and open first the pair with the previous stage, so that the pipeline opens
 * from its first stage on. */
static void open_pairs(struct device *d)
{
    struct links *l = d->links;
    struct link *before = &l->pairs[LINK_BEFORE], *behind = &l->pairs[LINK_BEHIND];
    struct invitation to = {.error = 0}, from = {.error = 0};
    struct comm_request sent = {.active = false};
    char why[128];
    const bool can_before =
        before->n_ranks == 2 && links_possible(l->members, before->world, 2, why, sizeof why);
    const bool can_behind =
        behind->n_ranks == 2 && links_possible(l->members, behind->world, 2, why, sizeof why);
    if (can_behind) {
        to.error = l->nccl->new_id(to.id);
        comm_send_start(l->comm, behind->world[1], COMM_TAG_DEVICE, &to, sizeof to, &sent);
    }
    if (can_before) {
        comm_recv(l->comm, before->world[0], COMM_TAG_DEVICE, &from, sizeof from);
        if (!device_is_lost(d)) open_one(d, before, &from);
    }
    comm_wait(l->comm, &sent);
    if (can_behind && !device_is_lost(d)) open_one(d, behind, &to);
}

static struct status check_way(const struct links *l, const struct link *link, enum device_way way)
{
    char why[192];
    if (way != DEVICE_WAY_NCCL || link->n_ranks < 2 ||
        links_possible(l->members, link->world, link->n_ranks, why, sizeof why))
        return status_ok();
    return status_make(STATUS_USAGE, "--device-comm nccl: %s: %s",
                       link->axis == COMM_WORLD ? "pipeline" : comm_axis_name(link->axis), why);
}

static struct status links_prepare(struct device *d, const struct device_comm_options *o)
{
    struct links *l = d->links;
    TRY(gather_members(d, l, o->host));
    for (int i = 0; i < LINK_AXES; i++) TRY(set_ranks(l, &l->axes[i], linked[i]));
    const int me = comm_rank(l->comm, COMM_WORLD);
    TRY(set_pair(l, &l->pairs[LINK_BEFORE], o->previous, me));
    TRY(set_pair(l, &l->pairs[LINK_BEHIND], me, o->next));
    for (int i = 0; i < LINK_AXES; i++) TRY(check_way(l, &l->axes[i], o->flags.way));
    for (int i = 0; i < LINK_PAIRS; i++) TRY(check_way(l, &l->pairs[i], o->flags.way));
    return status_ok();
}

/* --- closing ---------------------------------------------------------------------------------- */

/* Lists each communicator once in out[]. Returns their number. */
static int list_comms(const struct links *l, struct link out[LINK_AXES + LINK_PAIRS])
{
    int n = 0;
    for (int i = 0; i < LINK_AXES + LINK_PAIRS; i++) {
        const struct link *link = i < LINK_AXES ? &l->axes[i] : &l->pairs[i - LINK_AXES];
        bool seen = link->comm == NULL;
        for (int k = 0; k < n; k++) seen = seen || out[k].comm == link->comm;
        if (!seen) out[n++] = *link;
    }
    return n;
}

static void *abort_all(void *arg)
{
    const struct links *l = arg;
    struct link list[LINK_AXES + LINK_PAIRS];
    const int n = list_comms(l, list);
    for (int i = 0; i < n; i++) (void)l->nccl->abort(list[i].comm);
    return NULL;
}

/* Aborts the communicators on a separate thread and waits a few seconds, because the abort may
 * itself wait for a GPU that hangs. After that time the thread may still use d->links, so they are
 * not freed; the process ends next anyway. */
static void abort_links(struct device *d)
{
    struct links *l = d->links;
    pthread_t thread;
    if (l == NULL || l->aborted) return;
    l->aborted = true;
    if (pthread_create(&thread, NULL, abort_all, l) != 0) return;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ABORT_S;
    if (pthread_timedjoin_np(thread, NULL, &until) == 0) return;
    pthread_detach(thread);
    d->links = NULL;
}

void links_leave(struct device *d)
{
    struct comm *c = d->links->comm;
    log_line(LOG_ERROR, "%s", d->failed.text);
    abort_links(d);
    comm_abort(c, status_exit(STATUS_LOST));
}

static void finish_one(const struct links *l, const struct link *link)
{
    const uint64_t since = clock_ns();
    bool busy = true;
    int error = l->nccl->finish(link->comm);
    while (error == 0 && busy && clock_ns() - since < FINISH_S * 1000000000ull) {
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        error = l->nccl->poll(link->comm, &busy);
    }
    if (error == 0 && !busy) {
        (void)l->nccl->destroy(link->comm);
    } else {
        (void)l->nccl->abort(link->comm);
    }
}

static void close_links(struct device *d)
{
    if (device_is_lost(d)) abort_links(d);
    struct links *l = d->links;
    if (l == NULL) return;
    struct link list[LINK_AXES + LINK_PAIRS];
    const int n = l->aborted ? 0 : list_comms(l, list);
    for (int i = 0; i < n; i++) finish_one(l, &list[i]);
    links_side_close(d);
    links_pipe_close(d);
    for (int i = 0; i < LINK_AXES; i++) mem_free(&l->axes[i].world);
    for (int i = 0; i < LINK_PAIRS; i++) mem_free(&l->pairs[i].world);
    mem_free(&l->members);
    mem_free(&d->links);
}

/* --- while the host waits ------------------------------------------------------------------- */

static struct link *link_at(struct links *l, int i)
{
    return i < LINK_AXES ? &l->axes[i] : &l->pairs[i - LINK_AXES];
}

static void check_links(struct device *d)
{
    if (d->links->aborted) return;
    for (int i = 0; i < LINK_AXES + LINK_PAIRS; i++) {
        const struct link *link = link_at(d->links, i);
        bool busy;
        if (link->comm == NULL || link->n_asked == link->n_done) continue;
        const int error = d->links->nccl->poll(link->comm, &busy);
        if (error == 0) continue;
        fail_call(d, link, error, STATUS_LOST);
        links_leave(d);
    }
}

static void note_done(struct device *d)
{
    for (int i = 0; i < LINK_AXES + LINK_PAIRS; i++) {
        struct link *link = link_at(d->links, i);
        if (link != &d->links->pairs[LINK_BEHIND] || links_all_sent(d))
            link->n_done = link->n_asked;
    }
}

static void name_waiting(const struct device *d, char *out, size_t n)
{
    out[0] = '\0';
    struct strbuf text;
    strbuf_init(&text);
    for (int i = 0; i < LINK_AXES + LINK_PAIRS; i++) {
        const struct link *link = link_at(d->links, i);
        if (link->n_asked == link->n_done) continue;
        strbuf_puts(&text, text.n == 0 ? " (" : "; ");
        name_operation(d->links, link, &text);
    }
    if (text.n > 0) snprintf(out, n, "%s)", text.data);
    strbuf_fini(&text);
}

static const struct device_hooks link_hooks = {.check = check_links,
                                               .waited = note_done,
                                               .name_waiting = name_waiting,
                                               .leave = links_leave,
                                               .close = close_links};

struct link *links_of(struct device *d, enum comm_axis axis)
{
    if (d->links == NULL) return NULL;
    for (int i = 0; i < LINK_AXES; i++) {
        struct link *link = &d->links->axes[i];
        if (link->axis == axis && link->comm != NULL) return link;
    }
    return NULL;
}

/* --- opening all ---------------------------------------------------------------------------- */

struct status links_open(struct device *d, struct comm *c, const struct device_comm_options *o)
{
    if (o->flags.way == DEVICE_WAY_STAGED || comm_size(c, COMM_WORLD) == 1) return status_ok();
    struct status st = mem_alloc(&d->links, 1, sizeof *d->links, "communicators of GPUs");
    TRY(comm_agree(c, st));
    d->hooks = &link_hooks;
    d->links->nccl = nccl_table_here();
    d->links->comm = c;
    st = links_prepare(d, o);
    TRY(comm_agree(c, st));
    for (int i = 0; i < LINK_AXES; i++) {
        struct link *link = &d->links->axes[i];
        char why[192];
        if (link->n_ranks > 1 &&
            links_possible(d->links->members, link->world, link->n_ranks, why, sizeof why))
            open_axis(d, link);
    }
    d->links->parts_from = (size_t)o->flags.parts_bytes;
    if (links_of(d, COMM_TP) != NULL && !device_is_lost(d)) (void)links_side_open(d);
    if (o->previous >= 0 || o->next >= 0) (void)links_pipe_open(d);
    open_pairs(d);
    return d->failed;
}
