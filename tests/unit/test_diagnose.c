/* Tests shoal diagnose: the facts read from a folder that looks like a machine's system files, a
 * table of memory modules, and that each rule has a finding for its fact and none for a healthy
 * machine. */
#include "diagnose/facts.h"
#include "diagnose/rules.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { N_HOSTS = 4, CORES = 8, RULES_MAX = 64 };

#define GIB ((uint64_t)1 << 30)

/* Four equal, healthy hosts with a rank each. */
struct cluster {
    struct topo_node nodes[N_HOSTS];
    struct topo_rank ranks[N_HOSTS];
    struct facts_rank facts[N_HOSTS];
    uint32_t first[N_HOSTS];
    struct topo topo;
    struct finding found[RULES_MAX];
    size_t n_found;
};

static void make_healthy(struct cluster *c)
{
    memset(c, 0, sizeof *c);
    c->topo = (struct topo){N_HOSTS, c->nodes, N_HOSTS, c->ranks};
    for (uint32_t h = 0; h < N_HOSTS; h++) {
        c->first[h] = h;
        c->nodes[h] = (struct topo_node){
            .n_numa = 2, .n_cores = CORES, .n_pus = CORES, .memory_bytes = 64 * GIB};
        snprintf(c->nodes[h].name, sizeof c->nodes[h].name, "node%u", h);
        c->ranks[h] = (struct topo_rank){
            .host = h, .n_cores = CORES, .n_pus = CORES, .n_local_ranks = 1, .cpuset_hash = h + 1};
        struct facts_rank *f = &c->facts[h];
        snprintf(f->cpu, sizeof f->cpu, "a CPU");
        f->n_threads = CORES;
        f->system = (struct facts_system){.memory_bytes = 64 * GIB,
                                          .n_numa = 2,
                                          .numa_bytes = {32 * GIB, 32 * GIB},
                                          .numa_free_bytes = {30 * GIB, 30 * GIB},
                                          .pages = PAGES_MADVISE,
                                          .governor = "performance",
                                          .shm_bytes = 32 * GIB,
                                          .shm_free_bytes = 32 * GIB,
                                          .locked_bytes_max = UINT64_MAX,
                                          .n_ports = 1,
                                          .ports = {{"mlx5_0", 100, true}},
                                          .n_modules = 8,
                                          .modules_gbs = 200};
        f->measured = (struct facts_measured){.read_gbs = 150,
                                              .mhz_part = 0.9,
                                              .link_gbit = h > 0 ? 90 : 0,
                                              .write_mbs = 900,
                                              .read_mbs = 2000};
    }
}

static void apply(struct cluster *c)
{
    const struct facts f = {&c->topo, c->facts, c->first, "/scratch"};
    c->n_found = rules_apply(&f, c->found, RULES_MAX);
}

static void healthy_is_silent(void)
{
    struct cluster c;
    make_healthy(&c);
    apply(&c);
    CU_ASSERT_EQUAL(c.n_found, 0);
    for (size_t i = 0; i < c.n_found; i++) printf("%s: %s\n", c.found[i].rule, c.found[i].text);
}

static void nothing_known_is_silent(void)
{
    struct cluster c;
    make_healthy(&c);
    for (uint32_t h = 0; h < N_HOSTS; h++)
        c.facts[h] = (struct facts_rank){.n_threads = CORES, .cpu = "a CPU"};
    apply(&c);
    CU_ASSERT_EQUAL(c.n_found, 0);
}

