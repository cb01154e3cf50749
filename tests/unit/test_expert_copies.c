/* Copies of experts: each gets its places on different ranks and hosts, rows go to the nearest copy
 * and then to the emptiest, and the ranks become as even as the counts allow. */
#include "parallel/layout/expert_places.h"

#include "base/mem.h"
#include "util_models.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { E_MAX = 64, P_MAX = 96, EP_MAX = 32 };

/* --- which copy ----------------------------------------------------------------------------- */

/* Expert 0 has copies in parts 0 and 1, expert 1 in parts 1 and 2; experts 2, 3 and 4 are in parts
 * 0, 1 and 2. */
static const uint32_t some_first[] = {0, 2, 4, 5, 6, 7}, some_place[] = {0, 2, 3, 4, 1, 5, 6},
                      some_part[] = {0, 0, 1, 1, 2, 1, 2};

static struct expert_copies some_copies(const uint8_t *distance)
{
    return (struct expert_copies){5, 3, some_first, some_place, some_part, distance, NULL};
}

static void expect_share(const uint8_t *distance, const int64_t *rows, const int64_t *want)
{
    const struct expert_copies c = some_copies(distance);
    int64_t share[7], part_rows[3], sums[3] = {0};
    expert_copies_share(&c, rows, share, part_rows);
    for (int i = 0; i < 7; i++) {
        sums[some_part[some_place[i]]] += share[i];
        CU_ASSERT_EQUAL(share[i], want[i]);
    }
    CU_ASSERT_EQUAL(memcmp(sums, part_rows, sizeof sums), 0);
}

static void known_rows_are_shared_as_by_hand(void)
{
    /* all copies equally near: the parts have 4, 1 and 1 rows of the experts without copies, and
     * end with 7 rows each */
    expect_share(NULL, (const int64_t[]){9, 6, 4, 1, 1}, (const int64_t[]){3, 6, 0, 6, 4, 1, 1});
    /* no rows, no shares */
    expect_share(NULL, (const int64_t[]){0, 0, 0, 0, 0}, (const int64_t[7]){0});
    /* a copy on the own rank takes all rows, however full the rank is */
    expect_share((const uint8_t[]){COPY_OWN_RANK, COPY_OTHER_HOST, COPY_OTHER_HOST},
                 (const int64_t[]){9, 6, 4, 1, 1}, (const int64_t[]){9, 0, 3, 3, 4, 1, 1});
    /* without one, copies on the own host take all rows: one copy of expert 0, both of expert 1 */
    expect_share((const uint8_t[]){COPY_OTHER_HOST, COPY_OWN_HOST, COPY_OWN_HOST},
                 (const int64_t[]){2, 6, 4, 1, 1}, (const int64_t[]){0, 2, 2, 4, 4, 1, 1});
    /* of copies in equally full parts, the first gets the odd row */
    expect_share(NULL, (const int64_t[]){3, 0, 0, 0, 0}, (const int64_t[]){2, 1, 0, 0, 0, 0, 0});
}

/* Returns the least rows that the fullest of three parts can have, over all ways to share two
 * experts' rows. */
static int64_t least_fullest(const int64_t *rows)
{
    int64_t least = INT64_MAX;
    for (int64_t a = 0; a <= rows[0]; a++) {
        for (int64_t b = 0; b <= rows[1]; b++) {
            const int64_t parts[] = {rows[2] + a, rows[3] + rows[0] - a + b, rows[4] + rows[1] - b};
            int64_t most = 0;
            for (int i = 0; i < 3; i++) most = parts[i] > most ? parts[i] : most;
            least = most < least ? most : least;
        }
    }
    return least;
}

static void shares_are_the_most_even_ones(void)
{
    uint64_t state = 5;
    int64_t off = 0;
    for (int i = 0; i < 2000; i++) {
        int64_t rows[5], share[7], part_rows[3], most = 0;
        for (int e = 0; e < 5; e++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            rows[e] = (int64_t)(state >> 33) % 40;
        }
        const struct expert_copies c = some_copies(NULL);
        expert_copies_share(&c, rows, share, part_rows);
        for (int p = 0; p < 3; p++) most = part_rows[p] > most ? part_rows[p] : most;
        for (int e = 0; e < 5; e++) {
            int64_t sum = 0;
            for (uint32_t k = some_first[e]; k < some_first[e + 1]; k++) {
                CU_ASSERT(share[k] >= 0);
                sum += share[k];
            }
            CU_ASSERT_EQUAL(sum, rows[e]);
        }
        if (most - least_fullest(rows) > off) off = most - least_fullest(rows);
    }
    CU_ASSERT(off <= 1);
    if (off > 1) fprintf(stderr, "up to %lld rows more than the best\n", (long long)off);
}

