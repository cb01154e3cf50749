/* The sampling flags (options/flags.h explains the rows). A request's own fields override them,
 * except --reasoning-parser. A flag that the user gave overrides the model's
 * generation_config.json; a preset does not. The journal of `shoal generate`, and of a server's
 * batch, keeps their values in this order, but --reasoning-parser only when it differs from its
 * preset. */
#ifndef SHOAL_SERVE_REQUEST_SAMPLING_FLAGS_H
#define SHOAL_SERVE_REQUEST_SAMPLING_FLAGS_H

#include "options/flags.h"

#include <stdint.h>

/* Whether the thoughts (reasoning) of answers to chats are split off from their content. job_text.c
 * replaces REASONING_AUTO by one of the others. */
enum reasoning_parser { REASONING_NONE, REASONING_AUTO, REASONING_THINK };

#define SAMPLING_FLAGS(FLAG)                                                                       \
    FLAG(int64_t, max_tokens, "max-tokens", OF_I64(1, 1e9, "N"), .preset = "128",                  \
         .commands = IN_ANSWERS, .journal = JOURNAL_ALWAYS,                                        \
         .help = "the most tokens of an answer")                                                   \
    FLAG(double, temperature, "temperature", OF_NUMBER(0, 1e6, "X"), .preset = "1",                \
         .commands = IN_ANSWERS, .journal = JOURNAL_ALWAYS,                                        \
         .help = "0: greedy; a model's generation_config.json may have another default for this, " \
                 "top-p, top-k, min-p and repetition-penalty")                                     \
    FLAG(double, top_p, "top-p", OF_NUMBER(0, 1, "X"), .preset = "1", .commands = IN_ANSWERS,      \
         .journal = JOURNAL_ALWAYS, .help = "nucleus sampling; 1: off")                            \
    FLAG(int64_t, top_k, "top-k", OF_I64(-1, 1e9, "N"), .preset = "0", .commands = IN_ANSWERS,     \
         .journal = JOURNAL_ALWAYS,                                                                \
         .help = "sample only from the N most likely tokens; 0 and -1: off")                       \
    FLAG(double, repetition_penalty, "repetition-penalty", OF_NUMBER(0.001, 100, "X"),             \
         .preset = "1", .commands = IN_ANSWERS, .journal = JOURNAL_ALWAYS,                         \
         .help = "penalty on tokens that prompt or answer already have; above 1: less "            \
                 "repetition; 1: off")                                                             \
    FLAG(double, presence_penalty, "presence-penalty", OF_NUMBER(-2, 2, "X"), .preset = "0",       \
         .commands = IN_ANSWERS, .journal = JOURNAL_ALWAYS,                                        \
         .help = "subtracted once from the logit of each token that the answer has")               \
    FLAG(double, frequency_penalty, "frequency-penalty", OF_NUMBER(-2, 2, "X"), .preset = "0",     \
         .commands = IN_ANSWERS, .journal = JOURNAL_ALWAYS,                                        \
         .help = "subtracted from a token's logit for each time that the answer has it")           \
    FLAG(int64_t, n, "n", OF_I64(1, 128, "N"), .preset = "1", .commands = IN_ANSWERS,              \
         .journal = JOURNAL_ALWAYS, .help = "answers to each line")                                \
    FLAG(int64_t, logprobs, "logprobs", OF_I64(0, 20, "N"), .preset = "0", .commands = IN_ANSWERS, \
         .journal = JOURNAL_ALWAYS,                                                                \
         .help = "also write the log-probability of each token and of the N most likely tokens "   \
                 "in its place; 0: none")                                                          \
    FLAG(double, min_p, "min-p", OF_NUMBER(0, 1, "X"), .preset = "0", .commands = IN_ANSWERS,      \
         .journal = JOURNAL_ALWAYS,                                                                \
         .help = "sample only from tokens that are at least X times as likely as the most likely " \
                 "one; 0: off")                                                                    \
    FLAG(uint64_t, seed, "seed", OF_U64("N"), .preset = "0", .commands = IN_ANSWERS,               \
         .journal = JOURNAL_ALWAYS,                                                                \
         .help = "seed of the random draws; hashed with the line's custom_id")                     \
    FLAG(struct flag_list, stops, "stop", OF_LIST("STR"), .commands = IN_ANSWERS,                  \
         .journal = JOURNAL_ALWAYS, .help = "a string that ends a text; may be repeated")          \
    FLAG(                                                                                          \
        enum reasoning_parser, reasoning, "reasoning-parser",                                      \
        OF_CHOICE({"none", REASONING_NONE}, {"auto", REASONING_AUTO}, {"think", REASONING_THINK}), \
        .preset = "none", .commands = IN_ANSWERS, .journal = JOURNAL_CHANGED,                      \
        .help = "think: in answers to OpenAI chats the text between <think> and </think> is the "  \
                "message's reasoning_content, not its content; auto: think if the model's chat "   \
                "template has </think>")

struct request_defaults {
    SAMPLING_FLAGS(FLAG_FIELD)
};

#endif
