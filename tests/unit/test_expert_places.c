/* Distributing experts over ranks by load: every expert is placed once, parts have the sizes of the
 * layout, loads are even, and load files that do not fit are refused. */
#include "parallel/layout/expert_places.h"

#include "base/mem.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { E_MAX = 64, LAYERS = 2 };

static struct layout make_layout(struct arch *arch, uint32_t n_experts, uint32_t ep)
{
    *arch = (struct arch){
        .n_layers = LAYERS, .moe.n_experts = n_experts, .layer.is_moe = {false, true}};
    return (struct layout){.n_ranks = ep,
                           .tp = ep,
                           .pp = 1,
                           .dp = 1,
                           .ep = ep,
                           .etp = 1,
                           .n_expert_replicas = 1,
                           .stage_begin = {0, LAYERS},
                           .model = {.name = "test", .arch = arch}};
}

/* Sets of_part [ep] to the expected rows of layer 1. */
static void expect_rows(const struct layout *l, const struct expert_places *p, const int64_t *load,
                        int64_t *of_part)
{
    struct expert_rows_expected rows = {.of_part = of_part};
    CU_ASSERT_EQUAL_FATAL(expert_rows_expect(l, p, load, 1, &rows).code, STATUS_OK);
}

/* Distributes load [E] in layer 1 of two; layer 0 has no loads. Returns the load of the fullest
 * part. */
static int64_t deal(const struct layout *l, const int64_t *load, int64_t *of_part,
                    uint32_t place[E_MAX])
{
    const uint32_t n = l->model.arch->moe.n_experts;
    int64_t all[LAYERS * E_MAX] = {0}, most = 0;
    struct expert_places *p = NULL;
    memcpy(all + n, load, n * sizeof *load);
    CU_ASSERT_EQUAL_FATAL(expert_places_create(l, all, NULL, &p).code, STATUS_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        uint32_t n_seen = 0;
        for (uint32_t e = 0; e < n; e++) {
            const uint32_t at = p->place[layer * n + e];
            CU_ASSERT_FATAL(at < n);
            n_seen += p->expert[layer * n + at] == e;
            if (layer == 0)
                CU_ASSERT_EQUAL(at, e); /* without loads experts stay in the order of
                                           their ids */
        }
        CU_ASSERT_EQUAL(n_seen, n);
    }
    for (uint32_t i = 0; i < l->ep; i++) { /* a part lists its experts by ascending id */
        const struct range held = layout_experts(l, i);
        for (uint32_t at = held.begin; at + 1 < held.end; at++)
            CU_ASSERT(p->expert[n + at] < p->expert[n + at + 1]);
    }
    expect_rows(l, p, all, of_part);
    for (uint32_t i = 0; i < l->ep; i++)
        if (of_part[i] > most) most = of_part[i];
    memcpy(place, p->place + n, n * sizeof *place);
    expert_places_destroy(&p);
    return most;
}

static void known_loads_are_dealt_as_by_hand(void)
{
    int64_t of_part[8];
    uint32_t place[E_MAX];
    struct arch arch;
    const struct layout l = make_layout(&arch, 4, 2);
    /* by id, the two experts with high loads would be in the same part: 90 and 10 */
    CU_ASSERT_EQUAL(deal(&l, (const int64_t[]){50, 40, 6, 4}, of_part, place), 54);
    CU_ASSERT_EQUAL(of_part[0], 54);
    CU_ASSERT_EQUAL(of_part[1], 46);
    CU_ASSERT(place[0] == 0 && place[3] == 1 && place[1] == 2 && place[2] == 3);
    /* 8 and 7 are placed first, 6 joins 7 and 5 joins 8: each part has two experts and 13 */
    CU_ASSERT_EQUAL(deal(&l, (const int64_t[]){5, 6, 7, 8}, of_part, place), 13);
    /* the first of two parts has room for three experts, the second for two */
    struct arch other;
    const struct layout odd = make_layout(&other, 5, 2);
    CU_ASSERT_EQUAL(deal(&odd, (const int64_t[]){100, 0, 0, 1, 1}, of_part, place), 100);
    CU_ASSERT_EQUAL(of_part[0] + of_part[1], 102);
}

/* The greedy placement gives 17 to part 0, 15 and 14 to part 1, 12 to part 0 and, at 29 each, 11 to
 * part 0, which ends at 40. Swapping 17 and 14 gives 37. */
static void swaps_mend_what_greed_left(void)
{
    int64_t of_part[8];
    uint32_t place[E_MAX];
    struct arch arch;
    const struct layout l = make_layout(&arch, 6, 2);
    CU_ASSERT_EQUAL(deal(&l, (const int64_t[]){17, 15, 14, 12, 11, 1}, of_part, place), 37);
    CU_ASSERT_EQUAL(of_part[1], 33);
    CU_ASSERT(place[0] >= 3 && place[2] < 3);
}