/* --- places --------------------------------------------------------------------------------- */

static struct layout make_layout(struct arch *arch, uint32_t n_experts, uint32_t ep,
                                 uint32_t n_copies)
{
    *arch = (struct arch){
        .n_layers = 1, .moe.n_experts = n_experts, .moe.n_chosen = 2, .layer.is_moe = {true}};
    return (struct layout){.n_ranks = ep,
                           .tp = ep,
                           .pp = 1,
                           .dp = 1,
                           .ep = ep,
                           .etp = 1,
                           .n_expert_replicas = 1,
                           .n_expert_copies = n_copies,
                           .stage_begin = {0, 1},
                           .model = {.name = "test", .arch = arch}};
}

/* Places the experts on hosts of ranks_per_host ranks each. */
static struct expert_places *place_on(const struct layout *l, const int64_t *load,
                                      uint32_t ranks_per_host)
{
    uint32_t host_of[EP_MAX];
    struct expert_places *p = NULL;
    for (uint32_t r = 0; r < l->ep; r++) host_of[r] = r / ranks_per_host;
    CU_ASSERT_EQUAL_FATAL(expert_places_create(l, load, host_of, &p).code, STATUS_OK);
    return p;
}

/* Checks the lists of places. Returns the largest number of places of an expert. */
static uint32_t check_places(const struct layout *l, const struct expert_places *p)
{
    const uint32_t n = l->model.arch->moe.n_experts, n_places = n + l->n_expert_copies;
    uint32_t most = 0, n_seen = 0;
    for (uint32_t e = 0; e < n; e++) {
        const uint32_t count = p->first[e + 1] - p->first[e];
        CU_ASSERT_FATAL(count >= 1 && p->first[e + 1] <= n_places);
        for (uint32_t i = p->first[e]; i < p->first[e + 1]; i++) {
            const uint32_t at = p->place[i];
            const struct range held = layout_experts(l, p->part_of[at]);
            CU_ASSERT(at >= held.begin && at < held.end && p->expert[at] == e);
            CU_ASSERT(i == p->first[e] || at > p->place[i - 1]);
            n_seen++;
        }
        if (count > most) most = count;
    }
    CU_ASSERT_EQUAL(n_seen, n_places);
    return most;
}

static double evenness(const struct layout *l, const struct expert_places *p, const int64_t *load)
{
    struct expert_evenness even;
    CU_ASSERT_EQUAL_FATAL(expert_evenness_of(l, p, load, &even).code, STATUS_OK);
    return even.worst;
}

static void the_hottest_expert_gets_copies(void)
{
    struct arch arch;
    const struct layout l = make_layout(&arch, 4, 2, 2);
    const int64_t load[] = {60, 20, 10, 10};
    struct expert_places *p = place_on(&l, load, 2);
    /* the first copy is of expert 0, which is then on both parts with 30 rows each; the second is
     * of expert 1, with 20 rows */
    check_places(&l, p);
    CU_ASSERT(p->first[1] - p->first[0] == 2 && p->first[2] - p->first[1] == 2);
    CU_ASSERT(p->part_of[p->place[p->first[2]]] != p->part_of[p->place[p->first[3]]]);
    CU_ASSERT(fabs(evenness(&l, p, load) - 1) < 1e-9);
    CU_ASSERT(fabs(evenness(&l, NULL, load) - 1.6) < 1e-9);
    expert_places_destroy(&p);
}

static void layers_without_a_load_have_places_too(void)
{
    struct arch arch;
    const struct layout l = make_layout(&arch, 5, 4, 7);
    const int64_t load[5] = {0};
    struct expert_places *p = place_on(&l, load, 2);
    CU_ASSERT(check_places(&l, p) == 4); /* an expert on both hosts gets two copies at once */
    CU_ASSERT(evenness(&l, p, load) == 0);
    expert_places_destroy(&p);
}

