/* Tests that the watchdog does not report a rank that is only slow, and tests its parts. How it
 * ends processes is tested by tests/e2e/lost_rank.py, which runs this suite with
 * SHOAL_TEST_LEAVE=FOLDER:WORDS_MS or SHOAL_TEST_STARVE=1: then one of the last two tests does not
 * return. */
#include "arch/arch.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/proc_thread.h"
#include "parallel/watch/watchdog.h"
#include "parallel/watch/watchdog_board.h"
#include "parallel/watch/watchdog_link.h"
#include "util_mpi.h"

#include <CUnit/CUnit.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_S = 1 };

/* Until this time the process's watchdog thread (the only one that polls two descriptors) is ready
 * to run but does not advance, as if it got no CPU. */
static _Atomic uint64_t starved_until_ns;

/* Replaces the C library's function. */
int poll(struct pollfd *fds, nfds_t n, int ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l};
    while (n == 2 && clock_ns() < atomic_load(&starved_until_ns)) continue;
    return ppoll(fds, n, ms < 0 ? NULL : &t, NULL);
}

/* A comm in which all ranks are one tensor parallel group. */
static struct comm *make_comm(void)
{
    const struct arch arch = {.family = arch_family_at(0),
                              .n_layers = 1,
                              .width = 64,
                              .attn.n_heads = 64,
                              .attn.n_kv_heads = 64,
                              .attn.head_dim = 1,
                              .attn.query_dim = 1,
                              .attn.value_dim = 1,
                              .ffn = 64,
                              .vocab = 64,
                              .context = 64};
    const struct layout_model model = {
        .name = "test", .arch = &arch, .o_leaf = 1, .ffn_leaf = 1, .weight_bytes = 2};
    struct comm *c = NULL;
    CU_ASSERT_EQUAL_FATAL(comm_start(NULL, NULL, &c).code, STATUS_OK);
    const uint32_t n = (uint32_t)comm_size(c, COMM_WORLD);
    const struct layout_flags flags = {.tp = n, .pp = 1, .dp = 1};
    struct layout *l = calloc(1, sizeof *l);
    uint32_t order[64];
    CU_ASSERT_FATAL(l != NULL && n <= 64);
    for (uint32_t r = 0; r < n; r++) order[r] = r;
    CU_ASSERT_EQUAL_FATAL(layout_build(&model, n, &flags, l).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(comm_split(c, l, order).code, STATUS_OK);
    free(l);
    return c;
}

/* One rank sleeps for two deadlines while the others wait in a barrier; then all continue. */
static void test_slow_is_not_lost(void)
{
    struct comm *c = make_comm();
    struct watchdog *w = NULL;
    CU_ASSERT_EQUAL_FATAL(watchdog_start(c, DEADLINE_S, &w).code, STATUS_OK);
    CU_ASSERT_EQUAL(w != NULL, comm_size(c, COMM_WORLD) > 1);
    if (comm_rank(c, COMM_WORLD) + 1 == comm_size(c, COMM_WORLD) && w != NULL) {
        poll(NULL, 0, 2000 * DEADLINE_S);
    }
    comm_barrier(c, COMM_WORLD);
    struct flight_event e = flight_last(comm_flight(c));
    CU_ASSERT_EQUAL(e.op, FLIGHT_BARRIER);
    comm_stop(&c);
    watchdog_stop(&w);
    CU_ASSERT_PTR_NULL(w);
}

/* One rank's watchdog thread gets no CPU for two deadlines. */
static void test_starved_is_not_lost(void)
{
    struct comm *c = make_comm();
    struct watchdog *w = NULL;
    CU_ASSERT_EQUAL_FATAL(watchdog_start(c, DEADLINE_S, &w).code, STATUS_OK);
    const bool is_last = comm_rank(c, COMM_WORLD) + 1 == comm_size(c, COMM_WORLD);
    const uint64_t until = clock_ns() + 2000000000ull * DEADLINE_S;
    if (is_last) atomic_store(&starved_until_ns, until);
    for (uint64_t goes_on = 1; goes_on != 0;) {
        goes_on = clock_ns() < until;
        comm_max_u64(c, COMM_WORLD, &goes_on, 1);
    }
    comm_stop(&c);
    watchdog_stop(&w);
}

static void wait_for_thread(const struct board_slot *s)
{
    while (atomic_load(&s->thread) == 0)
        ppoll(NULL, 0, &(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* A child process that runs or sleeps, and ends with this one. */
static pid_t start_child(struct board_slot *s, bool sleeps)
{
    const pid_t child = fork();
    CU_ASSERT_FATAL(child >= 0);
    if (child > 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    board_sign_process(s);
    while (sleeps) pause();
    for (;;) continue;
}

static void end_child(pid_t child)
{
    kill(child, SIGKILL);
    CU_ASSERT_EQUAL(waitpid(child, NULL, 0), child);
}

/* A process that runs waits for a CPU in the sense of board_waits_for_cpu; one that sleeps, is
 * stopped, killed or reaped does not. */
static void test_waits_for_cpu(void)
{
    struct board_slot *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_FATAL(s != MAP_FAILED);
    const pid_t sleeper = start_child(s, true);
    wait_for_thread(s);
    while (proc_is_busy(sleeper)) ppoll(NULL, 0, &(struct timespec){.tv_nsec = 1000000}, NULL);
    CU_ASSERT_FALSE(board_waits_for_cpu(s));
    end_child(sleeper);
    atomic_store(&s->thread, 0);
    const pid_t child = start_child(s, false);
    wait_for_thread(s);
    CU_ASSERT_EQUAL(s->pid, child);
    CU_ASSERT_TRUE(board_waits_for_cpu(s));
    CU_ASSERT_TRUE(proc_is_busy(child));
    struct board_slot other = {.pid = s->pid, .started = s->started + 1, .thread = s->thread};
    CU_ASSERT_FALSE(board_waits_for_cpu(&other));
    other.started = s->started;
    CU_ASSERT_TRUE(board_waits_for_cpu(&other));
    other.thread = 0;
    CU_ASSERT_FALSE(board_waits_for_cpu(&other));
    kill(child, SIGSTOP);
    CU_ASSERT_EQUAL(waitpid(child, NULL, WUNTRACED), child);
    CU_ASSERT_FALSE(board_waits_for_cpu(s));
    CU_ASSERT_TRUE(proc_is_busy(child));
    siginfo_t end;
    kill(child, SIGKILL);
    CU_ASSERT_EQUAL(waitid(P_PID, (id_t)child, &end, WEXITED | WNOWAIT), 0);
    CU_ASSERT_FALSE(board_waits_for_cpu(s));
    CU_ASSERT_EQUAL(waitpid(child, NULL, 0), child);
    CU_ASSERT_FALSE(board_waits_for_cpu(s));
    CU_ASSERT_FALSE(proc_is_busy(child));
    munmap(s, sizeof *s);
}

/* Rank 0 leaves later than the others, by more than the deadline. No rank is reported as lost. */
static void test_leaving_in_peace(void)
{
    struct comm *c = make_comm();
    struct watchdog *w = NULL;
    CU_ASSERT_EQUAL_FATAL(watchdog_start(c, DEADLINE_S, &w).code, STATUS_OK);
    const int rank = comm_rank(c, COMM_WORLD);
    comm_stop(&c);
    if (rank == 0 && w != NULL) poll(NULL, 0, 1500 * DEADLINE_S);
    watchdog_stop(&w);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* One rank has no memory: all ranks fail alike, and no descriptor is closed that was not opened. */
static void test_a_rank_without_memory(void)
{
    struct status st = {.code = STATUS_MEMORY};
    if (util_n_ranks() == 1) return; /* nothing is watched */
    if (fcntl(0, F_GETFD) < 0) CU_ASSERT_EQUAL_FATAL(open("/dev/null", O_RDONLY), 0);
    for (uint64_t n = 1; st.code == STATUS_MEMORY; n++) {
        struct comm *c = make_comm();
        struct watchdog *w = NULL;
        if (util_rank() + 1 == util_n_ranks()) mem_fail_after(n);
        st = watchdog_start(c, DEADLINE_S, &w);
        mem_fail_after(0);
        CU_ASSERT(n > 1 || st.code == STATUS_MEMORY);
        comm_stop(&c);
        watchdog_stop(&w);
        CU_ASSERT(fcntl(0, F_GETFD) >= 0);
    }
    CU_ASSERT_EQUAL(st.code, STATUS_OK);
}

static void test_switched_off(void)
{
    struct comm *c = make_comm();
    struct watchdog *w = NULL;
    CU_ASSERT_EQUAL(watchdog_start(c, 0, &w).code, STATUS_OK);
    CU_ASSERT_PTR_NULL(w);
    watchdog_set_last_words(w, NULL, NULL);
    watchdog_stop(&w);
    comm_stop(&c);
}

/* All ranks of the host see each other's slots, and only the first notice stays. */
static void test_board(void)
{
    struct comm *c = make_comm();
    struct board *b = NULL;
    bool shared = false;
    const size_t n_bytes = board_open(c, &b, &shared);
    CU_ASSERT_FATAL(n_bytes > 0 && shared);
    const int rank = comm_rank(c, COMM_HOST), size = comm_size(c, COMM_HOST);
    struct watchdog_loss loss;
    atomic_store(&b->slots[rank].beats, 100 + (uint64_t)rank);
    CU_ASSERT_FALSE(board_read(b, &loss));
    comm_barrier(c, COMM_HOST);
    for (int i = 0; i < size; i++) {
        CU_ASSERT_EQUAL(atomic_load(&b->slots[i].beats), 100 + (uint64_t)i);
    }
    const struct watchdog_loss mine = {.rank = 7, .reporter = (uint32_t)rank, .host = "h"};
    int64_t n_won = board_post(b, &mine);
    const bool won = n_won == 1;
    comm_sum_i64(c, COMM_HOST, &n_won, 1);
    CU_ASSERT_EQUAL(n_won, 1);
    CU_ASSERT_TRUE(board_read(b, &loss));
    CU_ASSERT_EQUAL(loss.rank, 7);
    CU_ASSERT_EQUAL(loss.reporter == (uint32_t)rank, won);
    board_close(&b, n_bytes);
    comm_stop(&c);
}

/* This job's packets arrive on every address; others are ignored. */
static void test_packets(void)
{
    const int lead = link_open(), other = link_open();
    CU_ASSERT_FATAL(lead >= 0 && other >= 0);
    struct link_home home;
    link_home_of(lead, &home);
    CU_ASSERT_FATAL(home.n_addresses > 0 && home.key != 0);
    struct link_packet p, got;
    struct sockaddr_in from;
    memset(&p, 0, sizeof p);
    memset(p.loss.host, 'x', sizeof p.loss.host); /* without a terminating NUL */
    p.rank = 3;
    p.key = home.key + 1;
    link_send_home(other, &home, &p);
    CU_ASSERT(sendto(other, &p, sizeof p - 1, 0, (struct sockaddr *)&home.addresses[0],
                     sizeof home.addresses[0]) > 0);
    p.key = home.key;
    CU_ASSERT(sendto(other, &p, sizeof p - 1, 0, (struct sockaddr *)&home.addresses[0],
                     sizeof home.addresses[0]) > 0);
    CU_ASSERT_FALSE(link_receive(lead, home.key, &got, &from));
    link_send_home(other, &home, &p);
    for (uint32_t i = 0; i < home.n_addresses; i++) {
        memset(&got, 0, sizeof got);
        CU_ASSERT_TRUE(link_receive(lead, home.key, &got, &from));
        CU_ASSERT_EQUAL(got.rank, 3);
        CU_ASSERT_EQUAL(strlen(got.loss.host), WATCHDOG_HOST_MAX - 1);
    }
    CU_ASSERT_FALSE(link_receive(lead, home.key, &got, &from));
    link_send(lead, &from, &p); /* the answer */
    CU_ASSERT_TRUE(link_receive(other, home.key, &got, &from));
    CU_ASSERT_FALSE(link_receive(-1, home.key, &got, &from));
    close(lead);
    close(other);
}

/* The last words of a leaving rank: writes a file after `ms` milliseconds. */
struct words {
    char path[512];
    int ms;
};

static void say(void *user)
{
    const struct words *words = user;
    poll(NULL, 0, words->ms);
    const int fd = open(words->path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd >= 0) close(fd);
}

/* The last rank stops itself; the others wait for it in a barrier and never return. */
static void test_leaving(void)
{
    const char *asked = getenv("SHOAL_TEST_LEAVE");
    const char *colon = asked != NULL ? strrchr(asked, ':') : NULL;
    if (colon == NULL) return;
    struct comm *c = make_comm();
    const int rank = comm_rank(c, COMM_WORLD);
    struct words words = {.ms = atoi(colon + 1)};
    snprintf(words.path, sizeof words.path, "%.*s/words.%d", (int)(colon - asked), asked, rank);
    struct watchdog *w = NULL;
    CU_ASSERT_EQUAL_FATAL(watchdog_start(c, DEADLINE_S, &w).code, STATUS_OK);
    if (rank == 0) watchdog_set_last_words(w, say, &words);
    if (rank + 1 == comm_size(c, COMM_WORLD)) raise(SIGSTOP);
    comm_barrier(c, COMM_WORLD);
}

/* The last rank's watchdog thread never gets a CPU again; the others do not wait forever. */
static void test_starving(void)
{
    if (getenv("SHOAL_TEST_STARVE") == NULL) return;
    struct comm *c = make_comm();
    struct watchdog *w = NULL;
    CU_ASSERT_EQUAL_FATAL(watchdog_start(c, DEADLINE_S, &w).code, STATUS_OK);
    const bool is_last = comm_rank(c, COMM_WORLD) + 1 == comm_size(c, COMM_WORLD);
    if (is_last) atomic_store(&starved_until_ns, UINT64_MAX);
    for (;;) comm_barrier(c, COMM_WORLD);
}

void suite_watchdog(CU_pSuite suite);

void suite_watchdog(CU_pSuite suite)
{
    CU_add_test(suite, "slow is not lost", test_slow_is_not_lost);
    CU_add_test(suite, "starved is not lost", test_starved_is_not_lost);
    CU_add_test(suite, "waits for a CPU", test_waits_for_cpu);
    CU_add_test(suite, "leaving in peace", test_leaving_in_peace);
    CU_add_test(suite, "a rank without memory", test_a_rank_without_memory);
    CU_add_test(suite, "switched off", test_switched_off);
    CU_add_test(suite, "board", test_board);
    CU_add_test(suite, "packets", test_packets);
    CU_add_test(suite, "leaving", test_leaving);
    CU_add_test(suite, "starving", test_starving);
}
