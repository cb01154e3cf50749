/* The flags that choose a layout. options/flags.h explains the rows. */
#ifndef SHOAL_PARALLEL_LAYOUT_LAYOUT_FLAGS_H
#define SHOAL_PARALLEL_LAYOUT_LAYOUT_FLAGS_H

#include "options/flags.h"

/* The network of a host, as --network gives it. */
struct layout_network {
    double gbit_s, latency_s; /* latency 0: not given */
};

/* Local. Parses BANDWIDTH or BANDWIDTH,LATENCY: a number of Gbit/s, or one with Gbit or Mbit, and
 * one with us or ms: "100", "100Gbit,2us". False: not valid. */
bool layout_network_parse(const char *text, void *network);

/* Whether large steps are divided into two halves; the rows of one travel while the other computes.
 */
enum overlap { OVERLAP_AUTO, OVERLAP_ON, OVERLAP_OFF };
#define OVERLAP_WORDS                                                                              \
    {"auto", OVERLAP_AUTO}, {"on", OVERLAP_ON},                                                    \
    {                                                                                              \
        "off", OVERLAP_OFF                                                                         \
    }

/* The flags of a layout. A number that is 0 is chosen from the topology. */
#define LAYOUT_FLAGS(FLAG)                                                                         \
    FLAG(uint32_t, tp, "tp", OF_COUNT(1, 65536, "N"), .alias = "tensor-parallel-size",             \
         .commands = IN_ALL,                                                                       \
         .help = "tensor parallel ranks (default: chosen from the topology); also "                \
                 "--tensor-parallel-size, and --pipeline-, --expert- and --data-parallel-size "    \
                 "for the next three")                                                             \
    FLAG(uint32_t, pp, "pp", OF_COUNT(1, 65536, "N"), .alias = "pipeline-parallel-size",           \
         .commands = IN_ALL, .help = "pipeline stages")                                            \
    FLAG(uint32_t, ep, "ep", OF_COUNT(1, 65536, "N"), .alias = "expert-parallel-size",             \
         .commands = IN_ALL,                                                                       \
         .help = "ranks that the experts are spread over (default: inside a host first; dp x tp "  \
                 "when tp, pp and dp are given)")                                                  \
    FLAG(uint32_t, dp, "dp", OF_COUNT(1, 65536, "N"), .alias = "data-parallel-size",               \
         .commands = IN_ALL, .help = "replicas")                                                   \
    FLAG(struct layout_network, network, "network",                                                \
         OF_PARSED(layout_network_parse,                                                           \
                   "a bandwidth as 100 or 100Gbit, perhaps with a latency "                        \
                   "as in 100Gbit,2us",                                                            \
                   "GBIT/S[,US]"),                                                                 \
         .preset = "100", .commands = IN_ALL,                                                      \
         .help = "bandwidth of a host's network, by which a layout is chosen; with a latency, as " \
                 "100Gbit,2us, for forecasts")                                                     \
    FLAG(enum overlap, overlap, "overlap", OF_CHOICE(OVERLAP_WORDS), .preset = "auto",             \
         .commands = IN_ALL,                                                                       \
         .help =                                                                                   \
             "where experts are on several hosts, whether steps of many rows go in two halves, "   \
             "one of which is computed while the other travels; auto: from as many rows as a "     \
             "model of the step's time, with --network, says; results are the same")               \
    FLAG(bool, plain_exchange, "plain-exchange", OF_SWITCH, .commands = IN_BENCH,                  \
         .help = "experts on other ranks get a row of floats for each choice by one "              \
                 "MPI_Alltoallv, and send one back as GPUs do; to compare")                        \
    FLAG(const char *, expert_load, "expert-load", OF_TEXT("FILE"), .commands = IN_ALL,            \
         .help =                                                                                   \
             "spread experts over ranks so that each has as many tokens, by the counts in the "    \
             "--metrics file of an earlier job; results are the same")                             \
    FLAG(uint32_t, expert_copies, "expert-copies", OF_COUNT(0, 4096, "N"), .preset = "0",          \
         .commands = IN_ALL,                                                                       \
         .help = "with --expert-load, or in a job --expert-replan: N copies of each layer's "      \
                 "experts with the most tokens, on other ranks and hosts; a token takes the "      \
                 "nearest; results are the same")                                                  \
    FLAG(uint32_t, expert_replan, "expert-replan", OF_COUNT(0, 1000000000, "N"), .preset = "0",    \
         .help = "after N steps, spread experts and their copies over ranks by the tokens that "   \
                 "chose them so far, between two steps and once; 0: never; results are the same")

struct layout_flags {
    LAYOUT_FLAGS(FLAG_FIELD)
};

#endif