/* With the largest number of copies, each part has all experts. */
static void all_experts_may_stand_everywhere(void)
{
    struct arch arch;
    const struct layout l = make_layout(&arch, 3, 3, 6);
    const int64_t load[] = {700, 0, 10000};
    struct expert_places *p = place_on(&l, load, 1);
    CU_ASSERT(check_places(&l, p) == 3);
    for (uint32_t at = 0; at < 9; at++) CU_ASSERT_EQUAL(p->expert[at], at % 3);
    CU_ASSERT(evenness(&l, p, load) < 1.001);
    expert_places_destroy(&p);
}

/* When each of two hosts has a copy of every expert, no row goes to the other host. */
static void a_token_stays_on_its_host(void)
{
    struct arch arch;
    const struct layout l = make_layout(&arch, 4, 4, 4);
    const int64_t load[] = {400, 400, 400, 400};
    struct expert_places *p = place_on(&l, load, 2);
    int64_t of_part[4];
    struct expert_rows_expected rows = {.of_part = of_part};
    check_places(&l, p);
    CU_ASSERT_EQUAL(expert_rows_expect(&l, p, load, 0, &rows).code, STATUS_OK);
    CU_ASSERT(rows.other_hosts == 0 && rows.hosts == 0); /* each host has all experts */
    for (int i = 0; i < 4; i++) CU_ASSERT_EQUAL(of_part[i], 400);
    expert_places_destroy(&p);
    struct arch other;
    const struct layout plain = make_layout(&other, 4, 4, 0);
    p = place_on(&plain, load, 2);
    CU_ASSERT_EQUAL(expert_rows_expect(&plain, p, load, 0, &rows).code, STATUS_OK);
    CU_ASSERT(fabs(rows.other_hosts - 0.5) < 1e-9);
    CU_ASSERT(fabs(rows.hosts - 0.75) < 1e-9); /* 1 - (1 / 2)^2 */
    expert_places_destroy(&p);
}

/* Loads that fall as 1 / (e + shift), in a random order: shift 2 is steep, 40 nearly flat. */
static void make_load(uint32_t n, double shift, uint64_t *state, int64_t *load)
{
    for (uint32_t e = 0; e < n; e++) load[e] = (int64_t)(1e6 / (e + shift));
    for (uint32_t e = n - 1; e > 0; e--) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        const uint32_t other = (uint32_t)(*state >> 33) % (e + 1);
        const int64_t x = load[e];
        load[e] = load[other];
        load[other] = x;
    }
}

/* With as many copies as an eighth of the experts, the fullest part is close to a bound that no
 * placement can beat. */
static void copies_make_ranks_even(void)
{
    static const uint32_t parts[] = {2, 4, 8, 16, 32};
    static const double shifts[] = {2, 8, 40};
    uint64_t state = 3;
    uint32_t n_more_even = 0;
    for (size_t k = 0; k < 5 * 3 * 4; k++) {
        const uint32_t ep = parts[k % 5], per_host = 1u << k / 15;
        struct arch arch;
        const struct layout l = make_layout(&arch, E_MAX, ep, E_MAX / 8);
        const struct layout plain = make_layout(&arch, E_MAX, ep, 0);
        int64_t load[E_MAX];
        make_load(E_MAX, shifts[k / 5 % 3], &state, load);
        struct expert_places *p = place_on(&l, load, per_host < ep ? per_host : ep);
        struct expert_places *dealt = place_on(&plain, load, 1);
        const double least = expert_bound_of(load, E_MAX, ep, E_MAX / 8);
        const double even = evenness(&l, p, load), without = evenness(&plain, dealt, load);
        check_places(&l, p);
        CU_ASSERT(even > least - 1e-6 && without > expert_bound_of(load, E_MAX, ep, 0) - 1e-6);
        /* 72 places on 32 ranks leave little choice: two or three each */
        const double most = least * (ep < EP_MAX ? 1.05 : 1.12);
        CU_ASSERT(even <= most && even < without + 1e-3);
        if (even > most)
            fprintf(stderr, "ep %u, hosts of %u, shift %.0f: %.3f, without %.3f, least %.3f\n", ep,
                    per_host, shifts[k / 5 % 3], even, without, least);
        n_more_even += even < without;
        expert_places_destroy(&dealt);
        expert_places_destroy(&p);
    }
    CU_ASSERT(n_more_even > 30);
}

