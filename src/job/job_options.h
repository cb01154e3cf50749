/* The options of a job: one nested struct for each list of flags, and the table with which a
 * command reads them. Passed on by const pointer. Where limits and schedule values were not
 * given, job_open.c (job_memory.c for step_tokens) sets them in the job's copy; it also turns off
 * there what the job cannot use. The sampling flags, threads and kv_blocks stay as given; struct
 * job has the values in use. A command may have a struct of its own whose first member is
 * job_options (shoal bench, shoal plan). */
#ifndef SHOAL_JOB_JOB_OPTIONS_H
#define SHOAL_JOB_JOB_OPTIONS_H

#include "attention/tier_flags.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "checkpoint/file/logprobs_file.h"
#include "checkpoint/load/loader_cache.h"
#include "kernels/device_flags.h"
#include "model/model_flags.h"
#include "moe/capacity_flags.h"
#include "options/flags.h"
#include "parallel/layout/layout_flags.h"
#include "serve/http/http_flags.h"
#include "serve/input/input_part.h"
#include "serve/lead/lead_flags.h"
#include "serve/request/embed_flags.h"
#include "serve/request/rank_flags.h"
#include "serve/request/sampling_flags.h"
#include "serve/schedule/schedule_flags.h"
#include "text/chat/chat.h"
#include "weights/weights_flags.h"

