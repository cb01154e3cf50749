/* Places experts on ranks: at the start by --expert-load or the counts of the job's earlier runs,
 * and between steps by the load that the job has counted (--expert-replan). */
#include "job/job_private.h"

#include "base/log.h"
#include "base/mem.h"
#include "job/job_counts.h"
#include "parallel/layout/expert_replan.h"

#include <string.h>

enum {
    FIRST_SAVE = 64,   /* steps after which counts are first kept beside the journal */
    LONGEST_WAIT = 16, /* times --expert-replan: the most steps between two looks at the counts */
};

static size_t n_loads(const struct job *j)
{
    return (size_t)j->model.n_layers * j->model.moe.n_experts;
}

/* True when --expert-replan may place experts anew. */
static bool replans(const struct job *j)
{
    return j->o->layout.expert_replan > 0 && j->layout->ep > 1;
}

/* Takes the counts of earlier runs if the job replans and has such counts; otherwise those of
 * --expert-load, if there are any. */
static struct status read_load_as_lead(struct job *j)
{
    struct job_experts *x = &j->experts;
    const char *flag = j->o->layout.expert_load;
    struct status unusable = status_ok();
    TRY(job_counts_open(j));
    if (x->earlier != NULL && replans(j)) {
        TRY(mem_alloc(&x->load, n_loads(j), sizeof *x->load, "experts' load"));
        memcpy(x->load, x->earlier, n_loads(j) * sizeof *x->load);
        x->load_from = x->counts_path;
        return status_ok();
    }
    if (flag == NULL) return status_ok();
    TRY(job_counts_read_flag(flag, &j->layout_model, &x->load, &unusable));
    if (x->load != NULL) x->load_from = flag;
    if (status_failed(&unusable))
        log_line(LOG_WARN, "%s; the job begins without counts", unusable.text);
    return status_ok();
}

struct status job_read_expert_load(struct job *j)
{
    struct job_experts *x = &j->experts;
    if (comm_rank(j->comm, COMM_WORLD) == 0) TRY(read_load_as_lead(j));
    if (x->load != NULL || (j->o->layout.expert_load == NULL && !replans(j))) return status_ok();
    return mem_alloc(&x->load, n_loads(j), sizeof *x->load, "experts' load");
}

static struct status place_by(struct job *j, const int64_t *load)
{
    TRY(expert_places_on(j->layout, load, j->topo, j->order, &j->experts.places));
    j->layout->expert_places = j->experts.places;
    return status_ok();
}

/* Places the experts as if all had the same load. */
static struct status place_evenly(struct job *j)
{
    enum { SOME_LOAD = 1 << 16 }; /* large enough to be divided among copies */
    int64_t *load = NULL;
    TRY(mem_alloc(&load, n_loads(j), sizeof *load, "experts' load"));
    for (size_t i = 0; i < n_loads(j); i++) load[i] = SOME_LOAD;
    const struct status st = place_by(j, load);
    mem_free(&load);
    return st;
}

/* Refuses --expert-replan where experts cannot be read again between steps. */
static struct status check_replan(const struct job *j)
{
    if (j->o->device.device != DEVICE_CPU) {
        return status_make(STATUS_USAGE, "--expert-replan: expected --device cpu; experts on a GPU "
                                         "stay where they are");
    }
    if (!j->layout_model.streams_experts) return status_ok();
    return status_make(STATUS_USAGE, "--expert-replan: expected --weights resident; streamed "
                                     "experts stay where they are");
}

/* Places the experts for the first steps. */
static struct status place_first(struct job *j, bool by_load)
{
    if (by_load) return place_by(j, j->experts.load);
    return replans(j) || j->layout->n_expert_copies > 0 ? place_evenly(j) : status_ok();
}

/* Makes the memory to count with between steps, so that counting cannot fail later. */
static struct status start_counting(struct job *j, bool keeps_counts)
{
    struct job_experts *x = &j->experts;
    if (!keeps_counts && !replans(j)) return status_ok();
    TRY(mem_alloc(&x->counted, n_loads(j), sizeof *x->counted, "experts' load"));
    if (!replans(j)) return status_ok();
    x->replans.wait = x->next_replan = j->o->layout.expert_replan;
    return replan_ledger_init(&x->replans.ledger, j->layout, x->places);
}

struct status job_place_experts(struct job *j)
{
    struct job_experts *x = &j->experts;
    if (j->o->layout.expert_replan > 0) TRY(check_replan(j));
    uint64_t has[3] = {x->load_from != NULL, x->load_from != NULL && x->load_from == x->counts_path,
                       x->counts_path != NULL};
    comm_max_u64(j->comm, COMM_WORLD, has, 3);
    if (has[0] != 0) comm_sum_i64(j->comm, COMM_WORLD, x->load, n_loads(j));
    x->replans.has_earlier = has[1] != 0;
    x->next_save = x->counts_path != NULL ? FIRST_SAVE : 0;
    TRY(place_first(j, has[0] != 0));
    return start_counting(j, has[2] != 0);
}

static bool is_due(uint64_t at, uint64_t n_steps)
{
    return at > 0 && n_steps >= at;
}

bool job_count_is_due(const struct job *j, uint64_t n_steps)
{
    return is_due(j->experts.next_save, n_steps) || is_due(j->experts.next_replan, n_steps);
}