/* Each layer has one expert with a high load. With as many layers as parts, each part gets one of
 * them. */
static void uneven_layers_take_turns(void)
{
    struct arch arch;
    const struct layout l = make_layout(&arch, 2, 2);
    const int64_t load[] = {9, 1, 9, 1};
    struct expert_places *p = NULL;
    CU_ASSERT_EQUAL_FATAL(expert_places_create(&l, load, NULL, &p).code, STATUS_OK);
    CU_ASSERT(p->place[0] == 0 && p->place[1] == 1);
    CU_ASSERT(p->place[2] == 1 && p->place[3] == 0);
    expert_places_destroy(&p);
}

static void random_loads_never_get_less_even(void)
{
    uint64_t state = 1;
    uint32_t n_better = 0, n = 0;
    for (uint32_t ep = 1; ep <= 8; ep++) {
        for (uint32_t n_experts = ep; n_experts <= E_MAX; n_experts += 7) {
            struct arch arch;
            const struct layout l = make_layout(&arch, n_experts, ep);
            int64_t load[E_MAX], of_part[8], sum = 0, all[LAYERS * E_MAX] = {0}, by_id = 0;
            uint32_t place[E_MAX], again[E_MAX];
            for (uint32_t e = 0; e < n_experts; e++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                load[e] = (int64_t)(state >> 33) % 1000;
                sum += load[e];
            }
            memcpy(all + n_experts, load, n_experts * sizeof *load);
            const int64_t most = deal(&l, load, of_part, place);
            CU_ASSERT_EQUAL(deal(&l, load, of_part, again), most);
            CU_ASSERT_EQUAL(memcmp(place, again, n_experts * sizeof *place), 0);
            expect_rows(&l, NULL, all, of_part);
            for (uint32_t i = 0; i < ep; i++)
                if (of_part[i] > by_id) by_id = of_part[i];
            CU_ASSERT(most <= by_id && most * ep >= sum);
            n_better += most < by_id;
            n++;
            if (n_experts % ep == 0 && n_experts >= 8 * ep)
                CU_ASSERT(most * ep * 100 <= sum * 103); /* 8 experts in a part even out well */
        }
    }
    CU_ASSERT(n_better > n / 2);
}

static void evenness_is_the_fullest_by_the_mean(void)
{
    struct arch arch;
    const struct layout l = make_layout(&arch, 4, 2);
    const int64_t load[] = {0, 0, 0, 0, 3, 1, 2, 2};
    struct expert_evenness even;
    CU_ASSERT_EQUAL_FATAL(expert_evenness_of(&l, NULL, load, &even).code, STATUS_OK);
    CU_ASSERT(even.mean == 1 && even.worst == 1); /* layer 0, without a load, does not count */
    const int64_t both[] = {6, 0, 2, 0, 3, 1, 2, 2};
    CU_ASSERT_EQUAL_FATAL(expert_evenness_of(&l, NULL, both, &even).code, STATUS_OK);
    CU_ASSERT(even.mean == 1.25 && even.worst == 1.5);
    const int64_t none[8] = {0};
    CU_ASSERT_EQUAL_FATAL(expert_evenness_of(&l, NULL, none, &even).code, STATUS_OK);
    CU_ASSERT(even.mean == 0 && even.worst == 0);
}

/* Reads text as a file of loads for two layers, the second of three experts. */
static struct status read_text(const char *text, int64_t *out)
{
    char path[] = "/tmp/shoal-loads-XXXXXX";
    struct arch arch;
    const struct layout l = make_layout(&arch, 3, 1);
    const int fd = mkstemp(path);
    int64_t *load = NULL;
    CU_ASSERT_FATAL(fd >= 0);
    CU_ASSERT_EQUAL(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    const struct status st = expert_load_read(path, &l.model, &load);
    unlink(path);
    CU_ASSERT_EQUAL(status_failed(&st), load == NULL);
    if (load != NULL) memcpy(out, load, LAYERS * 3 * sizeof *out);
    mem_free(&load);
    return st;
}

static void expect_refused(const char *text, const char *word)
{
    int64_t load[6];
    const struct status st = read_text(text, load);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, word));
    if (strstr(st.text, word) == NULL) fprintf(stderr, "%s: %s\n", text, st.text);
}

#define HEAD "{\"schema\":1,\"model\":\"test\",\"expert_load\":"