#define JOB_FILE_FLAGS(FLAG)                                                                       \
    FLAG(const char *, model, "model", OF_TEXT("FILE.h5"), .commands = IN_JOBS | IN_BENCH,         \
         .help = "the checkpoint (shoal convert makes one)")                                       \
    FLAG(struct flag_list, input, "input", OF_LIST("IN.jsonl"), .commands = IN_BATCH,              \
         .help = "request lines, plain or compressed by gzip, zstd or xz, or a dataset of "        \
                 "strings (F.h5:/PATH); - is stdin. May be given several times, and as a pattern " \
                 "in quotes ('in/*.jsonl'): the lines of all files, one file after another")       \
    FLAG(const char *, input_field, "input-field", OF_TEXT("NAME"),                                \
         .commands = IN_GENERATE | IN_SCORE,                                                       \
         .help = "the prompt is this member of each line, a string; lines need not be requests")   \
    FLAG(struct flag_list, adapter, "adapter", OF_LIST("NAME=FILE.h5"),                            \
         .commands = IN_ANSWERS | IN_SCORE,                                                        \
         .help = "a low-rank adapter (LoRA) that lines may name as \"adapter\"; may be given "     \
                 "several times")                                                                  \
    FLAG(const char *, draft, "draft", OF_TEXT("FILE.h5"), .commands = IN_ANSWERS | IN_PLAN,       \
         .help = "a second, smaller checkpoint with the same tokenizer. Its tokens are drafts, "   \
                 "which the model checks: several in a step where that pays, or as many as "       \
                 "--speculate N says; results are the same")                                       \
    FLAG(const char *, prompt_template, "prompt-template", OF_TEXT("FILE"),                        \
         .commands = IN_GENERATE | IN_SCORE,                                                       \
         .help = "the prompt is made from each line's members by this Jinja template")             \
    FLAG(const char *, output, "output", OF_TEXT("OUT.jsonl"), .commands = IN_BATCH,               \
         .help = "result lines, in input order, compressed if the name ends in .gz, .zst or .xz; " \
                 "- is stdout")                                                                    \
    FLAG(struct input_part, part, "input-part",                                                    \
         OF_PARSED(read_part, "K/N with K from 1 to N", "K/N"), .commands = IN_BATCH,              \
         .help = "only the lines in the K-th of N equal ranges of the input's bytes, K from 1: "   \
                 "for job arrays; `shoal merge` joins the outputs")                                \
    FLAG(const char *, logits, "logits", OF_TEXT("OUT.h5"), .commands = IN_SCORE,                  \
         .help = "also write every logit, one dataset per line")                                   \
    FLAG(const char *, save_logprobs, "save-logprobs", OF_TEXT("FILE.h5"),                         \
         .commands = IN_GENERATE,                                                                  \
         .help = "also write the most likely tokens at each token of prompts and answers, and "    \
                 "their log-probabilities, for training another model on them (docs/distill.md)")  \
    FLAG(uint32_t, save_logprobs_k, "save-logprobs-k", OF_COUNT(1, LOGPROBS_K_MAX, "K"),           \
         .preset = "64", .commands = IN_GENERATE, .journal = JOURNAL_CHANGED,                      \
         .help = "how many of the most likely tokens --save-logprobs writes for each token")       \
    FLAG(enum logprobs_type, save_logprobs_type, "save-logprobs-type",                             \
         OF_CHOICE(LOGPROBS_TYPE_WORDS), .preset = "f16", .commands = IN_GENERATE,                 \
         .journal = JOURNAL_CHANGED,                                                               \
         .help = "type of the log-probabilities of --save-logprobs; u8: in steps of 1/16, at "     \
                 "least -15.875")                                                                  \
    FLAG(const char *, save_hidden, "save-hidden", OF_TEXT("LAYERS"), .commands = IN_GENERATE,     \
         .help = "with --save-logprobs: its file also has the hidden rows after these layers, "    \
                 "separated by commas: numbers from 0, from -1 (the last layer) downwards, or "    \
                 "final (after the last norm)")                                                    \
    FLAG(enum dtype, save_hidden_type, "save-hidden-type", OF_CHOICE(FLOAT_WORDS),                 \
         .preset = "bf16", .commands = IN_GENERATE, .journal = JOURNAL_CHANGED,                    \
         .help = "type of the values of --save-hidden")                                            \
    FLAG(enum hidden_span, save_hidden_of, "save-hidden-of", OF_CHOICE(HIDDEN_SPAN_WORDS),         \
         .preset = "all", .commands = IN_GENERATE, .journal = JOURNAL_CHANGED,                     \
         .help = "tokens whose rows --save-hidden saves: all, those of the prompts (given), or "   \
                 "those from which the answers' tokens were drawn (answers)")                      \
    FLAG(const char *, vectors, "vectors", OF_TEXT("OUT.npy"), .commands = IN_EMBED,               \
         .help = "at the end also write all vectors as an array of f32 [N, D] (NAME.npy), or as "  \
                 "the datasets vectors and ids of an HDF5 file (NAME.h5)")                         \
    FLAG(const char *, metrics, "metrics", OF_TEXT("FILE"), .alias = "report",                     \
         .commands = IN_JOBS,                                                                      \
         .help = "write the settings and measurements of the run as JSON: at the end, and every "  \
                 "10 s until then")                                                                \
    FLAG(const char *, nodes, "nodes", OF_TEXT("NODE.json"), .commands = IN_JOBS | IN_PLAN,        \
         .help = "speeds of a node, from shoal bench --machine --save: a job chooses its layout "  \
                 "by them and reports predicted and measured times; a plan forecasts the job of "  \
                 "--input")                                                                        \
    FLAG(const char *, trace, "trace", OF_TEXT("FILE"), .commands = IN_JOBS,                       \
         .help = "write a timeline of all ranks at the end, for chrome://tracing or "              \
                 "ui.perfetto.dev; of a long job only the last events")                            \
    FLAG(const char *, journal, "journal", OF_TEXT("DIR"), .commands = IN_BATCH,                   \
         .help = "keep the journal in DIR (default: OUT.jsonl.journal, beside the output)")        \
    FLAG(bool, no_journal, "no-journal", OF_SWITCH, .commands = IN_BATCH,                          \
         .help = "keep no journal: a run that ends early starts again from the first line")        \
    FLAG(uint32_t, audit, "audit", OF_COUNT(1, 1 << 24, "N"), .commands = IN_BATCH,                \
         .help = "write nothing: compute N rows of the output again, chosen at random, and "       \
                 "compare every byte; with the job's flags, on any ranks and layout. Status 4 "    \
                 "when a row differs")                                                             \
    FLAG(uint64_t, audit_seed, "audit-seed", OF_U64("N"), .commands = IN_BATCH, .preset = "0",     \
         .help = "seed of the choice of rows")

