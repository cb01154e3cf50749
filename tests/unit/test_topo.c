/* Topologies: descriptions, XML files, the running machine, joining the ranks' entries, and
 * threads. */
#include "parallel/topology/topo.h"

#include "base/mem.h"
#include "parallel/topology/topo_private.h"

#include <CUnit/CUnit.h>
#include <hwloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct topo *described(const char *spec, uint32_t n_ranks, uint32_t gpus, uint64_t memory)
{
    struct topo *t;
    const struct status st = topo_describe(spec, n_ranks, gpus, memory, &t);
    CU_ASSERT_STRING_EQUAL(st.text, "");
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    return t;
}

static void a_cluster_is_n_times_a_machine(void)
{
    static const char *const specs[] = {"16x\"pack:2 numa:2 l3:1 core:8 pu:2\"",
                                        "16 x 'pack:2 numa:2 l3:1 core:8 pu:2'",
                                        "16X pack:2 numa:2 l3:1 core:8 pu:2"};
    for (size_t i = 0; i < 3; i++) {
        struct topo *t = described(specs[i], 0, 0, 0);
        CU_ASSERT_EQUAL(t->n_nodes, 16);
        CU_ASSERT_EQUAL(t->n_ranks, 64); /* one rank per NUMA node */
        const struct topo_node *n = &t->nodes[15];
        CU_ASSERT_STRING_EQUAL(n->name, "node15");
        CU_ASSERT(n->n_packages == 2 && n->n_numa == 4 && n->n_l3 == 4);
        CU_ASSERT(n->n_cores == 32 && n->n_pus == 64 && n->n_gpus == 0);
        CU_ASSERT_EQUAL(n->memory_bytes, 256ull << 30);
        const struct topo_rank *r = &t->ranks[62];
        CU_ASSERT(r->host == 15 && r->package == 1 && r->numa == 2 && r->l3 == 2);
        CU_ASSERT(r->first_pu == 32 && r->n_pus == 16 && r->n_cores == 8);
        CU_ASSERT(r->local_rank == 2 && r->n_local_ranks == 4);
        CU_ASSERT_EQUAL(topo_threads(t, 62), 8);
        topo_destroy(&t);
        CU_ASSERT_PTR_NULL(t);
    }
}

static void a_plain_string_is_one_node(void)
{
    struct topo *t = described("pack:2 core:2 pu:1", 0, 0, 0);
    CU_ASSERT(t->n_nodes == 1 && t->n_ranks == 1);
    CU_ASSERT_EQUAL(t->ranks[0].package, -1); /* the rank may run on both packages */
    CU_ASSERT_EQUAL(t->ranks[0].l3, -1);
    CU_ASSERT_EQUAL(t->ranks[0].first_pu, 0);
    CU_ASSERT_EQUAL(t->ranks[0].n_cores, 4);
    topo_destroy(&t);
}

static void memory_comes_from_the_flag_the_text_or_a_default(void)
{
    struct topo *t = described("2x\"numa:2(memory=4GiB) core:2 pu:1\"", 0, 0, 0);
    CU_ASSERT_EQUAL(t->nodes[1].memory_bytes, 8ull << 30);
    topo_destroy(&t);
    t = described("2x\"numa:2(memory=4GiB) core:2 pu:1\"", 0, 0, 5ull << 30);
    CU_ASSERT_EQUAL(t->nodes[1].memory_bytes, 5ull << 30);
    topo_destroy(&t);
}

