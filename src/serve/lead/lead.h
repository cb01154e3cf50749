/* The lead's side of a job: takes requests, plans steps, commits their results and hands out the
 * answers, all in bounded memory. A port (lead_port.h) brings the requests and takes the answers:
 * the lines of a file, or a server. Does not know ranks or tensors: the loop in job.c (or
 * dry_run.c) carries plans to the ranks and their results back.
 *
 * For step s of group g = s % n_groups, until lead_next sets *done: take the results of
 * step s - n_groups from all replicas (lead_commit), plan (lead_next), send the plan. */
#ifndef SHOAL_SERVE_LEAD_LEAD_H
#define SHOAL_SERVE_LEAD_LEAD_H

#include "base/file_claims.h"
#include "base/status.h"
#include "plan/step_plan.h"
#include "serve/input/input_part.h"
#include "serve/lead/audit.h"
#include "serve/lead/lead_flags.h"
#include "serve/output/logprobs_part.h"
#include "serve/request/request.h"
#include "serve/schedule/scheduler.h"
#include "serve/schedule/stats.h"

struct lead;
struct lead_port;

/* Draft tokens. */
struct lead_drafts {
    struct drafting_cost cost;
    bool predicts, no_repeats; /* as in struct scheduler_options (serve/schedule/scheduler.h) */
    struct draft_source model; /* scheduler_options.draft_model */
    drafter_fn *drafter;
    void *user;
};

/* The journal (serve/journal/journal.h); path NULL: none, the output is truncated. */
struct lead_journal {
    const char *path;
    const char *settings;        /* "name=value" lines of everything that changes a row's bytes */
    const char *session;         /* describes this run, for `shoal status` */
    size_t commit_bytes;         /* a commit is due once this many are gathered; 0: 1 MiB */
    struct failpoint *failpoint; /* tests only; NULL: none */
    struct file_claims *claims;  /* claims on the files; after a claim is lost nothing is
                                    written. NULL: none */
};

/* Zero means the default where a comment names one, also in nested structs. All pointers are
 * borrowed and outlive the lead. */
struct lead_options {
    enum lead_mode mode;
    const struct lead_port *port; /* where requests come from; copied. NULL: the lines of a file;
                                     only then the paths, the part, the journal and the audit
                                     below are used */
    const char *input_path;       /* JSONL; "-" is stdin; for several inputs input_files.name */
    const struct input_files *inputs; /* several inputs; NULL: input_path is the only one */
    const char *output_path;          /* JSONL; "-" is stdout */
    /* the part of the input, with its byte range (input_part_find); NULL: the whole input */
    const struct input_part *part;
    struct tokenizer *tokenizer;
    const struct chat *chat;  /* the model's chat template; NULL: `messages` become error rows */
    const char *chat_missing; /* why chat is NULL, for these error rows; NULL: a general message */
    struct jinja_date date;   /* the time that templates see */
    const struct embed_rules *embed;  /* LEAD_EMBED, LEAD_RANK; else NULL */
    const struct request_form *form;  /* makes prompts of lines; NULL: lines are requests */
    struct request_defaults defaults; /* given flags, else generation_config.json, else presets */
    const int32_t *end_ids;           /* [n_end_ids] tokens that end a sequence with "stop" */
    size_t n_end_ids;
    const struct request_adapter *adapters; /* [n_adapters] */
    size_t n_adapters;
    int32_t prefix_id;         /* as in request_rules (serve/request/request.h) */
    int32_t vocab_size;        /* the model's: ids in [0, vocab_size) are accepted */
    int32_t max_model_len;     /* the most tokens that a context may have */
    int32_t n_replicas;        /* dp */
    int32_t n_groups;          /* pp: microbatch groups in flight */
    int32_t n_blocks;          /* KV blocks of each replica's pool; their ids are [0, n_blocks).
                                  0: unknown until lead_start */
    struct plan_tables tables; /* block tables of a sequence; all zeros: one full table */
    struct schedule_flags schedule; /* settled as serve/schedule/scheduler.h requires */
    struct lead_flags flags; /* result_cache: used by LEAD_GENERATE only; must be off if a row
                                depends on the batch */
    uint64_t eased_step_ns;  /* as in scheduler_options */
    struct lead_drafts drafts;
    size_t window_rows;     /* rows read and not yet written; 0: 8192 */
    size_t window_bytes;    /* the most memory of these rows; 0: 256 MiB, with `save` 1 GiB. One
                               row may always be read */
    const char *model_name; /* "model" of OpenAI batch results; NULL: the request's own */
    logits_sink_fn *logits; /* only when scoring; NULL: no logits are wanted */
    void *logits_user;
    bool is_dry_run; /* tokens are made up; every row, except error rows, says so */
    struct lead_journal journal;