/* Each of these functions makes a fault that one rule finds, on host 2 or on all hosts. */
static void share_cores(struct cluster *c)
{
    c->facts[2].n_threads = CORES + 1;
}
static void leave_cores(struct cluster *c)
{
    c->facts[2].n_threads = 1;
}
static void span_nodes(struct cluster *c)
{
    c->ranks[2].numa = -1;
}
static void run_others(struct cluster *c)
{
    c->facts[2].measured.others_cores = 3;
}
static void steal(struct cluster *c)
{
    c->facts[2].measured.stolen_cores = 1;
}
static void save_power(struct cluster *c)
{
    snprintf(c->facts[2].system.governor, FACTS_NAME_BYTES, "powersave");
}
static void slow_cores(struct cluster *c)
{
    c->facts[2].measured.mhz_part = 0.4;
}
static void limit_memory(struct cluster *c)
{
    c->nodes[2].memory_bytes = 8 * GIB;
}
static void swap(struct cluster *c)
{
    c->facts[2].system.swap_used_bytes = 4 * GIB;
}
static void fill_node(struct cluster *c)
{
    c->facts[2].system.numa_free_bytes[1] = GIB;
}
static void small_pages(struct cluster *c)
{
    c->facts[2].system.pages = PAGES_NEVER;
}
static void want_modules(struct cluster *c)
{
    c->facts[2].system.modules_gbs = 800;
}
static void slow_memory(struct cluster *c)
{
    c->facts[2].measured.read_gbs = 80.5;
}
static void fill_shm(struct cluster *c)
{
    c->facts[2].system.shm_free_bytes = 1 << 20;
}
static void slow_link(struct cluster *c)
{
    for (uint32_t h = 1; h < N_HOSTS; h++) c->facts[h].measured.link_gbit = 9;
}
static void one_slow_link(struct cluster *c)
{
    c->facts[2].measured.link_gbit = 52;
}
static void port_off(struct cluster *c)
{
    c->facts[2].system.ports[1] = (struct facts_port){"mlx5_1", 100, false};
    c->facts[2].system.n_ports = 2;
}
static void limit_locking(struct cluster *c)
{
    c->facts[2].system.locked_bytes_max = 65536;
}
static void slow_disk(struct cluster *c)
{
    for (uint32_t h = 0; h < N_HOSTS; h++) c->facts[h].measured.read_mbs = 60;
}
static void one_slow_disk(struct cluster *c)
{
    c->facts[2].measured.read_mbs = 700;
}
static void hide_gpus(struct cluster *c)
{
    c->nodes[2].n_gpus = 4;
}
static void other_cpu(struct cluster *c)
{
    snprintf(c->facts[2].cpu, FACTS_NAME_BYTES, "another CPU");
}

static void each_rule_speaks(void)
{
    static const struct {
        const char *rule;
        void (*spoil)(struct cluster *c);
    } cases[] = {{"cores-shared", share_cores},
                 {"cores-idle", leave_cores},
                 {"numa-spanned", span_nodes},
                 {"others-run", run_others},
                 {"cores-stolen", steal},
                 {"governor-saves", save_power},
                 {"frequency-low", slow_cores},
                 {"memory-limited", limit_memory},
                 {"swap-used", swap},
                 {"numa-uneven", fill_node},
                 {"pages-small", small_pages},
                 {"reads-slow", want_modules},
                 {"memory-uneven", slow_memory},
                 {"shm-small", fill_shm},
                 {"link-slow", slow_link},
                 {"link-uneven", one_slow_link},
                 {"port-down", port_off},
                 {"locking-limited", limit_locking},
                 {"disk-slow", slow_disk},
                 {"disk-uneven", one_slow_disk},
                 {"gpus-hidden", hide_gpus},
                 {"hosts-differ", other_cpu}};
    CU_ASSERT_EQUAL(sizeof cases / sizeof cases[0], rules_count());
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cluster c;
        make_healthy(&c);
        cases[i].spoil(&c);
        apply(&c);
        bool found = false, others = false;
        for (size_t j = 0; j < c.n_found; j++) {
            const bool mine = strcmp(c.found[j].rule, cases[i].rule) == 0;
            found |= mine && strcmp(c.found[j].host, "node2") == 0 && c.found[j].remedy[0] != '\0';
            others |= !mine;
        }
        if (!found || others) printf("rule %s\n", cases[i].rule);
        CU_ASSERT_TRUE(found);
        CU_ASSERT_FALSE(others);
        CU_ASSERT_STRING_EQUAL(rules_name(i), cases[i].rule);
    }
}

/* A driver whose "powersave" chooses the frequency by load is left alone. */
static void pstate_governor_is_well(void)
{
    struct cluster c;
    make_healthy(&c);
    save_power(&c);
    snprintf(c.facts[2].system.driver, FACTS_NAME_BYTES, "intel_pstate");
    apply(&c);
    CU_ASSERT_EQUAL(c.n_found, 0);
}

/* --- files ---------------------------------------------------------------------------------- */

static void write_file(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    fputs(text, f);
    fclose(f);
}

