/* Tests axes on every layout of these ranks, and collectives with all ranks as replicas, against
 * simple expectations. */
#include "mpi/util_mpi.h"
#include "parallel/comm/comm_mail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct util_shape shape = {
    .width = 64, .n_experts = 8, .n_chosen = 2, .expert_ffn = 64, .expert_leaf = 16, .vocab = 64};

/* A communicator of all ranks as replicas; for `turn` see util_comm. */
static struct comm *flat(uint32_t turn)
{
    return util_comm_of_replicas(turn, 0);
}

/* Lists the world ranks that are on an axis together with `rank`. Returns their number. */
static uint32_t members(const struct layout *l, enum comm_axis axis, uint32_t rank, uint32_t *out)
{
    const struct layout_place me = layout_place_of(l, rank);
    uint32_t n = 0;
    for (uint32_t dp = 0; dp < l->dp; dp++) {
        for (uint32_t tp = 0; tp < l->tp; tp++) {
            const uint32_t r = layout_rank_of(l, dp, me.pp, tp);
            const struct layout_place p = layout_place_of(l, r);
            const bool same_replica = p.expert_replica == me.expert_replica;
            const bool in = axis == COMM_STAGE ? true
                            : axis == COMM_TP  ? dp == me.dp
                            : axis == COMM_EP  ? same_replica
                                               : same_replica && p.ep == me.ep;
            if (in) out[n++] = r;
        }
    }
    return n;
}

/* A world rank's index on an axis, computed from the layout. */
static uint32_t index_in(const struct layout *l, enum comm_axis axis, uint32_t rank)
{
    const struct layout_place p = layout_place_of(l, rank);
    switch (axis) {
    case COMM_STAGE:
        return p.dp * l->tp + p.tp;
    case COMM_TP:
        return p.tp;
    case COMM_EP:
        return p.ep * l->etp + p.etp;
    default:
        return p.etp;
    }
}

static void check_axes(const struct layout *l, void *ctx)
{
    const uint32_t turn = *(const uint32_t *)ctx, n = l->n_ranks;
    struct comm *c = util_comm(l, turn);
    const uint32_t rank = (uint32_t)comm_rank(c, COMM_WORLD);
    CU_ASSERT_EQUAL((uint32_t)comm_size(c, COMM_WORLD), n);
    CU_ASSERT_EQUAL((rank + turn) % n, util_rank()); /* order[r] is the launcher's rank */
    for (int axis = COMM_STAGE; axis <= COMM_ETP; axis++) {
        uint32_t who[64];
        uint32_t ranks[64];
        const uint32_t n_in = members(l, (enum comm_axis)axis, rank, who);
        CU_ASSERT_EQUAL_FATAL((uint32_t)comm_size(c, (enum comm_axis)axis), n_in);
        CU_ASSERT_EQUAL((uint32_t)comm_rank(c, (enum comm_axis)axis),
                        index_in(l, (enum comm_axis)axis, rank));
        comm_gather_bytes(c, (enum comm_axis)axis, &rank, sizeof rank, ranks);
        for (uint32_t i = 0; i < n_in; i++) {
            CU_ASSERT_EQUAL(ranks[index_in(l, (enum comm_axis)axis, who[i])], who[i]);
        }
    }
    CU_ASSERT_EQUAL((uint32_t)comm_size(c, COMM_HOST), n); /* the tests run on one machine */
    comm_stop(&c);
}

static void axes_are_what_the_layout_says(void)
{
    static struct arch arch;
    const struct layout_model model = util_layout_model(&shape, &arch);
    for (uint32_t turn = 0; turn < util_n_ranks(); turn++) {
        CU_ASSERT(util_each_layout(&model, check_axes, &turn) >= util_n_ranks());
    }
}

