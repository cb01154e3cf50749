/* Sums over several hosts, which are pretended on this machine, against MPI's reduction over all
 * ranks: the same bits for every placement of the ranks, length and width of the values. */
#define COMM_INSIDE
#include "mpi/util_mpi.h"
#include "parallel/comm/host_sum.h"

#include <stdlib.h>
#include <string.h>

enum { N_MAX = 600001 };

/* The hosts of the launcher's ranks 0, 1, 2 and 3; with fewer ranks, the first of a row count. */
static const int placements[][4] = {{0, 1, 2, 3}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 1},
                                    {0, 0, 1, 2}, {2, 0, 1, 0}, {0, 0, 0, 0}};
static const size_t lengths[] = {0, 1, 63, 64, 65, 1000, 7169, 15360, 15361, 40000, N_MAX};

struct suite {
    struct comm *c;
    int64_t *values, *sums, *flat; /* [N_MAX] */
    uint32_t *words;               /* [N_MAX] */
    uint8_t *n_taken;              /* [N_MAX] */
};

static void begin(struct suite *s, const int *placement, uint32_t turn)
{
    *s = (struct suite){.c = util_comm_of_replicas(turn, placement[util_rank() % 4]),
                        .values = calloc(N_MAX, sizeof(int64_t)),
                        .sums = calloc(N_MAX, sizeof(int64_t)),
                        .flat = calloc(N_MAX, sizeof(int64_t)),
                        .words = calloc(N_MAX, sizeof(uint32_t)),
                        .n_taken = calloc(N_MAX, 1)};
}

static void end(struct suite *s)
{
    comm_stop(&s->c);
    free(s->values);
    free(s->sums);
    free(s->flat);
    free(s->words);
    free(s->n_taken);
}

/* Values of this rank, up to 64 bits wide; the width changes every 100 values. */
static void draw(struct suite *s, size_t n)
{
    uint64_t state = 77 + util_rank();
    for (size_t i = 0; i < n; i++) {
        const uint64_t bits = (uint64_t)util_next(&state) << 33 ^ (uint64_t)util_next(&state) << 12;
        s->values[i] = (int64_t)bits >> (i / 100 * 7 % 65 == 64 ? 63 : i / 100 * 7 % 65);
    }
}

static uint32_t word_of(int64_t sum, size_t i)
{
    return (uint32_t)sum ^ (uint32_t)((uint64_t)sum >> 32) ^ (uint32_t)(i * 2654435761u);
}

static void convert(const void *ctx, const int64_t *sums, size_t first, size_t n, uint32_t *words)
{
    (void)ctx;
    for (size_t i = 0; i < n; i++) words[i] = word_of(sums[i], first + i);
}

static void take(const void *ctx, const uint32_t *words, size_t first, size_t n)
{
    const struct suite *s = ctx;
    memcpy(s->words + first, words, n * sizeof *words);
    for (size_t i = 0; i < n; i++) s->n_taken[first + i]++;
}

/* Sums the values of all ranks in three ways and compares. */
static void check_length(struct suite *s, size_t n)
{
    draw(s, n);
    const size_t n_bytes = n * sizeof *s->values;
    memcpy(s->flat, s->values, n_bytes);
    comm_use_memory(s->c, COMM_STAGE, false);
    comm_sum_i64(s->c, COMM_STAGE, s->flat, n);
    comm_use_memory(s->c, COMM_STAGE, true);
    memcpy(s->sums, s->values, n_bytes);
    comm_sum_i64(s->c, COMM_STAGE, s->sums, n);
    CU_ASSERT_EQUAL(memcmp(s->sums, s->flat, n_bytes), 0);
    memcpy(s->sums, s->values, n_bytes);
    memset(s->n_taken, 0, n);
    const struct comm_sum sum = {
        .sums = s->sums, .n = n, .convert = convert, .take = take, .ctx = s};
    comm_sum_words(s->c, COMM_STAGE, &sum);
    size_t n_wrong = 0;
    for (size_t i = 0; i < n; i++)
        n_wrong += s->n_taken[i] != 1 || s->words[i] != word_of(s->flat[i], i);
    CU_ASSERT_EQUAL(n_wrong, 0);
}

