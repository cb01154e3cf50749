/* New places for experts in a running job: the fullest part gets fewer rows, experts stay where
 * they can, and a layer that would hardly gain keeps its places. */
#include "parallel/layout/expert_replan.h"
#include "parallel/layout/replan_ledger.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 3, E_MAX = 32, EP_MAX = 8 };

/* Layer 0 is dense. */
static struct layout make_layout(struct arch *arch, uint32_t n_experts, uint32_t ep,
                                 uint32_t n_copies)
{
    *arch = (struct arch){.n_layers = LAYERS,
                          .moe = {.n_experts = n_experts, .n_chosen = 2},
                          .layer.is_moe = {false, true, true}};
    return (struct layout){.n_ranks = ep,
                           .tp = ep,
                           .pp = 1,
                           .dp = 1,
                           .ep = ep,
                           .etp = 1,
                           .n_expert_replicas = 1,
                           .n_expert_copies = n_copies,
                           .stage_begin = {0, LAYERS},
                           .model = {.name = "test", .arch = arch}};
}

static struct expert_places *place_on(const struct layout *l, const int64_t *load,
                                      uint32_t ranks_per_host)
{
    uint32_t host_of[EP_MAX];
    struct expert_places *p = NULL;
    for (uint32_t r = 0; r < l->ep; r++) host_of[r] = r / ranks_per_host;
    CU_ASSERT_EQUAL_FATAL(expert_places_create(l, load, host_of, &p).code, STATUS_OK);
    return p;
}

/* Checks that the lists of a layer fit together and that every expert has a place. */
static void check_lists(const struct layout *l, const struct expert_places *p, uint32_t layer)
{
    const struct expert_copies c = expert_copies_of(l, p, layer);
    uint32_t n_seen = 0;
    for (uint32_t e = 0; e < p->n_experts; e++) {
        CU_ASSERT_FATAL(c.first[e + 1] > c.first[e] && c.first[e + 1] <= p->n_places);
        for (uint32_t i = c.first[e]; i < c.first[e + 1]; i++) {
            CU_ASSERT(p->expert[layer * p->n_places + c.place[i]] == e);
            CU_ASSERT(i == c.first[e] || c.place[i] > c.place[i - 1]);
            n_seen++;
        }
    }
    CU_ASSERT_EQUAL(n_seen, p->n_places);
}

/* Returns how many places of a layer changed their expert. */
static uint64_t moves_in(const struct expert_places *a, const struct expert_places *b,
                         uint32_t layer)
{
    uint64_t n = 0;
    for (uint32_t at = layer * a->n_places; at < (layer + 1) * a->n_places; at++)
        n += a->expert[at] != b->expert[at];
    return n;
}

/* Returns how many places of a part hold the expert. */
static uint32_t n_in_part(const struct layout *l, const struct expert_places *p, uint32_t layer,
                          uint32_t part, uint32_t e)
{
    const struct range held = layout_experts(l, part);
    uint32_t n = 0;
    for (uint32_t at = held.begin; at < held.end; at++)
        n += p->expert[layer * p->n_places + at] == e;
    return n;
}

/* Checks that no expert moves within its part: as many places change as experts are new in their
 * part. */
static void check_stays(const struct layout *l, const struct expert_places *old,
                        const struct expert_places *p, uint32_t layer)
{
    uint64_t n_new = 0;
    for (uint32_t part = 0; part < l->ep; part++) {
        for (uint32_t e = 0; e < p->n_experts; e++) {
            const uint32_t was = n_in_part(l, old, layer, part, e);
            const uint32_t is = n_in_part(l, p, layer, part, e);
            n_new += is > was ? is - was : 0;
        }
    }
    CU_ASSERT_EQUAL(moves_in(old, p, layer), n_new);
}

/* Layer 1 keeps its load. In layer 2 all experts of both parts had equal loads; then expert 0
 * becomes the hottest, with 60 beside 10, 20 and 10. */