static void ranks_follow_gpus_or_the_number_asked_for(void)
{
    struct topo *t = described("2x\"pack:2 core:8 pu:1\"", 0, 4, 0);
    CU_ASSERT(t->n_ranks == 8 && t->nodes[0].n_gpus == 4);
    CU_ASSERT(t->ranks[5].host == 1 && t->ranks[5].first_pu == 4 && t->ranks[5].n_cores == 4);
    topo_destroy(&t);
    t = described("2x\"pack:2 core:2 pu:1\"", 7, 0, 0);
    CU_ASSERT_EQUAL(t->n_ranks, 7);
    CU_ASSERT(t->ranks[3].host == 0 && t->ranks[4].host == 1);
    CU_ASSERT(t->ranks[6].n_local_ranks == 3 && t->ranks[6].n_cores == 2);
    topo_destroy(&t);
    t = described("3x\"core:2 pu:1\"", 2, 0, 0); /* the third node stays empty */
    CU_ASSERT(t->n_nodes == 3 && t->n_ranks == 2 && t->ranks[1].host == 1);
    topo_destroy(&t);
}

static void more_ranks_than_cores_share_them(void)
{
    struct topo *t = described("core:2 pu:1", 5, 0, 0);
    for (uint32_t r = 0; r < 5; r++) {
        CU_ASSERT_EQUAL(t->ranks[r].n_cores, 1);
        CU_ASSERT_EQUAL(topo_threads(t, r), 1);
    }
    CU_ASSERT(t->ranks[0].cpuset_hash == t->ranks[1].cpuset_hash);
    CU_ASSERT(t->ranks[0].cpuset_hash != t->ranks[4].cpuset_hash);
    topo_destroy(&t);
}

static void expect_refusal(const char *spec, uint32_t n_ranks, const char *part)
{
    struct topo *t;
    const struct status st = topo_describe(spec, n_ranks, 0, 0, &t);
    CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
    CU_ASSERT_PTR_NULL(t);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, part));
    topo_destroy(&t);
}

static void bad_descriptions_are_quoted(void)
{
    expect_refusal("pakc:2", 0, "\"pakc:2\": no such folder, nor a valid topology");
    expect_refusal("", 0, "\"\": no such folder, nor a valid topology");
    expect_refusal("0x\"pack:2\"", 0, "expected 1 to 65536 nodes");
    expect_refusal("-3x\"pack:2\"", 0, "\"-3x\"pack:2\"\"");
    expect_refusal("99999999999999999999x\"pack:2\"", 0, "expected 1 to 65536 nodes");
    expect_refusal("2x\"pack:2 numa:2 core:100000 pu:2\"", 0, "at most 4096 hardware threads");
    expect_refusal("core:4000 pu:2", 0, "at most 4096 hardware threads");
    expect_refusal("70 70", 0, "at most 4096 hardware threads");
    expect_refusal("4x", 0, "no such folder, nor a valid topology");
    expect_refusal("numa:2 core:1 numa:2 pu:1", 0, "numa:2 core:1 numa:2 pu:1");
    expect_refusal("2x\"core:1 pu:1\"", 70000, "70000 ranks, expected at most 65536");
}

static void a_folder_holds_one_file_per_node(void)
{
    struct topo *t = described(TEST_DATA_DIR "/golden/plan/two_nodes", 0, 0, 0);
    CU_ASSERT(t->n_nodes == 2 && t->n_ranks == 3);
    CU_ASSERT(t->nodes[0].n_cores == 4 && t->nodes[0].n_pus == 4);
    CU_ASSERT(t->nodes[1].n_packages == 2 && t->nodes[1].n_cores == 4 && t->nodes[1].n_pus == 8);
    CU_ASSERT_EQUAL(t->nodes[0].memory_bytes, 8000000000u);
    CU_ASSERT_EQUAL(t->nodes[1].memory_bytes, 32000000000u);
    CU_ASSERT(t->ranks[2].host == 1 && t->ranks[2].package == 1 && t->ranks[2].first_pu == 4);
    topo_destroy(&t);
}

/* Makes a folder with one file (a FIFO if `fifo`) in the working folder. Expects that it is refused
 * as a topology, with an error that contains `part`. */
static void expect_folder_refusal(const char *name, const char *content, bool fifo,
                                  const char *part)
{
    char folder[] = "topo_test_XXXXXX", path[64];
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (fifo) {
        CU_ASSERT_EQUAL_FATAL(mkfifo(path, 0600), 0);
    } else {
        FILE *file = fopen(path, "w");
        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        fputs(content, file);
        fclose(file);
    }
    expect_refusal(folder, 0, part);
    unlink(path);
    rmdir(folder);
}

