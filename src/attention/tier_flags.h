/* The flags of KV blocks that are kept on disk (options/flags.h says how to read the list). None of
 * them changes a byte of the results. */
#ifndef SHOAL_ATTENTION_TIER_FLAGS_H
#define SHOAL_ATTENTION_TIER_FLAGS_H

#include "options/flags.h"

enum { TIER_DIR_BYTES = 1024 };

/* A folder and how much it may hold; n_bytes 0: none. */
struct tier_place {
    char dir[TIER_DIR_BYTES];
    uint64_t n_bytes;
};

#define TIER_FLAGS(FLAG)                                                                           \
    FLAG(struct tier_place, kv_tier, "kv-tier",                                                    \
         OF_PARSED(read_place, "DIR:SIZE, such as /scratch:64G", "DIR:SIZE"), .commands = IN_JOBS, \
         .help = "keep KV blocks of preempted sequences in a file in DIR, on a local disk, at "    \
                 "most SIZE for each rank, and read them back where that is faster than "          \
                 "computing them again; the file has no name and goes away with the job")          \
    FLAG(struct tier_place, prefix_store, "prefix-store",                                          \
         OF_PARSED(read_place, "DIR:SIZE, such as /scratch:64G", "DIR:SIZE"), .commands = IN_JOBS, \
         .help = "keep KV blocks of prefixes that several requests share in DIR, at most SIZE of " \
                 "them, so that later jobs on the same checkpoint, in any layout, need not "       \
                 "compute them; several jobs may use DIR at the same time; layers with a window "  \
                 "then keep all their blocks")

struct tier_flags {
    TIER_FLAGS(FLAG_FIELD)
};

#endif
