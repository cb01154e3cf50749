/* Quantizes with calibration, as a job of MPI ranks. */
#include "job/quantize_job.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "calibrate/quantize_file.h"
#include "checkpoint/file/ckpt_room.h"
#include "checkpoint/load/loader.h"
#include "job/calibration_set.h"
#include "job/job_same.h"
#include "quant/auto_policy.h"

#include <stdio.h>
#include <string.h>

struct quantize_job {
    const struct quantize_job_options *o;
    struct config env;
    struct comm *comm;
    struct topo *topo;
    struct layout *layout; /* owned */
    uint32_t *order;       /* owned [ranks] */
    struct team *team;     /* owned */
    struct kern_table kern;
    struct ckpt *ckpt;
    struct arch model;
    struct layout_model layout_model;
    struct calibration_set set;
    struct quantize_choice *choices; /* owned [ckpt_tensor_count] */
    struct calibrate_report report;
    uint64_t start_ns;
    /* rank 0 only */
    struct quantize_file file;
    bool *is_written; /* owned [ckpt_tensor_count] */
};

#define PHASE(expr) TRY(comm_agree(j->comm, (expr)))

/* ---- start ---- */

static struct status open_model(struct quantize_job *j)
{
    size_t n;
    struct quantize_policy policy;
    TRY(kern_select(j->env.kernels, &j->kern));
    TRY(ckpt_open(j->o->source, &j->ckpt));
    const char *config = ckpt_config_json(j->ckpt, &n);
    TRY(status_wrap(arch_parse(config, n, "config.json", &j->model), "%s", j->o->source));
    if (j->model.encoder)
        return status_make(STATUS_USAGE,
                           "%s: calibration is not implemented for encoders, such as %s",
                           j->o->source, j->model.family->title);
    TRY(weights_check(&j->model, j->ckpt, &j->layout_model));
    TRY(quantize_policy_parse(j->o->flags.format, j->o->flags.policy, &policy));
    return quantize_choose(j->ckpt, &j->model, &policy, &j->choices);
}

/* Makes the layout. Ranks keep the launcher's order, because their communication does not depend on
 * which ranks are near each other. */
static struct status quantize_job_make_layout(struct quantize_job *j)
{
    const uint32_t n_ranks = (uint32_t)comm_size(j->comm, COMM_WORLD);
    TRY(mem_alloc(&j->layout, 1, sizeof *j->layout, "layout"));
    TRY(mem_alloc(&j->order, n_ranks, sizeof *j->order, "rank order"));
    for (uint32_t i = 0; i < n_ranks; i++) j->order[i] = i;
    return calibrate_layout(&j->layout_model, n_ranks, j->layout);
}

static struct status quantize_job_start_threads(struct quantize_job *j)
{
    const uint32_t rank = (uint32_t)comm_rank(j->comm, COMM_WORLD);
    const uint32_t n = j->o->flags.threads > 0 ? j->o->flags.threads
                       : j->env.n_threads > 0  ? j->env.n_threads
                                               : topo_threads(j->topo, rank);
    TRY(team_create(n, &j->team));
    topo_bind_threads(j->topo, rank, j->team);
    j->kern.team = j->team;
    comm_use_team(j->comm, j->team);
    return status_ok();
}

static struct status quantize_job_start(struct quantize_job *j)
{
    PHASE(open_model(j));
    PHASE(loader_check_same(j->ckpt, comm_handle(j->comm, COMM_WORLD)));
    TRY(comm_gather_topo(j->comm, &j->topo));
    PHASE(quantize_job_make_layout(j));
    PHASE(comm_split(j->comm, j->layout, j->order));
    PHASE(quantize_job_start_threads(j));
    const size_t context = j->model.context, most = j->o->flags.max_tokens;
    TRY(calibration_set_read(&j->set, j->o->flags.calibration, most < context ? most : context,
                             j->ckpt, &j->model, j->comm));
    log_line(LOG_INFO, "calibration: %zu prompts, %zu tokens", j->set.n_seqs,
             j->set.first[j->set.n_seqs]);
    return status_ok();
}

static struct quant_format quantize_job_format_of(void *ctx, const struct ckpt_tensor *t)
{
    const struct quantize_job *j = ctx;
    const struct quantize_choice *c = &j->choices[t->index];
    return c->keep ? (struct quant_format){.kind = QUANT_NONE} : c->format;
}

/* ---- rank 0 writes ---- */

static struct status begin_tensor(void *ctx, const struct ckpt_tensor *t, struct quant_format f)
{
    struct quantize_job *j = ctx;
    (void)f; /* choices[t->index] has it already */
    const struct ckpt_tensor_spec spec =
        quantize_spec(t, &j->choices[t->index],
                      flag_word_of(FLAG_WORDS(METHOD_WORDS), (int32_t)j->o->flags.method));
    j->is_written[t->index] = true;
    j->file.result.n_quantized++;
    return ckpt_writer_tensor(j->file.writer, &spec);
}

