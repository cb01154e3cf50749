/* The watchdog's thread. At each beat it counts up its own heartbeat, listens for the others',
 * decides which ranks have been silent for too long, and ends the process when a rank is lost. */
#include "parallel/watch/watchdog.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "parallel/watch/watchdog_board.h"
#include "parallel/watch/watchdog_link.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define NS_PER_S  1000000000ull
#define NS_PER_MS 1000000ull

enum {
    BEATS_PER_DEADLINE = 20,
    LINGER_BEATS = 4, /* beats between telling the others and leaving: enough for all to hear */
    LAST_WORDS_S = 2,
    CONNECT_MS = 3000,
    LAST_EVENTS = 6, /* events of a lost rank's flight recorder that are printed */
    PATIENCE = 10,   /* factor on the limit for a rank of this host that gets no CPU */
};

/* Another rank, as seen from this one. Times are in watched time (struct watchdog). */
struct watch {
    uint32_t rank;
    struct board_slot *slot; /* its slot on this host's board; NULL: packets bring its heartbeats */
    uint64_t beats, heard_ns;
    uint64_t starved_ns; /* when it was last silent because it got no CPU */
    bool armed, left;
    struct sockaddr_in from;  /* packets: the rank's address */
    struct flight_event last; /* packets: the last event that it reported */
};

/* Every rank sends this to all others at the start. */
struct self {
    char host[WATCHDOG_HOST_MAX];
    uint32_t with_lead; /* whether the rank is on the lead's host, with shared memory */
};

struct watchdog {
    uint32_t rank, n_ranks;
    struct self *all; /* [n_ranks] */
    struct board *board;
    size_t board_bytes;
    struct board_slot *mine;
    int fd, stop_fd;
    struct link_home home;
    struct watch *watches; /* [n_watches]: first the ranks of this host, then the others, in rank
                              order */
    uint32_t n_watches, n_by_board;
    uint64_t interval_ns, limit_ns;
    /* watched_ns: how long this process itself has run since the start. A suspended process must
     * not take the others for lost */
    uint64_t watched_ns, looked_ns;
    _Atomic bool connected; /* the lead answered */
    pthread_mutex_t words_lock;
    void (*say)(void *user);
    void *user;
    pthread_t thread;
    bool running;
};

static bool is_lead(const struct watchdog *w)
{
    return w->rank == 0;
}

/* True when this rank and the lead exchange packets. */
static bool is_remote(const struct watchdog *w)
{
    return w->all[w->rank].with_lead == 0;
}

static void packet_init(const struct watchdog *w, enum link_kind kind, struct link_packet *out)
{
    memset(out, 0, sizeof *out);
    out->key = w->home.key;
    out->kind = kind;
    out->rank = w->rank;
    out->last = flight_last(&w->mine->flight);
}

/* Sends to the lead or, as the lead, to all ranks from which it has heard. A rank that has not
 * heard from the lead for some time sends to all of the lead's addresses, so that no rank is lost
 * when one of several networks breaks. */
static void send_all(struct watchdog *w, const struct link_packet *p)
{
    for (uint32_t i = w->n_by_board; i < w->n_watches; i++) {
        const struct watch *v = &w->watches[i];
        const bool quiet = w->watched_ns - v->heard_ns > w->limit_ns / 3;
        if (v->armed && (is_lead(w) || !quiet)) {
            link_send(w->fd, &v->from, p);
        } else if (!is_lead(w)) {
            link_send_home(w->fd, &w->home, p);
        }
    }
}

static void beat(struct watchdog *w)
{
    atomic_fetch_add_explicit(&w->mine->beats, 1, memory_order_relaxed);
    if (w->n_by_board == w->n_watches) return;
    struct link_packet p;
    packet_init(w, LINK_BEAT, &p);
    send_all(w, &p);
}