    const struct logprobs_options *save; /* log-probabilities, and perhaps hidden rows, that are
                                            saved beside the output; only LEAD_GENERATE. NULL:
                                            none */

    /* An audit runs only the lines that it chose, and compares their rows instead of writing them;
     * it reads the output and the journal itself. NULL: a job. */
    struct audit *audit;
};

/* The sizes of the ranks' pools, in each replica. */
struct lead_pools {
    int32_t n_blocks;             /* KV blocks */
    int32_t n_state_slots;        /* slots of recurrent states; 0: the model has none */
    int32_t n_tier_slots;         /* blocks on disk; 0: none */
    struct scheduler_store store; /* blocks of other jobs */
};

/* Local. Opens input, output and any journal, and takes over the rows of earlier runs, after
 * comparing the input's lines and the output's rows with the journal. Errors: STATUS_USAGE (a pool
 * that cannot hold one full context, a size out of range, input and output the same file, an output
 * without its journal, and the journal's), STATUS_INPUT (the input cannot be opened or has changed;
 * no new row was written), STATUS_IO, STATUS_MEMORY. */
struct status lead_create(const struct lead_options *options, struct lead **out);
void lead_destroy(struct lead **lead);

/* Local. True when an earlier run finished the job: every row is in the output, and only
 * lead_finish is left to call. */
bool lead_is_complete(const struct lead *lead);

/* Local. Sets the sizes of the ranks' pools, if lead_create got n_blocks 0. Call it before the
 * first lead_next. Errors: as lead_create. */
struct status lead_start(struct lead *lead, const struct lead_pools *pools);

/* Local. Takes new requests, as many as the port reads before a step, admits requests, and plans
 * step `step` of group `group` into *plan (initialized by the caller for n_replicas; cleared here).
 * The results of the group's previous plan must have been committed. The plan may be empty while
 * other groups are in flight, or while no request comes. *done becomes true when no request will
 * come and all have finished; *plan is then PLAN_STOP, the plans still in flight are empty, and
 * lead_finish writes the last rows. Waits for requests only when no sequence runs, and at most a
 * fifth of a second. A bad line is an error row, not an error. Errors: STATUS_INPUT (the input is
 * not the one that an earlier run saw, or its compressed data are damaged), and the port's. */
struct status lead_next(struct lead *lead, int32_t group, uint64_t step, struct step_plan *plan,
                        bool *done);

/* Local. Takes one replica's result for the last plan of `group`; the order of replicas does not
 * matter. For an empty plan or an idle replica, a result without sequences is accepted but not
 * required. Errors: STATUS_BUG when the result does not match the plan, and the port's. */
struct status lead_commit(struct lead *lead, int32_t group, const struct step_result *result);

/* Local. Call it before each step once the job has been asked to drain. True when no more steps are
 * to be planned: at once for a file of lines; for a server, once running answers have ended or
 * their time is over. */
bool lead_may_stop(struct lead *lead);

/* Local. Saves or ends the unfinished requests, because the run ends early: a journal keeps their
 * sampled tokens, a server tells their clients. No plan may be in flight. Errors: the port's. */
struct status lead_drain(struct lead *lead);

/* Local, any thread, at any moment. Saves finished rows in the journal (in a server those of the
 * running batch, and tells the clients), just before the process ends. */
void lead_save(struct lead *lead);

/* Local. Returns how many seconds before a time limit the job must be asked to drain, so that
 * lead_drain ends in time. */
double lead_end_s(const struct lead *lead);

/* Local. Copies the counts and times so far. */
void lead_summary(const struct lead *lead, struct serve_summary *summary);

/* Local. Returns the counts of lead_summary, without the port's and without wall_s; borrowed. */
const struct serve_summary *lead_stats(const struct lead *lead);

/* Local. Returns how many requests run and wait now, and the numbers of KV blocks. Call it after
 * lead_start. */
struct scheduler_load lead_load(const struct lead *lead);

/* Local. Flushes journal and output, ends the progress display and fills *summary. After the last
 * row it makes the output durable and marks the journal complete. May be called before lead_next
 * sets *done (after a drain or an error); rows after an unfinished one are then in the journal
 * only. When every row of the run was an error row, warns with the first errors. Errors: STATUS_IO,
 * STATUS_MEMORY. */
struct status lead_finish(struct lead *lead, struct serve_summary *summary);

#endif