static struct status quantize_job_write_rows(void *ctx, const struct quant_block *block,
                                             size_t n_rows)
{
    struct quantize_job *j = ctx;
    return ckpt_writer_quant_rows(j->file.writer, block, n_rows);
}

static struct status write_plain(void *ctx, const struct ckpt_tensor *t, const float *rows)
{
    struct quantize_job *j = ctx;
    struct quantize_choice choice = j->choices[t->index];
    choice.keep = false;
    choice.format = (struct quant_format){.kind = QUANT_NONE};
    choice.dtype =
        DTYPE_F32; /* with scales folded in, the values would be rounded in a narrower type */
    const struct ckpt_tensor_spec spec = quantize_spec(t, &choice, NULL);
    j->is_written[t->index] = true;
    j->file.result.n_kept++;
    TRY(ckpt_writer_tensor(j->file.writer, &spec));
    return ckpt_writer_rows(j->file.writer, rows, t->n_rows);
}

static struct status quantize_job_open_file(struct quantize_job *j)
{
    if (comm_rank(j->comm, COMM_WORLD) != 0) return status_ok();
    TRY(mem_alloc(&j->is_written, ckpt_tensor_count(j->ckpt), sizeof *j->is_written, "marks"));
    uint64_t n_free;
    j->file.c = j->ckpt;
    j->file.choices = j->choices;
    j->file.team = j->team;
    TRY(ckpt_room_free(j->o->path, &n_free));
    TRY(ckpt_room_check(j->o->path, quantize_file_needed(&j->file), n_free));
    TRY(ckpt_writer_create(j->o->path, ckpt_source(j->ckpt), &j->file.writer));
    return quantize_texts(&j->file);
}

/* Writes the tensors that calibration did not write: the embedding, kept tensors, and others
 * besides the layers' linears. Rounds those to be quantized to nearest (RTN). */
static struct status finish_file(struct quantize_job *j)
{
    if (comm_rank(j->comm, COMM_WORLD) != 0) return status_ok();
    for (size_t i = 0; i < ckpt_tensor_count(j->ckpt); i++) {
        if (!j->is_written[i]) TRY(quantize_tensor(&j->file, i));
    }
    return ckpt_writer_finish(&j->file.writer);
}

/* ---- formats by sensitivity ---- */

enum { N_TRIED = 4 };

/* Lists the first N_TRIED - 1 formats to try, from few bits to many. The last one, not listed, is
 * to keep the tensor, which has no error. */
static struct status tried_formats(struct quant_format *out)
{
    static const char *const names[N_TRIED - 1] = {"int4-g128", "int4-g32", "int8-g128"};
    for (int i = 0; i < N_TRIED - 1; i++) {
        if (!quant_format_parse(names[i], &out[i])) return status_make(STATUS_BUG, "%s", names[i]);
    }
    return status_ok();
}

static uint64_t stored_bits(const struct ckpt_tensor *t, struct quant_format f)
{
    const uint64_t scale = dtype_bytes(quant_scale_dtype(f)) + f.has_zeros;
    return 8 * t->n_rows *
           (quant_code_bytes(f.kind, t->n_cols) + quant_groups(f, t->n_cols) * scale);
}

static void fill_item(const struct calibrate_error *e, const struct quant_format *formats,
                      struct auto_item *out)
{
    out->n_weights = e->tensor->n_rows * e->tensor->n_cols;
    for (int f = 0; f < N_TRIED - 1; f++) {
        out->error[f] = e->error[f];
        out->n_bits[f] = stored_bits(e->tensor, formats[f]);
    }
    out->n_bits[N_TRIED - 1] = out->n_weights * dtype_bytes(e->tensor->dtype) * 8;
}

static void take_methods(struct quantize_job *j, const struct calibrate_error *errors, size_t n,
                         const struct quant_format *formats, const struct auto_item *items)
{
    uint64_t n_bits = 0, n_weights = 0;
    size_t counts[N_TRIED] = {0};
    for (size_t i = 0; i < n; i++) {
        struct quantize_choice *c = &j->choices[errors[i].tensor->index];
        const uint32_t choice = items[i].choice;
        char name[32] = "keep";
        c->keep = choice == N_TRIED - 1;
        if (!c->keep) c->format = formats[choice];
        if (!c->keep) quant_format_name(c->format, name, sizeof name);
        log_line(LOG_DEBUG, "%s: %s, errors %.3g %.3g %.3g", errors[i].tensor->name, name,
                 errors[i].error[0], errors[i].error[1], errors[i].error[2]);
        n_bits += items[i].n_bits[choice];
        n_weights += items[i].n_weights;
        counts[choice]++;
    }
    log_line(LOG_INFO,
             "--auto-policy: int4-g128 for %zu tensors, int4-g32 for %zu, int8-g128 for %zu, "
             "%zu kept: %.3f bits per weight",
             counts[0], counts[1], counts[2], counts[3], (double)n_bits / (double)n_weights);
}

