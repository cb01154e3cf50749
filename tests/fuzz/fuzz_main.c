/* fuzz TARGET [--seed S] [--first K] [--cases N] [--seconds T] [--case-seconds T] [--out DIR]
 *
 * Runs every file of tests/fuzz/regress/TARGET, then N cases of seed S from case K on (or as many
 * as fit into T seconds), in child processes. The input of a crash, hang or leak becomes a file in
 * DIR.
 *
 * fuzz TARGET FILE...   runs only those inputs, in this process (for gdb); a relative path is below
 *                       tests/
 * fuzz --list           lists the targets */
#include "base/log.h"
#include "fuzz/fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ASan's shadow memory needs more address space than a limit would allow. */
#ifdef __SANITIZE_ADDRESS__
#define HAS_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN
#endif
#endif

enum { BATCH = 512, LEAK_STATUS = 23, BAD_MAX = 20, MEMORY_MIB = 3072 };

/* Progress of the child process, in memory that its parent sees. */
struct shared {
    uint64_t number; /* number of the running case */
    uint64_t n_taken, n_refused;
    size_t n;
    char bytes[FUZZ_BYTES_MAX];
};

struct run {
    const struct fuzz_target *target;
    struct fuzz_seeds seeds;
    struct shared *shared;
    uint64_t seed, first, n_cases;
    double seconds; /* 0: no limit */
    unsigned case_seconds;
    const char *out;
    unsigned n_bad;
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void try_one(struct run *r, const char *bytes, size_t n)
{
    memcpy(r->shared->bytes, bytes, n);
    r->shared->n = n;
    alarm(r->case_seconds);
    const bool taken = r->target->run(bytes, n);
    alarm(0);
    r->shared->n_taken += taken;
    r->shared->n_refused += !taken;
}

/* Frees everything, before the leak check at the process's end. */
static void give_back(struct run *r)
{
    fuzz_scratch_clear();
    for (size_t i = 0; i < r->seeds.n; i++) free(r->seeds.items[i].bytes);
    r->seeds.n = 0;
}

static _Noreturn void end_of_child(struct run *r)
{
    give_back(r);
    exit(0);
}

static void run_cases(struct run *r, uint64_t first, uint64_t end)
{
    for (uint64_t i = first; i < end; i++) {
        r->shared->number = i;
        const struct fuzz_bytes b = fuzz_case(r->target, &r->seeds, r->seed, i);
        try_one(r, b.bytes, b.n);
        free(b.bytes);
    }
}

/* Waits for a child. Returns 0 if it ended well; else *what says what happened. */
static int child_wait(pid_t pid, const char **what)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    *what = "crash";
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) *what = "hang";
    return status;
}

static pid_t child_start(void)
{
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(2);
    }
    return pid;
}

static void keep_bad(struct run *r, const char *what)
{
    char path[512];
    r->n_bad++;
    snprintf(path, sizeof path, "%s/%s-%s-%llu-%llu", r->out, what, r->target->name,
             (unsigned long long)r->seed, (unsigned long long)r->shared->number);
    FILE *f = fopen(path, "wb");
    if (f != NULL) {
        fwrite(r->shared->bytes, 1, r->shared->n, f);
        fclose(f);
    }
    fprintf(stderr, "%s: %s at case %llu of seed %llu, %zu bytes kept as %s\n", r->target->name,
            what, (unsigned long long)r->shared->number, (unsigned long long)r->seed, r->shared->n,
            f != NULL ? path : "nothing");
}

/* Cases [first, end) leaked, or a child failed after its last case: bisects to a single case. */
static void bisect(struct run *r, uint64_t first, uint64_t end)
{
    const char *what;
    while (end - first > 1) {
        const uint64_t middle = first + (end - first) / 2;
        const pid_t pid = child_start();
        if (pid == 0) {
            run_cases(r, first, middle);
            end_of_child(r);
        }
        if (child_wait(pid, &what) != 0) {
            end = middle;
        } else {
            first = middle;
        }
    }
    const struct fuzz_bytes b = fuzz_case(r->target, &r->seeds, r->seed, first);
    memcpy(r->shared->bytes, b.bytes, b.n);
    r->shared->n = b.n;
    r->shared->number = first;
    free(b.bytes);
    keep_bad(r, "leak");
}

/* Runs a batch in child processes. If a child ends early, the next one continues after the bad
 * case. */
static void run_batch(struct run *r, uint64_t first, uint64_t end)
{
    while (first < end && r->n_bad < BAD_MAX) {
        const char *what;
        const uint64_t n_before = r->shared->n_taken + r->shared->n_refused;
        const pid_t pid = child_start();
        if (pid == 0) {
            run_cases(r, first, end);
            end_of_child(r);
        }
        if (child_wait(pid, &what) == 0) return;
        const uint64_t n_done = r->shared->n_taken + r->shared->n_refused - n_before;
        if (n_done == end - first) { /* all cases were good, but the end of the process was not */
            bisect(r, first, end);
            return;
        }
        keep_bad(r, what);
        first = r->shared->number + 1;
    }
}

