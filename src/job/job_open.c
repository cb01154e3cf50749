/* The start of a job before anything is loaded: settles the flags, reads the checkpoint's config,
 * opens the lead's files. */
#include "base/file.h"
#include "base/mem.h"
#include "job/job_counts.h"
#include "job/job_journal.h"
#include "job/job_paths.h"
#include "job/job_private.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { AUTO_DRAFTS = 15 }; /* most draft tokens if --speculate gives no number */
static const uint64_t piped_step_ns = 2000000000u, served_step_ns = 200000000u;

/* Bytes of a result message besides its logits: per row, and for the headers. */
enum { SCORE_BYTES = sizeof(struct result_seq) + sizeof(float), MESSAGE_HEADERS_BYTES = 4096 };

static struct status check_device(const struct device_flags *f)
{
    if (f->fast_reductions && f->device == DEVICE_CPU)
        return status_make(STATUS_USAGE, "--fast-reductions: needs --device cuda");
    if (f->fast_reductions && f->exact_across_devices)
        return status_make(STATUS_USAGE,
                           "--fast-reductions and --exact-across-devices: expected one of them");
    if (f->fast_reductions)
        log_line(LOG_WARN, "--fast-reductions: results depend on the batch and the layout "
                           "(same-bytes law off)");
    return status_ok();
}

static struct status settle_capacity(struct job *j)
{
    if (j->o->capacity.factor > 0) {
        log_line(LOG_WARN,
                 "a capacity factor is on: results depend on the batch (same-bytes law off)");
        /* A capacity applies to all rows of a step, so no step runs in halves. The layout must not
         * count on halves, and no memory is kept for them. */
        j->options.layout.overlap = OVERLAP_OFF;
        return status_ok();
    }
    if (flags_is_given(&j->o->given, "capacity-policy"))
        return status_make(STATUS_USAGE, "--capacity-policy: needs --capacity-factor");
    j->options.capacity.policy = CAPACITY_DROPLESS;
    return status_ok();
}

struct status job_check_options(struct job *j)
{
    j->failpoint = j->o->run.failpoint;
    if (flags_is_given(&j->o->given, "time-limit"))
        drain_limit(&j->drain, j->times.start_ns, j->o->run.time_limit_s);
    TRY(check_device(&j->o->device));
    if (j->o->layout.plain_exchange) /* it sends nothing in halves */
        j->options.layout.overlap = OVERLAP_OFF;
    return settle_capacity(j);
}

/* Returns the experts' fraction of all weights that multiply one row, with those of the head. */
static float experts_part(const struct arch *m)
{
    const double all = (double)arch_token_params(m) + (double)m->width * m->vocab;
    return (float)((double)arch_token_expert_params(m) / all);
}

/* Returns roughly how many weights the prediction layer and its head read, as a fraction of a
 * step's weights. */
static float prediction_part(const struct arch *m)
{
    const double d = m->width, head = d * m->vocab, all = (double)arch_token_params(m);
    return m->n_predict == 0 ? 0 : (float)((all / m->n_layers + 2 * d * d + head) / (all + head));
}

/* Returns how the cost of a step depends on its rows, from measurements on two cores
 * (bench/README.md, "Guessed tokens"), rounded up. With 8 rows of quantized values the arithmetic
 * takes as long as reading the weights. */
static struct drafting_cost draft_cost(const struct layout_model *m)
{
    const struct arch *a = m->arch;
    if (a->moe.n_experts > 0)
        return (struct drafting_cost){.row = 0.2f,
                                      .experts = experts_part(a),
                                      .chosen = (float)a->moe.n_chosen / (float)a->moe.n_experts,
                                      .predict = prediction_part(a)};
    const bool is_float = layout_weight_bytes(m, CLASS_FFN) >= 2;
    return is_float ? (struct drafting_cost){.row = 0.15f}
                    : (struct drafting_cost){.row = 0.3f, .full_rows = 8};
}

/* Decides whether to load the prediction layer: only if the checkpoint has one and its guesses may
 * be used. Tokens must be generated, with --speculate auto or mtp; no row may depend on its batch;
 * and there must be no device, no draft model, no --expert-load and no --expert-replan, whose lists
 * have only the other layers. If experts stream, job_fit_layout drops the layer again. */
