/* shoal bench: what the machine can do, and what shoal does on it. Synthetic prompts run through
 * the job's own scheduler and engine, in process and without files. Called by cmd_bench.c and, once
 * a model is loaded, by job.c; the machine's peaks are measured by bench_machine.c. */
#ifndef SHOAL_BENCH_BENCH_H
#define SHOAL_BENCH_BENCH_H

#include "base/strbuf.h"
#include "job/job.h"
#include "kernels/peak.h"
#include "parallel/comm/comm.h"

enum { BENCH_LIST_MAX = 32 };

/* A list of lengths as given, a,b,c. */
struct bench_list {
    uint32_t values[BENCH_LIST_MAX];
    size_t n;
};

struct bench_options {
    struct job_options job; /* first: offsets into it are offsets into this */
    bool machine;
    bool load;         /* the weights and a plain read of their file, in turns */
    bool cold;         /* with load: no page of the file is cached before either */
    bool turns;        /* one repetition for each line of stdin, "PROMPT OUTPUT CONCURRENCY" */
    bool paired_peaks; /* steps in turns with the machine's peaks (bench_paired.c) */
    bool throughput;   /* requests follow each other; else all of a repetition start together */
    const char *json;  /* FILE; "-": stdout, instead of the table; NULL: none */
    struct bench_list prompts, outputs, concurrency;
    uint32_t n_requests; /* of a repetition, throughput only */
    uint32_t n_warmup, n_repetitions;
};

/* Peaks of all ranks together, each with n_threads threads, all at work at the same time. */
struct bench_machine {
    uint32_t n_threads;
    double read_gbs;         /* bytes read from memory, 1e9 a second */
    double gops[PEAK_COUNT]; /* 1e9 operations a second; 0: the CPU lacks the instructions */
};

/* Local. Bytes that are read to measure what memory gives on the largest host: beyond what its
 * last-level caches hold, which on some CPUs is hundreds of MiB, and at least `least`. */
size_t bench_read_bytes(const struct topo *t, size_t least);

/* **Collective (world)**. Measures; `all` false: reads and f32 only. Errors, the same on all
 * ranks: STATUS_MEMORY. */
struct status bench_machine_measure(struct comm *c, const struct topo *t, struct team *team,
                                    bool all, struct bench_machine *out);

/* Local. Appends the row as a JSON object. */
void bench_machine_json(const struct bench_machine *m, struct strbuf *s);

/* Local. The best f32 rate of the measured instruction sets, in 1e9 operations a second. */
double bench_machine_fma(const struct bench_machine *m);

/* **Collective (all processes of the launcher)**. `shoal bench --machine`. Returns the process's
 * exit status. */
int bench_machine_run(const struct bench_options *o, int *argc, char ***argv);

struct job;

/* **Collective (world)**. All cases on the loaded model, or the turns that stdin asks for; prints
 * and writes what was measured. Errors, the same on all ranks: STATUS_MEMORY, STATUS_IO,
 * STATUS_INPUT (a line of stdin; a model whose arithmetic fails), STATUS_DRAINED (a signal). */
struct status bench_run(struct job *j);

/* **Collective (world)**. `shoal bench --load`: n_warmup + n_repetitions turns, each a plain read
 * of the file by all ranks of a host, then a load into memory of its own, which is given back; with
 * `cold` both from the disk. Prints the counted turns' medians. Errors, the same on all ranks:
 * STATUS_IO, and those of weights_load. */
struct status bench_load_run(struct job *j);

/* Local. Whether --json (NULL or "-": no file) can be written at the end; the first rank alone
 * looks. Errors: STATUS_IO. */
struct status bench_check_json(const struct comm *c, const char *path);

/* Local. Writes text to the file of --json. Errors: STATUS_IO. */
struct status bench_write_json(const char *path, const struct strbuf *text);

#endif
