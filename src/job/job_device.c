/* A job's GPUs: chooses this rank's GPU, binds the rank near it, opens it, and connects the GPUs.
 * Without --device cuda all functions but job_halves_from do nothing. */
#include "job/job_private.h"

#include "base/mem.h"
#include "collective/device_comm.h"
#include "kernels/device.h"
#include "kernels/device_limits.h"
#include "parallel/topology/gpu_place.h"

#include <string.h>

static bool on_cpu(const struct job *j)
{
    return j->o->device.device == DEVICE_CPU;
}

static const char *job_device_name_of(const struct job *j)
{
    return flag_word_of(FLAG_WORDS(DEVICE_WORDS), (int32_t)j->o->device.device);
}

static const struct topo_rank *job_device_place_of(const struct job *j)
{
    const uint32_t rank = (uint32_t)comm_rank(j->comm, COMM_WORLD);
    return &j->topo->ranks[j->is_ordered ? j->order[rank] : rank];
}

static enum device_arithmetic arithmetic_of(const struct device_flags *o)
{
    if (o->exact_across_devices) return DEVICE_EXACT;
    return o->fast_reductions ? DEVICE_FREE : DEVICE_LAW;
}

/* Makes the options for opening this rank's device; the caller frees *numas. */
static struct status options_of(const struct job *j, struct device_options *out, int32_t **numas)
{
    const struct topo_rank *here = job_device_place_of(j);
    TRY(mem_alloc(numas, here->n_local_ranks, sizeof **numas, "ranks of this host"));
    for (uint32_t r = 0; r < j->topo->n_ranks; r++) {
        const struct topo_rank *other = &j->topo->ranks[r];
        if (other->host == here->host) (*numas)[other->local_rank] = other->numa;
    }
    *out = (struct device_options){.name = job_device_name_of(j),
                                   .local_rank = here->local_rank,
                                   .n_local_ranks = here->n_local_ranks,
                                   .node = &j->topo->nodes[here->host],
                                   .numas = *numas,
                                   .deadline_s = 4 * j->o->run.watchdog_s,
                                   .arithmetic = arithmetic_of(&j->o->device),
                                   .no_graphs = j->o->device.no_graphs};
    return status_ok();
}

/* Checks that the kernels of the device can run the model. */
static struct status job_device_check_model(const struct arch *m, const char *name)
{
    if (m->delta.n_key_heads > 0) {
        return status_make(STATUS_USAGE,
                           "--device %s: %s has layers with a %s, for which the device has no "
                           "kernels; run it with --device cpu",
                           name, m->family->title,
                           m->delta.is_mamba ? "Mamba-2 scan" : "gated delta rule");
    }
    if (m->compression.o_groups > 0) {
        return status_make(STATUS_USAGE,
                           "--device %s: %s has compressed attention and several residual streams, "
                           "for which the device has no kernels; run it with --device cpu",
                           name, m->family->title);
    }
    if (m->index.n_heads > 0) {
        return status_make(STATUS_USAGE,
                           "--device %s: %s has sparse attention with an index, for which the "
                           "device has no kernels; run it with --device cpu",
                           name, m->family->title);
    }
    if (m->tuning.step > 0 || m->moe.weighs_inputs) {
        return status_make(STATUS_USAGE,
                           "--device %s: %s scales rows of q and of experts, for which the device "
                           "has no kernel; run it with --device cpu",
                           name, m->family->title);
    }
    if (m->shortcut) {
        return status_make(STATUS_USAGE,
                           "--device %s: %s has experts without weights, which run on CPUs alone; "
                           "run it with --device cpu",
                           name, m->family->title);
    }
    if (m->sub_norms) {
        return status_make(STATUS_USAGE,
                           "--device %s: %s has norms inside attention and the FFN, which run on "
                           "CPUs alone; run it with --device cpu",
                           name, m->family->title);
    }
    if (m->attn.n_full_kv_heads > 0) {
        return status_make(STATUS_USAGE,
                           "--device %s: %s has layers with KV heads of another number or width, "
                           "which run on CPUs alone; run it with --device cpu",
                           name, m->family->title);
    }
    if (m->family->stepped) {
        return status_make(
            STATUS_USAGE,
            "--device %s: %s has gates for heads and limits in the FFN, which run on "
            "CPUs alone; run it with --device cpu",
            name, m->family->title);
    }
    if (m->attn.n_heads <= DEVICE_HEADS_MAX) return status_ok();
    return status_make(STATUS_USAGE, "--device %s: at most %d query heads, %s has %u", name,
                       (int)DEVICE_HEADS_MAX, m->family->title, m->attn.n_heads);
}

