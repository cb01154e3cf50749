/* Reads hwloc's objects. Only the files of this room use hwloc. */
#include "parallel/topology/topo_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Disables hwloc's device libraries (CUDA and others), which take seconds per process to name GPUs.
 */
static void leave_out_device_libraries(hwloc_topology_t h)
{
    static const char *const names[] = {"cuda", "nvml", "opencl", "rsmi", "levelzero", "gl"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)hwloc_topology_set_components(h, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, names[i]);
    }
}

struct status topo_load(const char *synthetic, const char *xml, hwloc_topology_t *out)
{
    hwloc_topology_t h;
    if (hwloc_topology_init(&h) != 0) {
        return status_make(STATUS_MEMORY, "hwloc: no topology could be made");
    }
    leave_out_device_libraries(h);
    if (xml != NULL) {
        hwloc_topology_set_type_filter(h, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
        hwloc_topology_set_type_filter(h, HWLOC_OBJ_OS_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    }
    const char *what = synthetic != NULL ? synthetic : xml != NULL ? xml : "this machine";
    int failed = 0;
    if (synthetic != NULL) failed = hwloc_topology_set_synthetic(h, synthetic);
    if (xml != NULL) failed = hwloc_topology_set_xml(h, xml);
    if (failed == 0) failed = hwloc_topology_load(h);
    if (failed != 0) {
        hwloc_topology_destroy(h);
        return status_make(
            STATUS_USAGE,
            xml != NULL ? "topology \"%.200s\": expected an hwloc XML file, found something else"
                        : "topology \"%.200s\": no such folder, nor a valid topology, for example "
                          "\"pack:2 numa:1 core:32 pu:1\"",
            what);
    }
    *out = h;
    return status_ok();
}

static uint32_t count_of(hwloc_topology_t h, hwloc_obj_type_t type)
{
    const int n = hwloc_get_nbobjs_by_type(h, type);
    return n < 0 ? 0 : (uint32_t)n;
}

bool topo_is_gpu(uint32_t pci_class, uint32_t pci_vendor)
{
    enum { NVIDIA = 0x10de, AMD = 0x1002, INTEL = 0x8086, CLASS_VGA = 0x0300 };
    if (pci_class >> 8 != 0x03) return false;
    if (pci_vendor == INTEL) return pci_class != CLASS_VGA;
    return pci_vendor == NVIDIA || pci_vendor == AMD;
}

/* Returns the NUMA node of an object; -1 when it has none or several. */
static int32_t numa_near(hwloc_topology_t h, hwloc_obj_t o)
{
    const hwloc_obj_t holder = hwloc_get_non_io_ancestor_obj(h, o);
    if (holder == NULL || holder->nodeset == NULL || hwloc_bitmap_weight(holder->nodeset) != 1)
        return -1;
    const hwloc_obj_t numa =
        hwloc_get_numanode_obj_by_os_index(h, (unsigned)hwloc_bitmap_first(holder->nodeset));
    return numa != NULL ? (int32_t)numa->logical_index : -1;
}

/* Returns an NVIDIA GPU's memory in bytes, which hwloc's CUDA library wrote when the XML file was
 * made; 0: unknown. */
static uint64_t memory_of(hwloc_obj_t pci)
{
    for (hwloc_obj_t o = pci->io_first_child; o != NULL; o = o->next_sibling) {
        const char *kib = hwloc_obj_get_info_by_name(o, "CUDAGlobalMemorySize");
        if (kib != NULL) return strtoull(kib, NULL, 10) << 10;
    }
    return 0;
}

void topo_add_gpu(struct topo_node *n, const char *pci, int32_t numa, uint64_t memory_bytes)
{
    struct topo_gpu gpu = {.numa = numa, .memory_bytes = memory_bytes};
    snprintf(gpu.pci, sizeof gpu.pci, "%s", pci);
    uint32_t i = n->n_gpus < TOPO_GPUS_MAX ? n->n_gpus : TOPO_GPUS_MAX;
    for (; i > 0 && strcmp(gpu.pci, n->gpus[i - 1].pci) < 0; i--) {
        if (i < TOPO_GPUS_MAX) n->gpus[i] = n->gpus[i - 1];
    }
    if (i < TOPO_GPUS_MAX) n->gpus[i] = gpu;
    n->n_gpus++;
}

static void topo_read_gpus(hwloc_topology_t h, struct topo_node *out)
{
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_pcidev(h, o)) != NULL;) {
        const struct hwloc_pcidev_attr_s *p = &o->attr->pcidev;
        char pci[32];
        if (!topo_is_gpu(p->class_id, p->vendor_id)) continue;
        snprintf(pci, sizeof pci, "%04x:%02x:%02x.%01x", (unsigned)p->domain, p->bus, p->dev,
                 p->func);
        topo_add_gpu(out, pci, numa_near(h, o), memory_of(o));
    }
}

