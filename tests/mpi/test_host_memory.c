/* Tests collectives through a host's shared memory: they give the bytes that MPI gives, for odd
 * sizes, rows in shared segments and elsewhere, ranks that come late, and operations without a
 * pause between them. */
#include "base/clock.h"
#include "mpi/util_mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_MAX = 40000, ROUNDS = 60 };

static const size_t sizes[] = {0, 1, 2, 7, 8, 63, 64, 577, 1023, 1025, 2051, 8191, 16384, 39999};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* All ranks as replicas of one stage, so that COMM_STAGE has them all. */
static struct comm *flat(void)
{
    struct comm *c = util_comm_of_replicas(0, 0);
    CU_ASSERT_EQUAL(comm_shares_memory(c, COMM_STAGE), util_n_ranks() > 1);
    return c;
}

/* Sometimes makes this rank late, so that the others spin, sleep and run ahead. */
static void dawdle(struct comm *c, uint64_t round)
{
    const uint64_t n = (uint64_t)comm_size(c, COMM_STAGE), me = (uint64_t)comm_rank(c, COMM_STAGE);
    if (round % 7 == 0 && round / 7 % n == me) usleep(1000);
    if (round % 5 == 0 && (round / 5 + 1) % n == me) usleep(30);
}

static uint64_t noise(struct comm *c, uint64_t round, uint64_t i)
{
    uint64_t state = (uint64_t)comm_rank(c, COMM_STAGE) << 40 ^ round << 20 ^ i;
    const uint64_t high = util_next(&state);
    return (high << 33 ^ (uint64_t)util_next(&state) << 11) * 0x9E3779B97F4A7C15u;
}

typedef void reduce_fn(struct comm *c, void *buf, size_t n);

static void sum(struct comm *c, void *buf, size_t n)
{
    comm_sum_i64(c, COMM_STAGE, buf, n);
}

static void or32(struct comm *c, void *buf, size_t n)
{
    comm_or_u32(c, COMM_STAGE, buf, 2 * n); /* as many bytes as the others */
}

static void most(struct comm *c, void *buf, size_t n)
{
    comm_max_u64(c, COMM_STAGE, buf, n);
}

static void least(struct comm *c, void *buf, size_t n)
{
    comm_min_u64(c, COMM_STAGE, buf, n);
}