static unsigned replay(struct run *r)
{
    char folder[512];
    unsigned n = 0;
    snprintf(folder, sizeof folder, TEST_DATA_DIR "/fuzz/regress/%s", r->target->name);
    DIR *d = opendir(folder);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        char path[1024];
        const char *what;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        struct fuzz_bytes b = fuzz_read(path);
        const pid_t pid = child_start();
        if (pid == 0) {
            try_one(r, b.bytes, b.n);
            free(b.bytes);
            end_of_child(r);
        }
        free(b.bytes);
        if (child_wait(pid, &what) != 0) {
            fprintf(stderr, "%s: %s in regress/%s\n", r->target->name, what, e->d_name);
            r->n_bad++;
        }
        n++;
    }
    if (d != NULL) closedir(d);
    return n;
}

static int run_all(struct run *r)
{
    const double start = now_s();
    const unsigned n_files = replay(r);
    r->shared->n_taken = r->shared->n_refused = 0;
    uint64_t at = r->first;
    const uint64_t end = r->first + r->n_cases;
    while (at < end && r->n_bad < BAD_MAX) {
        const uint64_t next = end - at < BATCH ? end : at + BATCH;
        run_batch(r, at, next);
        at = next;
        if (r->seconds > 0 && now_s() - start > r->seconds) break;
    }
    printf("%s: %llu cases from %llu on of seed %llu, %llu taken, %llu refused, %u files replayed, "
           "%u bad, %.1f s\n",
           r->target->name, (unsigned long long)(at - r->first), (unsigned long long)r->first,
           (unsigned long long)r->seed, (unsigned long long)r->shared->n_taken,
           (unsigned long long)r->shared->n_refused, n_files, r->n_bad, now_s() - start);
    fflush(stdout);
    if (at - r->first >= 1000 && (r->shared->n_taken == 0 || r->shared->n_refused == 0)) {
        fprintf(stderr, "%s: expected inputs that are taken and inputs that are refused\n",
                r->target->name);
        return 1;
    }
    return r->n_bad > 0;
}

/* Checks a target's seeds: if they are not accepted, nothing after the parser's first check is
 * reached. */
static void check_seeds(struct run *r)
{
    for (size_t i = 0; i < r->seeds.n; i++) {
        FUZZ_CHECK(r->target->run(r->seeds.items[i].bytes, r->seeds.items[i].n),
                   "%s: seed %zu is refused", r->target->name, i);
    }
}

static int run_files(struct run *r, int n, char **paths)
{
    fuzz_set_verbose();
    for (int i = 0; i < n; i++) {
        struct fuzz_bytes b = fuzz_read(paths[i]);
        const bool taken = r->target->run(b.bytes, b.n);
        printf("%s: %s\n", paths[i], taken ? "taken" : "refused");
        free(b.bytes);
    }
    return 0;
}

static int usage(void)
{
    fprintf(stderr, "usage: fuzz TARGET [--seed S] [--first K] [--cases N] [--seconds T] "
                    "[--case-seconds T] [--out DIR] | fuzz TARGET FILE... | fuzz --list\n");
    return 2;
}

static int parse(struct run *r, int argc, char **argv, int *files)
{
    *files = argc;
    for (int i = 2; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strncmp(argv[i], "--", 2) != 0) {
            *files = i;
            return 0;
        }
        if (value == NULL) return usage();
        if (strcmp(argv[i], "--seed") == 0) {
            r->seed = strtoull(value, NULL, 10);
        } else if (strcmp(argv[i], "--first") == 0) {
            r->first = strtoull(value, NULL, 10);
        } else if (strcmp(argv[i], "--cases") == 0) {
            r->n_cases = strtoull(value, NULL, 10);
        } else if (strcmp(argv[i], "--seconds") == 0) {
            r->seconds = strtod(value, NULL);
        } else if (strcmp(argv[i], "--case-seconds") == 0) {
            r->case_seconds = (unsigned)strtoul(value, NULL, 10);
        } else if (strcmp(argv[i], "--out") == 0) {
            r->out = value;
        } else {
            return usage();
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct run r = {.seed = 1, .n_cases = 2000, .case_seconds = 20, .out = "."};
    int files;
    if (argc < 2) return usage();
    if (strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; fuzz_targets[i] != NULL; i++) puts(fuzz_targets[i]->name);
        return 0;
    }
    r.target = fuzz_target_find(argv[1]);
    if (r.target == NULL || parse(&r, argc, argv, &files) != 0) return usage();
#ifndef HAS_ASAN
    const rlim_t most = (rlim_t)MEMORY_MIB << 20;
    setrlimit(RLIMIT_AS, &(struct rlimit){most, most});
#endif
    r.shared =
        mmap(NULL, sizeof *r.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r.shared == MAP_FAILED) return usage();
    log_init(-1, LOG_ERROR, false);
    r.target->begin(&r.seeds);
    int status = 0;
    if (files < argc) {
        status = run_files(&r, argc - files, argv + files);
    } else {
        check_seeds(&r);
        fuzz_scratch_clear();
        status = run_all(&r);
    }
    give_back(&r);
    return status;
}