static struct status settle_prediction(struct job *j)
{
    const struct job_options *o = j->o;
    const int32_t ways = o->schedule.n_drafts;
    const bool has = weights_may_predict(&j->model, j->ckpt);
    const bool may = (ways == SCHEDULE_DRAFTS_AUTO || ways == SCHEDULE_DRAFTS_MTP) &&
                     o->mode == LEAD_GENERATE && o->run_instead == NULL && !o->run.dry_run &&
                     o->capacity.policy == CAPACITY_DROPLESS && o->device.device == DEVICE_CPU &&
                     o->layout.expert_load == NULL && o->layout.expert_replan == 0 &&
                     o->files.draft == NULL;
    if (ways == SCHEDULE_DRAFTS_MTP && !has)
        return status_make(STATUS_USAGE, "--speculate mtp: %s has no prediction layer",
                           o->files.model);
    j->model.n_predict = has && may ? 1 : 0;
    return status_ok();
}

/* Returns the task of a server without --task, which follows from the model's files. */
static enum http_task task_of(const struct job *j)
{
    size_t n;
    const bool has_head = j->model.tied || ckpt_find(j->ckpt, "lm_head.weight") != NULL;
    if (ckpt_find(j->ckpt, "score.weight") != NULL) return HTTP_TASK_RANK;
    if (!has_head || j->model.encoder || ckpt_text(j->ckpt, CKPT_TEXT_EMBEDDING, &n) != NULL)
        return HTTP_TASK_EMBED;
    return HTTP_TASK_GENERATE;
}

/* Refuses the flags of the other tasks. */
static struct status check_task_flags(const struct job *j)
{
    static const struct {
        enum lead_mode mode;
        enum job_group group;
        const char *task;
    } own[] = {{LEAD_GENERATE, JOB_SAMPLING, "generate"},
               {LEAD_EMBED, JOB_EMBED, "embed"},
               {LEAD_RANK, JOB_RANK, "rank"}};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        const struct flag_group *g = &job_groups[own[i].group];
        for (size_t k = 0; own[i].mode != j->o->mode && k < g->n; k++) {
            if (!flags_is_given(&j->o->given, g->rows[k].name)) continue;
            return status_make(STATUS_USAGE,
                               "--%s: without effect on this server; it needs --task %s",
                               g->rows[k].name, own[i].task);
        }
    }
    return status_ok();
}

static struct status settle_task(struct job *j)
{
    static const enum lead_mode modes[] = {[HTTP_TASK_GENERATE] = LEAD_GENERATE,
                                           [HTTP_TASK_EMBED] = LEAD_EMBED,
                                           [HTTP_TASK_RANK] = LEAD_RANK};
    if (!j->o->serves) return status_ok();
    const enum http_task asked = j->o->http.task;
    j->options.mode = modes[asked != HTTP_TASK_AUTO ? asked : task_of(j)];
    return check_task_flags(j);
}

/* For encoders: refuses commands that need tokens or a head that is missing, and GPUs. */
static struct status check_encoder(const struct job *j)
{
    const char *path = j->o->files.model, *title = j->model.family->title;
    if (!j->model.encoder) return status_ok();
    const bool scores = ckpt_find(j->ckpt, "score.weight") != NULL;
    if (j->o->mode != LEAD_EMBED && !(scores && j->o->mode == LEAD_RANK))
        return status_make(
            STATUS_USAGE, "%s: %s is an encoder, which gives no tokens%s", path, title,
            scores ? "; use shoal embed or rank, or serve it with --task embed or rank"
                   : ", and this one has no head for scores; use shoal embed, or serve it with "
                     "--task embed");
    if (j->o->device.device == DEVICE_CPU) return status_ok();
    return status_make(STATUS_USAGE, "--device cuda: not implemented for encoders, such as %s",
                       title);
}

/* Leaves out the head if only hidden states are wanted. Errors: STATUS_USAGE if logits are wanted
 * and the model has no head. */
static struct status settle_head(struct job *j)
{
    const bool has = j->model.tied || ckpt_find(j->ckpt, "lm_head.weight") != NULL;
    j->model.headless = j->o->mode == LEAD_EMBED || j->o->mode == LEAD_RANK;
    if (has || j->model.headless) return status_ok();
    return status_make(STATUS_USAGE,
                       "%s: an embedding model without a head (lm_head.weight) gives no tokens; "
                       "use shoal embed or shoal rank, or serve it with --task embed",
                       j->o->files.model);
}

