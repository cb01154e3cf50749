/* What a job finds out and opens before anything is loaded: flags, the checkpoint's config, the
 * lead's files. */
#include "base/mem.h"
#include "job/job_journal.h"
#include "job/job_paths.h"
#include "job/job_state.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_STEP_TOKENS = 512, DEFAULT_DRAFTS = 15 };

/* Of a result message: what a row may take beside its logits, and the message's header. */
enum { SCORE_BYTES = sizeof(struct result_seq) + sizeof(float), MESSAGE_HEADERS_BYTES = 4096 };

struct status job_log_level(struct job *j)
{
    j->level = j->o->quiet ? LOG_WARN : LOG_INFO;
    if (j->o->log_level == NULL || log_level_parse(j->o->log_level, &j->level)) return status_ok();
    return status_make(STATUS_USAGE,
                       "--log-level: expected error, warn, info or debug, found \"%s\"",
                       j->o->log_level);
}

static struct status check_time_limit(struct job *j)
{
    uint64_t seconds = 0;
    if (j->o->time_limit == NULL) return status_ok();
    if (!drain_parse_time(j->o->time_limit, &seconds)) {
        return status_make(STATUS_USAGE, "--time-limit: expected seconds or H:M:S, found \"%s\"",
                           j->o->time_limit);
    }
    drain_limit(&j->drain, j->start_ns, seconds);
    return status_ok();
}

static struct status check_types(struct job *j)
{
    const char *activations = j->o->activations != NULL ? j->o->activations : "int8";
    j->kv_dtype = DTYPE_F16;
    if (j->o->kv_dtype != NULL) TRY(kv_dtype_parse(j->o->kv_dtype, &j->kv_dtype));
    j->weight_only = strcmp(activations, "f32") == 0;
    if (j->weight_only || strcmp(activations, "int8") == 0) return status_ok();
    return status_make(STATUS_USAGE, "--activations: expected int8 or f32, found \"%s\"",
                       activations);
}

static bool is_on_cpu(const struct job_options *o)
{
    return o->device == NULL || strcmp(o->device, "cpu") == 0;
}

static struct status check_device(const struct job_options *o)
{
    const bool on_cpu = is_on_cpu(o);
    if (!on_cpu && strcmp(o->device, "cuda") != 0)
        return status_make(STATUS_USAGE, "--device: expected cpu or cuda, found \"%s\"", o->device);
    if (o->fast_reductions && on_cpu)
        return status_make(STATUS_USAGE, "--fast-reductions: needs --device cuda");
    if (o->fast_reductions && o->exact_across_devices)
        return status_make(STATUS_USAGE,
                           "--fast-reductions and --exact-across-devices: expected one of them");
    if (o->fast_reductions)
        log_line(LOG_WARN, "--fast-reductions: results depend on the batch and the layout "
                           "(same-bytes law off)");
    if (o->device_comm == NULL || strcmp(o->device_comm, "auto") == 0 ||
        strcmp(o->device_comm, "nccl") == 0 || strcmp(o->device_comm, "staged") == 0)
        return status_ok();
    return status_make(STATUS_USAGE, "--device-comm: expected auto, nccl or staged, found \"%s\"",
                       o->device_comm);
}

static struct status check_capacity(struct job *j)
{
    const char *policy = j->o->capacity_policy != NULL ? j->o->capacity_policy : "drop";
    if (j->o->capacity_factor == 0) {
        if (j->o->capacity_policy == NULL) return status_ok();
        return status_make(STATUS_USAGE, "--capacity-policy: needs --capacity-factor");
    }
    if (strcmp(policy, "drop") == 0) j->policy = CAPACITY_DROP;
    if (strcmp(policy, "next") == 0) j->policy = CAPACITY_NEXT;
    if (strcmp(policy, "top1") == 0) j->policy = CAPACITY_TOP1;
    if (j->policy == CAPACITY_DROPLESS) {
        return status_make(STATUS_USAGE,
                           "--capacity-policy: expected drop, next or top1, found \"%s\"", policy);
    }
    log_line(LOG_WARN, "a capacity factor is on: results depend on the batch (same-bytes law off)");
    return status_ok();
}

struct status job_check_options(struct job *j)
{
    if (j->o->failpoint != NULL) TRY(failpoint_parse(j->o->failpoint, &j->failpoint));
    TRY(check_time_limit(j));
    TRY(check_types(j));
    TRY(check_device(j->o));
    return check_capacity(j);
}

/* *on = what an on|off flag says; NULL: on. */
static struct status check_switch(const char *flag, const char *asked, bool *on)
{
    *on = asked == NULL || strcmp(asked, "on") == 0;
    if (*on || strcmp(asked, "off") == 0) return status_ok();
    return status_make(STATUS_USAGE, "--%s: expected on or off, found \"%s\"", flag, asked);
}

/* A device's steps were never timed, and drafts change their shapes, which graphs replay. */
static const char *speculate_asked(const struct job_options *o)
{
    return o->speculate != NULL ? o->speculate : is_on_cpu(o) ? "auto" : "off";
}

