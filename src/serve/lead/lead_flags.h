/* The lead's flags: result cache, journal, resuming and display (options/flags.h explains the
 * rows). None changes the bytes of an answer. */
#ifndef SHOAL_SERVE_LEAD_LEAD_FLAGS_H
#define SHOAL_SERVE_LEAD_LEAD_FLAGS_H

#include "options/flags.h"

enum lead_mode { LEAD_GENERATE, LEAD_SCORE, LEAD_EMBED, LEAD_RANK };

#define LEAD_FLAGS(FLAG)                                                                           \
    FLAG(bool, result_cache, "result-cache", OF_ON_OFF, .preset = "on",                            \
         .help = "equal requests (prompt, sampling, seed or greedy) are computed once; off when "  \
                 "scoring or with a capacity factor")                                              \
    FLAG(bool, restart, "restart", OF_SWITCH, .commands = IN_BATCH,                                \
         .help = "forget the rows of earlier runs and overwrite the output")                       \
    FLAG(bool, retry_errors, "retry-errors", OF_SWITCH, .commands = IN_BATCH,                      \
         .help = "run the error rows of earlier runs again")                                       \
    FLAG(int32_t, checkpoint_tokens, "checkpoint-tokens", OF_COUNT(0, 1e9, "N"), .preset = "256",  \
         .commands = IN_BATCH,                                                                     \
         .help = "save the tokens of a running request after every N of them; 0: only when the "   \
                 "job is drained")                                                                 \
    FLAG(uint32_t, frame_bytes, "output-frame", OF_COUNT(1, 1 << 30, "BYTES"),                     \
         .preset = "1048576", .commands = IN_BATCH,                                                \
         .help = "bytes of rows in a frame of a compressed output; the file grows by frames")      \
    FLAG(bool, quiet, "quiet", OF_SWITCH, .commands = IN_JOBS | IN_BENCH,                          \
         .help = "no progress and no summary on stderr, warnings only")                            \
    FLAG(bool, progress_bar, "progress-bar", OF_SWITCH,                                            \
         .help = "draw a bar even if stderr is not a terminal (under mpirun it is a pipe)")

struct lead_flags {
    LEAD_FLAGS(FLAG_FIELD)
};

#endif
