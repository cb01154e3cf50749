/* shoal pack: makes the packed copy of a checkpoint's experts, from which a job streams them. */
#include "base/log.h"
#include "base/mem.h"
#include "cli/cmd.h"
#include "cli/cmd_team.h"
#include "job/job_paths.h"
#include "options/flags.h"
#include "weights/expert_pack.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { WINDOW_BYTES = 256 << 20 };

#define PACK_FLAGS(FLAG)                                                                           \
    FLAG(const char *, output, "output", OF_TEXT("FILE"),                                          \
         .help = "the packed copy (default: MODEL.h5.experts, where jobs look for it)")            \
    FLAG(uint32_t, threads, "threads", OF_COUNT(1, 4096, "N"),                                     \
         .help = "threads that pack (default: this process's cores)")

struct pack_flags {
    PACK_FLAGS(FLAG_FIELD)
};

#define FLAG_OWNER struct pack_flags
static const struct flag rows[] = {PACK_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER

static const struct flag_group group = FLAG_GROUP(rows, 0);
static const struct flag_table table = {.groups = &group, .n_groups = 1};

static const char text[] =
    "Writes the routed experts of MODEL.h5 once more, each in one piece and in the layout that the "
    "kernels read, with checksums. A job with --weights stream reads them from there in each step; "
    "without this command its first run makes the same file. It takes as much disk as the experts, "
    "and is safe to delete. For layouts in which several ranks share each expert (--tp without "
    "--ep) a job makes a copy of its own, cut for them.";

struct pack {
    struct ckpt *ckpt;
    struct arch model;
    struct layout_model layout_model;
    struct layout *layout; /* owned */
    struct kern_table kern;
    struct team *team;
};

static struct status pack_open(struct pack *p, const char *model)
{
    size_t n;
    TRY(job_paths_check_model("model", model));
    TRY(ckpt_open(model, &p->ckpt));
    const char *config = ckpt_config_json(p->ckpt, &n);
    TRY(status_wrap(arch_parse(config, n, "config.json", &p->model), "%s", model));
    TRY(weights_check(&p->model, p->ckpt, &p->layout_model));
    if (p->model.moe.n_experts == 0)
        return status_make(STATUS_USAGE, "%s: only experts are packed, and this model has none",
                           model);
    TRY(kern_select(NULL, &p->kern));
    TRY(mem_alloc(&p->layout, 1, sizeof *p->layout, "layout"));
    return layout_build(&p->layout_model, 1, &(struct layout_flags){0}, p->layout);
}

static struct status pack_write(struct pack *p, struct comm *comm, const char *path)
{
    struct expert_pack_sizes sizes;
    p->kern.team = p->team;
    comm_use_team(comm, p->team);
    const struct weights_source source = {.model = &p->model,
                                          .layout = p->layout,
                                          .place = layout_place_of(p->layout, 0),
                                          .kern = &p->kern,
                                          .ckpt = p->ckpt,
                                          .comm = comm};
    TRY(expert_pack_sizes_of(&source, &sizes));
    TRY(expert_pack_make(&source, path, WINDOW_BYTES));
    printf("%s: %.1f MB of experts, each %.2f MB\n", path, (double)sizes.all_bytes / 1e6,
           (double)sizes.expert_bytes / 1e6);
    return status_ok();
}

static struct status check_pack_output(const char *path)
{
    if (*path == '\0')
        return status_make(STATUS_USAGE, "--output: expected a file's name, found an empty one");
    return job_paths_check_written("output", path);
}

static struct status run_pack(const struct pack_flags *f, struct config env, struct comm *comm,
                              const char *model)
{
    struct pack p = {.ckpt = NULL};
    char path[4096];
    const int n = snprintf(path, sizeof path, "%s.experts", model);
    struct status st = pack_open(&p, model);
    if (!status_failed(&st) && f->output == NULL && (size_t)n >= sizeof path)
        st = status_make(STATUS_USAGE, "%s: the path is too long", model);
    if (!status_failed(&st)) st = cmd_team_create(f->threads, env, NULL, &p.team);
    if (!status_failed(&st)) st = pack_write(&p, comm, f->output != NULL ? f->output : path);
    comm_use_team(comm, NULL);
    team_destroy(&p.team);
    mem_free(&p.layout);
    ckpt_close(&p.ckpt);
    return st;
}

int cmd_pack(struct config env, int argc, char **argv)
{
    const bool is_lead = env.launcher_rank == 0;
    struct pack_flags flags = {.threads = 0};
    struct flags_parsed parsed = {.positionals = {.n_wanted = 1}};
    struct status st = flags_parse(&table, argc, argv, &flags, &parsed);
    if (parsed.ask != FLAGS_RUN) {
        const struct flags_page page = {.command = argv[0],
                                        .arguments = "MODEL.h5",
                                        .summary = "pack experts for jobs that stream them",
                                        .description = text,
                                        .table = &table};
        if (is_lead) flags_print(&page, parsed.ask, stdout);
        return 0;
    }
    if (!is_lead) return 0; /* one process packs */
    struct comm *comm = NULL;
    if (!status_failed(&st) && parsed.positionals.n != 1)
        st = status_make(STATUS_USAGE, "expected MODEL.h5");
    if (!status_failed(&st) && env.launcher_size > 1)
        st = status_make(STATUS_USAGE, "one process packs: start it without a launcher");
    if (!status_failed(&st) && flags.output != NULL) st = check_pack_output(flags.output);
    if (!status_failed(&st)) st = comm_start(&argc, &argv, &comm);
    if (!status_failed(&st)) st = run_pack(&flags, env, comm, parsed.positionals.values[0]);
    comm_stop(&comm);
    return status_failed(&st) ? flags_refuse("pack", 0, &st) : 0;
}
