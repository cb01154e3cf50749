/* shoal serve: reads its flags (job/job_options.h). */
#include "cli/cmd.h"
#include "job/drain.h"
#include "job/job.h"

#include <stdio.h>

static const char serve_text[] =
    "Answers OpenAI's completions and chat completions over HTTP, whole or as a stream, with the "
    "fields, errors and bytes of shoal generate; with an embedding model OpenAI's embeddings, as "
    "shoal embed; with a reranker /v1/rerank, as shoal rank. Start it as it is for one rank, or "
    "under mpirun "
    "or "
    "srun for many; the first rank serves.\n"
    "Without --host only programs on that rank's host reach it. There is no encryption: reach it "
    "through an SSH tunnel (jobs/serve.sbatch prints the command), and give it --api-key-file "
    "where "
    "others share the host.\n"
    "SIGUSR1, SIGTERM or a time limit end it: new calls are refused, running answers may go on for "
    "--drain-time, then they are cut; the status is 75.";

static struct status cmd_serve_check(const struct job_options *o)
{
    if (o->files.model == NULL) return status_make(STATUS_USAGE, "--model FILE.h5 is missing");
    return status_ok();
}

int cmd_serve(struct config env, int argc, char **argv)
{
    drain_hold_signals(env.is_launched);
    const struct flag_table table = {
        .groups = job_groups, .n_groups = JOB_GROUP_COUNT, .command = IN_SERVE};
    struct job_options o = {.mode = LEAD_GENERATE, .serves = true};
    struct flags_parsed parsed = {.ask = FLAGS_RUN};
    struct status st = flags_parse(&table, argc, argv, &o, &parsed);
    o.given = parsed.given;
    if (!status_failed(&st) && parsed.ask == FLAGS_RUN) st = cmd_serve_check(&o);
    if (status_failed(&st) || parsed.ask != FLAGS_RUN) drain_let_signals();
    if (status_failed(&st)) return job_refuse(st, env, &argc, &argv);
    if (parsed.ask == FLAGS_RUN) return job_run(&o, env, &argc, &argv);
    const struct flags_page page = {.command = "serve",
                                    .arguments = "--model FILE.h5 [FLAGS]",
                                    .summary = "an OpenAI-compatible server over MPI ranks",
                                    .description = serve_text,
                                    .table = &table};
    if (env.launcher_rank == 0) flags_print(&page, parsed.ask, stdout);
    return 0;
}