static void a_hot_expert_moves_alone(void)
{
    struct arch arch;
    const struct layout l = make_layout(&arch, 4, 2, 0);
    int64_t load[LAYERS * 4] = {0, 0, 0, 0, 5, 5, 5, 5, 9, 9, 9, 9};
    struct expert_places *old = place_on(&l, load, 2);
    /* the parts have {0, 2} and {1, 3} */
    CU_ASSERT(n_in_part(&l, old, 2, 0, 0) == 1 && n_in_part(&l, old, 2, 0, 2) == 1);
    memcpy(load + 8, (const int64_t[]){60, 10, 20, 10}, 4 * sizeof *load);
    struct expert_replan r;
    CU_ASSERT_EQUAL_FATAL(expert_replan_make(&l, old, load, 0, NULL, &r).code, STATUS_OK);
    /* the parts' rows, 80 and 20, become 70 and 30: expert 2 (20) and one with 10 change places */
    CU_ASSERT(r.n_layers == 1 && r.n_moves == 2);
    CU_ASSERT(moves_in(old, r.places, 1) == 0 && moves_in(old, r.places, 2) == 2);
    CU_ASSERT(n_in_part(&l, r.places, 2, 0, 0) == 1 && n_in_part(&l, r.places, 2, 0, 2) == 0);
    CU_ASSERT_DOUBLE_EQUAL(r.before.worst, 1.6, 1e-9);
    CU_ASSERT_DOUBLE_EQUAL(r.after.worst, 1.4, 1e-9);
    CU_ASSERT(memcmp(r.places->load, load, sizeof load) == 0);
    check_lists(&l, r.places, 2);
    expert_replan_fini(&r);
    CU_ASSERT(r.places == NULL);
    expert_places_destroy(&old);
}

/* In layer 2 the parts have experts {1 2 5} and {0 3 4}, and a new deal gives {2 3 4} and {0 1 5}.
 * Then one expert of each part stays; two stay if the parts exchange what they are dealt, which is
 * allowed when both are on one host. */
static void parts_of_a_host_may_exchange_all(void)
{
    struct arch arch;
    const struct layout l = make_layout(&arch, 6, 2, 0);
    const int64_t first[LAYERS * 6] = {0, 0, 0, 0, 0, 0, 90, 1, 1, 1, 1, 1, 60, 50, 40, 30, 20, 10};
    const int64_t counted[LAYERS * 6] = {0, 0, 0, 0,  0,   0,  90, 1,  1,
                                         1, 1, 1, 10, 100, 60, 30, 20, 10};
    for (uint32_t per_host = 1; per_host <= 2; per_host++) {
        struct expert_places *old = place_on(&l, first, per_host);
        struct expert_replan r;
        CU_ASSERT_EQUAL_FATAL(expert_replan_make(&l, old, counted, 0, NULL, &r).code, STATUS_OK);
        CU_ASSERT_EQUAL(r.n_moves, per_host == 2 ? 2 : 4);
        CU_ASSERT_EQUAL(n_in_part(&l, r.places, 2, per_host == 2 ? 0 : 1, 1), 1);
        CU_ASSERT_EQUAL(moves_in(old, r.places, 1), 0);
        CU_ASSERT_DOUBLE_EQUAL(r.after.worst, 184.0 / 95, 1e-9); /* of layer 1 */
        check_stays(&l, old, r.places, 2);
        expert_replan_fini(&r);
        expert_places_destroy(&old);
    }
}

static void small_gains_move_nothing(void)
{
    struct arch arch;
    const struct layout l = make_layout(&arch, 4, 2, 0);
    int64_t load[LAYERS * 4] = {0, 0, 0, 0, 500, 500, 500, 500, 500, 500, 500, 500};
    struct expert_places *old = place_on(&l, load, 2);
    load[8] += 10; /* {0, 2} has 1025 and {1, 3} 1000; another deal gives 1010 and 1015 */
    load[10] += 15;
    struct expert_replan r;
    CU_ASSERT_EQUAL_FATAL(expert_replan_make(&l, old, load, 0, NULL, &r).code, STATUS_OK);
    CU_ASSERT(r.n_moves == 0 && r.n_layers == 0);
    CU_ASSERT(memcmp(old->expert, r.places->expert, (size_t)LAYERS * 4 * sizeof *old->expert) == 0);
    CU_ASSERT_DOUBLE_EQUAL(r.before.worst, r.after.worst, 0);
    expert_replan_fini(&r);
    expert_places_destroy(&old);
}