static void files_are_read(void)
{
    char root[] = "/tmp/shoal-diagnose-XXXXXX", command[64];
    struct facts_system s;
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(root));
    write_file(root, "/proc/meminfo",
               "MemTotal:  1048576 kB\nSwapTotal:  2048 kB\nSwapFree:  1024 kB\n");
    write_file(root, "/sys/devices/system/node/node0/meminfo",
               "Node 0 MemTotal: 400 kB\nNode 0 MemFree: 100 kB\nNode 0 FilePages: 50 kB\n");
    write_file(root, "/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 600 kB\n");
    write_file(root, "/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    write_file(root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    write_file(root, "/sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n");
    write_file(root, "/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    write_file(root, "/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
    write_file(root, "/sys/class/net/eth0/operstate", "up\n");
    write_file(root, "/sys/class/net/eth0/speed", "25000\n");
    write_file(root, "/sys/class/net/eth1/operstate", "down\n");
    write_file(root, "/sys/class/net/eth1/speed", "-1\n");
    write_file(root, "/dev/nvidia0", "");
    write_file(root, "/dev/nvidia12", "");
    write_file(root, "/dev/nvidiactl", "");
    facts_read_system(root, &s);
    CU_ASSERT_EQUAL(s.memory_bytes, GIB);
    CU_ASSERT_EQUAL(s.swap_used_bytes, 1 << 20);
    CU_ASSERT_EQUAL(s.n_numa, 2);
    CU_ASSERT_EQUAL(s.numa_bytes[1], 600 << 10);
    CU_ASSERT_EQUAL(s.numa_free_bytes[0], 150 << 10);
    CU_ASSERT_EQUAL(s.pages, PAGES_NEVER);
    CU_ASSERT_STRING_EQUAL(s.governor, "powersave");
    CU_ASSERT_EQUAL_FATAL(s.n_ports, 2);
    const int up = strcmp(s.ports[0].name, "mlx5_0") == 0 ? 0 : 1;
    CU_ASSERT_TRUE(s.ports[up].is_active && s.ports[up].gbit == 200);
    CU_ASSERT_FALSE(s.ports[!up].is_active);
    CU_ASSERT_EQUAL(s.ethernet_mbit, 25000);
    CU_ASSERT_EQUAL(s.n_gpu_files, 2);
    snprintf(command, sizeof command, "rm -r %s", root);
    CU_ASSERT_EQUAL(system(command), 0);
    facts_read_system(root, &s); /* nothing there */
    CU_ASSERT_EQUAL(s.memory_bytes + s.n_numa + s.n_ports + s.n_modules, 0);
}

/* Writes a structure of type 17 (a memory module) with its strings at table + at; returns its
 * end. */
static size_t add_module(uint8_t *table, size_t at, uint16_t size_mb, uint16_t speed,
                         uint16_t configured)
{
    enum { LENGTH = 0x28, STRINGS = 6 };
    uint8_t *s = table + at;
    memset(s, 0, LENGTH);
    s[0] = 17;
    s[1] = LENGTH;
    memcpy(s + 0x0C, &size_mb, 2);
    memcpy(s + 0x15, &speed, 2);
    memcpy(s + 0x20, &configured, 2);
    memcpy(s + LENGTH, "DIMM\0", STRINGS);
    return at + LENGTH + STRINGS;
}

static void modules_are_counted(void)
{
    uint8_t table[512] = {1, 4, 0, 0, 0, 0}; /* a short structure without strings */
    size_t n = 6;
    struct facts_system s = {0};
    n = add_module(table, n, 32767, 4800, 4400);
    n = add_module(table, n, 16384, 4800, 0); /* no configured speed */
    n = add_module(table, n, 0, 4800, 4400);  /* an empty socket */
    facts_read_modules(table, n, &s);
    CU_ASSERT_EQUAL(s.n_modules, 2);
    CU_ASSERT_DOUBLE_EQUAL(s.modules_gbs, 35.2 + 38.4, 1e-9);
    for (size_t cut = 0; cut < n; cut++) { /* cut tables are not read beyond their end */
        uint8_t *exact = malloc(cut + (cut == 0));
        struct facts_system torn = {0};
        CU_ASSERT_PTR_NOT_NULL_FATAL(exact);
        memcpy(exact, table, cut);
        facts_read_modules(exact, cut, &torn);
        CU_ASSERT_TRUE(torn.n_modules <= 2);
        free(exact);
    }
}

void suite_diagnose(CU_pSuite suite);
void suite_diagnose(CU_pSuite suite)
{
    CU_add_test(suite, "a healthy machine has no findings", healthy_is_silent);
    CU_add_test(suite, "rules do not guess what is not known", nothing_known_is_silent);
    CU_add_test(suite, "each rule speaks of its host", each_rule_speaks);
    CU_add_test(suite, "a governor of another driver", pstate_governor_is_well);
    CU_add_test(suite, "system files are read", files_are_read);
    CU_add_test(suite, "memory modules are counted", modules_are_counted);
}