/* Sets the number of draft tokens: 0 unless may_share, and in a dry run. A number that the user
 * gave stays as it is (with --draft, of the draft model's tokens), and `mtp` uses every guess;
 * `auto` and `ngram` draft as many as are worth their cost. On a device `auto` must be asked for:
 * its steps were never timed, and its graphs replay fixed shapes, which drafts change. */
static void settle_drafts(struct job *j, bool may_share)
{
    struct schedule_flags *f = &j->options.schedule;
    const bool is_asked = flags_is_given(&j->o->given, "speculate");
    const bool is_auto = f->n_drafts < 0;
    j->no_repeats = f->n_drafts == SCHEDULE_DRAFTS_MTP || (!is_auto && j->draft != NULL);
    if (is_auto && !j->no_repeats) j->draft_cost = draft_cost(&j->layout_model);
    if (is_auto) f->n_drafts = AUTO_DRAFTS;
    if (!is_asked && j->o->device.device != DEVICE_CPU) f->n_drafts = 0;
    if (!may_share || j->o->run.dry_run)
        f->n_drafts = 0; /* answers of a dry run are made up, so drafts would be wrong */
}

/* Settles the caches, the drafts and the order. With a capacity factor or --fast-reductions a row
 * depends on its batch, so results may not be reused for other requests. */
static void settle_scheduling(struct job *j)
{
    struct schedule_flags *f = &j->options.schedule;
    const bool is_law = j->o->capacity.policy == CAPACITY_DROPLESS && !j->o->device.fast_reductions;
    const bool may_share = is_law && j->o->mode != LEAD_SCORE;
    /* the state after a shared block is not kept, and a wrong guess would stay in the state */
    const bool has_states = arch_has_states(&j->model);
    settle_drafts(j, may_share && !has_states && j->o->mode == LEAD_GENERATE);
    if (!is_law || has_states || j->model.encoder || j->o->files.logits != NULL)
        f->prefix_cache = false;
    if (!may_share || j->o->files.audit > 0) j->options.lead.result_cache = false;
    if (j->o->files.logits != NULL)
        f->order = ORDER_INPUT; /* also fixes the order of the datasets */
}

/* Settles --step-ms. If the input is a file, nobody waits for a single answer, so a step may take
 * as long as its rows need; a giant's weights are then read once for many rows. A program that
 * writes to a pipe may be waiting for answers; a client of a server always is, but sees single
 * steps only in a stream, so without streams the bound of pipes holds (eased_step_ns). */
static void settle_step_time(struct job *j)
{
    const struct flag_list *inputs = &j->o->files.input;
    if (flags_is_given(&j->o->given, "step-ms")) return;
    if (j->o->serves) {
        j->options.schedule.step_ns = served_step_ns;
        return;
    }
    const char *input = inputs->n > 0 ? inputs->values[0] : "";
    const bool is_file =
        inputs->n > 1 || input_files_is_stored(strcmp(input, "-") == 0 ? "/dev/stdin" : input);
    j->options.schedule.step_ns = is_file ? 0 : piped_step_ns;
}

/* Refuses a --step-tokens with which the largest message of a step (hidden rows, also those of
 * --save-hidden, or logits with --logits) could reach 2 GiB. */
static struct status check_step_tokens(const struct job *j)
{
    const bool has_logits = j->o->files.logits != NULL;
    const size_t n = (size_t)j->o->schedule.step_tokens;
    size_t row_bytes = hidden_bytes(1, arch_row_width(&j->model));
    if (has_logits && row_bytes < j->model.vocab * sizeof(float))
        row_bytes = j->model.vocab * sizeof(float);
    if (j->o->files.save_logprobs != NULL)
        row_bytes += j->o->files.save_logprobs_k * sizeof(struct plan_top);
    const size_t saved_bytes = hidden_layers_bytes(&j->hidden, j->model.width);
    if (row_bytes < saved_bytes) row_bytes = saved_bytes;
    const size_t most = ((size_t)INT_MAX - MESSAGE_HEADERS_BYTES) / (row_bytes + SCORE_BYTES);
    if (n <= most) return status_ok();
    const bool by_hidden = j->hidden.n > 0 && row_bytes == saved_bytes;
    return status_make(
        STATUS_USAGE, "--step-tokens: this model%s allows at most %zu, found %zu%s",
        by_hidden    ? " with --save-hidden of these layers"
        : has_logits ? " with --logits"
                     : "",
        most, n, flags_is_given(&j->o->given, "step-tokens") ? "" : " (the default): give fewer");
}