/* The parts of layer 2 have 80 and 20 of 100 rows, and after two moves 70 and 30. The ten saved
 * rows, counted four times, pay for two moves of 20 rows each, not of 21. */
static void moves_must_pay(void)
{
    struct arch arch;
    const struct layout l = make_layout(&arch, 4, 2, 0);
    int64_t load[LAYERS * 4] = {0, 0, 0, 0, 5, 5, 5, 5, 9, 9, 9, 9};
    struct expert_places *old = place_on(&l, load, 2);
    memcpy(load + 8, (const int64_t[]){60, 10, 20, 10}, 4 * sizeof *load);
    for (int64_t move_rows = 20; move_rows <= 21; move_rows++) {
        struct expert_replan r;
        CU_ASSERT_EQUAL_FATAL(expert_replan_make(&l, old, load, move_rows, NULL, &r).code,
                              STATUS_OK);
        CU_ASSERT_EQUAL(r.n_moves, move_rows == 20 ? 2 : 0);
        CU_ASSERT_EQUAL(r.n_layers, move_rows == 20 ? 1 : 0);
        CU_ASSERT_EQUAL(moves_in(old, r.places, 2), r.n_moves);
        CU_ASSERT_DOUBLE_EQUAL(r.after.worst, move_rows == 20 ? 1.4 : 1.6, 1e-9);
        CU_ASSERT(memcmp(r.places->load, load, sizeof load) == 0);
        check_lists(&l, r.places, 2);
        expert_replan_fini(&r);
    }
    expert_places_destroy(&old);
}

/* The more bytes an expert's weights have, the more rows a move costs. */
static void bytes_of_weights_count(void)
{
    struct arch arch;
    struct layout l = make_layout(&arch, 4, 2, 0);
    l.model.weight_bytes = 2;
    CU_ASSERT_EQUAL(expert_move_rows(&l), 240);
    l.model.weights[CLASS_EXPERTS] = (struct layout_weight){.group = 32, .group_bytes = 18};
    CU_ASSERT_EQUAL(expert_move_rows(&l), 67);
    l.n_expert_replicas = 4; /* each replica reads the expert, and has a quarter of the rows */
    CU_ASSERT_EQUAL(expert_move_rows(&l), 270);
}

/* --- the ledger ------------------------------------------------------------------------------ */

/* The rows of each expert in layer 2 between two looks at the load, for two topics. With the best
 * places for a topic, the fullest part has 50 of its 100 rows, and 70 of the other topic's. With
 * the first places it has 60 rows of both topics. */
static const int64_t topics[2][4] = {{40, 30, 20, 10}, {40, 10, 20, 30}};

/* A job that looks at its counts, as job_experts.c does. */
struct watched {
    struct layout l;
    struct expert_places *places;
    struct replan_ledger ledger;
    int64_t load[LAYERS * 4], move_rows;
    uint32_t n_replans;
};

static void watch_start(struct watched *w, struct arch *arch, int64_t move_rows)
{
    const int64_t even[LAYERS * 4] = {0, 0, 0, 0, 5, 5, 5, 5, 9, 9, 9, 9};
    *w = (struct watched){.l = make_layout(arch, 4, 2, 0), .move_rows = move_rows};
    w->places = place_on(&w->l, even, 2);
    CU_ASSERT_EQUAL_FATAL(replan_ledger_init(&w->ledger, &w->l, w->places).code, STATUS_OK);
}

static void watch_stop(struct watched *w)
{
    replan_ledger_fini(&w->ledger);
    expert_places_destroy(&w->places);
}

