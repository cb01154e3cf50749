/* shoal bench: measures the machine's peaks, and shoal's speed on it. Synthetic prompts run through
 * the scheduler and engine that jobs use, in process and without files. bench_machine.c measures
 * the machine's peaks. */
#ifndef SHOAL_BENCH_BENCH_H
#define SHOAL_BENCH_BENCH_H

#include "base/strbuf.h"
#include "job/job.h"
#include "kernels/peak.h"
#include "parallel/comm/comm.h"

enum { BENCH_LIST_MAX = 32 };

/* The values of a flag that takes a list. */
struct bench_list {
    uint32_t values[BENCH_LIST_MAX];
    size_t n;
};

enum bench_mode { BENCH_LATENCY, BENCH_THROUGHPUT };
#define BENCH_MODE_WORDS                                                                           \
    {"latency", BENCH_LATENCY},                                                                    \
    {                                                                                              \
        "throughput", BENCH_THROUGHPUT                                                             \
    }

#define BENCH_FLAGS(FLAG)                                                                          \
    FLAG(bool, machine, "machine", OF_SWITCH, .commands = IN_BENCH,                                \
         .help = "measure read bandwidth, f32 and int8 peaks, and sums over ranks; no model is "   \
                 "needed")                                                                         \
    FLAG(const char *, save, "save", OF_TEXT("NODE.json"), .commands = IN_BENCH,                   \
         .help = "with --machine: also measure what forecasts need, in under two minutes, and "    \
                 "write it to this file, for shoal plan --nodes; with --disk: write the disk's "   \
                 "rate into such a file")                                                          \
    FLAG(const char *, disk, "disk", OF_TEXT("DIR|FILE"), .commands = IN_BENCH,                    \
         .help = "measure reads of a disk as jobs that stream experts read it: of FILE, or of a "  \
                 "file without a name that is written in DIR first")                               \
    FLAG(uint64_t, disk_bytes, "disk-size",                                                        \
         OF_PARSED(read_disk_size, "bytes, or a number with K, M, G or T", "SIZE"),                \
         .preset = "2G", .commands = IN_BENCH,                                                     \
         .help = "with --disk: bytes that the ranks of a host together write and read; give more " \
                 "than a drive's own cache holds")                                                 \
    FLAG(bool, load, "load", OF_SWITCH, .commands = IN_BENCH,                                      \
         .help = "measure how long loading takes, beside a plain parallel read of the same file")  \
    FLAG(bool, cold, "cold", OF_SWITCH, .commands = IN_BENCH,                                      \
         .help = "with --load: the system forgets the file before each of the two, so that both "  \
                 "read the disk; the plain read is then direct (O_DIRECT) and keeps nothing")      \
    FLAG(const char *, json, "json", OF_TEXT("FILE"), .commands = IN_BENCH,                        \
         .help = "also write everything as JSON; - is stdout, instead of the table")               \
    FLAG(struct bench_list, prompts, "prompt-lengths",                                             \
         OF_PARSED(read_lengths, "up to 32 numbers from 1 to 16777216, A,B,..", "A,B,.."),         \
         .preset = "512", .commands = IN_BENCH, .help = "tokens of a prompt")                      \
    FLAG(struct bench_list, outputs, "output-lengths",                                             \
         OF_PARSED(read_lengths, "up to 32 numbers from 1 to 16777216, A,B,..", "A,B,.."),         \
         .preset = "128", .commands = IN_BENCH, .help = "tokens of an answer")                     \
    FLAG(struct bench_list, concurrency, "concurrency",                                            \
         OF_PARSED(read_counts, "up to 32 numbers from 1 to 1048576, A,B,..", "A,B,.."),           \
         .preset = "1", .commands = IN_BENCH, .help = "requests at a time")                        \
    FLAG(enum bench_mode, mode, "mode", OF_CHOICE(BENCH_MODE_WORDS), .preset = "latency",          \
         .commands = IN_BENCH,                                                                     \
         .help = "latency: the requests of a repetition start together; throughput: --requests "   \
                 "of them, a new one when one is done")                                            \
    FLAG(uint32_t, n_requests, "requests", OF_COUNT(1, 1 << 20, "N"), .commands = IN_BENCH,        \
         .help = "requests of a repetition, with --mode throughput (default: four times the "      \
                 "concurrency)")                                                                   \
    FLAG(uint32_t, n_warmup, "warmup", OF_COUNT(0, 1 << 20, "N"), .preset = "1",                   \
         .commands = IN_BENCH, .help = "repetitions that are not counted")                         \
    FLAG(uint32_t, n_repetitions, "repetitions", OF_COUNT(1, 1 << 20, "N"), .preset = "5",         \
         .commands = IN_BENCH, .help = "repetitions that are counted")                             \
    FLAG(bool, turns, "turns", OF_SWITCH, .commands = IN_BENCH,                                    \
         .help = "one repetition for each line of stdin, PROMPT OUTPUT CONCURRENCY, answered by "  \
                 "a line of JSON: to take turns with another program")                             \
    FLAG(bool, paired_peaks, "paired-peaks", OF_SWITCH, .commands = IN_BENCH,                      \
         .help = "on one rank, for concurrency 1: --repetitions more, whose steps take turns "     \
                 "with the machine's peaks on the same threads: memory reads beside decoding, "    \
                 "f32 arithmetic beside prompts; shows the steps' part of the peaks. With "        \
                 "--turns every repetition of one request is measured in this way")                \
    FLAG(uint32_t, watchdog_s, "watchdog", OF_COUNT(0, 86400, "SECONDS"), .preset = "0",           \
         .commands = IN_BENCH, .help = "as in shoal generate; 0: off")