#define JOB_RUN_FLAGS(FLAG)                                                                        \
    FLAG(uint32_t, threads, "threads", OF_COUNT(1, 4096, "N"), .commands = IN_JOBS | IN_BENCH,     \
         .help = "compute threads per rank (default: its share of the cores)")                     \
    FLAG(enum loader_cache, file_cache, "file-cache", OF_CHOICE(LOADER_CACHE_WORDS),               \
         .preset = "auto", .commands = IN_JOBS | IN_BENCH,                                         \
         .help = "load weights through the system's file cache (on), past it (off), or past it "   \
                 "if the file is not cached and would not fit beside the weights (auto)")          \
    FLAG(uint32_t, kv_blocks, "kv-blocks", OF_COUNT(1, 1 << 30, "N"),                              \
         .commands = IN_JOBS | IN_BENCH,                                                           \
         .help = "KV blocks of 64 tokens in a replica (default: as many as free memory holds and " \
                 "the running sequences can use)")                                                 \
    FLAG(const char *, template_date, "template-date", OF_TEXT("DATE"),                            \
         .preset = CHAT_DATE_DEFAULT, .commands = IN_JOBS, .journal = JOURNAL_ALWAYS,              \
         .help = "the date that chat templates see, YYYY-MM-DD")                                   \
    FLAG(bool, moe_stats, "moe-stats", OF_SWITCH, .commands = IN_JOBS,                             \
         .help = "print the load of each expert")                                                  \
    FLAG(bool, strict, "strict", OF_SWITCH, .commands = IN_BATCH,                                  \
         .help = "exit with 4 when a row is an error row")                                         \
    FLAG(bool, dry_run, "dry-run", OF_SWITCH, .commands = IN_GENERATE,                             \
         .help = "check, order, plan, journal and write all lines without a model's weights, "     \
                 "with made-up answers of max_tokens each, for the ranks of --dp and --pp; "       \
                 "without --model prompts must be token ids")                                      \
    FLAG(uint32_t, watchdog_s, "watchdog", OF_COUNT(0, 86400, "SECONDS"), .preset = "30",          \
         .commands = IN_JOBS,                                                                      \
         .help = "within this time, notice a rank that died, stopped or was cut off, name it and " \
                 "exit with status 76; 0: never")                                                  \
    FLAG(uint64_t, time_limit_s, "time-limit", OF_PARSED(read_time, "seconds or H:M:S", "TIME"),   \
         .commands = IN_JOBS,                                                                      \
         .help = "drain and exit with status 75 before this time is over: seconds or H:M:S (in a " \
                 "Slurm job its limit counts too)")                                                \
    FLAG(enum log_level, log_level, "log-level", OF_CHOICE(LOG_LEVEL_WORDS), .preset = "info",     \
         .commands = IN_JOBS | IN_BENCH,                                                           \
         .help = "the least important messages that go to stderr; with --quiet warn")              \
    FLAG(bool, log_json, "log-json", OF_SWITCH, .commands = IN_JOBS, .help = "log lines as JSON")  \
    FLAG(struct failpoint, failpoint, "failpoint",                                                 \
         OF_PARSED(read_failpoint, "NAME:PASS or NAME:PASS:ERROR", "NAME:PASS"),                   \
         .commands = IN_JOBS) /* for tests: no help */

struct job_file_flags {
    JOB_FILE_FLAGS(FLAG_FIELD)
};

struct job_run_flags {
    JOB_RUN_FLAGS(FLAG_FIELD)
};

struct arch;
struct job;
struct bench_options;

struct job_options {
    enum lead_mode mode;
    struct job_file_flags files;
    struct layout_flags layout;
    struct request_defaults sampling; /* as given; job_text has the effective values */
    struct model_flags model;
    struct weights_flags weights;
    struct tier_flags tier;
    struct capacity_flags capacity;
    struct schedule_flags schedule;
    struct device_flags device;
    struct lead_flags lead;
    struct job_run_flags run;
    struct embed_flags embed;
    struct rank_flags rank;
    struct http_flags http;
    bool serves; /* requests come from the network (serve/http), not from a file */
    struct flags_given given;
    /* Called instead of the step loop once the model is loaded (shoal bench); NULL: a job. */
    struct status (*run_instead)(struct job *j);
    const struct bench_options *bench;
};

/* The groups of a job's flags, in the order of the help text. */
enum job_group {
    JOB_FILES,
    JOB_LAYOUT,
    JOB_SAMPLING,
    JOB_MODEL,
    JOB_WEIGHTS,
    JOB_TIER,
    JOB_CAPACITY,
    JOB_SCHEDULE,
    JOB_DEVICE,
    JOB_LEAD,
    JOB_RUN,
    JOB_EMBED,
    JOB_RANK,
    JOB_HTTP,
    JOB_GROUP_COUNT
};

extern const struct flag_group job_groups[JOB_GROUP_COUNT];

/* Local. Bounds the model's context by --max-model-len (0: it is not given) where it decides how
 * much memory an index needs for scores and copied keys. */
void job_bound_context(uint32_t max_model_len, struct arch *m);

/* Local. Returns the maximum number of rows in a step: --step-tokens, but for an encoder at least
 * `context`, because an encoder takes a whole text in one step. */
uint32_t job_step_tokens(const struct job_options *o, const struct arch *m, uint32_t context);

#endif
