/* A generate, score, embed, rank or serve job, from MPI's start to the exit status, and all that it
 * opens. At the end of each start-up phase all ranks agree on its status, so that they leave
 * together. Called by cmd_job.c, cmd_serve.c, cmd_bench.c, bench_load.c, bench_run.c,
 * job_experts.c and job_open.c; shoal bench runs its own steps on the loaded job
 * (job_options.run_instead). */
#ifndef SHOAL_JOB_JOB_H
#define SHOAL_JOB_JOB_H

#include "base/config.h"
#include "base/failpoint.h"
#include "base/file_claims.h"
#include "base/log.h"
#include "checkpoint/file/ckpt.h"
#include "checkpoint/file/logits_file.h"
#include "checkpoint/load/loader.h"
#include "draft/draft_model.h"
#include "engine/engine.h"
#include "job/drain.h"
#include "job/job_adapters.h"
#include "job/job_embed.h"
#include "job/job_options.h"
#include "job/job_text.h"
#include "job/trace_file.h"
#include "parallel/layout/expert_places.h"
#include "parallel/layout/layout_choose.h"
#include "parallel/layout/replan_ledger.h"
#include "parallel/watch/watchdog.h"
#include "serve/http/http_port.h"
#include "serve/lead/lead.h"

/* Times on this rank's clock, in ns; 0: not yet. */
struct job_times {
    uint64_t start_ns, ready_ns;
    uint64_t trace_origin_ns;     /* start_ns of rank 0, on rank 0's clock; with --trace only */
    uint64_t plan_ns, elapsed_ns; /* of the step loop, as in engine_stats */
    uint64_t metrics_ns;          /* when --metrics was last written; lead only */
};

/* The threads, the kernels and the device of this rank. */
struct job_compute {
    struct team *team; /* the compute threads; NULL: the calling thread only */
    uint32_t n_threads;
    struct kern_table kern;
    struct device *device; /* the device that kern works on; NULL: the CPU */
    bool is_near; /* bound to its GPU's NUMA node, within the cores that the launcher gave */
    uint64_t device_bytes; /* a rank's part of its GPU's memory; minimum over all ranks; 0: CPUs */
};

/* One time that --expert-replan moved experts. Rows are of all ranks. */
struct job_replan {
    uint64_t n_steps;                     /* before it */
    uint64_t n_moves;                     /* places that got another expert */
    uint64_t n_bytes_host;                /* read for them on the lead's host */
    uint64_t n_rows, busiest_rows;        /* as in moe_traffic, before it */
    struct expert_evenness before, after; /* of the old and of the new places, by the counts */
};

enum { JOB_REPLANS_MAX = 16 }; /* in a run; each waits for the steps in flight and reads experts */

/* What --expert-replan counts, and what it did. */
struct job_replans {
    struct replan_ledger ledger; /* zeroed without the flag */
    uint64_t wait;               /* steps between two looks at the counts */
    bool has_earlier;            /* the first places are by the counts of the job's earlier runs */
    uint32_t n;
    struct job_replan at[JOB_REPLANS_MAX];
};

/* How experts are placed and stored. */
struct job_experts {
    int64_t *load; /* [L, E] by which the first places were chosen; owned; zeros or NULL: none */
    const char *load_from;        /* the file that it is from; borrowed; NULL: none; lead only */
    struct expert_places *places; /* of the layout; owned; NULL: experts stay in the order of ids */
    char *path; /* path of the packed copy of the streamed experts; owned; NULL: none */
    struct job_replans replans;
    char *counts_path; /* JOURNAL.experts; owned; NULL: the job keeps no counts; lead only */
    int64_t *earlier;  /* [L, E] counts of the job's earlier runs; owned; NULL: none; lead only */
    bool begins_anew;  /* with --restart, or without a journal of earlier runs; lead only */
    int64_t *counted;  /* [L, E] scratch for the sum over all ranks; owned; NULL: not needed */
    /* the steps after which the counts are kept next, and after which --expert-replan looks at them
     * next; 0: never. Only the lead uses them. */
    uint64_t next_save, next_replan;
};

/* The sizes of a rank's pools. */
struct job_pools {
    uint32_t n_kv_blocks;
    uint32_t n_tier_slots;  /* KV blocks in the file of --kv-tier; 0: none */
    uint32_t n_state_slots; /* 0: the model has no recurrent states */
};

/* The lead's files, and the journal's texts about the job. */
struct job_files {
    struct input_files inputs;
    struct input_part part;
    char *journal_path;         /* owned; NULL: none */
    bool journal_folder_is_new; /* this job made the folder of --journal */
    struct strbuf settings, session;
    struct file_claims *claims; /* on the results, journal and reports that are written; owned */
    struct logits_file *logits;
    struct logprobs_options save; /* path NULL: none */
    char checkpoint[40];          /* the checkpoint's digest, for `save` */
};

struct job {
    /* the options; settled by job_check_options, job_read_model and job_fit_layout */
    const struct job_options *o;
    struct job_options options; /* where o points; only job_init, job_open.c and job_memory.c
                                   change it */
    struct config env;
    struct comm *comm;
    struct watchdog *watchdog;
    struct topo *topo;
    uint32_t *order; /* [ranks] launcher rank of each world rank */
    bool is_ordered; /* COMM_WORLD has that order */
    struct ckpt *ckpt;
    struct arch model;
    struct layout_model layout_model;
    struct layout *layout;
    struct job_experts experts;
    struct job_compute compute;
    uint64_t program_bytes; /* resident before weights are loaded; maximum over all ranks */
    struct weights *weights;
    struct loader_stats loaded;
    struct job_adapters adapters;
    struct job_pools pools;
    struct engine *engine;
    struct job_forecast *forecast;   /* NULL: no --nodes, or no forecast can be made */
    struct drafting_cost draft_cost; /* set for --speculate auto and ngram */
    bool no_repeats;                 /* set for --speculate mtp, and for a number with --draft */
    struct draft_model *draft;       /* of --draft; owned; NULL: none. Loaded on the lead only */
    struct hidden_layers hidden;     /* of --save-hidden; n 0: none */
    struct job_times times;
    bool is_drained;
    struct trace *trace;      /* NULL: no --trace */
    struct trace_clock clock; /* at the start; with --trace only */
    struct drain drain;
    struct failpoint failpoint;
    bool is_complete; /* an earlier run has finished the job */
    /* lead only */
    struct job_text text;
    struct job_embed embed; /* of vectors and scores only */
    struct lead *lead;
    struct http_port *http; /* NULL: the requests are lines of a file */
    struct audit *audit;    /* NULL: no --audit */
    struct serve_summary *summary;
    struct job_files files;
};

/* Local. Returns the block tables of the job's sequences. */
struct plan_tables job_tables(const struct job *j);

/* Local. Describes this rank's weights in layout l, from the job's checkpoint. Pointers are
 * borrowed from the job and l. */
struct weights_source job_weights_source(struct job *j, const struct layout *l);

/* **Collective (all processes of the launcher)**. Runs the job; argc and argv are for MPI. Returns
 * the process's exit status. */
int job_run(const struct job_options *options, struct config env, int *argc, char ***argv);

/* **Collective (all processes of the launcher)**, together with job_run on the ranks whose flags
 * are right. One rank prints which flags are wrong, or which rank has other flags. Returns the exit
 * status, the same on all ranks. Without a launcher, or with one rank: Local. */
int job_refuse(struct status flags, struct config env, int *argc, char ***argv);

#endif
