/* The flags of shoal rank, and of a server of scores (options/flags.h explains the rows). */
#ifndef SHOAL_SERVE_REQUEST_RANK_FLAGS_H
#define SHOAL_SERVE_REQUEST_RANK_FLAGS_H

#include "options/flags.h"

enum rank_choice { RANK_BY_MODEL, RANK_AS_LOGITS, RANK_BY_SIGMOID, RANK_BY_SOFTMAX };

/* Qwen3-Reranker's own instruction, from its model card. */
#define RANK_INSTRUCTION                                                                           \
    "Given a web search query, retrieve relevant passages that answer the query"

#define RANK_FLAGS(FLAG)                                                                           \
    FLAG(enum rank_choice, activation, "activation",                                               \
         OF_CHOICE({"auto", RANK_BY_MODEL}, {"none", RANK_AS_LOGITS},                              \
                   {"sigmoid", RANK_BY_SIGMOID}, {"softmax", RANK_BY_SOFTMAX}),                    \
         .preset = "auto", .commands = IN_RANK | IN_SERVE, .journal = JOURNAL_ALWAYS,              \
         .help = "how scores are made of logits; auto: as probabilities, by softmax if there are " \
                 "several classes, otherwise by sigmoid")                                          \
    FLAG(const char *, pair_template, "pair-template", OF_TEXT("FILE"), .preset = "auto",          \
         .commands = IN_RANK | IN_SERVE,                                                           \
         .help = "file with the text of a pair, in which {query}, {document} and {instruction} "   \
                 "stand for the pair's; auto: Qwen3-Reranker's if the model is asked for yes or "  \
                 "no, otherwise none")                                                             \
    FLAG(const char *, instruction, "instruction", OF_TEXT("TEXT"), .preset = RANK_INSTRUCTION,    \
         .commands = IN_RANK | IN_SERVE, .journal = JOURNAL_ALWAYS,                                \
         .help = "the instruction of lines that have none")

struct rank_flags {
    RANK_FLAGS(FLAG_FIELD)
};

#endif
