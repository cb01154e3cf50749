/* Which GPU each rank uses. */
#include "parallel/topology/gpu_place.h"
#include "parallel/topology/topo_private.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

enum { MAX = 16 };

/* Strings with one character for each GPU or rank: the NUMA nodes of the GPUs and of the ranks
 * ('-': unknown), and the expected GPU of each rank. */
static void expect_places(const char *gpus, const char *ranks, const char *want)
{
    int32_t gpu_numa[MAX] = {0}, rank_numa[MAX] = {0};
    uint32_t gpu_of[MAX] = {0};
    char found[MAX + 1] = "";
    const uint32_t n_gpus = (uint32_t)strlen(gpus), n_ranks = (uint32_t)strlen(ranks);
    for (uint32_t i = 0; i < n_gpus; i++) gpu_numa[i] = gpus[i] == '-' ? -1 : gpus[i] - '0';
    for (uint32_t i = 0; i < n_ranks; i++) rank_numa[i] = ranks[i] == '-' ? -1 : ranks[i] - '0';
    const struct status st = gpu_place(gpu_numa, n_gpus, rank_numa, n_ranks, gpu_of);
    CU_ASSERT_STRING_EQUAL_FATAL(st.text, "");
    for (uint32_t i = 0; i < n_ranks; i++) found[i] = (char)('0' + gpu_of[i]);
    if (strcmp(found, want) != 0) fprintf(stderr, "%s, %s: %s\n", gpus, ranks, found);
    CU_ASSERT_STRING_EQUAL(found, want);
}

static void a_rank_gets_a_gpu_of_its_node(void)
{
    expect_places("0011", "0011", "0123");
    expect_places("0101", "0011", "0213");
    expect_places("1100", "0011", "2301");
    expect_places("0011", "0101", "0213");
    expect_places("0011", "1", "2");
}

static void ranks_are_dealt_evenly(void)
{
    expect_places("0011", "0000", "0123"); /* all ranks are bound to one node, but no GPU is
                                              shared */
    expect_places("0011", "----", "0123");
    expect_places("0011", "00000011", "01012323"); /* two ranks on each GPU, whatever the NUMA
                                                      nodes */
    expect_places("0011", "00001", "01032");
    expect_places("0", "000", "000");
    expect_places("--", "0101", "0101");
    expect_places("01", "-1", "01"); /* a rank that is not bound gets the GPU that is left */
}

static void a_bus_id_is_found(void)
{
    struct topo_node n = {.n_gpus = 2};
    snprintf(n.gpus[0].pci, sizeof n.gpus[0].pci, "0000:17:00.0");
    snprintf(n.gpus[1].pci, sizeof n.gpus[1].pci, "0000:ca:00.0");
    n.gpus[0].numa = 1;
    n.gpus[1].numa = 3;
    CU_ASSERT_EQUAL(gpu_numa_of(&n, "0000:CA:00.0"), 3);
    CU_ASSERT_EQUAL(gpu_numa_of(&n, "0000:17:00.0"), 1);
    CU_ASSERT_EQUAL(gpu_numa_of(&n, "0000:18:00.0"), -1);
}

/* A node keeps at most TOPO_GPUS_MAX GPUs: those with the smallest bus ids, whatever the order in
 * which they are added. */
static void the_first_gpus_by_bus_id_are_kept(void)
{
    enum { MORE = TOPO_GPUS_MAX + 4 };
    struct topo_node n = {.n_gpus = 0};
    char pci[16];
    for (int i = 0; i < MORE; i++) {
        const int bus = i * 7 % MORE; /* 7 and MORE have no common factor: each bus once */
        snprintf(pci, sizeof pci, "0000:%02x:00.0", (unsigned)bus);
        topo_add_gpu(&n, pci, bus, 0);
    }
    CU_ASSERT_EQUAL(n.n_gpus, MORE);
    for (int i = 0; i < TOPO_GPUS_MAX; i++) {
        snprintf(pci, sizeof pci, "0000:%02x:00.0", (unsigned)i);
        CU_ASSERT_STRING_EQUAL(n.gpus[i].pci, pci);
        CU_ASSERT_EQUAL(n.gpus[i].numa, i);
    }
}

static void gpus_come_from_a_description(void)
{
    struct topo *t = NULL;
    const struct status st = topo_describe(TEST_DATA_DIR "/golden/plan/gpu_nodes", 0, 0, 0, &t);
    CU_ASSERT_STRING_EQUAL_FATAL(st.text, "");
    const struct topo_node *n = &t->nodes[0];
    CU_ASSERT_EQUAL_FATAL(n->n_gpus, 4); /* the management display does not count */
    CU_ASSERT_STRING_EQUAL(n->gpus[1].pci, "0000:31:00.0");
    CU_ASSERT(n->gpus[0].numa == 0 && n->gpus[1].numa == 1 && n->gpus[2].numa == 0);
    CU_ASSERT_EQUAL(n->gpus[3].memory_bytes, 83384960ull << 10);
    CU_ASSERT_EQUAL(t->n_ranks, 4);
    topo_destroy(&t);
}

void suite_gpu_place(CU_pSuite suite);
void suite_gpu_place(CU_pSuite suite)
{
    CU_add_test(suite, "near", a_rank_gets_a_gpu_of_its_node);
    CU_add_test(suite, "evenly", ranks_are_dealt_evenly);
    CU_add_test(suite, "bus id", a_bus_id_is_found);
    CU_add_test(suite, "more than are kept", the_first_gpus_by_bus_id_are_kept);
    CU_add_test(suite, "described", gpus_come_from_a_description);
}
