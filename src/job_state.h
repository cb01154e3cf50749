/* The parts of a running job, shared by job.c and job_report.c. */
#ifndef SHOAL_JOB_STATE_H
#define SHOAL_JOB_STATE_H

#include "base/log.h"
#include "checkpoint/ckpt.h"
#include "checkpoint/loader.h"
#include "checkpoint/logits_file.h"
#include "drain.h"
#include "engine/engine.h"
#include "job.h"
#include "job_text.h"
#include "parallel/layout_choose.h"
#include "parallel/watchdog.h"
#include "serve/failpoint.h"

struct job {
    const struct job_options *o;
    struct config env;
    enum log_level level;
    struct comm *comm;
    struct watchdog *watchdog;
    struct topo *topo;
    uint32_t *order; /* [ranks] launcher rank of each world rank */
    struct ckpt *ckpt;
    struct model_config model;
    struct layout_model layout_model;
    struct layout *layout;
    struct kern_table kern;
    struct weights *weights;
    struct loader_stats loaded;
    struct engine *engine;
    enum dtype kv_dtype;
    enum capacity_policy policy;
    bool prefix_cache, result_cache;
    enum order_kind line_order;
    uint32_t n_threads, max_model_len, step_tokens, n_kv_blocks;
    uint64_t start_ns, ready_ns;
    struct drain drain;
    struct failpoint failpoint;
    bool is_complete; /* an earlier run had finished the job */
    /* lead only */
    struct job_text text;
    struct lead *lead;
    struct logits_file *logits;
    struct serve_summary *summary;
    char *journal_path; /* owned; NULL: none */
    struct input_part part;
    struct strbuf settings, session;
};

/* Local, lead. Says on stderr which layout was chosen and what was loaded. */
void job_report_start(const struct job *j);

/* **Collective (world)**. After the last step: the lead prints the summary, the time per stage, the
 * experts' load when asked for, and writes --report. Errors: STATUS_IO, STATUS_MEMORY. */
struct status job_report_end(struct job *j);

#endif