static struct watch *find_by_packets(struct watchdog *w, uint32_t rank)
{
    uint32_t low = w->n_by_board, high = w->n_watches;
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        if (w->watches[mid].rank == rank) return &w->watches[mid];
        if (w->watches[mid].rank < rank)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

/* Reads all packets that have arrived; true when one of them reports a loss. */
static bool listen_all(struct watchdog *w, struct watchdog_loss *loss)
{
    struct link_packet p;
    struct sockaddr_in from;
    bool lost = false;
    while (link_receive(w->fd, w->home.key, &p, &from)) {
        struct watch *v = find_by_packets(w, p.rank);
        if (v == NULL) continue;
        v->armed = true;
        v->from = from;
        v->heard_ns = w->watched_ns;
        v->last = p.last;
        if (p.kind == LINK_LEFT) v->left = true;
        if (p.kind == LINK_LOSS && p.loss.rank < w->n_ranks) {
            *loss = p.loss;
            lost = true;
        }
        if (!is_lead(w)) atomic_store(&w->connected, true);
    }
    return lost;
}

static void look_at_board(struct watchdog *w)
{
    for (uint32_t i = 0; i < w->n_by_board; i++) {
        struct watch *v = &w->watches[i];
        const uint32_t state = atomic_load_explicit(&v->slot->state, memory_order_acquire);
        const uint64_t beats = atomic_load_explicit(&v->slot->beats, memory_order_relaxed);
        if (state == BOARD_LEFT) v->left = true;
        v->armed = state != BOARD_EMPTY;
        if (beats != v->beats) v->heard_ns = w->watched_ns;
        v->beats = beats;
    }
}

static void tell_starved(const struct watchdog *w, const struct watch *v, uint64_t silent_ns)
{
    if (atomic_exchange(&v->slot->told, true)) return;
    log_line(LOG_WARN,
             "rank %u on host %s has been waiting for a CPU for %.1f s: more threads want to run "
             "there than it has CPUs",
             v->rank, w->all[v->rank].host, (double)silent_ns / NS_PER_S);
}

/* True when a rank has been silent for too long. A rank of this host that is ready to run but gets
 * no CPU has PATIENCE times the limit: where ranks of many jobs share few CPUs and yield to each
 * other, schedulers were seen to leave a runnable thread without a CPU for many seconds. */
static bool is_silent(const struct watchdog *w, struct watch *v)
{
    const uint64_t silent_ns = w->watched_ns - v->heard_ns;
    if (!v->armed || v->left || silent_ns <= w->limit_ns) return false;
    if (v->slot == NULL || silent_ns > PATIENCE * w->limit_ns) return true;
    if (board_waits_for_cpu(v->slot)) {
        v->starved_ns = w->watched_ns;
        tell_starved(w, v, silent_ns);
    }
    return w->watched_ns - v->starved_ns > w->limit_ns;
}

/* True when a rank has been silent for too long; *loss names the first of them in w->watches. */
static bool watchdog_judge(struct watchdog *w, struct watchdog_loss *loss)
{
    const struct watch *first = NULL;
    uint32_t n_more = 0;
    for (uint32_t i = 0; i < w->n_watches; i++) {
        struct watch *v = &w->watches[i];
        if (!is_silent(w, v)) continue;
        if (first == NULL)
            first = v;
        else
            n_more += strcmp(w->all[v->rank].host, w->all[first->rank].host) == 0;
    }
    if (first == NULL) return false;
    memset(loss, 0, sizeof *loss);
    loss->rank = first->rank;
    loss->n_more = n_more;
    loss->reporter = w->rank;
    loss->silent_ms = (uint32_t)((w->watched_ns - first->heard_ns) / NS_PER_MS);
    memcpy(loss->host, w->all[first->rank].host, sizeof loss->host);
    loss->last = first->slot != NULL ? flight_last(&first->slot->flight) : first->last;
    return true;
}

static void print_event(const struct flight_event *e, char *out, size_t out_bytes)
{
    flight_print(e, comm_axis_name(e->axis), out, out_bytes);
}

static void log_loss(const struct watchdog *w, const struct watchdog_loss *loss)
{
    if (loss->rank == w->rank) {
        log_line(LOG_ERROR,
                 "this rank was taken for lost: rank %u heard no heartbeat for %.1f s; "
                 "leaving with status %d",
                 loss->reporter, loss->silent_ms / 1e3, status_exit(STATUS_LOST));
        return;
    }
    char its[256], mine[256], more[48] = "";
    const struct flight_event last = flight_last(&w->mine->flight);
    print_event(&loss->last, its, sizeof its);
    print_event(&last, mine, sizeof mine);
    if (loss->n_more > 0) snprintf(more, sizeof more, " (and %u more there)", loss->n_more);
    log_line(LOG_ERROR,
             "rank %u on host %s%s is lost or cut off: rank %u heard no heartbeat for %.1f s; its "
             "last communication: %s; mine, on host %s: %s; leaving with status %d",
             loss->rank, loss->host, more, loss->reporter, loss->silent_ms / 1e3, its,
             w->all[w->rank].host, mine, status_exit(STATUS_LOST));
}

/* Logs the last events of a rank of this host. */
static void log_recorder(const struct watchdog *w, uint32_t rank)
{
    for (uint32_t i = 0; i < w->n_by_board; i++) {
        if (w->watches[i].rank != rank) continue;
        const struct flight *f = &w->watches[i].slot->flight;
        const uint64_t end = flight_last(f).number;
        for (uint64_t n = end > LAST_EVENTS ? end - LAST_EVENTS + 1 : 1; n <= end; n++) {
            struct flight_event e;
            char text[256];
            if (!flight_read(f, n, &e)) continue;
            print_event(&e, text, sizeof text);
            log_line(LOG_ERROR, "rank %u: %s", rank, text);
        }
    }
}

static void *speak(void *arg)
{
    struct watchdog *w = arg;
    w->say(w->user);
    return NULL;
}

static void watchdog_say_last_words(struct watchdog *w)
{
    pthread_t speaker;
    struct timespec until;
    /* never unlocked, so that the callback cannot be removed while it runs */
    pthread_mutex_lock(&w->words_lock);
    if (w->say == NULL || pthread_create(&speaker, NULL, speak, w) != 0) return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LAST_WORDS_S;
    if (pthread_timedjoin_np(speaker, NULL, &until) == 0) return;
    log_line(LOG_ERROR, "finished rows could not be flushed within %d s", LAST_WORDS_S);
}

static void sleep_ns(uint64_t ns)
{
    const struct timespec t = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    nanosleep(&t, NULL);
}

static bool lead_has_left(struct watchdog *w)
{
    struct watchdog_loss ignored;
    listen_all(w, &ignored);
    look_at_board(w);
    for (uint32_t i = 0; i < w->n_watches; i++) {
        if (w->watches[i].rank == 0) return w->watches[i].left;
    }
    return true;
}

static void send_left(struct watchdog *w)
{
    struct link_packet p;
    packet_init(w, LINK_LEFT, &p);
    atomic_store_explicit(&w->mine->state, BOARD_LEFT, memory_order_release);
    for (int i = 0; i < 3; i++) send_all(w, &p); /* several times, because packets may be lost */
}

/* Tells the other ranks, runs the last-words callback, waits until all have heard, and ends the
 * process. Launchers kill the rest of a job when the first rank exits. So the other ranks wait
 * until the lead has written its rows and said that it leaves, for at most LAST_WORDS_S, and not at
 * all for a lost lead. The lead exits one beat after it has said so. */
static void leave(struct watchdog *w, const struct watchdog_loss *loss)
{
    struct link_packet p;
    packet_init(w, LINK_LOSS, &p);
    p.loss = *loss;
    const bool is_first = board_post(w->board, loss);
    send_all(w, &p);
    log_loss(w, loss);
    if (is_first) log_recorder(w, loss->rank);
    watchdog_say_last_words(w);
    for (int i = 0; i < LINGER_BEATS; i++) {
        sleep_ns(w->interval_ns);
        atomic_fetch_add_explicit(&w->mine->beats, 1, memory_order_relaxed);
        send_all(w, &p);
    }
    const uint64_t until = clock_ns() + LAST_WORDS_S * NS_PER_S;
    while (!is_lead(w) && loss->rank != 0 && !lead_has_left(w) && clock_ns() < until) {
        sleep_ns(5 * NS_PER_MS);
    }
    send_left(w);
    if (is_lead(w)) sleep_ns(w->interval_ns);
    _exit(status_exit(STATUS_LOST));
}

static void pass_time(struct watchdog *w)
{
    const uint64_t now = clock_ns(), gap = now - w->looked_ns;
    w->watched_ns += gap < 2 * w->interval_ns ? gap : 2 * w->interval_ns;
    w->looked_ns = now;
}

/* Reads packets and, at each beat, checks every rank. Does not return when a rank is lost. */
static void look(struct watchdog *w, bool at_beat)
{
    struct watchdog_loss loss;
    pass_time(w);
    bool lost = listen_all(w, &loss);
    if (at_beat) {
        look_at_board(w);
        if (!lost) lost = board_read(w->board, &loss);
        if (!lost) lost = watchdog_judge(w, &loss);
    }
    if (lost) leave(w, &loss);
}

static void *watch_loop(void *arg)
{
    struct watchdog *w = arg;
    board_sign_thread(w->mine);
    w->looked_ns = clock_ns();
    for (uint64_t next_ns = w->looked_ns;;) {
        const uint64_t now = clock_ns();
        const bool at_beat = now >= next_ns;
        if (at_beat) {
            beat(w);
            next_ns = now + w->interval_ns;
        }
        look(w, at_beat);
        const int wait_ms = (int)((next_ns - now + NS_PER_MS - 1) / NS_PER_MS);
        struct pollfd fds[2] = {{.fd = w->stop_fd, .events = POLLIN},
                                {.fd = w->fd, .events = POLLIN}};
        poll(fds, 2, wait_ms > 0 ? wait_ms : 1);
        if (fds[0].revents != 0) return NULL;
    }
}

/* Exchanges every rank's host name, and whether the rank shares the lead's board. */
static struct status exchange_hosts(struct watchdog *w, struct comm *c, bool shared)
{
    struct self me = {.with_lead = 0};
    uint64_t with_lead = w->rank == 0;
    gethostname(me.host, sizeof me.host - 1);
    if (shared) comm_max_u64(c, COMM_HOST, &with_lead, 1);
    me.with_lead = (uint32_t)with_lead;
    TRY(comm_agree(c, mem_alloc(&w->all, w->n_ranks, sizeof *w->all, "watchdog")));
    comm_gather_bytes(c, COMM_WORLD, &me, sizeof me, w->all);
    return status_ok();
}

/* Lists the ranks that this rank watches. */
static struct status make_watches(struct watchdog *w, struct comm *c, bool shared)
{
    const uint32_t n_slots = shared ? (uint32_t)comm_size(c, COMM_HOST) : 1;
    const size_t n_max = n_slots + (is_lead(w) ? w->n_ranks : 1);
    TRY(mem_alloc(&w->watches, n_max, sizeof *w->watches, "watchdog"));
    for (uint32_t i = 0; i < n_slots; i++) {
        struct board_slot *s = &w->board->slots[i];
        if (s != w->mine) w->watches[w->n_watches++] = (struct watch){.rank = s->rank, .slot = s};
    }
    w->n_by_board = w->n_watches;
    if (is_remote(w)) w->watches[w->n_watches++] = (struct watch){.rank = 0};
    for (uint32_t r = 1; is_lead(w) && r < w->n_ranks; r++) {
        if (!w->all[r].with_lead) w->watches[w->n_watches++] = (struct watch){.rank = r};
    }
    return status_ok();
}

static void open_board(struct watchdog *w, struct comm *c, bool *shared)
{
    w->board_bytes = board_open(c, &w->board, shared);
    if (w->board == NULL) return;
    w->mine = &w->board->slots[*shared ? comm_rank(c, COMM_HOST) : 0];
    w->mine->rank = w->rank;
    board_sign_process(w->mine);
    comm_record_in(c, &w->mine->flight);
    atomic_store_explicit(&w->mine->state, BOARD_ALIVE, memory_order_release);
}

/* Starts the thread with all signals blocked, so that the main thread handles them. */
static struct status start_thread(struct watchdog *w)
{
    sigset_t all, old;
    sigfillset(&all);
    w->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->stop_fd < 0) return status_make(STATUS_MEMORY, "watchdog: no descriptor left");
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int error = pthread_create(&w->thread, NULL, watch_loop, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error == 0) pthread_setname_np(w->thread, "watchdog");
    if (error != 0) return status_make(STATUS_MEMORY, "watchdog: thread: %s", strerror(error));
    w->running = true;
    return status_ok();
}

