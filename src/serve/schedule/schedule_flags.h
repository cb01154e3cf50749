/* The flags of the scheduler; options/flags.h explains the tables of flags. None of them changes a
 * byte of a result. */
#ifndef SHOAL_SERVE_SCHEDULE_SCHEDULE_FLAGS_H
#define SHOAL_SERVE_SCHEDULE_SCHEDULE_FLAGS_H

#include "options/flags.h"
#include "serve/schedule/order.h"
#include "serve/schedule/sequence.h"

/* Values of --speculate below 0 say where drafts come from: wherever they can (a draft model or the
 * prediction layer, and the text), the prediction layer alone, or the text alone. */
enum { SCHEDULE_DRAFTS_AUTO = -1, SCHEDULE_DRAFTS_MTP = -2, SCHEDULE_DRAFTS_NGRAM = -3 };

#define SCHEDULE_FLAGS(FLAG)                                                                       \
    FLAG(int32_t, max_batch, "max-batch", OF_COUNT(1, 1 << 20, "N"),                               \
         .commands = IN_JOBS | IN_PLAN,                                                            \
         .help = "the most sequences that run at a time in a replica (default: as many as fit)")   \
    FLAG(int32_t, step_tokens, "step-tokens", OF_COUNT(1, 1 << 20, "N"), .preset = "512",          \
         .commands = IN_ALL, .help = "the most rows (tokens) of a replica in one step")            \
    FLAG(uint64_t, step_ns, "step-ms", OF_UNITS(1000000, 0, 1u << 30, "N"),                        \
         .help = "use fewer rows in a step, but at least 64, while steps take longer than N "      \
                 "milliseconds; 0: never (default: 2000 where the input is a pipe, 0 where it is " \
                 "a file; in a server 200 while single steps matter to a client, else 2000)")      \
    FLAG(int32_t, chunk_tokens, "chunk", OF_COUNT(1, 1 << 20, "N"), .commands = IN_ALL,            \
         .help = "the most prompt rows of one sequence in a step (default: as many as the step "   \
                 "has left)")                                                                      \
    FLAG(bool, prefix_cache, "prefix-cache", OF_ON_OFF, .preset = "on",                            \
         .commands = IN_JOBS | IN_PLAN,                                                            \
         .help = "prompts that begin alike share KV blocks; off with --logits or a capacity "      \
                 "factor")                                                                         \
    FLAG(int32_t, n_drafts, "speculate", OF_COUNT(0, SEQUENCE_DRAFTS_MAX, "N"), .preset = "auto",  \
         .words = FLAG_WORDS({"auto", SCHEDULE_DRAFTS_AUTO}, {"mtp", SCHEDULE_DRAFTS_MTP},         \
                             {"ngram", SCHEDULE_DRAFTS_NGRAM}, {"off", 0}),                        \
         .help =                                                                                   \
             "speculative decoding while few sequences run: one step checks several draft "        \
             "tokens. N: N drafts for each sequence, from where its last tokens stood before in "  \
             "prompt or answer, or with --draft from the draft model; ngram: from the text, as "   \
             "many as paid lately; mtp: from the model's prediction layer; auto: from all of "     \
             "these, where it pays; results are the same; off when scoring, with a capacity "      \
             "factor, and, unless given, with --device cuda")                                      \
    FLAG(enum order_kind, order, "order", OF_CHOICE(ORDER_WORDS), .preset = "auto",                \
         .commands = IN_JOBS | IN_PLAN,                                                            \
         .help = "the order in which lines run, within a window; rows are written in the order "   \
                 "of the input. auto: long and short, prompt-heavy and answer-heavy lines mixed, " \
                 "but lines with a common prefix together if the KV pool could not hold all such " \
                 "prefixes; prefix: sorted by prompt")

struct schedule_flags {
    SCHEDULE_FLAGS(FLAG_FIELD)
};

#endif