/* One more copy may make the parts less even, but by at most 8 %. */
static void more_copies_hardly_hurt(void)
{
    static const uint32_t per_host[] = {1, 2, 4, 8};
    uint64_t state = 11;
    int64_t load[16];
    make_load(16, 4, &state, load);
    for (size_t k = 0; k < 4; k++) {
        double before = 8;
        for (uint32_t n_copies = 0; n_copies <= 24; n_copies++) {
            struct arch arch;
            const struct layout l = make_layout(&arch, 16, 8, n_copies);
            struct expert_places *p = place_on(&l, load, per_host[k]);
            const double even = evenness(&l, p, load);
            check_places(&l, p);
            CU_ASSERT(even <= before * 1.08);
            if (even > before * 1.08)
                fprintf(stderr, "hosts of %u, %u copies: %.3f after %.3f\n", per_host[k], n_copies,
                        even, before);
            before = even;
            expert_places_destroy(&p);
        }
        CU_ASSERT(before < 1.03);
    }
}

static void the_bound_is_known_by_hand(void)
{
    const int64_t load[] = {60, 20, 10, 10};
    CU_ASSERT(fabs(expert_bound_of(load, 4, 2, 0) - 1.2) < 1e-9);
    CU_ASSERT(fabs(expert_bound_of(load, 4, 2, 1) - 1) < 1e-9);
    CU_ASSERT(fabs(expert_bound_of(load, 4, 4, 1) - 1.2) < 1e-9); /* 30 where 25 is the mean */
    CU_ASSERT(fabs(expert_bound_of(load, 4, 4, 2) - 1) < 1e-9);
    CU_ASSERT(expert_bound_of((const int64_t[]){0, 0}, 2, 2, 1) == 0);
    /* whole rows: three rows on two parts */
    CU_ASSERT(fabs(expert_bound_of((const int64_t[]){3, 0}, 2, 2, 1) - 4.0 / 3) < 1e-9);
}

static uint64_t weights_of(const struct layout *l)
{
    return layout_memory_of(l, layout_place_of(l, 0), (struct layout_kv){2, 0}, 64).weights_bytes;
}

static void layouts_take_copies_from_flags(void)
{
    static struct layout l;
    const struct layout_model m = util_model(MODEL_MIXTRAL);
    struct layout_flags f = {.ep = 2, .expert_load = "load.json", .expert_copies = 3};
    CU_ASSERT_EQUAL(layout_build(&m, 2, &f, &l).code, STATUS_OK);
    CU_ASSERT(l.n_expert_copies == 3 && layout_n_places(&l) == 11);
    CU_ASSERT(layout_experts(&l, 0).end == 5 && layout_experts(&l, 1).end == 11);
    f.expert_copies = 100; /* more than are possible: each rank has all experts */
    CU_ASSERT_EQUAL(layout_build(&m, 2, &f, &l).code, STATUS_OK);
    CU_ASSERT_EQUAL(l.n_expert_copies, 8);
    const uint64_t with = weights_of(&l);
    f.expert_copies = 0;
    CU_ASSERT_EQUAL(layout_build(&m, 2, &f, &l).code, STATUS_OK);
    /* a rank has four more experts in each of 32 layers, of three matrices in 2 bytes an element */
    CU_ASSERT_EQUAL(with - weights_of(&l), 32ull * 4 * 3 * 4096 * 14336 * 2);
    f.expert_copies = 1;
    f.expert_load = NULL;
    const struct status st = layout_build(&m, 2, &f, &l);
    CU_ASSERT(st.code == STATUS_USAGE && strstr(st.text, "needs --expert-load") != NULL);
    f.expert_replan = 9; /* the job counts the load itself */
    CU_ASSERT_EQUAL(layout_build(&m, 2, &f, &l).code, STATUS_OK);
    CU_ASSERT_EQUAL(l.n_expert_copies, 1);
}

void suite_expert_copies(CU_pSuite suite);
void suite_expert_copies(CU_pSuite suite)
{
    CU_add_test(suite, "shares by hand", known_rows_are_shared_as_by_hand);
    CU_add_test(suite, "shares are even", shares_are_the_most_even_ones);
    CU_add_test(suite, "copies of the hottest", the_hottest_expert_gets_copies);
    CU_add_test(suite, "no load", layers_without_a_load_have_places_too);
    CU_add_test(suite, "everywhere", all_experts_may_stand_everywhere);
    CU_add_test(suite, "hosts", a_token_stays_on_its_host);
    CU_add_test(suite, "even ranks", copies_make_ranks_even);
    CU_add_test(suite, "more copies", more_copies_hardly_hurt);
    CU_add_test(suite, "bound", the_bound_is_known_by_hand);
    CU_add_test(suite, "layouts", layouts_take_copies_from_flags);
}