static void reductions_equal_mpi(void)
{
    reduce_fn *const ops[] = {sum, or32, most, least};
    static uint64_t ours[N_MAX + 1], theirs[N_MAX + 1];
    struct comm *c = flat();
    uint64_t n_wrong = 0;
    for (uint64_t round = 0; round < 4 * N_SIZES; round++) {
        const size_t n = sizes[round / 4];
        for (size_t i = 0; i <= n; i++) ours[i] = theirs[i] = noise(c, round, i);
        dawdle(c, round);
        ops[round % 4](c, ours, n);
        comm_use_memory(c, COMM_STAGE, false);
        ops[round % 4](c, theirs, n);
        comm_use_memory(c, COMM_STAGE, true);
        n_wrong += memcmp(ours, theirs, (n + 1) * sizeof *ours) != 0;
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    comm_stop(&c);
}

/* Words that depend on the element's index, so that mixed-up parts are noticed. */
static void convert(const void *ctx, const int64_t *sums, size_t first, size_t n, uint32_t *words)
{
    (void)ctx;
    for (size_t i = 0; i < n; i++) {
        words[i] = (uint32_t)((uint64_t)sums[i] >> 7) * 3 + (uint32_t)(first + i);
    }
}

static void take(const void *ctx, const uint32_t *words, size_t first, size_t n)
{
    uint32_t *const *taken = ctx;
    for (size_t i = 0; i < n; i++) (*taken)[first + i] += words[i]; /* adds: twice is noticed */
}

static void sum_words(struct comm *c, int64_t *sums, size_t n, uint32_t *taken)
{
    memset(taken, 0, (n + 1) * sizeof *taken);
    const struct comm_sum s = {
        .sums = sums, .n = n, .convert = convert, .take = take, .ctx = &taken};
    comm_sum_words(c, COMM_STAGE, &s);
}

/* mixed: only even ranks have their sums in a shared segment, as if the others had no memory for
 * one. */
static void sums_become_words(bool in_lane, bool mixed)
{
    static int64_t elsewhere[N_MAX + 1], theirs[N_MAX + 1];
    static uint32_t ours_taken[N_MAX + 1], theirs_taken[N_MAX + 1];
    struct comm *c = flat();
    uint64_t n_wrong = 0;
    for (uint64_t round = 0; round < 3 * N_SIZES; round++) {
        const size_t n = sizes[round / 3];
        int64_t *ours = comm_lane(c, COMM_STAGE, COMM_LANE_SUMS, (n + 1) * sizeof *ours);
        CU_ASSERT_EQUAL(ours != NULL, util_n_ranks() > 1);
        if (ours == NULL || !in_lane || (mixed && util_rank() % 2 != 0)) ours = elsewhere;
        for (size_t i = 0; i <= n; i++) ours[i] = theirs[i] = (int64_t)noise(c, round, i);
        dawdle(c, round);
        sum_words(c, ours, n, ours_taken);
        memset(ours, 0x5A, (n + 1) * sizeof *ours); /* the sums may be reused at once */
        comm_use_memory(c, COMM_STAGE, false);
        sum_words(c, theirs, n, theirs_taken);
        comm_use_memory(c, COMM_STAGE, true);
        n_wrong += memcmp(ours_taken, theirs_taken, (n + 1) * sizeof *ours_taken) != 0;
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    comm_stop(&c);
}

static void sums_become_words_from_lanes(void)
{
    sums_become_words(true, false);
}

static void sums_become_words_from_elsewhere(void)
{
    sums_become_words(false, false);
}

static void sums_become_words_from_both(void)
{
    sums_become_words(true, true);
}

/* Uneven parts, some empty, in another order and with gaps. */
static void gathers_equal_mpi(void)
{
    static uint32_t ours[N_MAX * 2], theirs[N_MAX * 2];
    struct comm *c = flat();
    const int n = comm_size(c, COMM_STAGE), me = comm_rank(c, COMM_STAGE);
    uint64_t n_wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int counts[64], displs[64], at = 0;
        for (int k = 0; k < n; k++) {
            const int r = (k + round) % n;
            counts[r] = (r * 7 + round * 13) % (round < 30 ? 9 : 4000);
            displs[r] = at;
            at += counts[r] + 3;
        }
        memset(ours, 0xEE, (size_t)at * sizeof *ours);
        for (int i = 0; i < counts[me]; i++) {
            ours[displs[me] + i] = (uint32_t)noise(c, (uint64_t)round, (uint64_t)i);
        }
        memcpy(theirs, ours, (size_t)at * sizeof *ours);
        dawdle(c, (uint64_t)round);
        comm_gather_words(c, COMM_STAGE, ours, counts, displs);
        comm_use_memory(c, COMM_STAGE, false);
        comm_gather_words(c, COMM_STAGE, theirs, counts, displs);
        comm_use_memory(c, COMM_STAGE, true);
        n_wrong += memcmp(ours, theirs, (size_t)at * sizeof *ours) != 0;
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    comm_stop(&c);
}

static int rows_of(int a, int b, int round)
{
    return round % 6 == 0 ? 0 : (a * 5 + b * 3 + round) % (round < 30 ? 4 : 40);
}

/* Rows from a shared segment or from elsewhere: the received bytes must be those through MPI. */
static void exchanges_equal_mpi(void)
{
    enum { AT_MOST = 40, WORDS = 33, N = 64 };
    const size_t n_bytes = (size_t)util_n_ranks() * AT_MOST * WORDS * 4;
    uint32_t *own = malloc(n_bytes), *ours = malloc(n_bytes), *theirs = malloc(n_bytes);
    struct comm *c = flat();
    const int n = comm_size(c, COMM_STAGE), me = comm_rank(c, COMM_STAGE);
    uint64_t n_wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const size_t w = 1 + (size_t)round * 5 % WORDS;
        const enum comm_lane turn = round % 4 < 2 ? COMM_LANE_ROWS_OUT : COMM_LANE_ROWS_BACK;
        uint32_t *send = comm_lane(c, COMM_STAGE, turn, n_bytes);
        if (round % 2 == 0 || send == NULL) send = own;
        int counts[4][N];
        memset(ours, 0xEE, n_bytes);
        memset(theirs, 0xEE, n_bytes);
        for (int r = 0; r < n; r++) {
            counts[0][r] = rows_of(me, r, round);
            counts[1][r] = (n - 1 - r) * AT_MOST; /* backwards, with gaps */
            counts[2][r] = rows_of(r, me, round);
            counts[3][r] = r * AT_MOST;
        }
        for (size_t i = 0; i < (size_t)n * AT_MOST * w; i++) {
            send[i] = (uint32_t)noise(c, (uint64_t)round, i);
        }
        struct comm_exchange x = {.row_words = w,
                                  .send = send,
                                  .send_counts = counts[0],
                                  .send_displs = counts[1],
                                  .recv = ours,
                                  .recv_counts = counts[2],
                                  .recv_displs = counts[3]};
        dawdle(c, (uint64_t)round);
        comm_exchange_rows(c, COMM_STAGE, &x);
        x.recv = theirs;
        comm_use_memory(c, COMM_STAGE, false);
        comm_exchange_rows(c, COMM_STAGE, &x);
        comm_use_memory(c, COMM_STAGE, true);
        n_wrong += memcmp(ours, theirs, n_bytes) != 0;
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    comm_stop(&c);
    free(own);
    free(ours);
    free(theirs);
}

/* Small operations of all kinds without pauses, with changing roots and late ranks. */
static void operations_follow_each_other(void)
{
    enum { MANY = 3000 };
    struct comm *c = flat();
    const int n = comm_size(c, COMM_STAGE), me = comm_rank(c, COMM_STAGE);
    uint64_t n_wrong = 0;
    for (int round = 0; round < MANY; round++) {
        const int root = round % n;
        if (round % 50 == 0) dawdle(c, (uint64_t)round / 50);
        int32_t out[64], in[64], words[128];
        for (int i = 0; i < 64; i++) words[i] = me == root ? round + i : -1;
        comm_broadcast(c, COMM_STAGE, root, words, sizeof words / 2);
        if (round % 3 == 0) comm_broadcast(c, COMM_STAGE, root, words, 0);
        if (round % 4 == 0) comm_barrier(c, COMM_STAGE);
        for (int r = 0; r < n; r++) out[r] = round * 64 + me * 8 + r;
        comm_exchange_i32(c, COMM_STAGE, out, in, 1);
        const int32_t mine = round ^ me;
        comm_gather_bytes(c, COMM_STAGE, &mine, sizeof mine, words + 64);
        int64_t total = round + me;
        comm_sum_i64(c, COMM_STAGE, &total, 1);
        n_wrong += total != (int64_t)round * n + n * (n - 1) / 2;
        for (int i = 0; i < 64; i++) n_wrong += words[i] != round + i;
        for (int r = 0; r < n; r++) {
            n_wrong += in[r] != round * 64 + r * 8 + me || words[64 + r] != (round ^ r);
        }
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    comm_stop(&c);
}

/* A rank that waits in shared memory makes MPI progress: rank 0's large message can only be sent
 * while rank 1, its receiver, waits for rank 0 in a barrier. */
static void messages_move_while_others_wait(void)
{
    enum { BIG = 4 << 20 };
    struct comm *c = flat();
    const int me = comm_rank(c, COMM_WORLD);
    struct comm_request r = {0};
    char *buf = malloc(BIG);
    memset(buf, me == 0 ? 'x' : '-', BIG);
    if (comm_size(c, COMM_WORLD) > 1) {
        if (me == 1) comm_recv_start(c, 0, COMM_TAG_HIDDEN, buf, BIG, &r);
        if (me == 0) comm_send_start(c, 1, COMM_TAG_HIDDEN, buf, BIG, &r);
        if (me == 0) comm_wait(c, &r);
        comm_barrier(c, COMM_STAGE);
        if (me == 1) CU_ASSERT_EQUAL(comm_wait(c, &r), BIG);
        if (me == 1) CU_ASSERT(buf[0] == 'x' && buf[BIG - 1] == 'x');
    }
    comm_stop(&c);
    free(buf);
}

/* A shared segment that grows keeps its address and its content. */
static void a_lane_grows_in_place(void)
{
    struct comm *c = flat();
    char *first = comm_lane(c, COMM_STAGE, COMM_LANE_EXPERT_SUMS, 100);
    if (first != NULL) {
        strcpy(first, "kept");
        char *second = comm_lane(c, COMM_STAGE, COMM_LANE_EXPERT_SUMS, 3000000);
        CU_ASSERT_PTR_EQUAL(second, first);
        CU_ASSERT_STRING_EQUAL(second, "kept");
        CU_ASSERT_EQUAL(second[2999999], 0);
        CU_ASSERT_PTR_NULL(comm_lane(c, COMM_STAGE, COMM_LANE_EXPERT_SUMS, (size_t)1 << 60));
        CU_ASSERT_STRING_EQUAL(second, "kept");
    }
    CU_ASSERT_PTR_NULL(comm_lane(c, COMM_TP, COMM_LANE_SUMS, 100)); /* an axis of one rank */
    comm_stop(&c);
}

/* A segment that was released and is requested again holds zeros, and readers see its new content.
 */
static void a_lane_given_back_begins_anew(void)
{
    enum { BYTES = 5 << 20 };
    struct comm *c = flat();
    const int n = comm_size(c, COMM_STAGE), me = comm_rank(c, COMM_STAGE);
    CU_ASSERT_EQUAL(comm_lane_is_huge(c, COMM_STAGE, COMM_LANE_EXPERTS), false);
    for (int round = 1; round <= 3 && n > 1; round++) {
        unsigned char *lane = comm_lane(c, COMM_STAGE, COMM_LANE_EXPERTS, BYTES);
        size_t n_wrong = 0;
        CU_ASSERT_PTR_NOT_NULL_FATAL(lane);
        for (size_t i = 0; i < BYTES; i += 511) n_wrong += lane[i] != 0;
        memset(lane, 16 * round + me, BYTES);
        comm_barrier(c, COMM_STAGE);
        const unsigned char *next = comm_lane_of(c, COMM_STAGE, COMM_LANE_EXPERTS, (me + 1) % n);
        for (size_t i = 0; i < BYTES; i += 511) n_wrong += next[i] != 16 * round + (me + 1) % n;
        CU_ASSERT_EQUAL(n_wrong, 0);
        comm_barrier(c, COMM_STAGE);
        comm_release_lane(c, COMM_STAGE, COMM_LANE_EXPERTS);
        CU_ASSERT_EQUAL(comm_lane_is_huge(c, COMM_STAGE, COMM_LANE_EXPERTS), false);
    }
    comm_stop(&c);
}

void suite_host_memory(CU_pSuite suite);
void suite_host_memory(CU_pSuite suite)
{
    CU_add_test(suite, "reductions equal MPI", reductions_equal_mpi);
    CU_add_test(suite, "sums become words, from lanes", sums_become_words_from_lanes);
    CU_add_test(suite, "sums become words, from elsewhere", sums_become_words_from_elsewhere);
    CU_add_test(suite, "sums become words, from both", sums_become_words_from_both);
    CU_add_test(suite, "gathers equal MPI", gathers_equal_mpi);
    CU_add_test(suite, "exchanges equal MPI", exchanges_equal_mpi);
    CU_add_test(suite, "operations follow each other", operations_follow_each_other);
    CU_add_test(suite, "messages move while others wait", messages_move_while_others_wait);
    CU_add_test(suite, "a lane grows in place", a_lane_grows_in_place);
    CU_add_test(suite, "a lane given back begins anew", a_lane_given_back_begins_anew);
}