/* Counts `times` times the rows of a topic, then looks at the load. Returns whether experts
 * moved. */
static bool watch_topic(struct watched *w, uint32_t topic, int64_t times)
{
    int64_t load[LAYERS * 4];
    struct expert_replan r;
    for (int e = 0; e < 4; e++) w->load[8 + e] += times * topics[topic][e];
    memcpy(load, w->load, sizeof load);
    struct status st = replan_ledger_look(&w->ledger, &w->l, w->places, load);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    st = expert_replan_make(&w->l, w->places, load, w->move_rows, w->ledger.debt, &r);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    const bool moves = r.n_moves > 0;
    replan_ledger_move(&w->ledger, &w->l, w->places, r.places, w->move_rows);
    expert_places_take(w->places, r.places, LAYERS);
    w->n_replans += moves;
    expert_replan_fini(&r);
    return moves;
}

/* Two experts change places for 2 x 20 rows, and at each look for which the topic stays they save
 * 20 rows (10 in the first turn). After some looks the layer owes nothing, so its experts move at
 * each change of the topic. */
static void moves_that_pay_leave_no_debt(void)
{
    struct arch arch;
    struct watched w;
    watch_start(&w, &arch, 20);
    for (uint32_t turn = 0; turn < 6; turn++) {
        for (int look = 0; look < 6; look++) watch_topic(&w, turn % 2, 1);
        CU_ASSERT(w.n_replans == turn + 1 && w.ledger.debt[2] == 0 && w.ledger.price[2] == 0);
    }
    watch_stop(&w);
}

/* The topic changes at each look, so the first move loses as much as it saves, and no other
 * follows. Once the topic stays, experts move again, because longer waits count more rows. */
static void moves_that_do_not_pay_end(void)
{
    struct arch arch;
    struct watched w;
    watch_start(&w, &arch, 20);
    for (uint32_t look = 0; look < 100; look++) watch_topic(&w, look % 2, 1);
    CU_ASSERT_EQUAL(w.n_replans, 1);
    CU_ASSERT(w.ledger.debt[1] == 0 && w.ledger.debt[2] > 0);
    bool moves = false;
    for (int64_t wait = 1; wait <= 16 && !moves; wait *= 2) moves = watch_topic(&w, 1, wait);
    CU_ASSERT(moves);
    watch_stop(&w);
}

static void debts_are_counted_in_rows(void)
{
    struct arch arch;
    struct watched w;
    for (int64_t debt = 20; debt <= 21; debt++) {
        watch_start(&w, &arch, 10);
        w.ledger.debt[2] = w.ledger.price[2] = debt;
        /* the 10 saved rows, counted four times, pay for two moves and a debt of 20 rows, not 21 */
        CU_ASSERT_EQUAL(watch_topic(&w, 0, 1), debt == 20);
        CU_ASSERT_EQUAL(w.ledger.debt[2], debt == 20 ? 40 : 21);
        if (debt == 20) {
            CU_ASSERT(!watch_topic(&w, 0, 1)); /* the places are the best, and saved 10 rows */
            CU_ASSERT_EQUAL(w.ledger.debt[2], 30);
            w.ledger.debt[2] = 35;
            CU_ASSERT(!watch_topic(&w, 1, 1)); /* lost 10 rows; the debt is at most the price */
            CU_ASSERT(w.ledger.debt[2] == 40 && w.ledger.price[2] == 40);
        }
        watch_stop(&w);
    }
}

/* A layer in which no token chose an expert keeps its places. */
static void layers_without_counts_keep_their_places(void)
{
    struct arch arch;
    const struct layout l = make_layout(&arch, 5, 4, 3);
    int64_t load[LAYERS * 5] = {0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1};
    struct expert_places *old = place_on(&l, load, 2);
    memset(load, 0, sizeof load);
    struct expert_replan r;
    CU_ASSERT_EQUAL_FATAL(expert_replan_make(&l, old, load, 0, NULL, &r).code, STATUS_OK);
    CU_ASSERT(r.n_moves == 0 && r.before.worst == 0 && r.after.worst == 0);
    expert_replan_fini(&r);
    expert_places_destroy(&old);
}

