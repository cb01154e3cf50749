/* shoal bench: its flags. */
#include "bench.h"
#include "cmd.h"

#include <stdio.h>

#define AT(field)  offsetof(struct bench_options, field)
#define JOB(field) offsetof(struct bench_options, job.field)

static const struct flag table[] = {
    {"machine", FLAG_SWITCH, AT(machine), 0, 0, NULL,
     "measure read bandwidth, f32 and int8 peaks, and sums over ranks; no model is needed"},
    {"json", FLAG_STRING, AT(json), 0, 0, "FILE",
     "also write everything as JSON; - is stdout, instead of the table"},
    {"threads", FLAG_COUNT, JOB(n_threads), 1, 4096, "N",
     "compute threads a rank (default: its share of the cores)"},
};

enum { N_FLAGS = sizeof table / sizeof table[0] };

static const char text[] =
    "With --machine: what memory and arithmetic of this machine give at most, for 1, 2, 4, ... and "
    "all threads of a rank, all ranks at work together, and how long sums over the ranks of a host "
    "take.";

static struct status parse(int argc, char **argv, struct bench_options *o, enum flags_ask *ask)
{
    struct positionals none = {.n_wanted = 0};
    TRY(flags_parse(table, N_FLAGS, argc, argv, o, &none, ask));
    if (*ask != FLAGS_RUN || o->machine) return status_ok();
    return status_make(STATUS_USAGE, "--machine is missing");
}

int cmd_bench(struct config env, int argc, char **argv)
{
    struct bench_options o = {.machine = false};
    enum flags_ask ask = FLAGS_RUN;
    const struct status st = parse(argc, argv, &o, &ask);
    if (status_failed(&st)) {
        if (env.launcher_rank != 0) return 0; /* one voice is enough */
        fprintf(stderr, "shoal bench: %s\n", st.text);
        return status_exit(st.code);
    }
    if (ask != FLAGS_RUN) {
        const struct flags_page page = {.command = argv[0],
                                        .arguments = "--machine [FLAGS]",
                                        .summary = "measure the machine",
                                        .description = text,
                                        .table = table,
                                        .n_flags = N_FLAGS};
        if (env.launcher_rank == 0) flags_print(&page, ask, stdout);
        return 0;
    }
    return bench_machine_run(&o, &argc, &argv);
}
