/* Runs the loops of the machine's peaks on all threads. */
#include "kernels/peak.h"

#include "kernels/peak_isa.h"

#include <cpuid.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE_BYTES = 2 << 20, SLICE_BYTES = 4096 };

static bool cpu_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool cpu_has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

static bool cpu_has_vnni(void)
{
    return cpu_has_avx512() && __builtin_cpu_supports("avx512vnni");
}

/* ops: of one round of all chains. */
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

/* The results are looked at, or the loops would be left out. */
static void look_at(float total)
{
    __asm__ volatile("" : : "x"(total));
}

double peak_run(enum peak_kind kind)
{
    if (!kinds[kind].supported()) return 0;
    int n_threads = 1;
#pragma omp parallel
    {
#pragma omp single nowait
        n_threads = omp_get_num_threads();
        look_at(kinds[kind].run());
    }
    return kinds[kind].ops * PEAK_ROUNDS * n_threads;
}

struct slice {
    char *from;
    size_t n;
};

/* This thread's part. */
static struct slice my_slice(const struct peak_memory *m)
{
    const size_t n = m->n_bytes / (size_t)omp_get_num_threads() / SLICE_BYTES * SLICE_BYTES;
    return (struct slice){(char *)m->base + n * (size_t)omp_get_thread_num(), n};
}

struct status peak_memory_init(struct peak_memory *m, size_t n_bytes)
{
    m->n_bytes = (n_bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    m->base = mmap(NULL, m->n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->base == MAP_FAILED) {
        m->base = NULL;
        return status_make(STATUS_MEMORY, "the array of %zu bytes to be read could not be had",
                           m->n_bytes);
    }
    (void)madvise(m->base, m->n_bytes, MADV_HUGEPAGE); /* else small pages: slower, not wrong */
#pragma omp parallel
    {
        const struct slice mine = my_slice(m);
        memset(mine.from, 1, mine.n);
    }
    return status_ok();
}

void peak_memory_fini(struct peak_memory *m)
{
    if (m->base != NULL) munmap(m->base, m->n_bytes);
    m->base = NULL;
}

static float read_plain(const char *from, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i + sizeof sum <= n; i += sizeof sum) {
        uint64_t word;
        memcpy(&word, from + i, sizeof word);
        sum ^= word;
    }
    return (float)sum;
}

double peak_read(const struct peak_memory *m, int variant)
{
    float (*read)(const char *from, size_t n) = read_plain;
    double n_read = 0;
    if (cpu_has_avx2()) read = variant == 1 ? k_peak_read_4_avx2 : k_peak_read_1_avx2;
    if (cpu_has_avx512() && variant == 2) read = k_peak_read_1_avx512;
#pragma omp parallel reduction(+ : n_read)
    {
        const struct slice mine = my_slice(m);
        look_at(read(mine.from, mine.n));
        n_read += (double)mine.n;
    }
    return n_read;
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
