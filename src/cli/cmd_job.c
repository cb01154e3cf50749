/* shoal generate, score, embed and rank: read their flags (job/job_options.h). */
#include "cli/cmd.h"
#include "job/drain.h"
#include "job/dry_run.h"
#include "job/job.h"

#include <stdio.h>
#include <string.h>

static const char generate_text[] =
    "Reads one request a line (custom_id; prompt or prompt_token_ids; sampling values, which win "
    "over the flags; priority, smaller ones run first; OpenAI batch lines work as they are) and "
    "writes one result a line, in input "
    "order. A line that cannot be served becomes an error row; the others go on.\n"
    "Start it as it is for one rank, or under mpirun or srun for many. The bytes of a result "
    "depend "
    "on the checkpoint, the request and its seed alone: not on ranks, layout, batch or threads.\n"
    "Finished rows are kept in a journal beside the output. However a run ends, the same command "
    "continues from there, on any number of ranks, and the output gets the same bytes. SIGUSR1, "
    "SIGTERM or a time limit end a run cleanly with status 75; a second signal ends it at once. "
    "`shoal status` reads the journal.";

static const char score_text[] =
    "Reads prompts as shoal generate does and writes the log-probability of each of their tokens "
    "(natural log; the first has none), their sum, and at the end the perplexity of the whole "
    "input. A line may also have a context and its continuation, or a text, whose log-likelihood "
    "is written (docs/score.md).";

static const char embed_text[] =
    "Reads texts (input: a text, a list of texts, or token ids; or messages; OpenAI batch lines of "
    "/v1/embeddings work as they are) and writes their vectors, one line for each line, in input "
    "order. Pooling, normalization and prompts are those of the checkpoint's sentence-transformers "
    "files, unless flags say otherwise. Journal, resuming and ranks are as in shoal generate. The "
    "bytes of a vector depend on the checkpoint and the text alone.";

static const char rank_text[] =
    "Reads pairs (query, and documents: a list of texts) or texts (as shoal embed does) and writes "
    "a score for each: the probability that the document answers the query, or of each class. The "
    "scores are those of the checkpoint's score.weight (a model for sequence classification); a "
    "model without it is asked for yes or no, as Qwen3-Reranker is. Journal, resuming and ranks "
    "are as in shoal generate. The bytes of a score depend on the checkpoint and the texts alone.";

/* The commands of a job of lines. */
struct job_command {
    const char *name, *summary, *text;
    enum flag_command flags;
};

static const struct job_command commands[] = {
    [LEAD_GENERATE] = {"generate", "offline bulk generation over MPI ranks", generate_text,
                       IN_GENERATE},
    [LEAD_SCORE] = {"score", "log-probabilities of given texts, and their perplexity", score_text,
                    IN_SCORE},
    [LEAD_EMBED] = {"embed", "vectors of given texts", embed_text, IN_EMBED},
    [LEAD_RANK] = {"rank", "scores of documents for a query, or of texts", rank_text, IN_RANK},
};

/* Refuses --audit together with flags that change the audited output, write its results to other
 * files, compute no rows, or allow other bytes. */
static struct status check_audit(const struct job_options *o)
{
    const struct {
        const char *flag;
        bool is_given;
    } strangers[] = {{"restart", o->lead.restart},
                     {"retry-errors", o->lead.retry_errors},
                     {"dry-run", o->run.dry_run},
                     {"logits", o->files.logits != NULL},
                     {"vectors", o->files.vectors != NULL},
                     {"capacity-factor", o->capacity.factor != 0},
                     {"fast-reductions", o->device.fast_reductions}};
    for (size_t i = 0; o->files.audit > 0 && i < sizeof strangers / sizeof strangers[0]; i++) {
        if (!strangers[i].is_given) continue;
        return status_make(STATUS_USAGE, "--audit and --%s: expected one of them",
                           strangers[i].flag);
    }
    return status_ok();
}

static struct status check_saving(const struct job_options *o)
{
    const char *path = o->files.save_logprobs;
    const struct {
        const char *flag, *needs;
        bool has;
    } flags[] = {{"save-logprobs-k", "--save-logprobs FILE.h5", path != NULL},
                 {"save-logprobs-type", "--save-logprobs FILE.h5", path != NULL},
                 {"save-hidden", "--save-logprobs FILE.h5", path != NULL},
                 {"save-hidden-type", "--save-hidden LAYERS", o->files.save_hidden != NULL},
                 {"save-hidden-of", "--save-hidden LAYERS", o->files.save_hidden != NULL}};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (flags[i].has || !flags_is_given(&o->given, flags[i].flag)) continue;
        return status_make(STATUS_USAGE, "--%s: needs %s", flags[i].flag, flags[i].needs);
    }
    if (path == NULL || strcmp(path, "-") != 0) return status_ok();
    return status_make(STATUS_USAGE, "--save-logprobs -: expected a file, HDF5 cannot be piped");
}

static struct status job_check(const struct job_options *o)
{
    if (o->files.model == NULL && !o->run.dry_run)
        return status_make(STATUS_USAGE, "--model FILE.h5 is missing");
    if (o->files.input.n == 0) return status_make(STATUS_USAGE, "--input IN.jsonl is missing");
    if (o->files.output == NULL) return status_make(STATUS_USAGE, "--output OUT.jsonl is missing");
    TRY(check_saving(o));
    return check_audit(o);
}

static struct flags_page page_of(enum lead_mode mode, const struct flag_table *table)
{
    return (struct flags_page){.command = commands[mode].name,
                               .arguments =
                                   "--model FILE.h5 --input IN.jsonl --output OUT.jsonl [FLAGS]",
                               .summary = commands[mode].summary,
                               .description = commands[mode].text,
                               .table = table};
}

static int run_job(enum lead_mode mode, struct config env, int argc, char **argv)
{
    drain_hold_signals(env.is_launched);
    const struct flag_table table = {
        .groups = job_groups, .n_groups = JOB_GROUP_COUNT, .command = commands[mode].flags};
    struct job_options o = {.mode = mode};
    struct flags_parsed parsed = {.ask = FLAGS_RUN};
    struct status st = flags_parse(&table, argc, argv, &o, &parsed);
    o.given = parsed.given;
    if (!status_failed(&st) && parsed.ask == FLAGS_RUN) st = job_check(&o);
    if (status_failed(&st) || parsed.ask != FLAGS_RUN) drain_let_signals();
    if (status_failed(&st)) return job_refuse(st, env, &argc, &argv);
    if (parsed.ask != FLAGS_RUN) {
        const struct flags_page page = page_of(mode, &table);
        if (env.launcher_rank == 0) flags_print(&page, parsed.ask, stdout);
        return 0;
    }
    return o.run.dry_run ? dry_run(&o, env) : job_run(&o, env, &argc, &argv);
}

int cmd_generate(struct config env, int argc, char **argv)
{
    return run_job(LEAD_GENERATE, env, argc, argv);
}

int cmd_score(struct config env, int argc, char **argv)
{
    return run_job(LEAD_SCORE, env, argc, argv);
}

int cmd_embed(struct config env, int argc, char **argv)
{
    return run_job(LEAD_EMBED, env, argc, argv);
}

int cmd_rank(struct config env, int argc, char **argv)
{
    return run_job(LEAD_RANK, env, argc, argv);
}
