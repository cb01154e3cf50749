/* Divides a rank's memory among weights that stay, experts that stream, KV blocks, and
 * workspace. */
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "job/job_private.h"
#include "kernels/device.h"
#include "parallel/layout/kv_groups.h"
#include "parallel/layout/layout_cost.h"
#include "weights/expert_pack.h"
#include "weights/weights_fit.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    UNCOUNTED_BYTES = 8 << 20,
    WINDOW_BYTES_MOST = 512 << 20, /* experts that are packed at a time */
    WINDOW_BYTES_LEAST = 16 << 20,
};

static double mib(uint64_t n_bytes)
{
    return (double)n_bytes / (1 << 20);
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

void job_measure_program(struct job *j)
{
    j->program_bytes = mem_resident_bytes();
    comm_max_u64(j->comm, COMM_WORLD, &j->program_bytes, 1);
}

/* --- before loading ----------------------------------------------------------------------- */

/* Makes the budget for choosing a layout. rank_bytes 0: no bound. */
static struct layout_budget budget_of(const struct job *j, uint64_t rank_bytes)
{
    return (struct layout_budget){
        .kv = kv_layout(j->o->model.kv_dtype),
        .step_tokens = (uint32_t)j->o->schedule.step_tokens,
        .min_kv_blocks = (j->o->model.max_model_len + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS,
        .n_state_slots = layout_slots_wanted(&j->model, j->o->schedule.max_batch),
        .rank_bytes = rank_bytes,
        .adapter_bytes = j->adapters.n_bytes,
        .lead_bytes = job_draft_bytes(j),
        .device_bytes = j->compute.device_bytes,
        .network_bytes_s = j->o->layout.network.gbit_s * 1e9 / 8,
        .estimate = job_forecast_estimate(j)};
}

/* Returns the bytes that the hidden rows of --save-hidden take on a lead that computes all saved
 * layers: a step's rows as floats; in pp + 1 messages to the lead; in one received message; and in
 * the result, counted twice because its memory grows by halves. */
static uint64_t saved_bytes(const struct job *j)
{
    const uint64_t pp = j->layout != NULL     ? j->layout->pp
                        : j->o->layout.pp > 0 ? j->o->layout.pp
                                              : 1;
    const uint64_t n_messages = pp + 4;
    const size_t row_bytes = hidden_layers_bytes(&j->hidden, j->model.width);
    const uint64_t n_values = (uint64_t)j->hidden.n * j->model.width;
    return (uint64_t)j->o->schedule.step_tokens *
           (n_values * sizeof(float) + n_messages * row_bytes);
}

/* Returns the bytes of --expert-replan's read buffers (loader_run): 4 MiB for each thread, and 20
 * MiB for each lane. */
static uint64_t moving_bytes(const struct job *j)
{
    const uint32_t n_threads = j->compute.n_threads > 0 ? j->compute.n_threads
                               : j->o->run.threads > 0  ? (uint32_t)j->o->run.threads
                               : j->env.n_threads > 0   ? (uint32_t)j->env.n_threads
                                                        : j->topo->nodes[0].n_pus;
    if (j->o->layout.expert_replan == 0) return 0;
    return ((uint64_t)n_threads * 4 + LOADER_LANES_MAX * 20) << 20;
}

/* Returns the bytes of the program and of what the layout's budget does not count: the rows of
 * --save-hidden, the read buffers of --expert-replan, and UNCOUNTED_BYTES for lists, messages and
 * small tables. */
static uint64_t uncounted_bytes(const struct job *j)
{
    return j->program_bytes + UNCOUNTED_BYTES + saved_bytes(j) + moving_bytes(j);
}

/* Returns the bytes that a rank may use besides uncounted_bytes; 0: no bound. */
static uint64_t bound_of(const struct job *j)
{
    if (j->o->weights.memory_bytes == 0) return 0;
    const uint64_t left = less(j->o->weights.memory_bytes, uncounted_bytes(j));
    return left > 4 ? left : 4; /* so that parts of it have at least one byte */
}

static struct status refuse_bound(const struct job *j)
{
    const struct layout_budget budget = budget_of(j, bound_of(j));
    const struct layout_fit fit = layout_fit_of(j->layout, j->topo, &budget);
    const struct layout_place place = layout_place_of(j->layout, fit.worst_rank);
    const struct layout_memory m =
        layout_memory_of(j->layout, place, budget.kv, budget.step_tokens);
    return status_make(
        STATUS_USAGE,
        "--memory: a rank needs at least %.0f MiB, found %.0f MiB: program %.0f, weights that stay "
        "in memory %.0f, adapters %.0f, draft model %.0f, %s%.0f, workspace of %u rows a step "
        "%.0f, one full context of %u tokens %.0f; give more memory, more ranks, or a smaller "
        "--max-model-len or "
        "--step-tokens",
        mib(fit.needed_bytes + uncounted_bytes(j)) + 1, mib(j->o->weights.memory_bytes),
        mib(uncounted_bytes(j)), mib(m.weights_bytes),
        mib(layout_adapter_bytes(j->layout, place.pp, &budget)),
        mib(fit.worst_rank == 0 ? budget.lead_bytes : 0),
        m.stream_bytes > 0 ? "the least for streamed experts " : "streamed experts ",
        mib(m.stream_bytes), budget.step_tokens, mib(m.workspace_bytes + m.exchange_bytes),
        j->o->model.max_model_len, mib(kv_groups_context(j->layout, &budget) * m.kv_block_bytes));
}

struct status job_fit_layout(struct job *j, bool *fits)
{
    const struct weights_fit fit = {.place = j->o->weights.place,
                                    .may_stream = j->o->device.device == DEVICE_CPU,
                                    .step_is_given = flags_is_given(&j->o->given, "step-tokens") ||
                                                     j->o->files.logits != NULL || j->hidden.n > 0,
                                    .topo = j->topo,
                                    .flags = &j->o->layout};
    struct layout_budget budget = budget_of(j, bound_of(j));
    j->layout_model.keeps_windows =
        j->o->device.device != DEVICE_CPU || j->o->model.max_model_len <= j->model.attn.window ||
        j->model.encoder ||                  /* whose steps hold whole texts */
        j->o->tier.prefix_store.n_bytes > 0; /* stored blocks have all layers */
    TRY(weights_fit_layout(&fit, &j->layout_model, &budget, j->layout, j->order, fits));
    if (j->layout_model.streams_experts && j->model.n_predict > 0) {
        j->model.n_predict = 0; /* the packed copy has only the experts of the other layers */
        budget = budget_of(j, bound_of(j));
        TRY(weights_fit_layout(&fit, &j->layout_model, &budget, j->layout, j->order, fits));
    }
    j->options.schedule.step_tokens = (int32_t)budget.step_tokens;
    return budget.rank_bytes > 0 && !*fits ? refuse_bound(j) : status_ok();
}

/* --- the packed copy ---------------------------------------------------------------------- */

/* Sets j->experts.path to --expert-file, or to a name beside the checkpoint that tells how experts
 * are cut. */
static struct status name_copy(struct job *j)
{
    struct strbuf s;
    strbuf_init(&s);
    if (j->o->weights.expert_file != NULL) {
        strbuf_puts(&s, j->o->weights.expert_file);
    } else {
        strbuf_printf(&s, "%s.experts", j->o->files.model);
        if (j->layout->etp > 1)
            strbuf_printf(&s, "-%u%s", j->layout->etp, j->layout->cuts_expert_outputs ? "o" : "i");
    }
    j->experts.path = s.data;
    return strbuf_status(&s);
}

static struct status make_copy(struct job *j)
{
    const struct weights_source source = job_weights_source(j, j->layout);
    const uint64_t bound = bound_of(j);
    uint64_t window = bound > 0 ? bound / 8 : WINDOW_BYTES_MOST;
    if (window > WINDOW_BYTES_MOST) window = WINDOW_BYTES_MOST;
    if (window < WINDOW_BYTES_LEAST) window = WINDOW_BYTES_LEAST;
    if (!file_exists(j->experts.path))
        log_line(LOG_INFO, "%s: packing the experts, once; safe to delete after the job",
                 j->experts.path);
    return expert_pack_make(&source, j->experts.path, window);
}

struct status job_pack_experts(struct job *j)
{
    if (!j->layout_model.streams_experts) return status_ok();
    TRY(comm_agree(j->comm, name_copy(j)));
    const bool is_first = comm_rank(j->comm, COMM_WORLD) == 0;
    const bool is_first_here = comm_rank(j->comm, COMM_HOST) == 0;
    TRY(comm_agree(j->comm, is_first ? make_copy(j) : status_ok()));
    return comm_agree(j->comm, is_first_here && !is_first ? make_copy(j) : status_ok());
}

/* --- after loading ------------------------------------------------------------------------ */

static bool is_lead(const struct job *j)
{
    return comm_rank(j->comm, COMM_WORLD) == 0;
}

/* True on the ranks of the lead's host. */
static bool is_beside_lead(const struct job *j)
{
    const uint32_t launched = j->order[comm_rank(j->comm, COMM_WORLD)];
    return j->topo->ranks[launched].host == j->topo->ranks[j->order[0]].host;
}

/* Returns the bytes that the job can still allocate on this host: free memory, within the limit of
 * a container or batch job. */
static uint64_t free_bytes(const struct job *j)
{
    const uint32_t launched = j->order[comm_rank(j->comm, COMM_WORLD)];
    const struct topo_rank *here = &j->topo->ranks[launched];
    const uint64_t limit = j->topo->nodes[here->host].memory_bytes;
    const uint64_t draft = job_draft_loaded_bytes(j); /* the lead's alone */
    const uint64_t used = less(mem_peak_bytes(), is_lead(j) ? draft : 0) * here->n_local_ranks +
                          (is_beside_lead(j) ? draft : 0);
    const uint64_t left = limit > used ? limit - used : 0;
    const uint64_t available = mem_available_bytes();
    return available < left ? available : left;
}

uint64_t job_memory_part(uint64_t free_bytes, uint64_t draft_bytes, uint32_t n_ranks)
{
    return less(free_bytes, draft_bytes) / n_ranks / 10 * 6;
}

/* Returns the bytes that this rank may still take for KV blocks, states and streamed experts. */
static uint64_t bytes_to_divide(const struct job *j)
{
    if (j->compute.device != NULL) return device_free_bytes(j->compute.device) / 10 * 6;
    const uint64_t draft = job_draft_later_bytes(j);
    if (j->o->weights.memory_bytes == 0)
        return job_memory_part(free_bytes(j), is_beside_lead(j) ? draft : 0,
                               (uint32_t)comm_size(j->comm, COMM_HOST));
    const struct layout_place place =
        layout_place_of(j->layout, (uint32_t)comm_rank(j->comm, COMM_WORLD));
    const struct layout_budget budget = budget_of(j, 0);
    const struct layout_memory m =
        layout_memory_of(j->layout, place, budget.kv, budget.step_tokens);
    const struct adapters *a = j->adapters.loaded;
    const uint64_t experts_row = a != NULL ? a->expert_row_bytes : 0;
    const uint64_t adapted =
        adapters_row_bytes(a) * budget.step_tokens +
        layout_expert_array_bytes(j->layout, place, budget.step_tokens, experts_row);
    const uint64_t taken = mem_resident_bytes() + m.workspace_bytes + m.exchange_bytes + adapted +
                           saved_bytes(j) + moving_bytes(j) + (is_lead(j) ? draft : 0) +
                           UNCOUNTED_BYTES / 2;
    return less(j->o->weights.memory_bytes, taken);
}

/* Returns the number of KV blocks that running sequences can use: max_batch sequences run or, if it
 * is 0, as many as the steps in flight have rows for. */
static uint64_t useful_blocks(const struct job *j, uint64_t per_context)
{
    const struct schedule_flags *f = &j->o->schedule;
    const uint64_t n_running =
        f->max_batch > 0 ? (uint64_t)f->max_batch : (uint64_t)f->step_tokens * j->layout->pp;
    return per_context * n_running;
}

/* Chooses the number of slots for recurrent states, the same on all ranks: as many as wanted,
 * within a part of the room for KV and states. Returns this rank's bytes for them. */
static uint64_t size_states(struct job *j, uint64_t room)
{
    const struct layout_budget budget = budget_of(j, 0);
    const uint64_t bytes =
        layout_memory_of(j->layout, j->weights->place, budget.kv, budget.step_tokens).state_bytes;
    uint64_t n = layout_slots_in(room, bytes, budget.n_state_slots);
    if (budget.n_state_slots == 0) return 0;
    comm_min_u64(j->comm, COMM_WORLD, &n, 1);
    j->pools.n_state_slots = (uint32_t)n;
    return n * bytes;
}

struct plan_tables job_tables(const struct job *j)
{
    if (j->o->run.dry_run) return (struct plan_tables){.n_full = 1};
    const struct kv_groups g = kv_groups_of(j->layout);
    return (struct plan_tables){(int32_t)g.n_full, (int32_t)g.n_windowed, (int32_t)g.window};
}

/* True when a folder can be made at `path`; otherwise errno says why. */
static bool can_make_folder(const char *path)
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    return access(dirname(copy), W_OK | X_OK) == 0;
}

/* Checks a folder before the weights are loaded and files are made. is_made: a missing folder will
 * be made, in a folder that must exist. */
static struct status check_tier_folder(const char *flag, const struct tier_place *place,
                                       bool is_made)
{
    struct stat info;
    if (place->n_bytes == 0) return status_ok();
    if (stat(place->dir, &info) != 0) {
        if (is_made && errno == ENOENT && can_make_folder(place->dir)) return status_ok();
    } else if (!S_ISDIR(info.st_mode)) {
        errno = ENOTDIR;
    } else if (access(place->dir, W_OK | X_OK) == 0) {
        return status_ok();
    }
    return status_make(STATUS_IO, "%s: %s: %s", flag, place->dir, strerror(errno));
}

struct status job_check_tier(const struct job *j)
{
    const struct tier_flags *t = &j->o->tier;
    const char *flag = t->kv_tier.n_bytes > 0 ? "--kv-tier" : "--prefix-store";
    if (t->kv_tier.n_bytes == 0 && t->prefix_store.n_bytes == 0) return status_ok();
    if (j->o->device.device != DEVICE_CPU)
        return status_make(STATUS_USAGE, "%s: not with --device cuda", flag);
    if (arch_has_states(&j->model))
        return status_make(STATUS_USAGE,
                           "%s: not for a model with recurrent layers or compressed entries, whose "
                           "states are not kept after each block",
                           flag);
    if (j->model.encoder)
        return status_make(STATUS_USAGE, "%s: an encoder keeps no KV cache", flag);
    if (!j->o->schedule.prefix_cache)
        return status_make(STATUS_USAGE,
                           "%s: needs --prefix-cache on, and not scoring or a capacity factor",
                           flag);
    TRY(check_tier_folder("--kv-tier", &t->kv_tier, false));
    return check_tier_folder("--prefix-store", &t->prefix_store, true);
}

struct status job_store_root(const struct job *j, uint64_t *root)
{
    const struct ckpt_digest digest = ckpt_digest(j->ckpt);
    struct strbuf s;
    strbuf_init(&s);
    strbuf_printf(&s, "numerics %d, checkpoint %016llx%016llx, context %u\n", KV_STORE_NUMERICS,
                  (unsigned long long)digest.high, (unsigned long long)digest.low,
                  j->o->model.max_model_len);
    strbuf_printf(&s, "kv %d, activations %d, fp8 activations %d, layers %u",
                  (int)j->o->model.kv_dtype, (int)j->o->model.activations,
                  (int)j->o->model.fp8_activations,
                  layout_layers(j->layout, j->layout->pp - 1).end); /* counts a prediction layer */
    const struct status st = strbuf_status(&s);
    if (!status_failed(&st)) {
        const XXH128_hash_t h = XXH3_128bits(s.data, s.n);
        root[0] = h.low64;
        root[1] = h.high64;
    }
    strbuf_fini(&s);
    return st;
}

/* Returns the bytes of a block in this rank's file, which has room for the index keys of every
 * layer (kv_pool_get_block). */
static uint64_t stored_bytes(const struct job *j)
{
    const struct weights *w = j->weights;
    const struct kv_groups groups = kv_groups_of(j->layout);
    const uint32_t n = kv_groups_layers(&groups, j->layout, w->place.pp);
    const enum dtype dtype = j->o->model.kv_dtype;
    return kv_pool_block_bytes(n, range_count(w->kv_heads), j->model.attn.head_dim, dtype,
                               j->model.attn.kv_lora > 0) +
           (uint64_t)n * kv_pool_index_bytes(dtype, arch_beside_dim(&j->model));
}

/* Sets the number of slots in each rank's file: as many as all ranks have room for. */
static struct status size_tier(struct job *j)
{
    const uint64_t block_bytes = stored_bytes(j);
    const uint64_t bytes = j->o->tier.kv_tier.n_bytes;
    uint64_t n = bytes / (block_bytes > 0 ? block_bytes : 1);
    if (n > INT32_MAX) n = INT32_MAX;
    comm_min_u64(j->comm, COMM_WORLD, &n, 1);
    j->pools.n_tier_slots = (uint32_t)n;
    const uint64_t stored = j->o->tier.prefix_store.n_bytes;
    if (stored > 0 && stored < block_bytes)
        return status_make(STATUS_USAGE,
                           "--prefix-store: expected a SIZE of at least %llu bytes, one KV block "
                           "of a rank, found %llu",
                           (unsigned long long)block_bytes, (unsigned long long)stored);
    if (bytes == 0 || n > 0) return status_ok();
    return status_make(STATUS_USAGE,
                       "--kv-tier: expected a SIZE of at least %llu bytes, one KV block of a rank, "
                       "found %llu",
                       (unsigned long long)block_bytes, (unsigned long long)bytes);
}

/* **Collective (host)**. Refuses a --kv-blocks for which this host has too little memory, because
 * the system would grant it and end the job when it is used. Ignores the memory that other
 * processes use now: it may be free again by then. */
static struct status check_asked_blocks(const struct job *j, uint64_t block_bytes)
{
    const uint32_t launched = j->order[comm_rank(j->comm, COMM_WORLD)];
    const uint64_t has = j->topo->nodes[j->topo->ranks[launched].host].memory_bytes;
    int64_t needed = (int64_t)(j->o->run.kv_blocks * block_bytes);
    comm_sum_i64(j->comm, COMM_HOST, &needed, 1);
    if (has == 0 || j->o->device.device != DEVICE_CPU || (uint64_t)needed <= has)
        return status_ok();
    return status_make(STATUS_USAGE,
                       "--kv-blocks %llu: the ranks of a host need %.0f MiB for them, but it has "
                       "%.0f; give fewer, or leave the flag out",
                       (unsigned long long)j->o->run.kv_blocks, mib((uint64_t)needed), mib(has));
}

struct status job_size_memory(struct job *j)
{
    const struct weights *w = j->weights;
    const struct layout_budget budget = budget_of(j, 0);
    const uint64_t block_bytes =
        layout_memory_of(j->layout, w->place, budget.kv, budget.step_tokens).kv_block_bytes;
    const uint64_t per_context = kv_groups_context(j->layout, &budget);
    comm_barrier(j->comm, COMM_HOST); /* now every rank of the host has loaded its weights */
    const uint64_t found = bytes_to_divide(j), all = less(found, size_states(j, found));
    const uint64_t least =
        w->stream != NULL ? EXPERT_STREAM_LEAST * expert_stream_one_bytes(w->stream) : 0;
    const uint64_t for_kv = w->stream != NULL ? less(all, least) / 2 : all;
    uint64_t n = for_kv / (block_bytes > 0 ? block_bytes : 1);
    if (n < per_context && j->o->weights.memory_bytes > 0) { /* the plan said that a context fits */
        /* huge pages that come later or earlier make the resident size vary by some MiB */
        n = less(all + UNCOUNTED_BYTES / 2, least) / (block_bytes > 0 ? block_bytes : 1);
        if (n > per_context) n = per_context;
    }
    const uint64_t useful = useful_blocks(j, per_context);
    if (n > useful) n = useful;
    if (j->o->run.kv_blocks > 0) n = j->o->run.kv_blocks;
    TRY(comm_agree(j->comm, check_asked_blocks(j, block_bytes)));
    comm_barrier(j->comm, COMM_HOST); /* no rank allocates before all have read the free memory */
    comm_min_u64(j->comm, COMM_WORLD, &n, 1);
    if (n > INT32_MAX) n = INT32_MAX;
    if (n < per_context) {
        return status_make(STATUS_USAGE,
                           "KV pool: %llu blocks of %d tokens, one full context of %u tokens needs "
                           "%llu; lower --max-model-len or raise --kv-blocks%s",
                           (unsigned long long)n, KV_BLOCK_TOKENS, j->o->model.max_model_len,
                           (unsigned long long)per_context,
                           j->o->weights.memory_bytes > 0 ? " or --memory" : "");
    }
    j->pools.n_kv_blocks = (uint32_t)n;
    TRY(size_tier(j));
    if (w->stream == NULL) return status_ok();
    const uint64_t asked = j->o->weights.expert_bytes;
    const uint64_t left = less(all, n * block_bytes);
    return expert_stream_start(w->stream, asked > 0 ? asked : left > least ? left : least);
}