static struct status choose_formats(struct quantize_job *j, const struct calibrate_options *o)
{
    struct quant_format formats[N_TRIED - 1];
    struct calibrate_error *errors = NULL;
    struct auto_item *items = NULL;
    size_t n = 0;
    uint64_t n_weights = 0;
    struct status st;
    TRY(tried_formats(formats));
    TRY_GOTO(st, calibrate_sensitivity(o, formats, N_TRIED - 1, &errors, &n), out);
    TRY_GOTO(st, mem_alloc(&items, n, sizeof *items, "formats"), out);
    for (size_t i = 0; i < n; i++) {
        fill_item(&errors[i], formats, &items[i]);
        n_weights += items[i].n_weights;
    }
    const double budget = j->o->flags.auto_bits * (double)n_weights;
    TRY_GOTO(st, auto_policy_choose(items, n, N_TRIED, (uint64_t)budget), out);
    take_methods(j, errors, n, formats, items);
    st = quantize_leaves(j->ckpt, &j->model, j->choices);
out:
    mem_free(&items);
    mem_free(&errors);
    return comm_agree(j->comm, st);
}

/* ---- run ---- */

static struct status run_quantize(struct quantize_job *j)
{
    TRY(quantize_job_start(j));
    const struct calibrate_options o = {.comm = j->comm,
                                        .kern = &j->kern,
                                        .ckpt = j->ckpt,
                                        .model = &j->model,
                                        .layout_model = &j->layout_model,
                                        .tokens = j->set.tokens,
                                        .first = j->set.first,
                                        .n_seqs = j->set.n_seqs,
                                        .method = j->o->flags.method,
                                        .format_of = quantize_job_format_of,
                                        .format_ctx = j,
                                        .gptq =
                                            {
                                                .damping = j->o->flags.damping,
                                                .act_order = !j->o->flags.plain_order,
                                            },
                                        .alpha_64ths = (unsigned)(j->o->flags.alpha * 64 + 0.5),
                                        .min_tokens = j->o->flags.min_tokens,
                                        .memory_bytes = j->o->flags.memory_bytes,
                                        .sink = {.begin = begin_tensor,
                                                 .rows = quantize_job_write_rows,
                                                 .plain = write_plain,
                                                 .ctx = j}};
    if (j->o->flags.auto_bits > 0) TRY(choose_formats(j, &o));
    PHASE(quantize_job_open_file(j));
    TRY(calibrate_run(&o, &j->report));
    PHASE(finish_file(j));
    return status_ok();
}

static void say_result(const struct quantize_job *j)
{
    const struct calibrate_report *r = &j->report;
    if (r->n_experts_rtn > 0) {
        log_line(LOG_WARN,
                 "%llu of %llu experts were rounded to nearest, because fewer than --min-tokens "
                 "tokens chose them",
                 (unsigned long long)r->n_experts_rtn, (unsigned long long)r->n_experts_visited);
    }
    printf("%s: %llu tensors quantized (%s), %llu kept, output error %.3e of the outputs' energy, "
           "%.1f s\n",
           j->o->path, (unsigned long long)j->file.result.n_quantized,
           flag_word_of(FLAG_WORDS(METHOD_WORDS), (int32_t)j->o->flags.method),
           (unsigned long long)j->file.result.n_kept, r->energy > 0 ? r->error / r->energy : 0.0,
           (double)(clock_ns() - j->start_ns) * 1e-9);
}

static void quantize_job_stop(struct quantize_job *j)
{
    ckpt_writer_destroy(&j->file.writer);
    calibration_set_fini(&j->set);
    mem_free(&j->is_written);
    mem_free(&j->choices);
    ckpt_close(&j->ckpt);
    if (j->comm != NULL) comm_use_team(j->comm, NULL);
    team_destroy(&j->team);
    topo_destroy(&j->topo);
    mem_free(&j->order);
    mem_free(&j->layout);
}

int quantize_job_run(const struct quantize_job_options *o, struct config env, int *argc,
                     char ***argv)
{
    struct quantize_job j = {.o = o, .env = env, .start_ns = clock_ns()};
    struct status st = comm_start(argc, argv, &j.comm);
    const bool is_lead = j.comm == NULL || comm_rank(j.comm, COMM_WORLD) == 0;
    log_init(j.comm == NULL ? -1 : comm_rank(j.comm, COMM_WORLD),
             o->flags.quiet ? LOG_WARN : LOG_INFO, false);
    if (!status_failed(&st)) st = job_same(j.comm, *argc, *argv);
    if (!status_failed(&st)) st = run_quantize(&j);
    /* all ranks agreed on this status, so one rank reports it */
    if (is_lead && status_failed(&st)) log_line(LOG_ERROR, "%s", st.text);
    if (is_lead && !status_failed(&st)) say_result(&j);
    quantize_job_stop(&j);
    comm_stop(&j.comm);
    return status_exit(st.code);
}