static struct status read_hidden_layers(struct job *j)
{
    const char *text = j->o->files.save_hidden;
    j->hidden.type = j->o->files.save_hidden_type;
    if (text != NULL && j->model.streams.n > 0)
        return status_make(STATUS_USAGE,
                           "--save-hidden: %s has %u residual streams; there is no one row after a "
                           "layer",
                           j->model.family->title, j->model.streams.n);
    return text == NULL ? status_ok() : hidden_layers_parse(text, j->model.n_layers, &j->hidden);
}

static struct status read_adapters(struct job *j)
{
    if (j->o->files.adapter.n > 0 && j->o->device.device != DEVICE_CPU)
        return status_make(STATUS_USAGE, "--adapter: not with --device cuda");
    if (j->o->files.adapter.n > 0 && (j->o->mode == LEAD_EMBED || j->o->mode == LEAD_RANK))
        return status_make(STATUS_USAGE, "--adapter: not for vectors and scores of documents");
    TRY(job_adapters_read(&j->adapters, &j->model, &j->o->files.adapter));
    if (j->adapters.adapts_experts)
        j->layout_model.expert_code_group = 0; /* rows travel as floats */
    return status_ok();
}

struct status job_read_model(struct job *j)
{
    TRY(job_paths_check_model("model", j->o->files.model));
    TRY(ckpt_open(j->o->files.model, &j->ckpt));
    size_t n;
    const char *config = ckpt_config_json(j->ckpt, &n);
    TRY(status_wrap(arch_parse(config, n, "config.json", &j->model), "%s", j->o->files.model));
    TRY(settle_task(j));
    TRY(check_encoder(j));
    TRY(settle_prediction(j));
    TRY(read_hidden_layers(j));
    TRY(settle_head(j));
    TRY(weights_check(&j->model, j->ckpt, &j->layout_model));
    if (j->o->model.fp8_activations == ACTIVATIONS_INT8 && j->layout_model.expert_fp8_group > 0)
        j->layout_model.expert_code_group = j->layout_model.expert_fp8_group;
    j->layout_model.on_device = j->o->device.device != DEVICE_CPU;
    TRY(read_adapters(j));
    return job_read_limits(j);
}

/* Raises the rows of a step to those of an encoder's longest text, unless --step-tokens is given.
 */
static struct status settle_whole_texts(struct job *j)
{
    int32_t *step = &j->options.schedule.step_tokens;
    const uint32_t n = job_step_tokens(j->o, &j->model, j->o->model.max_model_len);
    if (n == (uint32_t)*step) return status_ok();
    if (flags_is_given(&j->o->given, "step-tokens"))
        return status_make(STATUS_USAGE,
                           "--step-tokens: an encoder computes a text in one step: expected at "
                           "least --max-model-len, %u, found %d",
                           n, *step);
    *step = (int32_t)n;
    return status_ok();
}

static struct status settle_context(struct job *j)
{
    uint32_t *n = &j->options.model.max_model_len;
    if (*n == 0) *n = j->model.context;
    if (*n > j->model.context)
        return status_make(STATUS_USAGE, "--max-model-len: the model allows %u, found %u",
                           j->model.context, *n);
    job_bound_context(*n, &j->model);
    if (*n >= 2) return settle_whole_texts(j);
    return status_make(STATUS_USAGE,
                       "--max-model-len: expected at least 2, a token of the prompt and one of the "
                       "answer, found %u",
                       *n);
}

struct status job_read_limits(struct job *j)
{
    TRY(settle_context(j));
    TRY(job_draft_open(j));
    settle_scheduling(j);
    settle_step_time(j);
    return check_step_tokens(j);
}

static struct status sink_logits(void *user, uint64_t line, int32_t row0, const float *rows,
                                 int32_t n_rows, int32_t vocab)
{
    return logits_file_write(user, line, row0, rows, n_rows, vocab);
}

/* With --input-part, counts the lines before the part, so that its lines keep their numbers. */
static struct status find_part(struct job *j)
{
    j->files.part = j->o->files.part;
    return j->files.part.n > 0 ? input_part_find(&j->files.inputs, &j->files.part) : status_ok();
}

