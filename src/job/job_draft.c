/* The draft model of --draft: opened on all ranks, so that all choose the same layout; computed by
 * the lead alone. */
#include "base/mem.h"
#include "draft/draft_model.h"
#include "job/job_paths.h"
#include "job/job_private.h"

/* Refuses jobs whose drafts would be off. */
static struct status check_draft_flags(const struct job *j)
{
    const struct job_options *o = j->o;
    const int32_t ways = o->schedule.n_drafts;
    if (ways == 0 || ways == SCHEDULE_DRAFTS_MTP || ways == SCHEDULE_DRAFTS_NGRAM)
        return status_make(STATUS_USAGE,
                           "expected --speculate auto or a number of drafts with it, found %s",
                           ways == 0                     ? "off"
                           : ways == SCHEDULE_DRAFTS_MTP ? "mtp"
                                                         : "ngram");
    if (o->device.device != DEVICE_CPU) return status_make(STATUS_USAGE, "not with --device cuda");
    if (o->mode != LEAD_GENERATE)
        return status_make(STATUS_USAGE, "this server gives vectors or scores, no tokens");
    if (o->capacity.policy != CAPACITY_DROPLESS)
        return status_make(STATUS_USAGE,
                           "not with --capacity-factor, where a row depends on its batch");
    return draft_model_check(&j->model);
}

static struct status open_draft(struct job *j)
{
    const struct draft_limits limits = {.context = j->o->model.max_model_len,
                                        .kv_dtype = j->o->model.kv_dtype,
                                        .max_batch = j->o->schedule.max_batch};
    TRY(check_draft_flags(j));
    TRY(draft_model_open(j->o->files.draft, &limits, &j->draft));
    return draft_model_check_tokens(j->draft, j->ckpt, j->model.vocab);
}

struct status job_draft_open(struct job *j)
{
    if (j->o->files.draft == NULL || (j->o->run.dry_run && j->ckpt == NULL)) return status_ok();
    TRY(job_paths_check_model("draft", j->o->files.draft));
    TRY(status_wrap(open_draft(j), "--draft %s", j->o->files.draft));
    if (j->o->run.dry_run) draft_model_destroy(&j->draft); /* nothing is computed */
    return status_ok();
}

uint64_t job_draft_loaded_bytes(const struct job *j)
{
    return j->draft != NULL ? draft_model_memory(j->draft)->weights_bytes : 0;
}

uint64_t job_draft_bytes(const struct job *j)
{
    return j->draft != NULL ? draft_memory_bytes(draft_model_memory(j->draft)) : 0;
}

uint64_t job_draft_later_bytes(const struct job *j)
{
    return job_draft_bytes(j) - job_draft_loaded_bytes(j);
}

struct status job_draft_load(struct job *j)
{
    if (j->draft == NULL || comm_rank(j->comm, COMM_WORLD) != 0) return status_ok();
    const struct draft_host host = {.kern = &j->compute.kern,
                                    .comm = j->comm,
                                    .flags = &j->o->model,
                                    .cache = j->o->run.file_cache,
                                    .free_bytes = mem_available_bytes(),
                                    .n_groups = (int32_t)j->layout->pp};
    const struct draft_memory *m = draft_model_memory(j->draft);
    log_line(LOG_INFO,
             "draft model %s: on this rank alone, weights %.1f MiB, workspace %.1f MiB, KV cache "
             "%.1f MiB",
             j->o->files.draft, (double)m->weights_bytes / (1 << 20),
             (double)m->workspace_bytes / (1 << 20), (double)m->kv_bytes / (1 << 20));
    if (j->o->files.nodes != NULL)
        log_line(LOG_WARN, "--nodes: the forecast, by which the layout is chosen, leaves out the "
                           "draft model's time and the steps that right draft tokens save");
    return status_wrap(draft_model_load(j->draft, &host), "--draft %s", j->o->files.draft);
}

struct status job_draft_start(struct job *j)
{
    if (j->draft == NULL || comm_rank(j->comm, COMM_WORLD) != 0) return status_ok();
    return status_wrap(draft_model_start(j->draft), "--draft %s", j->o->files.draft);
}

struct draft_source job_draft_source(const struct job *j)
{
    return j->draft != NULL ? draft_model_source(j->draft) : (struct draft_source){0};
}
