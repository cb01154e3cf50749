/* The watchdog in peace: nobody is taken for lost who is only slow, and its parts by themselves.
 * How it ends processes is seen from outside: tests/e2e/lost_rank.py runs this suite with
 * SHOAL_TEST_LEAVE=FOLDER:WORDS_MS, and then the last test does not return. */
#include "base/clock.h"
#include "parallel/watchdog.h"
#include "parallel/watchdog_board.h"
#include "parallel/watchdog_link.h"

#include <CUnit/CUnit.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DEADLINE_S = 1 };

/* A comm whose axes exist: all ranks in one tensor parallel group. */
static struct comm *make_comm(void)
{
    static const struct layout_model model = {.name = "test",
                                              .n_layers = 1,
                                              .width = 64,
                                              .n_heads = 64,
                                              .n_kv_heads = 64,
                                              .head_dim = 1,
                                              .o_leaf = 1,
                                              .ffn = 64,
                                              .ffn_leaf = 1,
                                              .vocab = 64,
                                              .weight_bytes = 2,
                                              .context = 64};
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

/* One rank is away for two deadlines while the others wait in a barrier; then all go on. */
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

/* Ranks that leave one after the other, with pauses longer than the deadline, are not lost. */
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

/* Packets of this job come through on every address; others are skipped. */
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
    memset(p.loss.host, 'x', sizeof p.loss.host); /* without an end */
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

/* What a rank says when it leaves: one file, written after a while. */
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

/* The last rank stops itself; the others wait for it in a barrier and never come back. */
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

void suite_watchdog(CU_pSuite suite);

void suite_watchdog(CU_pSuite suite)
{
    CU_add_test(suite, "slow is not lost", test_slow_is_not_lost);
    CU_add_test(suite, "leaving in peace", test_leaving_in_peace);
    CU_add_test(suite, "switched off", test_switched_off);
    CU_add_test(suite, "board", test_board);
    CU_add_test(suite, "packets", test_packets);
    CU_add_test(suite, "leaving", test_leaving);
}
