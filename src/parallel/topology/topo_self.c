/* Reads this process's place on the running machine: hwloc's view, the launcher's binding and the
 * control group's memory limit. Also binds threads. */
#include "parallel/topology/topo.h"

#include "base/log.h"
#include "base/mem.h"
#include "parallel/topology/topo_private.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns the number at the start of a small system file; `none` when there is no number ("max") or
 * no file. */
static uint64_t topo_self_read_number(const char *path, int base, uint64_t none)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) return none;
    char line[64] = "", *end = line;
    uint64_t n = 0;
    if (fgets(line, sizeof line, file) != NULL) n = strtoull(line, &end, base);
    fclose(file);
    return end == line ? none : n;
}

/* Returns the smallest limit of a control group and of the groups that contain it. */
static uint64_t group_limit(const char *mount, const char *group, const char *file)
{
    char folder[512], path[640];
    if (snprintf(folder, sizeof folder, "%s", group) >= (int)sizeof folder) return UINT64_MAX;
    uint64_t least = UINT64_MAX;
    for (bool more = true; more;) {
        snprintf(path, sizeof path, "%s%s/%s", mount, folder, file);
        const uint64_t limit = topo_self_read_number(path, 10, UINT64_MAX);
        if (limit < least) least = limit;
        char *slash = strrchr(folder, '/');
        more = slash != NULL;
        if (more) *slash = '\0';
    }
    return least;
}

/* Returns the smallest limit of this process's groups. /proc/self/cgroup has lines "0::/group"
 * (version 2) or "7:memory:/group" (version 1). */
static uint64_t memory_limit(void)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (file == NULL) return UINT64_MAX;
    char line[1024];
    uint64_t least = UINT64_MAX;
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        const char *version1 = strstr(line, ":memory:");
        uint64_t limit = UINT64_MAX;
        if (strncmp(line, "0::", 3) == 0) {
            limit = group_limit("/sys/fs/cgroup", line + 3, "memory.max");
        } else if (version1 != NULL) {
            limit = group_limit("/sys/fs/cgroup/memory", version1 + 8, "memory.limit_in_bytes");
        }
        if (limit < least) least = limit;
    }
    fclose(file);
    return least;
}

/* Reads one hexadecimal number of a PCI device; 0 when it cannot be read. */
static uint32_t read_pci(const char *device, const char *file)
{
    char path[512];
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.200s/%s", device, file);
    return (uint32_t)topo_self_read_number(path, 16, 0);
}

/* Returns the NUMA node of a device, as an index inside the host; -1 when unknown. */
static int32_t numa_of(hwloc_topology_t h, const char *device)
{
    char path[512];
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.200s/numa_node", device);
    const uint64_t os = topo_self_read_number(path, 10, UINT64_MAX); /* -1 in the file when the
                                                                        node is unknown */
    if (os > UINT16_MAX) return -1;
    const hwloc_obj_t numa = hwloc_get_numanode_obj_by_os_index(h, (unsigned)os);
    return numa != NULL ? (int32_t)numa->logical_index : -1;
}

static void topo_self_read_gpus(hwloc_topology_t h, struct topo_node *out)
{
    DIR *dir = opendir("/sys/bus/pci/devices");
    if (dir == NULL) return;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        const char *name = entry->d_name;
        if (name[0] == '.') continue;
        /* "class" holds 16 bits of class, then 8 of programming interface, such as 0x030200 */
        if (topo_is_gpu(read_pci(name, "class") >> 8, read_pci(name, "vendor")))
            topo_add_gpu(out, name, numa_of(h, name), 0);
    }
    closedir(dir);
}

/* Returns the processing units on which the launcher lets this process run: its binding, within the
 * units that the system allows. */
static struct status bound_set(hwloc_topology_t h, hwloc_cpuset_t *out)
{
    hwloc_cpuset_t set = hwloc_bitmap_alloc();
    if (set == NULL) return status_make(STATUS_MEMORY, "hwloc: no memory for a CPU set");
    const hwloc_const_cpuset_t allowed = hwloc_topology_get_allowed_cpuset(h);
    if (hwloc_get_cpubind(h, set, HWLOC_CPUBIND_PROCESS) == 0) hwloc_bitmap_and(set, set, allowed);
    if (hwloc_bitmap_iszero(set)) hwloc_bitmap_copy(set, allowed);
    *out = set;
    return status_ok();
}

struct status topo_self_read(struct topo_self *out)
{
    memset(out, 0, sizeof *out);
    hwloc_topology_t h;
    TRY(topo_load(NULL, NULL, &h));
    hwloc_cpuset_t set = NULL;
    struct status st;
    TRY_GOTO(st, bound_set(h, &set), destroy_topology);
    topo_read_node(h, &out->node);
    topo_self_read_gpus(h, &out->node);
    if (gethostname(out->node.name, sizeof out->node.name) != 0) {
        snprintf(out->node.name, sizeof out->node.name, "unknown");
    }
    out->node.name[sizeof out->node.name - 1] = '\0';
    const uint64_t limit = memory_limit();
    if (limit < out->node.memory_bytes) out->node.memory_bytes = limit;
    st = topo_read_place(h, set, &out->rank);
    hwloc_bitmap_free(set);
destroy_topology:
    hwloc_topology_destroy(h);
    return st;
}

/* --- binding ------------------------------------------------------------------------------ */

/* Returns this rank's number among the ranks of its host with the same CPU set; *n: the number of
 * these ranks. */
static uint32_t sharers(const struct topo *t, uint32_t rank, uint32_t *n)
{
    const struct topo_rank *me = &t->ranks[rank];
    uint32_t mine = 0;
    *n = 0;
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        const struct topo_rank *other = &t->ranks[r];
        if (other->host != me->host || other->cpuset_hash != me->cpuset_hash) continue;
        if (r == rank) mine = *n;
        (*n)++;
    }
    return mine;
}

