/* Failpoints (--failpoint): a test makes the process die, or a call fail, when it passes a named
 * point in the code for the n-th time. Without the flag n_left is 0, and a pass costs a call and
 * two comparisons. Called by the job, the journal, the result writer, the writer of saved
 * log-probabilities, the lead, and the readers of experts and KV blocks. */
#ifndef SHOAL_BASE_FAILPOINT_H
#define SHOAL_BASE_FAILPOINT_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define FAILPOINT_LIST(X)                                                                          \
    X(LOAD, "load")                     /* before weights, or moving experts, are read */          \
    X(JOURNAL_WRITE, "journal_write")   /* half of a group of records is written */                \
    X(JOURNAL_FSYNC, "journal_fsync")   /* the records are written, not yet durable */             \
    X(JOURNAL_RENAME, "journal_rename") /* a new journal is complete and not yet in its place */   \
    X(OUTPUT_WRITE, "output_write")     /* half of a group of rows is written */                   \
    X(OUTPUT_FSYNC, "output_fsync")     /* all rows are written, not yet durable */                \
    X(LOGPROBS_WRITE, "logprobs_write") /* half of a record of FILE.h5.part is written */          \
    X(LOGPROBS_FSYNC, "logprobs_fsync") /* the records are written, not yet durable */             \
    X(LOGPROBS_FILE, "logprobs_file")   /* FILE.h5 is complete and not yet in its place */         \
    X(RESUME, "resume")                 /* a row of an earlier run is taken over */                \
    X(EXPERT_READ, "expert_read")       /* an expert was read from its packed copy */              \
    X(TIER_READ, "tier_read")           /* a KV block was read from disk (kv_tier.h) */            \
    X(STEP, "step")                     /* a step is planned */                                    \
    X(DRAIN, "drain")                   /* running requests are written to the journal */          \
    X(FINISH, "finish")                 /* the output is durable; the journal does not say so yet */

enum failpoint_name {
#define X(name, text) FAILPOINT_##name,
    FAILPOINT_LIST(X)
#undef X
        FAILPOINT_COUNT
};

struct failpoint {
    enum failpoint_name name;
    uint64_t n_left; /* passes left until it fires; 0: never */
    int error;       /* errno of the call that fails; 0: SIGKILL */
};

/* Local. Parses "NAME:N" (the process kills itself at pass N), or "NAME:N:EIO", "NAME:N:ENOSPC"
 * (the call fails). Errors: STATUS_USAGE. */
struct status failpoint_parse(const char *text, struct failpoint *out);

/* Local. Counts a pass; true when this is the pass at which f fires. NULL never fires. */
bool failpoint_due(struct failpoint *f, enum failpoint_name name);

/* Local. Kills the process, or returns the errno with which to fail. */
int failpoint_strike(const struct failpoint *f);

/* Local. Calls failpoint_due and failpoint_strike. Returns 0, or the errno with which to fail. */
int failpoint_pass(struct failpoint *f, enum failpoint_name name);

#endif