static void files_are_read_and_refused(void)
{
    int64_t load[6] = {9, 9, 9};
    struct status st = read_text(HEAD "[[],[1,0,7]]}", load);
    CU_ASSERT_STRING_EQUAL(st.text, "");
    CU_ASSERT(load[0] == 0 && load[2] == 0 && load[3] == 1 && load[4] == 0 && load[5] == 7);
    /* sums of counts stay far from 2^63 */
    st = read_text(HEAD "[[],[9223372036854775807,4611686018427387904,1]]}", load);
    CU_ASSERT_STRING_EQUAL(st.text, "");
    CU_ASSERT(load[3] <= EXPERT_LOAD_MAX && load[3] / 2 == load[4] - 1 && load[5] == 0);
    expect_refused("", "");
    expect_refused("[]", "--metrics writes");
    expect_refused("{\"model\":\"test\"}", "--metrics writes");
    expect_refused("{\"schema\":1,\"model\":\"tess\"}", "another model");
    expect_refused("{\"schema\":1,\"model\":\"test\"}", "when they have ended");
    expect_refused(HEAD "{}}", "2 layers");
    expect_refused(HEAD "[[]]}", "2 layers, found 1");
    expect_refused(HEAD "[[],[1,2]]}", "3 counts, found 2");
    expect_refused(HEAD "[[1,2,3],[1,2,3]]}", "layer 0");
    expect_refused(HEAD "[[],[1,-2,3]]}", "expert 1");
    expect_refused(HEAD "[[],[1,2.5,3]]}", "expert 1");
    expect_refused(HEAD "[[],3]}", "layer 1");
}

/* Reads the first n bytes of text as counts that a job kept. Returns the status; *why: the sentence
 * about counts that cannot be used. */
static struct status read_kept(const char *text, size_t n, bool *is_read, struct status *why)
{
    char path[] = "/tmp/shoal-kept-XXXXXX";
    struct arch arch;
    const struct layout l = make_layout(&arch, 3, 1);
    const int fd = mkstemp(path);
    int64_t *load = NULL;
    CU_ASSERT_FATAL(fd >= 0);
    CU_ASSERT_EQUAL(write(fd, text, n), (ssize_t)n);
    close(fd);
    const struct status st = expert_load_read_kept(path, &l.model, &load, why);
    unlink(path);
    *is_read = load != NULL;
    mem_free(&load);
    return st;
}

/* Counts that are torn or of another form are ignored, and *why says so; counts of another model
 * are an error. */
static void kept_counts_may_be_torn(void)
{
    static const char text[] = HEAD "[[],[1,0,7]]}\n";
    static const char *const foreign[] = {"{}", "[1]", "SHOALJ1\n", HEAD "[[],[1]]}", HEAD "3}"};
    bool is_read;
    struct status why, st = read_kept(text, sizeof text - 1, &is_read, &why);
    CU_ASSERT(!status_failed(&st) && !status_failed(&why) && is_read);
    for (size_t n = 0; n < sizeof text - 2; n++) { /* without the newline the counts are whole */
        st = read_kept(text, n, &is_read, &why);
        CU_ASSERT(!status_failed(&st) && why.code == STATUS_INPUT && !is_read);
        CU_ASSERT_PTR_NOT_NULL(strstr(why.text, "/tmp/shoal-kept-"));
    }
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        st = read_kept(foreign[i], strlen(foreign[i]), &is_read, &why);
        CU_ASSERT(!status_failed(&st) && why.code == STATUS_INPUT && !is_read);
    }
    static const char other[] = "{\"schema\":1,\"model\":\"tset\",\"expert_load\":[[],[1,0,7]]}";
    st = read_kept(other, sizeof other - 1, &is_read, &why);
    CU_ASSERT(st.code == STATUS_INPUT && !status_failed(&why) && !is_read);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "another model"));
}

static void dense_models_have_no_load(void)
{
    const struct arch arch = {.n_layers = 2};
    struct layout_model m = {.name = "dense", .arch = &arch};
    int64_t *load = NULL;
    const struct status st = expert_load_read("/nowhere", &m, &load);
    CU_ASSERT(st.code == STATUS_USAGE && load == NULL && strstr(st.text, "dense") != NULL);
}

void suite_expert_places(CU_pSuite suite);
void suite_expert_places(CU_pSuite suite)
{
    CU_add_test(suite, "by hand", known_loads_are_dealt_as_by_hand);
    CU_add_test(suite, "swaps", swaps_mend_what_greed_left);
    CU_add_test(suite, "turns", uneven_layers_take_turns);
    CU_add_test(suite, "random", random_loads_never_get_less_even);
    CU_add_test(suite, "evenness", evenness_is_the_fullest_by_the_mean);
    CU_add_test(suite, "files", files_are_read_and_refused);
    CU_add_test(suite, "kept counts", kept_counts_may_be_torn);
    CU_add_test(suite, "dense", dense_models_have_no_load);
}