static void a_layout_of_other_ranks_is_a_bug(void)
{
    static struct arch arch;
    const struct layout_model model = util_layout_model(&shape, &arch);
    const uint32_t n = util_n_ranks() + 1;
    const struct layout_flags flags = {.tp = 1, .pp = 1, .dp = n, .ep = 1};
    const uint32_t order[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct layout *l = malloc(sizeof *l);
    struct comm *c = NULL;
    int argc = 0;
    char **argv = NULL;
    CU_ASSERT_EQUAL_FATAL(layout_build(&model, n, &flags, l).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(comm_start(&argc, &argv, &c).code, STATUS_OK);
    CU_ASSERT_EQUAL(comm_split(c, l, order).code, STATUS_BUG);
    comm_stop(&c);
    free(l);
}

/* Axes inside one pretended host share memory; axes across hosts do not, and still work. */
static void hosts_can_be_pretended(void)
{
    static struct arch arch;
    const struct layout_model model = util_layout_model(&shape, &arch);
    const uint32_t n = util_n_ranks(), tp = n % 2 == 0 ? 2 : 1;
    const struct layout_flags flags = {.tp = tp, .pp = 1, .dp = n / tp, .ep = 1};
    struct layout *l = malloc(sizeof *l);
    CU_ASSERT_EQUAL_FATAL(layout_build(&model, n, &flags, l).code, STATUS_OK);
    struct comm *c = util_comm_on_host(l, 0, (int)(util_rank() / tp));
    CU_ASSERT_EQUAL((uint32_t)comm_size(c, COMM_HOST), tp);
    CU_ASSERT_EQUAL(comm_shares_memory(c, COMM_TP), tp > 1);
    CU_ASSERT_EQUAL(comm_shares_memory(c, COMM_STAGE), n == 2);
    int64_t sum = 1;
    comm_sum_i64(c, COMM_STAGE, &sum, 1);
    CU_ASSERT_EQUAL(sum, (int64_t)n);
    comm_stop(&c);
    free(l);
}

static void reductions_are_exact(void)
{
    enum { N = 1000 };
    struct comm *c = flat(0);
    const int64_t n = comm_size(c, COMM_WORLD), rank = comm_rank(c, COMM_WORLD);
    static int64_t sum[N];
    static uint32_t bits[N];
    static uint64_t most[N], least[N];
    for (int64_t i = 0; i < N; i++) {
        sum[i] = (i % 2 == 0 ? 1 : -1) * ((int64_t)1 << 60) / n + i * rank;
        bits[i] = i % n == rank ? (uint32_t)(0x80000001u + (uint32_t)i) : 0;
        most[i] = least[i] = UINT64_MAX - (uint64_t)((rank + i) % n);
    }
    comm_sum_i64(c, COMM_WORLD, sum, N);
    comm_or_u32(c, COMM_WORLD, bits, N);
    comm_max_u64(c, COMM_WORLD, most, N);
    comm_min_u64(c, COMM_WORLD, least, N);
    uint64_t n_wrong = 0;
    for (int64_t i = 0; i < N; i++) {
        const int64_t base = (i % 2 == 0 ? 1 : -1) * ((int64_t)1 << 60) / n;
        n_wrong += sum[i] != n * base + i * (n * (n - 1) / 2);
        n_wrong += bits[i] != 0x80000001u + (uint32_t)i;
        n_wrong += most[i] != UINT64_MAX;
        n_wrong += least[i] != UINT64_MAX - (uint64_t)(n - 1);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    comm_sum_i64(c, COMM_WORLD, NULL, 0);
    comm_stop(&c);
}

/* Rank r gives (r * 3) % 4 words, so that some give none. */
static void gathers_take_uneven_parts(void)
{
    struct comm *c = flat(0);
    const int n = comm_size(c, COMM_WORLD), rank = comm_rank(c, COMM_WORLD);
    int counts[64], displs[64], at = 0;
    uint32_t all[256];
    memset(all, 0xEE, sizeof all);
    for (int r = 0; r < n; r++) {
        counts[r] = r * 3 % 4;
        displs[r] = at;
        at += counts[r] + 1; /* a gap after each part */
    }
    for (int i = 0; i < counts[rank]; i++) all[displs[rank] + i] = (uint32_t)(100 * rank + i);
    comm_gather_words(c, COMM_WORLD, all, counts, displs);
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < counts[r]; i++) {
            CU_ASSERT_EQUAL(all[displs[r] + i], (uint32_t)(100 * r + i));
        }
        CU_ASSERT_EQUAL(all[displs[r] + counts[r]], 0xEEEEEEEEu); /* the gap is untouched */
    }
    for (int r = 0; r < n; r++) counts[r] = displs[r] = 0;
    comm_gather_words(c, COMM_WORLD, all, counts, displs);
    comm_stop(&c);
}

static void gathered_bytes_stand_in_rank_order(void)
{
    struct comm *c = flat(util_n_ranks() - 1);
    const int n = comm_size(c, COMM_WORLD);
    char mine[5], all[64 * 5];
    snprintf(mine, sizeof mine, "r%03d", comm_rank(c, COMM_WORLD));
    comm_gather_bytes(c, COMM_WORLD, mine, sizeof mine, all);
    for (int r = 0; r < n; r++) {
        char expected[16];
        snprintf(expected, sizeof expected, "r%03d", r);
        CU_ASSERT_STRING_EQUAL(all + 5 * r, expected);
    }
    comm_stop(&c);
}

/* The number of rows that go from rank a to rank b. */
static int rows_of(int a, int b, int round)
{
    return round == 0 ? 0 : (a * 5 + b * 3 + round) % 4;
}

/* Uneven counts, zeros, rows of 1 to 6 words, displacements that are not the running sum. */
static void rows_are_exchanged(void)
{
    enum { ROWS = 16, WORDS = 7, N = 64 };
    struct comm *c = flat(0);
    const int n = comm_size(c, COMM_WORLD), me = comm_rank(c, COMM_WORLD);
    for (int round = 0; round < 6; round++) {
        const size_t w = 1 + (size_t)round % WORDS;
        static uint32_t send[N * ROWS * WORDS], recv[N * ROWS * WORDS];
        int counts[4][N];
        memset(recv, 0xEE, sizeof recv);
        for (int r = 0; r < n; r++) {
            counts[0][r] = rows_of(me, r, round);
            counts[1][r] = (n - 1 - r) * ROWS; /* backwards, with gaps */
            counts[2][r] = rows_of(r, me, round);
            counts[3][r] = r * ROWS;
            for (size_t i = 0; i < (size_t)counts[0][r] * w; i++) {
                send[(size_t)counts[1][r] * w + i] = (uint32_t)(me * 10000 + r * 100 + (int)i);
            }
        }
        const struct comm_exchange x = {.row_words = w,
                                        .send = send,
                                        .send_counts = counts[0],
                                        .send_displs = counts[1],
                                        .recv = recv,
                                        .recv_counts = counts[2],
                                        .recv_displs = counts[3]};
        comm_exchange_rows(c, COMM_WORLD, &x);
        for (int r = 0; r < n; r++) {
            const uint32_t *rows = recv + (size_t)counts[3][r] * w;
            const size_t n_words = (size_t)counts[2][r] * w;
            for (size_t i = 0; i < n_words; i++) {
                CU_ASSERT_EQUAL(rows[i], (uint32_t)(r * 10000 + me * 100 + (int)i));
            }
            CU_ASSERT_EQUAL(rows[n_words], 0xEEEEEEEEu);
        }
    }
    comm_stop(&c);
}

static void counts_are_exchanged(void)
{
    enum { N = 3 };
    struct comm *c = flat(0);
    const int n = comm_size(c, COMM_WORLD), me = comm_rank(c, COMM_WORLD);
    int32_t send[64 * N], recv[64 * N];
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < N; i++) send[r * N + i] = me * 100 + r * 10 + i;
    }
    comm_exchange_i32(c, COMM_WORLD, send, recv, N);
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < N; i++) CU_ASSERT_EQUAL(recv[r * N + i], r * 100 + me * 10 + i);
    }
    comm_stop(&c);
}

