/* The flags of the scheduler; options/flags.h explains the tables of flags. None of them changes a
 * byte of a result. */
#ifndef SHOAL_SERVE_SCHEDULE_SCHEDULE_FLAGS_H
#define SHOAL_SERVE_SCHEDULE_SCHEDULE_FLAGS_H

#include "options/flags.h"
#include "serve/schedule/order.h"
#include "serve/schedule/sequence.h"

/* Values of --speculate below 0 say where drafts come from: both the prediction layer and the text,
 * the prediction layer alone, or the text alone. */
enum { SCHEDULE_DRAFTS_AUTO = -1, SCHEDULE_DRAFTS_MTP = -2, SCHEDULE_DRAFTS_NGRAM = -3 };

#define SCHEDULE_FLAGS(FLAG)                                                                       \
    FLAG(int32_t, max_batch, "max-batch", OF_COUNT(1, 1 << 20, "N"),                               \
         .commands = IN_JOBS | IN_PLAN,                                                            \
         .help = "sequences running in a replica (default: as many as fit)")                       \
    FLAG(int32_t, step_tokens, "step-tokens", OF_COUNT(1, 1 << 20, "N"), .preset = "512",          \
         .commands = IN_ALL, .help = "rows of a replica in one step")                              \
    FLAG(uint64_t, step_ns, "step-ms", OF_UNITS(1000000, 0, 1u << 30, "N"),                        \
         .help = "fewer rows, but at least 64, in a step while steps take longer than this; 0: "   \
                 "never (default: 2000 where the input is a pipe, 0 where it is a file, 200 in a " \
                 "server)")                                                                        \
    FLAG(int32_t, chunk_tokens, "chunk", OF_COUNT(1, 1 << 20, "N"),                                \
         .commands = IN_JOBS | IN_BENCH,                                                           \
         .help = "prompt rows of a sequence in one step (default: as many as the step has left)")  \
    FLAG(bool, prefix_cache, "prefix-cache", OF_ON_OFF, .preset = "on",                            \
         .help = "prompts that begin alike share KV blocks; off with --logits or a capacity "      \
                 "factor")                                                                         \
    FLAG(int32_t, n_drafts, "speculate", OF_COUNT(0, SEQUENCE_DRAFTS_MAX, "N"), .preset = "auto",  \
         .words = FLAG_WORDS({"auto", SCHEDULE_DRAFTS_AUTO}, {"mtp", SCHEDULE_DRAFTS_MTP},         \
                             {"ngram", SCHEDULE_DRAFTS_NGRAM}, {"off", 0}),                        \
         .help = "guess tokens, and check them in one step, where few sequences run: N of each "   \
                 "sequence from where the last tokens stood before in prompt or answer, or as "    \
                 "many as were worth it of late (ngram); from the model's prediction layer "       \
                 "(mtp); or from both, where it is worth it (auto); results are the same; off "    \
                 "when scoring, with a capacity factor, and, unless given, with --device cuda")    \
    FLAG(enum order_kind, order, "order", OF_CHOICE(ORDER_WORDS), .preset = "auto",                \
         .help = "in which order lines run, within a window; rows are written in the order of "    \
                 "the input (auto: long and short, prompt-heavy and answer-heavy mixed, and "      \
                 "together those that begin alike where the KV pool could not hold what they "     \
                 "share; prefix: sorted by prompt)")

struct schedule_flags {
    SCHEDULE_FLAGS(FLAG_FIELD)
};

#endif