uint32_t topo_threads(const struct topo *t, uint32_t rank)
{
    uint32_t n, begin, end;
    const uint32_t mine = sharers(t, rank, &n);
    topo_share(t->ranks[rank].n_cores, n, mine, &begin, &end);
    return end > begin ? end - begin : 1;
}

/* True when threads should be bound. More threads than cores are balanced better by the system.
 * When the launcher bound nothing and cores would be left idle, another job on this host could bind
 * its threads to the same cores. */
static bool worth_binding(const struct topo *t, uint32_t rank, uint32_t n_sharers,
                          uint32_t n_threads, bool bound_by_launcher)
{
    const uint64_t n_cores = t->ranks[rank].n_cores, wanted = (uint64_t)n_sharers * n_threads;
    return wanted <= n_cores && (bound_by_launcher || wanted == n_cores);
}

struct bind_job {
    hwloc_topology_t h;
    hwloc_const_cpuset_t given;
    const hwloc_const_cpuset_t *cores; /* [threads] borrowed from h */
    _Atomic int n_failed;
};

/* Binds a thread to the processing units of its core that are in `given`: the launcher may have
 * given only one hardware thread of the core. */
static void bind_thread(void *job, uint32_t thread)
{
    struct bind_job *j = job;
    hwloc_cpuset_t mine = hwloc_bitmap_dup(j->cores[thread]);
    if (mine != NULL) hwloc_bitmap_and(mine, mine, j->given);
    if (mine == NULL || hwloc_set_cpubind(j->h, mine, HWLOC_CPUBIND_THREAD) != 0) j->n_failed++;
    hwloc_bitmap_free(mine);
}

void topo_bind_threads(const struct topo *t, uint32_t rank, struct team *team)
{
    const uint32_t n_threads = team_size(team);
    uint32_t n, begin, end;
    const uint32_t mine = sharers(t, rank, &n);
    hwloc_topology_t h;
    hwloc_cpuset_t set = NULL;
    hwloc_const_cpuset_t *cores = NULL;
    struct status st = topo_load(NULL, NULL, &h);
    if (status_failed(&st)) goto warn;
    TRY_GOTO(st, bound_set(h, &set), destroy_topology);
    if (!worth_binding(t, rank, n, n_threads,
                       !hwloc_bitmap_isequal(set, hwloc_topology_get_allowed_cpuset(h)))) {
        goto free_set;
    }
    TRY_GOTO(st, mem_alloc(&cores, n_threads, sizeof *cores, "thread bindings"), free_set);
    topo_share(t->ranks[rank].n_cores, n, mine, &begin, &end);
    hwloc_obj_t core = topo_next_core(h, set, NULL);
    for (uint32_t i = 0; i < begin && core != NULL; i++) core = topo_next_core(h, set, core);
    uint32_t n_found = 0;
    for (; n_found < n_threads && core != NULL; core = topo_next_core(h, set, core)) {
        cores[n_found++] = core->cpuset;
    }
    if (n_found == n_threads) {
        struct bind_job job = {.h = h, .given = set, .cores = cores};
        team_run_each(team, bind_thread, &job);
        if (job.n_failed > 0) st = status_make(STATUS_IO, "the system refused a binding");
    }
    mem_free(&cores);
free_set:
    hwloc_bitmap_free(set);
destroy_topology:
    hwloc_topology_destroy(h);
warn:
    if (status_failed(&st)) log_line(LOG_WARN, "threads stay unbound: %s", st.text);
}

/* Binds the calling thread to the processing units that the launcher gave and that lie in NUMA node
 * `numa`, and binds its memory to that node. *moved: whether the thread may now run on fewer units.
 */
static struct status bind_near(hwloc_topology_t h, hwloc_const_cpuset_t given, int32_t numa,
                               bool *moved)
{
    const hwloc_obj_t node = hwloc_get_obj_by_type(h, HWLOC_OBJ_NUMANODE, (unsigned)numa);
    if (node == NULL) return status_ok();
    if (!hwloc_bitmap_intersects(node->cpuset, given)) {
        return status_make(STATUS_IO,
                           "the GPU is near NUMA node %d, the launcher bound this rank elsewhere",
                           numa);
    }
    (void)hwloc_set_membind(h, node->nodeset, HWLOC_MEMBIND_BIND,
                            HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET);
    if (hwloc_bitmap_isincluded(given, node->cpuset)) return status_ok();
    hwloc_cpuset_t mine = hwloc_bitmap_dup(node->cpuset);
    if (mine == NULL) return status_make(STATUS_MEMORY, "hwloc: no memory for a CPU set");
    hwloc_bitmap_and(mine, mine, given);
    *moved = hwloc_set_cpubind(h, mine, HWLOC_CPUBIND_THREAD) == 0;
    hwloc_bitmap_free(mine);
    return *moved ? status_ok() : status_make(STATUS_IO, "the system refused a binding");
}

void topo_bind_near(int32_t numa, bool *moved)
{
    hwloc_topology_t h;
    hwloc_cpuset_t set = NULL;
    *moved = false;
    if (numa < 0) return;
    struct status st = topo_load(NULL, NULL, &h);
    if (!status_failed(&st)) {
        st = bound_set(h, &set);
        if (!status_failed(&st)) st = bind_near(h, set, numa, moved);
        hwloc_bitmap_free(set);
        hwloc_topology_destroy(h);
    }
    if (status_failed(&st)) log_line(LOG_WARN, "%s", st.text);
}
