/* Runs the measuring loops for the machine's peaks on all threads. */
#include "kernels/peak.h"

#include "kernels/amx_permission.h"
#include "kernels/cpu.h"
#include "kernels/peak_isa.h"

#include <cpuid.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE_BYTES = 2 << 20, SLICE_BYTES = 4096, PIECE_BYTES = 4 << 20 };

static bool cpu_has_avx2(void)
{
    return !cpu_hides(CPU_AVX2) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool cpu_has_avx512(void)
{
    return !cpu_hides(CPU_AVX512) && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw");
}

static bool cpu_has_vnni(void)
{
    return cpu_has_avx512() && __builtin_cpu_supports("avx512vnni");
}

static bool cpu_has_amx(void)
{
    return !cpu_hides(CPU_AMX) && amx_is_there() && amx_ask_permission();
}

/* ops: operations of one round of the loop, over all chains. */
static const struct {
    float (*run)(void);
    bool (*supported)(void);
    double ops;
} kinds[PEAK_COUNT] = {
    [PEAK_FMA_AVX2] = {k_peak_fma_f32_avx2, cpu_has_avx2, PEAK_CHAINS * 8 * 2},
    [PEAK_FMA_AVX512] = {k_peak_fma_f32_avx512, cpu_has_avx512, PEAK_CHAINS * 16 * 2},
    [PEAK_INT8_AVX2] = {k_peak_int8_avx2, cpu_has_avx2, PEAK_INT8_CHAINS * 32 * 2},
    [PEAK_INT8_AVX2_16] = {k_peak_int8_16bit_avx2, cpu_has_avx2, PEAK_INT8_CHAINS * 32 * 2},
    [PEAK_INT8_VNNI] = {k_peak_int8_vnni_avx512, cpu_has_vnni, PEAK_CHAINS * 64 * 2},
    [PEAK_INT8_AMX] = {k_peak_int8_amx, cpu_has_amx, PEAK_TILES * 16 * 16 * 64 * 2},
};

const char *peak_name(enum peak_kind kind)
{
    static const char *const names[PEAK_COUNT] = {
#define X(id, name, title, what) name,
        PEAK_LIST(X)
#undef X
    };
    return names[kind];
}

const char *peak_title(enum peak_kind kind)
{
    static const char *const titles[PEAK_COUNT] = {
#define X(id, name, title, what) title,
        PEAK_LIST(X)
#undef X
    };
    return titles[kind];
}

/* Uses the result, so that the compiler does not remove the loops. */
static void look_at(float total)
{
    __asm__ volatile("" : : "x"(total));
}

static void run_chains(void *kind, uint32_t thread)
{
    (void)thread;
    look_at(kinds[*(const enum peak_kind *)kind].run());
}

double peak_run(struct team *team, enum peak_kind kind)
{
    if (!kinds[kind].supported()) return 0;
    team_run_each(team, run_chains, &kind);
    return kinds[kind].ops * PEAK_ROUNDS * team_size(team);
}

/* All threads get the same number of bytes, in pieces, so that other threads can take over the
 * pieces of a thread that has lost its core, as in the ops. */
struct read_job {
    char *base;
    size_t n; /* bytes of a piece */
    float (*read)(const char *from, size_t n);
};

static uint32_t pieces_of(const struct peak_memory *m, const struct team *team)
{
    const size_t n = m->n_bytes / team_size(team) / PIECE_BYTES;
    return n < 1 ? 1 : (uint32_t)n;
}

static struct read_job read_job_of(const struct peak_memory *m, const struct team *team)
{
    const size_t n_pieces = (size_t)pieces_of(m, team) * team_size(team);
    return (struct read_job){.base = m->base,
                             .n = m->n_bytes / n_pieces / SLICE_BYTES * SLICE_BYTES};
}

/* The bytes that one thread touches first. */
struct touch_job {
    char *base;
    size_t n;
};

static void touch_slice(void *job, uint32_t thread)
{
    const struct touch_job *j = job;
    memset(j->base + j->n * thread, 1, j->n);
}

static void read_piece(void *job, uint32_t i)
{
    const struct read_job *j = job;
    look_at(j->read(j->base + j->n * i, j->n));
}

struct status peak_memory_init(struct peak_memory *m, struct team *team, size_t n_bytes)
{
    m->n_bytes = (n_bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    m->base = mmap(NULL, m->n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->base == MAP_FAILED) {
        m->base = NULL;
        return status_make(STATUS_MEMORY, "no memory for an array of %zu bytes to read",
                           m->n_bytes);
    }
    (void)madvise(m->base, m->n_bytes, MADV_HUGEPAGE); /* else small pages: slower, not wrong */
    struct touch_job job = {m->base, read_job_of(m, team).n * pieces_of(m, team)};
    team_run_each(team, touch_slice, &job);
    return status_ok();
}

void peak_memory_fini(struct peak_memory *m)
{
    if (m->base != NULL) munmap(m->base, m->n_bytes);
    m->base = NULL;
}

static float read_through(const char *from, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i + sizeof sum <= n; i += sizeof sum) {
        uint64_t word;
        memcpy(&word, from + i, sizeof word);
        sum ^= word;
    }
    return (float)sum;
}

double peak_read(const struct peak_memory *m, struct team *team, int variant)
{
    struct read_job job = read_job_of(m, team);
    job.read = read_through;
    if (cpu_has_avx2()) job.read = variant == 1 ? k_peak_read_4_avx2 : k_peak_read_1_avx2;
    if (cpu_has_avx512() && variant == 2) job.read = k_peak_read_1_avx512;
    const uint32_t n_pieces = pieces_of(m, team);
    team_run(team, n_pieces, read_piece, &job);
    return (double)job.n * n_pieces * team_size(team);
}

size_t peak_cache_bytes(void)
{
    long n = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    n = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (n <= 0) n = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return n > 0 ? (size_t)n : 0;
}

void peak_cpu_name(char out[PEAK_CPU_NAME_BYTES])
{
    unsigned words[12] = {0};
    for (unsigned i = 0; i < 3; i++) {
        unsigned *w = words + 4 * i;
        if (__get_cpuid(0x80000002u + i, &w[0], &w[1], &w[2], &w[3]) == 0) words[0] = 0;
    }
    memcpy(out, words, sizeof words);
    out[sizeof words] = '\0';
    if (out[0] == '\0') snprintf(out, PEAK_CPU_NAME_BYTES, "unknown");
    for (size_t n = strlen(out); n > 0 && out[n - 1] == ' '; n--) out[n - 1] = '\0';
}