static void every_root_broadcasts(void)
{
    struct comm *c = flat(0);
    const int n = comm_size(c, COMM_WORLD), me = comm_rank(c, COMM_WORLD);
    for (int root = 0; root < n; root++) {
        char text[300];
        memset(text, me == root ? 'a' + root : '?', sizeof text);
        comm_broadcast(c, COMM_WORLD, root, text, sizeof text);
        CU_ASSERT(text[0] == 'a' + root && text[299] == 'a' + root);
        comm_broadcast(c, COMM_WORLD, root, NULL, 0);
    }
    comm_barrier(c, COMM_WORLD);
    comm_stop(&c);
}

/* The worst status code wins, among equal codes the lowest rank's. The text that the other ranks
 * get names the rank that won, unless that is the lead. */
static void the_worst_status_wins(void)
{
    struct comm *c = flat(util_n_ranks() / 2);
    const int n = comm_size(c, COMM_WORLD), me = comm_rank(c, COMM_WORLD);
    CU_ASSERT_EQUAL(comm_agree(c, status_ok()).code, STATUS_OK);
    for (int bad = 0; bad < n; bad++) {
        struct status mine = status_ok();
        if (me == bad) mine = status_make(STATUS_INPUT, "file %d is gone", bad);
        const struct status st = comm_agree(c, mine);
        char expected[64];
        snprintf(expected, sizeof expected,
                 bad == me || bad == 0 ? "file %d is gone" : "rank %d: file %d is gone", bad, bad);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        CU_ASSERT_STRING_EQUAL(st.text, expected);
    }
    const struct status all = comm_agree(c, status_make(STATUS_USAGE, "said by %d", me));
    CU_ASSERT_EQUAL(all.code, STATUS_USAGE);
    CU_ASSERT_STRING_EQUAL(all.text, "said by 0");
    const struct status last = comm_agree(c, me == n - 1 ? status_make(STATUS_IO, "worse")
                                                         : status_make(STATUS_USAGE, "bad"));
    CU_ASSERT_EQUAL(last.code, STATUS_IO);
    CU_ASSERT_PTR_NOT_NULL(strstr(last.text, "worse"));
    comm_stop(&c);
}