void topo_read_node(hwloc_topology_t h, struct topo_node *out)
{
    memset(out, 0, sizeof *out);
    out->n_packages = count_of(h, HWLOC_OBJ_PACKAGE);
    out->n_numa = count_of(h, HWLOC_OBJ_NUMANODE);
    out->n_l3 = count_of(h, HWLOC_OBJ_L3CACHE);
    out->n_pus = count_of(h, HWLOC_OBJ_PU);
    out->n_cores = count_of(h, HWLOC_OBJ_CORE);
    if (out->n_cores == 0) out->n_cores = out->n_pus;
    topo_read_gpus(h, out);
    out->memory_bytes = hwloc_get_root_obj(h)->total_memory;
}

/* Returns the index of the only object of this type that intersects the set; -1 when none or
 * several do. */
static int32_t only_object(hwloc_topology_t h, hwloc_obj_type_t type, hwloc_const_cpuset_t set)
{
    int32_t found = -1;
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_type(h, type, o)) != NULL;) {
        if (!hwloc_bitmap_intersects(o->cpuset, set)) continue;
        if (found >= 0) return -1;
        found = (int32_t)o->logical_index;
    }
    return found;
}

hwloc_obj_t topo_next_core(hwloc_topology_t h, hwloc_const_cpuset_t set, hwloc_obj_t previous)
{
    const bool has_cores = count_of(h, HWLOC_OBJ_CORE) > 0;
    hwloc_obj_t o = previous;
    do {
        o = hwloc_get_next_obj_by_type(h, has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU, o);
    } while (o != NULL && !hwloc_bitmap_intersects(o->cpuset, set));
    return o;
}

/* Computes FNV-1a, 64 bit, of a CPU set's text. */
static uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text != '\0'; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

struct status topo_read_place(hwloc_topology_t h, hwloc_const_cpuset_t set, struct topo_rank *out)
{
    memset(out, 0, sizeof *out);
    out->package = only_object(h, HWLOC_OBJ_PACKAGE, set);
    out->numa = only_object(h, HWLOC_OBJ_NUMANODE, set);
    out->l3 = only_object(h, HWLOC_OBJ_L3CACHE, set);
    out->first_pu = -1;
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_type(h, HWLOC_OBJ_PU, o)) != NULL;) {
        if (!hwloc_bitmap_intersects(o->cpuset, set)) continue;
        if (out->n_pus++ == 0) out->first_pu = (int32_t)o->logical_index;
    }
    for (hwloc_obj_t o = NULL; (o = topo_next_core(h, set, o)) != NULL;) out->n_cores++;
    char *text = NULL;
    if (hwloc_bitmap_asprintf(&text, set) < 0) {
        return status_make(STATUS_MEMORY, "hwloc: no memory for the text of a CPU set");
    }
    out->cpuset_hash = hash_text(text);
    free(text);
    return status_ok();
}

void topo_share(uint32_t n_cores, uint32_t n, uint32_t i, uint32_t *begin, uint32_t *end)
{
    *begin = (uint32_t)((uint64_t)i * n_cores / n);
    *end = (uint32_t)(((uint64_t)i + 1) * n_cores / n);
    if (*end == *begin && n_cores > 0) *end = *begin + 1;
}
