/* Target: a file of expert loads. By an accepted one, experts are placed on three ranks, with two
 * copies. */
#include "fuzz/fuzz.h"

#include "base/mem.h"
#include "parallel/layout/expert_places.h"

#include <string.h>

enum { E = 5, LAYERS = 3, PARTS = 3, COPIES = 2, P = E + COPIES };

static const char *const words[] = {
    "\"expert_load\":",    "\"schema\":", "\"model\":", "\"fuzzed\"", "[0,1,2,3,4]", "[]",
    "9223372036854775807", "-1",          "1e3",        NULL};

static void begin(struct fuzz_seeds *seeds)
{
    static const char text[] = "{\"schema\":1,\"finished\":true,\"model\":\"fuzzed\",\"ranks\":[],"
                               "\"expert_load\":[[],[5,0,17,3,3],[1073741825,2,1,9,12]]}\n";
    fuzz_seed_add(seeds, text, sizeof text - 1);
}

static bool run(const char *bytes, size_t n)
{
    static const struct arch model = {
        .n_layers = LAYERS, .moe.n_experts = E, .layer.is_moe = {false, true, true}};
    const struct layout l = {.n_ranks = PARTS,
                             .tp = PARTS,
                             .pp = 1,
                             .dp = 1,
                             .ep = PARTS,
                             .etp = 1,
                             .n_expert_copies = COPIES,
                             .stage_begin = {0, LAYERS},
                             .model = {.arch = &model, .name = "fuzzed"}};
    const char *path = fuzz_scratch("loads.json");
    int64_t *load = NULL;
    struct expert_places *p = NULL;
    struct expert_evenness even;
    fuzz_write(path, bytes, n);
    const struct status st = expert_load_read(path, &l.model, &load);
    if (status_failed(&st)) return fuzz_refused(&st);
    for (size_t i = 0; i < LAYERS * E; i++)
        FUZZ_CHECK(load[i] >= 0 && load[i] <= EXPERT_LOAD_MAX, "load %zu", i);
    FUZZ_CHECK(expert_places_create(&l, load, NULL, &p).code == STATUS_OK, "places");
    for (size_t i = 0; i < LAYERS * E; i++) {
        const struct expert_copies c = expert_copies_of(&l, p, (uint32_t)(i / E));
        FUZZ_CHECK(c.first[i % E] < c.first[i % E + 1] && c.first[E] == P, "expert %zu", i);
        for (uint32_t k = c.first[i % E]; k < c.first[i % E + 1]; k++)
            FUZZ_CHECK(c.place[k] < P && p->expert[i / E * P + c.place[k]] == i % E, "expert %zu",
                       i);
    }
    FUZZ_CHECK(expert_evenness_of(&l, p, load, &even).code == STATUS_OK, "evenness");
    FUZZ_CHECK(even.worst == 0 || (even.worst >= 1 && even.worst <= PARTS), "%f", even.worst);
    expert_places_destroy(&p);
    mem_free(&load);
    return true;
}

extern const struct fuzz_target fuzz_expert_load;
const struct fuzz_target fuzz_expert_load = {"expert_load", words, begin, run};