static void bad_folders_are_refused(void)
{
    expect_folder_refusal("a.txt", "nothing", false, "expected hwloc XML files");
    expect_folder_refusal("a.xml", "<topology><obj", false, "an hwloc XML file");
    expect_folder_refusal("a.xml", "", false, "a.xml");
    expect_folder_refusal("a.xml", NULL, true, "expected a regular file");
}

/* --- the running machine ------------------------------------------------------------------ */

static void this_process_is_described(void)
{
    struct topo_self self;
    const struct status st = topo_self_read(&self);
    CU_ASSERT_STRING_EQUAL_FATAL(st.text, "");
    cpu_set_t set;
    CU_ASSERT_EQUAL_FATAL(sched_getaffinity(0, sizeof set, &set), 0);
    CU_ASSERT_EQUAL(self.rank.n_pus, (uint32_t)CPU_COUNT(&set));
    CU_ASSERT(self.rank.n_cores >= 1 && self.rank.n_cores <= self.rank.n_pus);
    CU_ASSERT(self.node.n_pus >= self.rank.n_pus && self.node.n_cores >= self.rank.n_cores);
    CU_ASSERT(self.rank.first_pu >= 0);
    char name[64] = "";
    gethostname(name, sizeof name - 1);
    CU_ASSERT_STRING_EQUAL(self.node.name, name);
    CU_ASSERT(self.node.memory_bytes > 0);
    CU_ASSERT(self.node.memory_bytes <=
              (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
}

/* The last processing unit of a set, as a set. */
static cpu_set_t last_unit(const cpu_set_t *all)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int i = CPU_SETSIZE - 1; i >= 0; i--) {
        if (!CPU_ISSET(i, all)) continue;
        CPU_SET(i, &one);
        break;
    }
    return one;
}

static void the_launchers_binding_is_respected(void)
{
    cpu_set_t all;
    CU_ASSERT_EQUAL_FATAL(sched_getaffinity(0, sizeof all, &all), 0);
    const cpu_set_t one = last_unit(&all);
    CU_ASSERT_EQUAL_FATAL(sched_setaffinity(0, sizeof one, &one), 0);
    struct topo_self self;
    const struct status st = topo_self_read(&self);
    CU_ASSERT(!status_failed(&st));
    CU_ASSERT(self.rank.n_pus == 1 && self.rank.n_cores == 1);
    struct topo *t;
    CU_ASSERT_EQUAL_FATAL(topo_join(&self, 1, &t).code, STATUS_OK);
    CU_ASSERT_EQUAL(topo_threads(t, 0), 1);
    topo_bind_threads(t, 0, NULL);
    cpu_set_t now;
    CU_ASSERT_EQUAL(sched_getaffinity(0, sizeof now, &now), 0);
    CU_ASSERT(CPU_EQUAL(&now, &one));
    topo_destroy(&t);
    CU_ASSERT_EQUAL(sched_setaffinity(0, sizeof all, &all), 0);
}

static void computing_display_devices_are_gpus(void)
{
    CU_ASSERT(topo_is_gpu(0x0302, 0x10de) && topo_is_gpu(0x0300, 0x10de));
    CU_ASSERT(topo_is_gpu(0x0380, 0x1002) && topo_is_gpu(0x0380, 0x8086));
    CU_ASSERT(!topo_is_gpu(0x0300, 0x1a03)); /* a management controller's VGA */
    CU_ASSERT(!topo_is_gpu(0x0300, 0x8086)); /* graphics in the processor */
    CU_ASSERT(!topo_is_gpu(0x0200, 0x10de)); /* a network card of a GPU maker */
}

struct seen_units {
    pthread_mutex_t mutex;
    cpu_set_t all, together;
    uint32_t n_bound; /* threads that share no processing unit with an earlier thread */
};