/* Of the weights that a row is multiplied with: the part in experts. */
static float experts_part(const struct layout_model *m)
{
    const double width = m->width, heads = m->n_heads + m->n_kv_heads;
    double all = width * m->vocab, experts = 0;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        all += 2 * width * heads * m->head_dim;
        all += 3 * width * (m->layer_is_moe[i] ? m->shared_ffn : m->ffn);
        if (m->layer_is_moe[i]) experts += 3 * width * m->n_chosen * m->expert_ffn;
    }
    return (float)(experts / (all + experts));
}

/* From what steps took on two cores (bench/README.md, "Guessed tokens"), and rather too much than
 * too little. With 8 rows of codes the arithmetic takes as long as reading the weights. */
static struct drafting_cost draft_cost(const struct job *j)
{
    const struct layout_model *m = &j->layout_model;
    if (strcmp(speculate_asked(j->o), "auto") != 0)
        return (struct drafting_cost){0}; /* a number: so many, always */
    if (m->n_experts > 0)
        return (struct drafting_cost){.row = 0.2f,
                                      .experts = experts_part(m),
                                      .chosen = (float)m->n_chosen / (float)m->n_experts};
    const bool is_float = layout_weight_bytes(m, LAYOUT_FFN) >= 2;
    return is_float ? (struct drafting_cost){.row = 0.15f}
                    : (struct drafting_cost){.row = 0.3f, .full_rows = 8};
}

static struct status check_speculate(struct job *j, bool may_share)
{
    const char *asked = speculate_asked(j->o);
    char *end = NULL;
    unsigned long n = DEFAULT_DRAFTS;
    if (strcmp(asked, "off") == 0) n = 0;
    if (asked[0] >= '0' && asked[0] <= '9') n = strtoul(asked, &end, 10);
    const bool is_word = strcmp(asked, "off") == 0 || strcmp(asked, "auto") == 0;
    if ((!is_word && (end == NULL || *end != '\0')) || n > SCHEDULER_DRAFTS_MAX)
        return status_make(STATUS_USAGE, "--speculate: expected auto, off or 0 to %d, found \"%s\"",
                           SCHEDULER_DRAFTS_MAX, asked);
    j->n_drafts = may_share && !j->o->dry_run ? (uint32_t)n : 0; /* made-up answers have none */
    return status_ok();
}

/* With a capacity factor or free sums a row depends on its batch, so it may not serve another
 * request. */
static struct status check_scheduling(struct job *j)
{
    const bool may_share =
        j->policy == CAPACITY_DROPLESS && !j->o->fast_reductions && j->o->mode == LEAD_GENERATE;
    TRY(check_switch("prefix-cache", j->o->prefix_cache, &j->prefix_cache));
    TRY(check_switch("result-cache", j->o->result_cache, &j->result_cache));
    TRY(check_speculate(j, may_share));
    j->prefix_cache = j->prefix_cache && may_share;
    j->result_cache = j->result_cache && may_share && j->o->audit == 0; /* compute each */
    j->line_order = ORDER_AUTO;
    if (j->o->order != NULL && !order_parse(j->o->order, &j->line_order)) {
        return status_make(STATUS_USAGE, "--order: expected auto, input or prefix, found \"%s\"",
                           j->o->order);
    }
    if (j->o->logits != NULL) j->line_order = ORDER_INPUT; /* of the datasets, too */
    return status_ok();
}

/* What a step sends at once, hidden rows and with --logits the logits, stays below 2 GiB. */
static struct status check_step_tokens(const struct job *j)
{
    size_t row_bytes = hidden_bytes(1, j->model.width);
    if (j->o->logits != NULL && row_bytes < j->model.vocab * sizeof(float)) {
        row_bytes = j->model.vocab * sizeof(float);
    }
    const size_t most = ((size_t)INT_MAX - MESSAGE_HEADERS_BYTES) / (row_bytes + SCORE_BYTES);
    if (j->step_tokens <= most) return status_ok();
    return status_make(STATUS_USAGE, "--step-tokens: this model%s allows at most %zu, found %u",
                       j->o->logits != NULL ? " with --logits" : "", most, j->step_tokens);
}

struct status job_read_model(struct job *j)
{
    TRY(job_paths_check_model(j->o->model));
    TRY(ckpt_open(j->o->model, &j->ckpt));
    size_t n;
    const char *config = ckpt_config_json(j->ckpt, &n);
    TRY(status_wrap(arch_parse(config, n, "config.json", &j->model), "%s", j->o->model));
    TRY(weights_check(&j->model, j->ckpt, &j->layout_model));
    return job_read_limits(j);
}

struct status job_read_limits(struct job *j)
{
    j->max_model_len = j->model.context;
    if (j->o->max_model_len > 0) j->max_model_len = j->o->max_model_len;
    if (j->max_model_len > j->model.context) {
        return status_make(STATUS_USAGE, "--max-model-len: the model allows %u, found %u",
                           j->model.context, j->max_model_len);
    }
    if (j->max_model_len < 2) {
        return status_make(STATUS_USAGE,
                           "--max-model-len: expected at least 2, a token of the "
                           "prompt and one of the answer, found %u",
                           j->max_model_len);
    }
    TRY(check_scheduling(j));
    j->step_tokens = j->o->step_tokens > 0 ? j->o->step_tokens : DEFAULT_STEP_TOKENS;
    return check_step_tokens(j);
}