static struct status open_audit(struct job *j)
{
    const struct audit_options options = {.input_path = j->files.inputs.name,
                                          .output_path = j->o->files.output,
                                          .journal_path = j->files.journal_path,
                                          .settings = j->files.settings.data,
                                          .n_lines_before = j->files.part.n_before,
                                          .n_rows = j->o->files.audit,
                                          .seed = j->o->files.audit_seed};
    TRY(audit_create(&options, &j->audit));
    if (!audit_result(j->audit).has_journal) {
        log_line(LOG_WARN, "audit: without a journal it cannot be checked that the flags and lines "
                           "are those of the job that wrote the output");
    }
    return status_ok();
}

/* Claims the files that the job writes, so that no other job writes them meanwhile. Makes the
 * folder of --journal only once the output is claimed: a job that has no right to it makes none. */
static struct status claim_outputs(struct job *j)
{
    const struct job_options *o = j->o;
    if (o->files.audit > 0) return status_ok(); /* an audit only reads */
    TRY(file_claims_create(j->env.job[0] != '\0' ? j->env.job : NULL, j->env.launcher_pid,
                           &j->files.claims));
    if (o->files.output != NULL && strcmp(o->files.output, "-") != 0)
        TRY(file_claims_add(j->files.claims, "output", o->files.output));
    if (j->files.journal_path != NULL) {
        TRY(job_journal_folder(o, &j->files.journal_folder_is_new));
        TRY(file_claims_add(j->files.claims, "journal", j->files.journal_path));
    }
    if (o->files.logits != NULL) TRY(file_claims_add(j->files.claims, "--logits", o->files.logits));
    if (j->files.save.path != NULL)
        TRY(file_claims_add(j->files.claims, "--save-logprobs", j->files.save.path));
    if (o->files.vectors != NULL)
        TRY(file_claims_add(j->files.claims, "--vectors", o->files.vectors));
    if (o->files.metrics != NULL)
        TRY(file_claims_add(j->files.claims, "--metrics", o->files.metrics));
    return o->files.trace != NULL ? file_claims_add(j->files.claims, "--trace", o->files.trace)
                                  : status_ok();
}

/* Sets j->files.save; a dry run saves nothing, because its answers are made up. */
static void settle_saving(struct job *j)
{
    const struct job_file_flags *f = &j->o->files;
    if (f->save_logprobs == NULL || j->o->run.dry_run) return;
    const struct ckpt_digest digest = ckpt_digest(j->ckpt);
    snprintf(j->files.checkpoint, sizeof j->files.checkpoint, "%016llx%016llx",
             (unsigned long long)digest.high, (unsigned long long)digest.low);
    j->files.save = (struct logprobs_options){.path = f->save_logprobs,
                                              .shape = {.model = j->layout_model.name,
                                                        .checkpoint = j->files.checkpoint,
                                                        .k = f->save_logprobs_k,
                                                        .vocab = j->model.vocab,
                                                        .type = f->save_logprobs_type,
                                                        .hidden = {.layers = j->hidden,
                                                                   .n_layers = j->model.n_layers,
                                                                   .width = j->model.width}},
                                              .span = f->save_hidden_of,
                                              .failpoint = &j->failpoint};
}

/* Expands the inputs, and finds or opens the other files of a job of lines: part, journal, claims,
 * --logits, audit. */
static struct status open_lines(struct job *j)
{
    const struct job_options *o = j->o;
    TRY(input_files_expand(o->files.input.values, o->files.input.n, &j->files.inputs));
    TRY(job_paths_check_inputs(o, &j->files.inputs));
    TRY(find_part(j));
    TRY(job_journal_path(o, &j->files.journal_path));
    TRY(job_journal_settings(j, &j->files.settings));
    TRY(job_journal_session(j, &j->files.session));
    settle_saving(j);
    TRY(claim_outputs(j));
    if (o->files.logits != NULL) TRY(logits_file_create(o->files.logits, &j->files.logits));
    return o->files.audit > 0 ? open_audit(j) : status_ok();
}