/* Messages around a ring, two in flight at once. A rank alone sends them to itself. */
static void messages_go_around(void)
{
    struct comm *c = flat(0);
    const int n = comm_size(c, COMM_WORLD), me = comm_rank(c, COMM_WORLD);
    const int to = (me + 1) % n, from = (me + n - 1) % n;
    enum { BIG = 200000 };
    static char out[2][BIG], in[2][BIG];
    struct comm_request sends[2] = {{0}}, recvs[2] = {{0}};
    for (size_t i = 0; i < 2; i++) {
        comm_recv_start(c, from, COMM_TAG_HIDDEN, in[i], BIG, &recvs[i]);
        memset(out[i], 'A' + me + (int)i, BIG);
    }
    comm_send_start(c, to, COMM_TAG_HIDDEN, out[0], BIG, &sends[0]);
    comm_send_start(c, to, COMM_TAG_HIDDEN, out[1], 7, &sends[1]);
    CU_ASSERT_EQUAL(comm_wait(c, &recvs[0]), BIG);
    CU_ASSERT_EQUAL(comm_wait(c, &recvs[1]), 7);
    CU_ASSERT_EQUAL(comm_wait(c, &recvs[1]), 0); /* not active any more */
    comm_wait(c, &sends[0]);
    comm_wait(c, &sends[1]);
    CU_ASSERT(in[0][BIG - 1] == 'A' + from && in[1][6] == 'B' + from && in[1][7] == 0);
    comm_stop(&c);
}

