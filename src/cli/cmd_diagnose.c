/* The flags of shoal diagnose. */
#include "cli/cmd.h"
#include "diagnose/diagnose.h"

#include <stddef.h>
#include <stdio.h>

#define FLAG_OWNER struct diagnose_flags
static const struct flag rows[] = {DIAGNOSE_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER

static const struct flag_group group = FLAG_GROUP(rows, 0);
static const struct flag_table table = {.groups = &group, .n_groups = 1};

static const char text[] =
    "Looks at every host of the allocation for what makes jobs slow: ranks that share cores, idle "
    "cores, other processes, memory below what its modules give, links below what the network "
    "gives, a slow folder, GPUs that cannot be opened. Each finding is a sentence with a remedy. "
    "Start it as the job will be started, under mpirun or srun with the same ranks; it takes a few "
    "seconds. Findings do not change the exit status.";

int cmd_diagnose(struct config env, int argc, char **argv)
{
    struct diagnose_flags flags = {.threads = 0};
    struct flags_parsed parsed = {.ask = FLAGS_RUN};
    struct status st = flags_parse(&table, argc, argv, &flags, &parsed);
    if (parsed.ask != FLAGS_RUN) {
        const struct flags_page page = {.command = argv[0],
                                        .arguments = "[FLAGS]",
                                        .summary = "find what would make a job slow here",
                                        .description = text,
                                        .table = &table};
        if (env.launcher_rank == 0) flags_print(&page, parsed.ask, stdout);
        return 0;
    }
    if (status_failed(&st)) return flags_refuse("diagnose", env.launcher_rank, &st);
    if (flags.threads == 0) flags.threads = env.n_threads;
    return diagnose_run(&flags, &argc, &argv);
}