void job_sum_expert_load(struct job *j, int64_t *load)
{
    const uint32_t n_experts = j->model.moe.n_experts;
    const uint64_t *mine = stage_expert_load(engine_stage(j->engine));
    const struct range layers = j->weights->layers;
    for (uint32_t layer = layers.begin; layer < layers.end && layer < j->model.n_layers; layer++) {
        for (uint32_t e = 0; e < n_experts; e++) {
            load[(size_t)layer * n_experts + e] =
                (int64_t)mine[(size_t)(layer - layers.begin) * n_experts + e];
        }
    }
    comm_sum_i64(j->comm, COMM_WORLD, load, n_loads(j));
}

/* **Collective (world)**. Records in r how evenly rows were spread so far. */
static void note_rows_before(struct job *j, struct job_replan *r)
{
    engine_count_busiest(j->engine);
    const struct engine_stats mine = engine_stats_of(j->engine);
    int64_t sums[2] = {(int64_t)mine.moe.n_rows, (int64_t)mine.moe.busiest_rows};
    comm_sum_i64(j->comm, COMM_WORLD, sums, 2);
    r->n_steps = mine.n_steps;
    r->n_rows = (uint64_t)sums[0];
    r->busiest_rows = (uint64_t)sums[1];
}

/* Moves experts as the plan says. All ranks have made the same plan. */
static struct status move_experts_to(struct job *j, const struct expert_replan *plan,
                                     struct loader_stats *stats)
{
    const struct weights_source source = job_weights_source(j, j->layout);
    const int error = failpoint_pass(&j->failpoint, FAILPOINT_LOAD);
    struct status st = status_ok();
    if (error != 0) st = status_make(STATUS_IO, "%s: %s", ckpt_path(j->ckpt), strerror(error));
    TRY(comm_agree(j->comm, st));
    if (plan->n_moves > 0) TRY(weights_move_experts(&source, j->weights, plan->places, stats));
    expert_places_take(j->experts.places, plan->places, j->model.n_layers);
    return comm_agree(j->comm, engine_take_places(j->engine));
}

static void report_moves(const struct job *j, const struct expert_replan *plan,
                         const struct loader_stats *stats, struct job_replan *r)
{
    r->n_moves = plan->n_moves;
    r->n_bytes_host = stats->n_bytes_host;
    r->before = plan->before;
    r->after = plan->after;
    if (comm_rank(j->comm, COMM_WORLD) != 0) return;
    log_line(LOG_INFO,
             "experts placed anew after %llu steps: %llu places in %u layers got other experts, "
             "%.3f GB read on this host in %.2f s; by the counts the fullest rank of a layer had "
             "%.2f of the mean of tokens, %.2f in the worst layer, and now has %.2f, %.2f",
             (unsigned long long)r->n_steps, (unsigned long long)plan->n_moves, plan->n_layers,
             (double)stats->n_bytes_host / 1e9, stats->seconds, r->before.mean, r->before.worst,
             r->after.mean, r->after.worst);
}

/* Sets when to look at the counts again: soon if experts have moved, otherwise later and later;
 * never again after JOB_REPLANS_MAX re-plans. */
static void schedule_replan(struct job *j, bool has_moved)
{
    struct job_replans *r = &j->experts.replans;
    const uint64_t least = j->o->layout.expert_replan, most = LONGEST_WAIT * least;
    r->wait = has_moved ? least : 2 * r->wait < most ? 2 * r->wait : most;
    j->experts.next_replan =
        r->n < JOB_REPLANS_MAX ? engine_stats_of(j->engine).n_steps + r->wait : 0;
}

/* **Collective (world)**. Places the experts anew by the counts since the last look, where that
 * pays. The first new places need not pay, unless the old ones are by counts of this job. load [L,
 * E]: this run's; it is changed. */
static struct status replan(struct job *j, int64_t *load)
{
    struct job_replans *r = &j->experts.replans;
    struct expert_replan plan = {0};
    struct loader_stats stats = {0};
    const struct expert_places *old = j->experts.places;
    const int64_t move_rows = r->n > 0 || r->has_earlier ? expert_move_rows(j->layout) : 0;
    struct status st = replan_ledger_look(&r->ledger, j->layout, old, load);
    if (!status_failed(&st))
        st = expert_replan_make(j->layout, old, load, move_rows, r->ledger.debt, &plan);
    st = comm_agree(j->comm, st);
    const bool moves = plan.n_moves > 0;
    if (!status_failed(&st)) replan_ledger_move(&r->ledger, j->layout, old, plan.places, move_rows);
    if (!status_failed(&st) && moves) note_rows_before(j, &r->at[r->n]);
    if (!status_failed(&st)) st = move_experts_to(j, &plan, &stats);
    if (!status_failed(&st) && moves) report_moves(j, &plan, &stats, &r->at[r->n++]);
    expert_replan_fini(&plan);
    schedule_replan(j, moves);
    return st;
}

struct status job_count_experts(struct job *j)
{
    struct job_experts *x = &j->experts;
    const bool is_lead = comm_rank(j->comm, COMM_WORLD) == 0;
    const uint64_t n_steps = engine_stats_of(j->engine).n_steps;
    uint64_t looks = is_lead && is_due(x->next_replan, n_steps);
    comm_max_u64(j->comm, COMM_WORLD, &looks, 1); /* the lead decides */
    memset(x->counted, 0, n_loads(j) * sizeof *x->counted);
    job_sum_expert_load(j, x->counted);
    if (is_lead) job_counts_save(j, x->counted);
    if (is_due(x->next_save, n_steps)) x->next_save = 2 * n_steps;
    return looks != 0 ? replan(j, x->counted) : status_ok();
}