static void check_all(uint32_t n_threads)
{
    struct team *team = NULL;
    CU_ASSERT_EQUAL_FATAL(team_create(n_threads, &team).code, STATUS_OK);
    for (size_t p = 0; p < sizeof placements / sizeof *placements; p++) {
        struct suite s;
        begin(&s, placements[p], (uint32_t)p % util_n_ranks());
        comm_use_team(s.c, team);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) check_length(&s, lengths[i]);
        end(&s);
    }
    team_destroy(&team);
}

static void sums_are_those_of_one_reduction(void)
{
    check_all(1);
}

static void threads_share_the_work(void)
{
    check_all(3);
}

/* One host sends nothing. Two hosts send about half the bytes of 8-byte sums. */
static void bytes_on_the_wire_are_counted(void)
{
    static const int rows[][4] = {{0, 0, 0, 0}, {0, 1, 0, 1}, {0, 1, 1, 1}};
    for (size_t p = 0; p < sizeof rows / sizeof *rows; p++) {
        struct suite s;
        begin(&s, rows[p], 0);
        for (size_t i = 0; i < 100000; i++) s.sums[i] = (int64_t)1 << 24;
        comm_sum_i64(s.c, COMM_STAGE, s.sums, 1000);
        const uint64_t one_round = comm_stats_of(s.c, COMM_STAGE).wire_bytes;
        const struct comm_sum sum = {
            .sums = s.sums, .n = 100000, .convert = convert, .take = take, .ctx = &s};
        comm_sum_words(s.c, COMM_STAGE, &sum);
        uint64_t sent[2] = {one_round, comm_stats_of(s.c, COMM_STAGE).wire_bytes - one_round};
        uint64_t all[2 * 4];
        comm_gather_bytes(s.c, COMM_STAGE, sent, sizeof sent, all);
        uint64_t of_sums = 0, of_words = 0;
        for (uint32_t r = 0; r < util_n_ranks(); r++) {
            of_sums += all[2 * r];
            of_words += all[2 * r + 1];
        }
        /* one round: 1000 values of 4 bytes from each host; two rounds: half of the values, then
         * half of the words, from each host; and a byte for every 64 values */
        const bool two = p > 0 && util_n_ranks() > 1;
        CU_ASSERT(two ? of_sums >= 8000 && of_sums <= 8000 + 2 * 20 : of_sums == 0);
        CU_ASSERT(two ? of_words >= 800000 && of_words <= 800000 + 1600 : of_words == 0);
        end(&s);
    }
}

static void the_way_depends_on_hosts_and_length(void)
{
    struct suite s;
    begin(&s, placements[0], 0);
    const bool several = util_n_ranks() > 1;
    CU_ASSERT_EQUAL(host_sum_way_of(s.c, COMM_STAGE, 4096),
                    several ? HOST_SUM_ONE_ROUND : HOST_SUM_FLAT);
    CU_ASSERT_EQUAL(host_sum_way_of(s.c, COMM_STAGE, 1 << 20),
                    several ? HOST_SUM_TWO_ROUNDS : HOST_SUM_FLAT);
    comm_use_memory(s.c, COMM_STAGE, false);
    CU_ASSERT_EQUAL(host_sum_way_of(s.c, COMM_STAGE, 4096), HOST_SUM_FLAT);
    end(&s);
}

void suite_host_sum(CU_pSuite suite);
void suite_host_sum(CU_pSuite suite)
{
    CU_add_test(suite, "sums are those of one reduction", sums_are_those_of_one_reduction);
    CU_add_test(suite, "threads share the work", threads_share_the_work);
    CU_add_test(suite, "bytes on the wire are counted", bytes_on_the_wire_are_counted);
    CU_add_test(suite, "the way depends on hosts and length", the_way_depends_on_hosts_and_length);
}