static void warn_of_gaps(struct watchdog *w, struct comm *c, bool shared)
{
    const uint64_t until = clock_ns() + CONNECT_MS * NS_PER_MS;
    while (is_remote(w) && !atomic_load(&w->connected) && clock_ns() < until) {
        sleep_ns(10 * NS_PER_MS);
    }
    uint64_t facts[2] = {shared, !is_remote(w) || atomic_load(&w->connected)};
    comm_min_u64(c, COMM_WORLD, facts, 2);
    if (!is_lead(w)) return;
    if (facts[0] == 0) {
        log_line(LOG_WARN, "watchdog: a host has no room in /dev/shm; its ranks are watched by "
                           "packets alone");
    }
    if (facts[1] == 0) {
        log_line(LOG_WARN, "watchdog: heartbeats (UDP) do not get through between all hosts; a "
                           "host that is cut off may not be noticed");
    }
}

static struct status start(struct watchdog *w, struct comm *c)
{
    bool shared = false;
    open_board(w, c, &shared);
    struct status st = status_ok();
    if (w->board == NULL) st = status_make(STATUS_MEMORY, "watchdog: no memory for its board");
    TRY(comm_agree(c, st));
    TRY(exchange_hosts(w, c, shared));
    uint64_t n_remote = 0;
    for (uint32_t r = 0; r < w->n_ranks; r++) n_remote += w->all[r].with_lead == 0;
    if (n_remote > 0 && (is_lead(w) || is_remote(w))) w->fd = link_open();
    if (is_lead(w)) link_home_of(w->fd, &w->home);
    comm_broadcast(c, COMM_WORLD, 0, &w->home, sizeof w->home);
    st = make_watches(w, c, shared);
    if (!status_failed(&st)) st = start_thread(w);
    TRY(comm_agree(c, st));
    warn_of_gaps(w, c, shared);
    return status_ok();
}