/* Records the processing units that this thread is bound to, and unbinds it. */
static void look_at_units(void *job, uint32_t thread)
{
    struct seen_units *seen = job;
    cpu_set_t mine, both;
    (void)thread;
    sched_getaffinity(0, sizeof mine, &mine);
    pthread_mutex_lock(&seen->mutex);
    CPU_AND(&both, &seen->together, &mine);
    if (CPU_COUNT(&both) == 0) seen->n_bound++;
    CPU_OR(&seen->together, &seen->together, &mine);
    pthread_mutex_unlock(&seen->mutex);
    sched_setaffinity(0, sizeof seen->all, &seen->all);
}

/* With as many threads as topo_threads allows, a single rank fills its CPUs, and each thread is
 * bound to a core of its own. */
static void threads_get_a_core_each(void)
{
    cpu_set_t all;
    CU_ASSERT_EQUAL_FATAL(sched_getaffinity(0, sizeof all, &all), 0);
    struct topo_self self;
    CU_ASSERT_EQUAL_FATAL(topo_self_read(&self).code, STATUS_OK);
    struct topo *t;
    CU_ASSERT_EQUAL_FATAL(topo_join(&self, 1, &t).code, STATUS_OK);
    struct team *team;
    const uint32_t n = topo_threads(t, 0);
    CU_ASSERT_EQUAL_FATAL(team_create(n, &team).code, STATUS_OK);
    topo_bind_threads(t, 0, team);
    struct seen_units seen = {.all = all};
    CPU_ZERO(&seen.together);
    pthread_mutex_init(&seen.mutex, NULL);
    team_run_each(team, look_at_units, &seen);
    pthread_mutex_destroy(&seen.mutex);
    CU_ASSERT_EQUAL(seen.n_bound, n);
    CPU_AND(&seen.together, &seen.together, &all);
    CU_ASSERT(CPU_EQUAL(&seen.together, &all));
    team_destroy(&team);
    topo_destroy(&t);
}

/* Whether the process that started this program gave it fewer CPUs than the system allows. */
static bool is_narrowed(const cpu_set_t *mine)
{
    hwloc_topology_t h;
    CU_ASSERT_EQUAL_FATAL(hwloc_topology_init(&h), 0);
    CU_ASSERT_EQUAL_FATAL(hwloc_topology_load(h), 0);
    const int n = hwloc_bitmap_weight(hwloc_topology_get_allowed_cpuset(h));
    hwloc_topology_destroy(h);
    return CPU_COUNT(mine) < n;
}

/* A job with more ranks than cores is not bound. Nor is a job that leaves cores idle, unless the
 * launcher gave it these cores alone. */
static void partial_jobs_stay_unbound(void)
{
    struct topo_self selves[1025];
    CU_ASSERT_EQUAL_FATAL(topo_self_read(&selves[0]).code, STATUS_OK);
    const uint32_t n = selves[0].rank.n_cores + 1;
    CU_ASSERT_FATAL(n <= 1025);
    for (uint32_t i = 1; i < n; i++) selves[i] = selves[0];
    cpu_set_t before, after;
    CU_ASSERT_EQUAL_FATAL(sched_getaffinity(0, sizeof before, &before), 0);
    struct topo *t;
    CU_ASSERT_EQUAL_FATAL(topo_join(selves, n, &t).code, STATUS_OK);
    topo_bind_threads(t, n - 1, NULL);
    sched_getaffinity(0, sizeof after, &after);
    CU_ASSERT(CPU_EQUAL(&before, &after));
    topo_destroy(&t);
    if (selves[0].rank.n_cores < 2) return;
    CU_ASSERT_EQUAL_FATAL(topo_join(selves, 1, &t).code, STATUS_OK);
    topo_bind_threads(t, 0, NULL);
    sched_getaffinity(0, sizeof after, &after);
    CU_ASSERT_EQUAL(CPU_EQUAL(&before, &after), !is_narrowed(&before));
    sched_setaffinity(0, sizeof before, &before);
    topo_destroy(&t);
}