struct bench_flags {
    BENCH_FLAGS(FLAG_FIELD)
};

struct bench_options {
    struct job_options job; /* first: a job's flags keep their offsets */
    struct bench_flags flags;
};

/* Peaks of all ranks together, which measure at the same time with n_threads threads each. */
struct bench_machine {
    uint32_t n_threads;
    double read_gbs;         /* reads from memory, in units of 1e9 bytes per second */
    double gops[PEAK_COUNT]; /* in units of 1e9 operations per second; 0: not measured, or the CPU
                                lacks the instructions */
};

/* The layout with which ranks that load no model split their communicator. A layout needs a model:
 * `arch` has one layer, and a head for each rank. */
struct bench_split {
    struct arch arch;
    struct layout layout;
    uint32_t *order; /* [ranks] owned */
};

/* **Collective (all processes of the launcher)**. Splits c's axes; all ranks become one replica.
 * The caller calls fini even after an error. Errors, which may differ between ranks:
 * STATUS_MEMORY. */
struct status bench_split_init(struct bench_split *s, struct comm *c);
void bench_split_fini(struct bench_split *s);

/* Local. Returns how many bytes to read to measure a host's memory: twice the last-level caches of
 * the largest host (hundreds of MiB on some CPUs), at most 4 GiB, but at least `least`. */
size_t bench_read_bytes(const struct topo *t, size_t least);

/* **Collective (world)**. Measures reads and all arithmetic peaks; with `all` false, only reads and
 * f32 peaks. Errors, the same on all ranks: STATUS_MEMORY. */
struct status bench_machine_measure(struct comm *c, const struct topo *t, struct team *team,
                                    bool all, struct bench_machine *out);

/* Local. Appends the peaks as a JSON object. */
void bench_machine_json(const struct bench_machine *m, struct strbuf *s);

/* Local. Returns the best f32 rate of the measured instruction sets, in units of 1e9 operations per
 * second. */
double bench_machine_fma(const struct bench_machine *m);

/* **Collective (all processes of the launcher)**. Runs `shoal bench --machine`. Returns the
 * process's exit status. */
int bench_machine_run(const struct bench_options *o, int *argc, char ***argv);

/* **Collective (all processes of the launcher)**. Runs `shoal bench --disk`. Returns the process's
 * exit status. */
int bench_disk_run(const struct bench_options *o, int *argc, char ***argv);

struct job;

/* **Collective (world)**. Runs all cases on the loaded model, the turns that stdin asks for, or
 * bench_load_run; prints and writes the results. Errors, the same on all ranks: STATUS_MEMORY,
 * STATUS_IO, STATUS_USAGE (lengths beyond the context; --paired-peaks with several ranks or a
 * device), STATUS_INPUT (a line of stdin; a model whose arithmetic fails), STATUS_DRAINED (a
 * signal). */
struct status bench_run(struct job *j);

/* **Collective (world)**. Runs `shoal bench --load`: n_warmup + n_repetitions turns. Each turn is a
 * plain read of the file by all ranks of a host, then a load whose memory is freed; with `cold`
 * both read from the disk. Destroys the job's own weights first. Prints medians over the counted
 * turns. Errors, the same on all ranks: STATUS_IO, STATUS_MEMORY, and those of weights_load. */
struct status bench_load_run(struct job *j);

/* Local. Checks on the first rank that the file of a flag, "json" or "save", can be written at the
 * end (NULL or "-": no file). Errors: STATUS_IO. */
struct status bench_check_json(const struct comm *c, const char *flag, const char *path);

/* Local. Writes text to the file of a flag, "json" or "save". Errors: STATUS_IO, STATUS_MEMORY. */
struct status bench_write_json(const char *flag, const char *path, const struct strbuf *text);

#endif