/* Makes zeroed memory ready for watchdog_stop. */
static void watchdog_init(struct watchdog *w)
{
    w->fd = w->stop_fd = -1;
    pthread_mutex_init(&w->words_lock, NULL);
}

struct status watchdog_start(struct comm *c, uint32_t seconds, struct watchdog **out)
{
    *out = NULL;
    if (seconds == 0 || comm_size(c, COMM_WORLD) == 1) return status_ok();
    struct watchdog *w = NULL;
    const struct status st = mem_alloc(&w, 1, sizeof *w, "watchdog");
    if (w != NULL) watchdog_init(w);
    *out = w; /* NULL when there was no memory */
    TRY(comm_agree(c, st));
    w->rank = (uint32_t)comm_rank(c, COMM_WORLD);
    w->n_ranks = (uint32_t)comm_size(c, COMM_WORLD);
    /* 60 % of the deadline: the rest is for telling the others and leaving */
    w->limit_ns = seconds * NS_PER_S / 10 * 6;
    w->interval_ns = seconds * NS_PER_S / BEATS_PER_DEADLINE;
    if (w->interval_ns > NS_PER_S) w->interval_ns = NS_PER_S;
    return start(w, c);
}

void watchdog_set_last_words(struct watchdog *w, void (*say)(void *user), void *user)
{
    if (w == NULL) return;
    pthread_mutex_lock(&w->words_lock);
    w->say = say;
    w->user = user;
    pthread_mutex_unlock(&w->words_lock);
}

void watchdog_stop(struct watchdog **watchdog)
{
    struct watchdog *w = *watchdog;
    if (w == NULL) return;
    if (w->running) {
        const uint64_t one = 1;
        const ssize_t ignored = write(w->stop_fd, &one, sizeof one);
        (void)ignored;
        pthread_join(w->thread, NULL);
        send_left(w);
    }
    if (w->fd >= 0) close(w->fd);
    if (w->stop_fd >= 0) close(w->stop_fd);
    board_close(&w->board, w->board_bytes);
    pthread_mutex_destroy(&w->words_lock);
    mem_free(&w->watches);
    mem_free(&w->all);
    mem_free(watchdog);
}
