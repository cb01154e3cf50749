/* shoal bench: what the machine can do, and what shoal does on it. Synthetic prompts run through
 * the job's own scheduler and engine, in process and without files. Called by cmd_bench.c; the
 * machine's peaks are measured by bench_machine.c. */
#ifndef SHOAL_BENCH_H
#define SHOAL_BENCH_H

#include "base/strbuf.h"
#include "job.h"
#include "kernels/peak.h"
#include "parallel/comm.h"

enum { BENCH_LIST_MAX = 32 };

/* A list of lengths as given, a,b,c. */
struct bench_list {
    uint32_t values[BENCH_LIST_MAX];
    size_t n;
};

struct bench_options {
    struct job_options job; /* first: flag tables of a job fit */
    bool machine;
    const char *json; /* FILE; "-": stdout, instead of the table; NULL: none */
};

/* Peaks of all ranks together, each with n_threads threads, all at work at the same time. */
struct bench_machine {
    uint32_t n_threads;
    double read_gbs;         /* bytes read from memory, 1e9 a second */
    double gops[PEAK_COUNT]; /* 1e9 operations a second; 0: the CPU lacks the instructions */
};

/* **Collective (world)**. Measures; `with_ops` false: reads and f32 only. Leaves n_threads OpenMP
 * threads set. Errors, the same on all ranks: STATUS_MEMORY. */
struct status bench_machine_measure(struct comm *c, uint32_t n_threads, bool with_ops,
                                    struct bench_machine *out);

/* Local. Appends the row as a JSON object. */
void bench_machine_json(const struct bench_machine *m, struct strbuf *s);

/* Local. The best f32 rate of the measured instruction sets, in 1e9 operations a second. */
double bench_machine_fma(const struct bench_machine *m);

/* **Collective (all processes of the launcher)**. `shoal bench --machine`. Returns the process's
 * exit status. */
int bench_machine_run(const struct bench_options *o, int *argc, char ***argv);

/* Local. Writes text to the file of --json. Errors: STATUS_IO. */
struct status bench_write_json(const char *path, const struct strbuf *text);

#endif