/* A rank's message to the others about its device. */
struct rank_device {
    uint64_t memory_bytes;
    uint32_t host;
    char pci[32];
};

static struct status find_device(struct job *j, struct rank_device *out)
{
    struct device_options o;
    struct device_found found;
    int32_t *numas = NULL;
    memset(out, 0, sizeof *out);
    TRY(job_device_check_model(&j->model, job_device_name_of(j)));
    TRY(options_of(j, &o, &numas));
    const struct status st = device_locate(&o, &found);
    mem_free(&numas);
    TRY(st);
    out->memory_bytes = found.memory_bytes;
    out->host = job_device_place_of(j)->host;
    memcpy(out->pci, found.pci, sizeof out->pci);
    return status_ok();
}

struct status job_measure_devices(struct job *j)
{
    const size_t n_ranks = (size_t)comm_size(j->comm, COMM_WORLD);
    struct rank_device mine, *all = NULL;
    uint64_t n_sharers = 0;
    if (on_cpu(j)) return status_ok();
    TRY(comm_agree(j->comm, find_device(j, &mine)));
    TRY(comm_agree(j->comm, mem_alloc(&all, n_ranks, sizeof *all, "GPUs of all ranks")));
    comm_gather_bytes(j->comm, COMM_WORLD, &mine, sizeof mine, all);
    for (size_t r = 0; r < n_ranks; r++)
        n_sharers += all[r].host == mine.host && strcmp(all[r].pci, mine.pci) == 0;
    mem_free(&all);
    j->compute.device_bytes = mine.memory_bytes / n_sharers;
    comm_min_u64(j->comm, COMM_WORLD, &j->compute.device_bytes, 1);
    return status_ok();
}

struct status job_place_by_device(struct job *j)
{
    struct device_options o;
    int32_t *numas = NULL;
    struct device_found found;
    if (on_cpu(j)) return status_ok();
    TRY(options_of(j, &o, &numas));
    const struct status st = device_locate(&o, &found);
    if (!status_failed(&st)) topo_bind_near(gpu_numa_of(o.node, found.pci), &j->compute.is_near);
    mem_free(&numas);
    return st;
}

struct status job_open_device(struct job *j)
{
    struct device_options o;
    int32_t *numas = NULL;
    if (on_cpu(j)) return status_ok();
    TRY(options_of(j, &o, &numas));
    const struct status st = device_open(&o, &j->compute.device);
    j->compute.kern.device = j->compute.device;
    mem_free(&numas);
    return st;
}

struct status job_devices_same(struct job *j)
{
    return device_comm_same(&j->compute.kern, j->comm,
                            j->topo->nodes[job_device_place_of(j)->host].name);
}

struct status job_open_device_comm(struct job *j)
{
    if (on_cpu(j)) return status_ok();
    const uint32_t me = (uint32_t)comm_rank(j->comm, COMM_WORLD);
    const struct layout_place p = layout_place_of(j->layout, me);
    struct device_comm_options o = {.flags = j->o->device,
                                    .host = j->topo->nodes[job_device_place_of(j)->host].name,
                                    .previous = -1,
                                    .next = -1};
    if (p.pp > 0) o.previous = (int)layout_rank_of(j->layout, p.dp, p.pp - 1, p.tp);
    if (p.pp + 1 < j->layout->pp) o.next = (int)layout_rank_of(j->layout, p.dp, p.pp + 1, p.tp);
    char text[512];
    TRY(job_devices_same(j));
    TRY(device_comm_open(&j->compute.kern, j->comm, &o, text, sizeof text));
    char device[256];
    device_describe(j->compute.device, device, sizeof device);
    const enum log_level level = me == 0 ? LOG_INFO : LOG_DEBUG;
    log_line(level, "%s%s", device, j->compute.is_near ? "; bound to its NUMA node" : "");
    if (text[0] != '\0') log_line(level, "%s", text);
    return status_ok();
}

size_t job_halves_from(struct job *j)
{
    uint64_t can = device_comm_overlaps(&j->compute.kern);
    comm_min_u64(j->comm, COMM_WORLD, &can, 1);
    /* a capacity applies to all rows of a step, so a step cannot be halved */
    if (j->o->capacity.policy != CAPACITY_DROPLESS) return 0;
    return can != 0 ? j->o->device.overlap_rows : j->layout->halves_from;
}
