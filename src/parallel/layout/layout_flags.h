/* The flags that choose a layout. options/flags.h explains the rows. */
#ifndef SHOAL_PARALLEL_LAYOUT_LAYOUT_FLAGS_H
#define SHOAL_PARALLEL_LAYOUT_LAYOUT_FLAGS_H

#include "options/flags.h"

/* The network of a host, as --network gives it. */
struct layout_network {
    double gbit_s, latency_s; /* latency 0: not given */
};

/* Local. Parses BANDWIDTH or BANDWIDTH,LATENCY, such as "100" or "100Gbit,2us". Units are Gbit (the
 * default) or Mbit, and us (the default) or ms. False: not valid. */
bool layout_network_parse(const char *text, void *network);

/* Whether large steps are divided into two halves, so that the rows of one half travel while the
 * other half is computed. */
enum overlap { OVERLAP_AUTO, OVERLAP_ON, OVERLAP_OFF };
#define OVERLAP_WORDS                                                                              \
    {"auto", OVERLAP_AUTO}, {"on", OVERLAP_ON},                                                    \
    {                                                                                              \
        "off", OVERLAP_OFF                                                                         \
    }

/* The flags of a layout. tp, pp, ep and dp are chosen from the topology where they are 0. */
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
         .commands = IN_ALL, .help = "replicas of the model")                                      \
    FLAG(struct layout_network, network, "network",                                                \
         OF_PARSED(layout_network_parse,                                                           \
                   "a bandwidth, such as 100 or 100Gbit, or also a "                               \
                   "latency, such as 100Gbit,2us",                                                 \
                   "GBIT/S[,US]"),                                                                 \
         .preset = "100", .commands = IN_ALL,                                                      \
         .help = "bandwidth of a host's network, by which a layout is chosen; with a latency, "    \
                 "such as 100Gbit,2us, also for forecasts")                                        \
    FLAG(enum overlap, overlap, "overlap", OF_CHOICE(OVERLAP_WORDS), .preset = "auto",             \
         .commands = IN_ALL,                                                                       \
         .help = "where experts are on several hosts: whether steps of many rows go in two "       \
                 "halves, so that the rows of one half travel while the other is computed; auto: " \
                 "from the number of rows on at which an estimate of the step's time (with "       \
                 "--network) says that it pays; results are the same")                             \
    FLAG(bool, plain_exchange, "plain-exchange", OF_SWITCH, .commands = IN_BENCH,                  \
         .help = "for comparison: send experts on other ranks a row of floats for each choice, "   \
                 "and get one back, in one MPI_Alltoallv each, as GPUs do")                        \
    FLAG(const char *, expert_load, "expert-load", OF_TEXT("FILE"), .commands = IN_ALL,            \
         .help = "place experts so that all ranks get about the same number of tokens, by the "    \
                 "counts in the --metrics file of an earlier job, or by those beside its "         \
                 "journal; results are the same")                                                  \
    FLAG(uint32_t, expert_copies, "expert-copies", OF_COUNT(0, 4096, "N"), .preset = "0",          \
         .commands = IN_ALL,                                                                       \
         .help = "with --expert-load, or in a job --expert-replan: N copies of each layer's "      \
                 "experts with the most tokens, on other ranks and hosts; a token goes to the "    \
                 "nearest; results are the same")                                                  \
    FLAG(uint32_t, expert_replan, "expert-replan", OF_COUNT(0, 1000000000, "N"), .preset = "0",    \
         .help =                                                                                   \
             "after N steps, and again where it pays: place experts and their copies anew, by "    \
             "the tokens that chose them lately; 0: never; results are the same")

struct layout_flags {
    LAYOUT_FLAGS(FLAG_FIELD)
};

#endif