/* Returns the endpoints that a batch may name; they depend on the server's task. */
static const char *const *batch_endpoints(enum lead_mode mode)
{
    static const char *const texts[] = {"/v1/completions", "/v1/chat/completions", NULL};
    static const char *const vectors[] = {"/v1/embeddings", NULL};
    static const char *const scores[] = {"/v1/rerank", NULL};
    return mode == LEAD_EMBED ? vectors : mode == LEAD_RANK ? scores : texts;
}

static struct status open_port(struct job *j, struct lead_port *out)
{
    TRY(claim_outputs(j));
    TRY(job_journal_settings(j, &j->files.settings));
    const struct http_port_options options = {.flags = &j->o->http,
                                              .model_path = j->o->files.model,
                                              .adapters = j->adapters.rules,
                                              .n_adapters = j->adapters.n,
                                              .settings = j->files.settings.data,
                                              .batch_endpoints = batch_endpoints(j->o->mode),
                                              .claims = j->files.claims};
    TRY(http_port_create(&options, &j->http));
    *out = http_port_of(j->http);
    return status_ok();
}

static bool has_form(const struct request_form *f)
{
    return f->field != NULL || f->made_by != NULL;
}

struct status job_open_lead(struct job *j)
{
    const struct job_options *o = j->o;
    const bool embeds = o->mode == LEAD_EMBED || o->mode == LEAD_RANK;
    struct lead_port port;
    TRY(job_paths_check(o));
    TRY(mem_alloc(&j->summary, 1, sizeof *j->summary, "summary"));
    TRY(job_text_init(&j->text, o, j->ckpt, &j->model));
    if (o->mode == LEAD_EMBED) {
        TRY(job_embed_init(&j->embed, &o->embed, j->ckpt, &j->model));
        TRY(status_wrap(job_embed_check_case(&j->embed, j->text.tokenizer), "%s",
                        ckpt_path(j->ckpt)));
    }
    if (o->mode == LEAD_RANK)
        TRY(job_rank_init(&j->embed, &o->rank, j->ckpt, &j->model, j->text.tokenizer));
    TRY(o->serves ? open_port(j, &port) : open_lines(j));
    const bool eases_step = o->serves && !flags_is_given(&o->given, "step-ms");
    const struct lead_options options = {.mode = o->mode,
                                         .port = o->serves ? &port : NULL,
                                         .input_path = j->files.inputs.name,
                                         .inputs = &j->files.inputs,
                                         .output_path = o->files.output,
                                         .part = j->files.part.n > 0 ? &j->files.part : NULL,
                                         .tokenizer = j->text.tokenizer,
                                         .chat = j->text.chat,
                                         .chat_missing = j->text.chat_missing,
                                         .date = j->text.date,
                                         .embed = embeds ? &j->embed.rules : NULL,
                                         .form = has_form(&j->text.form) ? &j->text.form : NULL,
                                         .defaults = j->text.defaults,
                                         .end_ids = j->text.end_ids,
                                         .n_end_ids = j->text.n_end_ids,
                                         .adapters = j->adapters.rules,
                                         .n_adapters = j->adapters.n,
                                         .prefix_id = j->text.prefix_id,
                                         .vocab_size = (int32_t)j->model.vocab,
                                         .max_model_len = (int32_t)o->model.max_model_len,
                                         .n_replicas = (int32_t)j->layout->dp,
                                         .n_groups = (int32_t)j->layout->pp,
                                         .tables = job_tables(j),
                                         .schedule = o->schedule,
                                         .flags = o->lead,
                                         .eased_step_ns = eases_step ? piped_step_ns : 0,
                                         .drafts.cost = j->draft_cost,
                                         .drafts.predicts = j->model.n_predict > 0,
                                         .drafts.no_repeats = j->no_repeats,
                                         .drafts.model = job_draft_source(j),
                                         .logits = j->files.logits != NULL ? sink_logits : NULL,
                                         .logits_user = j->files.logits,
                                         .is_dry_run = o->run.dry_run,
                                         .save = j->files.save.path != NULL ? &j->files.save : NULL,
                                         .audit = j->audit,
                                         .journal.path =
                                             j->audit == NULL ? j->files.journal_path : NULL,
                                         .journal.settings = j->files.settings.data,
                                         .journal.session = j->files.session.data,
                                         .journal.failpoint = &j->failpoint,
                                         .journal.claims = j->files.claims};
    TRY(lead_create(&options, &j->lead));
    job_counts_begin(j);
    return status_ok();
}
