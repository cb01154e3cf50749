/* shoal diagnose: finds faults of the hosts it runs on that would slow a job down or end it. */
#ifndef SHOAL_DIAGNOSE_DIAGNOSE_H
#define SHOAL_DIAGNOSE_DIAGNOSE_H

#include "options/flags.h"

#define DIAGNOSE_FLAGS(FLAG)                                                                       \
    FLAG(const char *, directory, "directory", OF_TEXT("DIR"),                                     \
         .help = "also measure this folder, where checkpoints or outputs lie (writes 256 MiB)")    \
    FLAG(const char *, json, "json", OF_TEXT("FILE"),                                              \
         .help = "write facts and findings there as JSON (- for stdout, instead of the text)")     \
    FLAG(uint32_t, threads, "threads", OF_COUNT(1, 4096, "N"),                                     \
         .help = "threads of a rank (default: its share of the cores it was given)")               \
    FLAG(const char *, root, "root", OF_TEXT("DIR"), .help = NULL)

struct diagnose_flags {
    DIAGNOSE_FLAGS(FLAG_FIELD)
};

/* **Collective (all processes of the launcher)**. Starts MPI, gathers the facts, and prints them
 * and the findings on the lead. Returns the exit status: findings are not an error. */
int diagnose_run(const struct diagnose_flags *f, int *argc, char ***argv);

#endif