static void make_load(uint64_t *state, uint32_t n, int64_t *load)
{
    for (uint32_t e = 0; e < LAYERS * n; e++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        load[e] = e < n ? 0 : 100000 / (int64_t)(1 + (*state >> 33) % 97);
    }
}

/* From one random load to another, with and without copies, on hosts of 1, 2 and 4 ranks: the new
 * places are nearly as even as those of a new start, and fewer experts move. */
static void random_loads_move_no_more_than_they_must(void)
{
    uint64_t state = 7, n_moves = 0, n_fresh = 0;
    for (uint32_t k = 0; k < 60; k++) {
        const uint32_t ep = 2u << k % 3, per_host = 1u << k / 3 % 3;
        struct arch arch;
        const struct layout l = make_layout(&arch, E_MAX, ep, k % 2 == 0 ? 0 : 5);
        int64_t load[LAYERS * E_MAX];
        make_load(&state, E_MAX, load);
        struct expert_places *old = place_on(&l, load, per_host);
        make_load(&state, E_MAX, load);
        struct expert_places *fresh = place_on(&l, load, per_host);
        struct expert_replan r;
        struct expert_evenness best;
        CU_ASSERT_EQUAL_FATAL(expert_replan_make(&l, old, load, 0, NULL, &r).code, STATUS_OK);
        CU_ASSERT_EQUAL(expert_evenness_of(&l, fresh, load, &best).code, STATUS_OK);
        CU_ASSERT(r.after.worst <= best.worst * 1.021 && r.after.mean <= r.before.mean);
        for (uint32_t layer = 1; layer < LAYERS; layer++) {
            check_lists(&l, r.places, layer);
            check_stays(&l, old, r.places, layer);
            n_fresh += moves_in(old, fresh, layer);
        }
        n_moves += r.n_moves;
        expert_places_take(old, r.places, LAYERS);
        CU_ASSERT(moves_in(old, r.places, 1) == 0 && moves_in(old, r.places, 2) == 0);
        check_lists(&l, old, 2);
        CU_ASSERT(memcmp(old->load, load, sizeof load) == 0);
        expert_replan_fini(&r);
        expert_places_destroy(&fresh);
        expert_places_destroy(&old);
    }
    CU_ASSERT(n_moves * 10 < n_fresh * 9);
    if (n_moves * 10 >= n_fresh * 9)
        fprintf(stderr, "%llu moves, %llu without keeping\n", (unsigned long long)n_moves,
                (unsigned long long)n_fresh);
}

static void large_counts_are_halved(void)
{
    int64_t load[] = {1ll << 33, 3, 1ll << 31}, small[] = {7, 0};
    expert_load_fit(load, 3);
    CU_ASSERT(load[0] == EXPERT_LOAD_MAX && load[1] == 0 && load[2] == 1ll << 28);
    expert_load_fit(small, 2);
    CU_ASSERT(small[0] == 7 && small[1] == 0);
}

void suite_expert_replan(CU_pSuite suite);
void suite_expert_replan(CU_pSuite suite)
{
    CU_add_test(suite, "one hot expert", a_hot_expert_moves_alone);
    CU_add_test(suite, "exchange", parts_of_a_host_may_exchange_all);
    CU_add_test(suite, "small gains", small_gains_move_nothing);
    CU_add_test(suite, "moves must pay", moves_must_pay);
    CU_add_test(suite, "bytes of weights", bytes_of_weights_count);
    CU_add_test(suite, "no debt", moves_that_pay_leave_no_debt);
    CU_add_test(suite, "topics in turn", moves_that_do_not_pay_end);
    CU_add_test(suite, "debt in rows", debts_are_counted_in_rows);
    CU_add_test(suite, "no counts", layers_without_counts_keep_their_places);
    CU_add_test(suite, "random loads", random_loads_move_no_more_than_they_must);
    CU_add_test(suite, "large counts", large_counts_are_halved);
}
