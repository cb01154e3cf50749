/* The flags that say where weights are kept (options/flags.h says how to read the list). None of
 * them changes a byte of the results. */
#ifndef SHOAL_WEIGHTS_WEIGHTS_FLAGS_H
#define SHOAL_WEIGHTS_WEIGHTS_FLAGS_H

#include "options/flags.h"

/* AUTO: all weights in memory if they fit the bound of --memory (none by default); otherwise the
 * experts stream from disk, if they can. */
enum weights_place { WEIGHTS_AUTO, WEIGHTS_RESIDENT, WEIGHTS_STREAM };
#define WEIGHTS_PLACE_WORDS                                                                        \
    {"auto", WEIGHTS_AUTO}, {"resident", WEIGHTS_RESIDENT},                                        \
    {                                                                                              \
        "stream", WEIGHTS_STREAM                                                                   \
    }

#define WEIGHTS_FLAGS(FLAG)                                                                        \
    FLAG(enum weights_place, place, "weights", OF_CHOICE(WEIGHTS_PLACE_WORDS), .preset = "auto",   \
         .commands = IN_ALL,                                                                       \
         .help = "keep all weights in memory (resident), or read the routed experts from disk in " \
                 "each step (stream), or stream them if --memory does not hold all weights "       \
                 "(auto); results are the same")                                                   \
    FLAG(uint64_t, memory_bytes, "memory",                                                         \
         OF_PARSED(read_size, "bytes, or a number with K, M, G or T", "SIZE"), .commands = IN_ALL, \
         .help = "the most memory of a rank for program, weights, KV cache and workspace, such "   \
                 "as 64G (of 1024^3 bytes; default: what the host has free)")                      \
    FLAG(uint64_t, expert_bytes, "expert-memory",                                                  \
         OF_PARSED(read_size, "bytes, or a number with K, M, G or T", "SIZE"),                     \
         .commands = IN_JOBS | IN_BENCH,                                                           \
         .help = "memory of a rank for streamed experts, at least four of them (default: what "    \
                 "the KV cache leaves)")                                                           \
    FLAG(const char *, expert_file, "expert-file", OF_TEXT("FILE"),                                \
         .commands = IN_JOBS | IN_BENCH,                                                           \
         .help = "the packed copy of the experts that are streamed; made if it is missing "        \
                 "(default: beside the checkpoint, MODEL.h5.experts; shoal pack makes it, too)")

struct weights_flags {
    WEIGHTS_FLAGS(FLAG_FIELD)
};

/* Local. Reads a number of bytes, such as "4096", "100M" or "1.5G"; K, M, G and T multiply it by
 * 1024, 1024^2, 1024^3 and 1024^4. False: not understood, or not from 1 to 1e18. */
bool weights_size_parse(const char *text, uint64_t *n_bytes);

#endif