static struct status sink_logits(void *user, uint64_t line, int32_t row0, const float *rows,
                                 int32_t n_rows, int32_t vocab)
{
    return logits_file_write(user, line, row0, rows, n_rows, vocab);
}

/* Lines before the part are counted here, so that the lines of it keep their numbers. */
static struct status find_part(struct job *j)
{
    const char *text = j->o->input_part;
    if (text == NULL) return status_ok();
    if (!input_part_parse(text, &j->part)) {
        return status_make(STATUS_USAGE,
                           "--input-part: expected K/N with K from 1 to N, found \"%s\"", text);
    }
    return input_part_find(j->o->input, &j->part);
}

static struct status open_audit(struct job *j)
{
    const struct audit_options options = {.input_path = j->o->input,
                                          .output_path = j->o->output,
                                          .journal_path = j->journal_path,
                                          .settings = j->settings.data,
                                          .n_lines_before = j->part.n_before,
                                          .n_rows = j->o->audit,
                                          .seed = j->o->audit_seed};
    TRY(audit_create(&options, &j->audit));
    if (!audit_result(j->audit).has_journal) {
        log_line(LOG_WARN, "audit: there is no journal, so that flags and lines are those of the "
                           "job is taken on trust");
    }
    return status_ok();
}

/* No other job may write these files while this one runs. */
static struct status claim_outputs(struct job *j)
{
    const struct job_options *o = j->o;
    if (o->audit > 0) return status_ok(); /* it only reads */
    TRY(file_claims_create(j->env.job[0] != '\0' ? j->env.job : NULL, j->env.is_launched,
                           &j->claims));
    if (strcmp(o->output, "-") != 0) TRY(file_claims_add(j->claims, "output", o->output));
    if (j->journal_path != NULL) TRY(file_claims_add(j->claims, "journal", j->journal_path));
    if (o->logits != NULL) TRY(file_claims_add(j->claims, "--logits", o->logits));
    if (o->metrics != NULL) TRY(file_claims_add(j->claims, "--metrics", o->metrics));
    return o->trace != NULL ? file_claims_add(j->claims, "--trace", o->trace) : status_ok();
}

struct status job_open_lead(struct job *j)
{
    const struct job_options *o = j->o;
    TRY(job_paths_check(o));
    TRY(mem_alloc(&j->summary, 1, sizeof *j->summary, "summary"));
    TRY(job_text_init(&j->text, o, j->ckpt, &j->model));
    TRY(find_part(j));
    TRY(job_journal_path(o, &j->journal_path));
    TRY(job_journal_settings(j, &j->settings));
    TRY(job_journal_session(j, &j->session));
    TRY(claim_outputs(j));
    if (o->logits != NULL) TRY(logits_file_create(o->logits, &j->logits));
    if (o->audit > 0) TRY(open_audit(j));
    const struct lead_options options = {.mode = o->mode,
                                         .input_path = o->input,
                                         .output_path = o->output,
                                         .part = j->part.n > 0 ? &j->part : NULL,
                                         .tokenizer = j->text.tokenizer,
                                         .chat = j->text.chat,
                                         .chat_missing = j->text.chat_missing,
                                         .date = j->text.date,
                                         .defaults = j->text.defaults,
                                         .end_ids = j->text.end_ids,
                                         .n_end_ids = j->text.n_end_ids,
                                         .vocab_size = (int32_t)j->model.vocab,
                                         .max_model_len = (int32_t)j->max_model_len,
                                         .n_replicas = (int32_t)j->layout->dp,
                                         .n_groups = (int32_t)j->layout->pp,
                                         .max_batch = (int32_t)o->max_batch,
                                         .step_tokens = (int32_t)j->step_tokens,
                                         .step_ns = (uint64_t)o->step_ms * 1000000u,
                                         .chunk_tokens = (int32_t)o->chunk,
                                         .prefix_cache = j->prefix_cache,
                                         .result_cache = j->result_cache,
                                         .n_drafts = (int32_t)j->n_drafts,
                                         .draft_cost = draft_cost(j),
                                         .order = j->line_order,
                                         .logits = j->logits != NULL ? sink_logits : NULL,
                                         .logits_user = j->logits,
                                         .is_dry_run = o->dry_run,
                                         .quiet = o->quiet,
                                         .bar = o->progress_bar,
                                         .audit = j->audit,
                                         .journal_path = j->audit == NULL ? j->journal_path : NULL,
                                         .settings = j->settings.data,
                                         .session = j->session.data,
                                         .restart = o->restart,
                                         .retry_errors = o->retry_errors,
                                         .checkpoint_tokens = (int32_t)o->checkpoint_tokens,
                                         .failpoint = &j->failpoint,
                                         .claims = j->claims};
    return lead_create(&options, &j->lead);
}