static void a_probe_tells_the_size(void)
{
    struct comm *c = flat(0);
    const int n = comm_size(c, COMM_WORLD), me = comm_rank(c, COMM_WORLD);
    struct comm_request sends[64] = {{0}};
    static char out[64][100];
    for (int r = 0; r < n; r++) {
        memset(out[r], 'a' + me, sizeof out[r]);
        comm_send_start(c, r, COMM_TAG_RESULT, out[r], (size_t)(10 * me + r), &sends[r]);
    }
    for (int r = n - 1; r >= 0; r--) {
        char in[100] = "";
        const size_t n_bytes = comm_probe(c, r, COMM_TAG_RESULT);
        CU_ASSERT_EQUAL_FATAL(n_bytes, (size_t)(10 * r + me));
        comm_recv(c, r, COMM_TAG_RESULT, in, n_bytes);
        CU_ASSERT(n_bytes == 0 || in[n_bytes - 1] == 'a' + r);
    }
    for (int r = 0; r < n; r++) comm_wait(c, &sends[r]);
    comm_stop(&c);
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The most processor time that waiting for 600 ms may take. With ThreadSanitizer, each look for a
 * message takes many times as long. */
#ifdef __SANITIZE_THREAD__
enum { ASLEEP_NS = 550000000 };
#else
enum { ASLEEP_NS = 200000000 };
#endif

/* All other ranks wait for rank 0, which sleeps before it sends a message, and again before it
 * broadcasts. */
static void a_rank_that_waits_asleep_leaves_its_core(void)
{
    struct comm *c = flat(0);
    const int n = comm_size(c, COMM_WORLD), me = comm_rank(c, COMM_WORLD);
    const struct timespec nap = {.tv_nsec = 300000000};
    struct comm_request sends[64] = {{0}};
    char text[8] = "plan";
    comm_wait_asleep(c);
    comm_barrier(c, COMM_WORLD);
    const uint64_t since = cpu_ns();
    if (me == 0) nanosleep(&nap, NULL);
    for (int r = 1; r < n && me == 0; r++)
        comm_send_start(c, r, COMM_TAG_PLAN, text, sizeof text, &sends[r]);
    if (me != 0) {
        CU_ASSERT_EQUAL(comm_probe(c, 0, COMM_TAG_PLAN), sizeof text);
        comm_recv(c, 0, COMM_TAG_PLAN, text, sizeof text);
    }
    for (int r = 1; r < n; r++) comm_wait(c, &sends[r]);
    if (me == 0) nanosleep(&nap, NULL);
    comm_broadcast(c, COMM_WORLD, 0, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "plan");
    CU_ASSERT(cpu_ns() - since < ASLEEP_NS);
    comm_barrier(c, COMM_WORLD);
    comm_stop(&c);
}

/* A receive that no message matches can be cancelled, and takes no later message. */
static void a_receive_can_be_given_up(void)
{
    struct comm *c = flat(0);
    const int n = comm_size(c, COMM_WORLD), me = comm_rank(c, COMM_WORLD);
    char lost[8] = "kept", in[8] = "";
    struct comm_request r = {0}, s = {0};
    comm_cancel(c, &r);
    comm_recv_start(c, (me + 1) % n, COMM_TAG_PLAN, lost, sizeof lost, &r);
    comm_cancel(c, &r);
    CU_ASSERT_FALSE(r.active);
    comm_barrier(c, COMM_WORLD);
    comm_send_start(c, (me + n - 1) % n, COMM_TAG_PLAN, "new", 4, &s);
    comm_recv_start(c, (me + 1) % n, COMM_TAG_PLAN, in, sizeof in, &r);
    CU_ASSERT_EQUAL(comm_wait(c, &r), 4);
    comm_wait(c, &s);
    CU_ASSERT_STRING_EQUAL(in, "new");
    CU_ASSERT_STRING_EQUAL(lost, "kept");
    comm_stop(&c);
}

static void topology_is_gathered_in_the_launchers_order(void)
{
    struct comm *c = flat(0);
    struct topo *t = NULL;
    CU_ASSERT_EQUAL_FATAL(comm_gather_topo(c, &t).code, STATUS_OK);
    CU_ASSERT_EQUAL(t->n_ranks, util_n_ranks());
    CU_ASSERT_EQUAL(t->n_nodes, 1);
    topo_destroy(&t);
    comm_stop(&c);
}

static void time_and_bytes_are_counted(void)
{
    struct comm *c = flat(0);
    int64_t one[16] = {0};
    const struct comm_stats before = comm_stats_of(c, COMM_WORLD);
    comm_sum_i64(c, COMM_WORLD, one, 16);
    comm_sum_i64(c, COMM_TP, one, 16); /* one rank: does nothing */
    const struct comm_stats after = comm_stats_of(c, COMM_WORLD);
    const uint64_t n = util_n_ranks() > 1 ? 1 : 0;
    CU_ASSERT_EQUAL(after.n_calls - before.n_calls, n);
    CU_ASSERT_EQUAL(after.n_bytes - before.n_bytes, n * sizeof one);
    CU_ASSERT_EQUAL(comm_stats_of(c, COMM_TP).n_calls, 0);
    comm_stop(&c);
}

enum { MAIL_BYTES = 1 << 20 /* MPI sends so many bytes only once their receive has begun */ };

/* Starts a mail with MAIL_BYTES of `value` to each other host. */
static void start_mail(struct comm *c, struct comm_mail *m, unsigned char value)
{
    struct comm_mail_piece pieces[16];
    const struct comm_mail_places at = comm_mail_places_of(m);
    const size_t head = comm_mail_head_bytes(m, 1);
    CU_ASSERT_FATAL(at.n_hosts <= 16);
    for (int h = 0; h < at.n_hosts; h++)
        pieces[h] = (struct comm_mail_piece){head, h == at.host ? 0 : MAIL_BYTES};
    char *memory = comm_mail_memory(m, COMM_LANE_ROWS_OUT, head + MAIL_BYTES);
    memset(memory + head, value, MAIL_BYTES);
    comm_mail_start(c, m, COMM_LANE_ROWS_OUT, pieces, 1);
}

/* True when the message of a host has MAIL_BYTES of `value` from each of its ranks. */
static bool has_arrived(const struct comm_mail *m, int host, unsigned char value)
{
    size_t n_bytes;
    const unsigned char *at = comm_mail_message(m, host, &n_bytes);
    bool all = n_bytes == (size_t)comm_mail_places_of(m).n_on[host] * MAIL_BYTES;
    for (size_t i = 0; all && i < n_bytes; i++) all = at[i] == value;
    return all;
}

/* A mail that is closed under way leaves nothing: neither work for comm_poll, nor messages that the
 * next mail of its number would receive. */
static void a_mail_may_be_closed_under_way(void)
{
    for (uint32_t n_local = 1; n_local <= 2; n_local++) {
        struct comm *c = util_comm_of_replicas(0, (int)(util_rank() / n_local));
        struct comm_mail *m = NULL;
        for (unsigned char value = 1; value <= 2; value++) {
            CU_ASSERT_EQUAL_FATAL(comm_mail_open(c, COMM_STAGE, 0, &m).code, STATUS_OK);
            if (m == NULL) break; /* one rank */
            start_mail(c, m, value);
            if (value == 1) {
                comm_mail_close(&m);
                CU_ASSERT_PTR_NULL(m);
                comm_poll(c);
            }
        }
        const struct comm_mail_places at =
            m == NULL ? (struct comm_mail_places){0} : comm_mail_places_of(m);
        size_t n_sent;
        if (m != NULL) comm_mail_finish(c, m, &n_sent);
        for (int h = 0; h < at.n_hosts; h++) CU_ASSERT(h == at.host || has_arrived(m, h, 2));
        comm_mail_close(&m);
        comm_stop(&c);
    }
}

void suite_comm(CU_pSuite suite);
void suite_comm(CU_pSuite suite)
{
    CU_add_test(suite, "axes are what the layout says", axes_are_what_the_layout_says);
    CU_add_test(suite, "a layout of other ranks is a bug", a_layout_of_other_ranks_is_a_bug);
    CU_add_test(suite, "hosts can be pretended", hosts_can_be_pretended);
    CU_add_test(suite, "reductions are exact", reductions_are_exact);
    CU_add_test(suite, "gathers take uneven parts", gathers_take_uneven_parts);
    CU_add_test(suite, "gathered bytes stand in rank order", gathered_bytes_stand_in_rank_order);
    CU_add_test(suite, "rows are exchanged", rows_are_exchanged);
    CU_add_test(suite, "counts are exchanged", counts_are_exchanged);
    CU_add_test(suite, "every root broadcasts", every_root_broadcasts);
    CU_add_test(suite, "the worst status wins", the_worst_status_wins);
    CU_add_test(suite, "messages go around", messages_go_around);
    CU_add_test(suite, "a probe tells the size", a_probe_tells_the_size);
    CU_add_test(suite, "a rank that waits asleep leaves its core",
                a_rank_that_waits_asleep_leaves_its_core);
    CU_add_test(suite, "a receive can be given up", a_receive_can_be_given_up);
    CU_add_test(suite, "a mail may be closed under way", a_mail_may_be_closed_under_way);
    CU_add_test(suite, "topology is gathered in the launcher's order",
                topology_is_gathered_in_the_launchers_order);
    CU_add_test(suite, "time and bytes are counted", time_and_bytes_are_counted);
}