/* --- join and threads --------------------------------------------------------------------- */

static struct topo_self entry(const char *host, uint64_t cpuset, uint32_t n_cores)
{
    struct topo_self s = {.rank = {.cpuset_hash = cpuset, .n_cores = n_cores, .host = 77},
                          .node = {.n_cores = 16, .memory_bytes = 1u << 30}};
    snprintf(s.node.name, sizeof s.node.name, "%s", host);
    return s;
}

static void equal_names_are_one_host(void)
{
    const struct topo_self selves[] = {entry("b", 1, 8), entry("a", 1, 8), entry("b", 1, 8),
                                       entry("a", 2, 8), entry("b", 1, 8)};
    struct topo *t;
    CU_ASSERT_EQUAL_FATAL(topo_join(selves, 5, &t).code, STATUS_OK);
    CU_ASSERT_EQUAL(t->n_nodes, 2);
    CU_ASSERT_STRING_EQUAL(t->nodes[0].name, "b"); /* the host of rank 0 comes first */
    const uint32_t hosts[] = {0, 1, 0, 1, 0}, local[] = {0, 0, 1, 1, 2},
                   on_host[] = {3, 2, 3, 2, 3};
    /* three ranks share 8 cores on b; on a each has its own 8 */
    const uint32_t threads[] = {2, 8, 3, 8, 3};
    for (uint32_t r = 0; r < 5; r++) {
        CU_ASSERT_EQUAL(t->ranks[r].host, hosts[r]);
        CU_ASSERT_EQUAL(t->ranks[r].local_rank, local[r]);
        CU_ASSERT_EQUAL(t->ranks[r].n_local_ranks, on_host[r]);
        CU_ASSERT_EQUAL(topo_threads(t, r), threads[r]);
    }
    topo_destroy(&t);
}

static void allocation_failures_are_statuses(void)
{
    for (uint64_t n = 1;; n++) {
        struct topo *t;
        mem_fail_after(n);
        const struct status st = topo_describe("2x\"core:2 pu:1\"", 0, 0, 0, &t);
        mem_fail_after(0);
        if (!status_failed(&st)) {
            CU_ASSERT(n > 4);
            topo_destroy(&t);
            break;
        }
        CU_ASSERT_EQUAL(st.code, STATUS_MEMORY);
        CU_ASSERT_PTR_NULL(t);
    }
}

void suite_topo(CU_pSuite suite);
void suite_topo(CU_pSuite suite)
{
    CU_add_test(suite, "a cluster is n times a machine", a_cluster_is_n_times_a_machine);
    CU_add_test(suite, "a plain string is one node", a_plain_string_is_one_node);
    CU_add_test(suite, "memory: flag, text, default",
                memory_comes_from_the_flag_the_text_or_a_default);
    CU_add_test(suite, "ranks follow GPUs or the number",
                ranks_follow_gpus_or_the_number_asked_for);
    CU_add_test(suite, "more ranks than cores", more_ranks_than_cores_share_them);
    CU_add_test(suite, "bad descriptions are quoted", bad_descriptions_are_quoted);
    CU_add_test(suite, "a folder of XML", a_folder_holds_one_file_per_node);
    CU_add_test(suite, "bad folders", bad_folders_are_refused);
    CU_add_test(suite, "this process", this_process_is_described);
    CU_add_test(suite, "the launcher's binding", the_launchers_binding_is_respected);
    CU_add_test(suite, "GPUs by class and maker", computing_display_devices_are_gpus);
    CU_add_test(suite, "threads get a core each", threads_get_a_core_each);
    CU_add_test(suite, "partial jobs stay unbound", partial_jobs_stay_unbound);
    CU_add_test(suite, "equal names are one host", equal_names_are_one_host);
    CU_add_test(suite, "allocation failures", allocation_failures_are_statuses);
}
