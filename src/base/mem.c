/* Allocates checked memory with aligned_alloc and mmap. */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE_BYTES = 2 << 20 };

/* Test hook, the only state here. Atomic because other threads may allocate at the same time as the
 * main one (background.h). */
static _Atomic uint64_t n_allocations;
static _Atomic uint64_t fail_at;

/* Counts an allocation; true when a test wants it to fail. */
static bool must_fail(void)
{
    const uint64_t n = atomic_fetch_add_explicit(&n_allocations, 1, memory_order_relaxed) + 1;
    return n == atomic_load_explicit(&fail_at, memory_order_relaxed);
}

bool mem_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

bool mem_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static void *allocate_zeroed(size_t n_bytes)
{
    if (must_fail()) return NULL;
    size_t rounded;
    if (!mem_add(n_bytes, 2 * MEM_ALIGN - 1, &rounded)) return NULL;
    rounded -= rounded % MEM_ALIGN;
    void *p = aligned_alloc(MEM_ALIGN, rounded);
    if (p != NULL) memset(p, 0, rounded);
    return p;
}

struct status mem_alloc(void *out, size_t n, size_t elem_bytes, const char *what)
{
    void *p = NULL;
    size_t n_bytes;
    if (mem_mul(n, elem_bytes, &n_bytes)) p = allocate_zeroed(n_bytes);
    memcpy(out, &p, sizeof p);
    if (p != NULL) return status_ok();
    return status_make(STATUS_MEMORY, "%s: could not allocate %zu x %zu bytes", what, n,
                       elem_bytes);
}

struct status mem_grow(void *inout, size_t n_old, size_t n_new, size_t elem_bytes, const char *what)
{
    void *grown = NULL;
    void *old = NULL;
    memcpy(&old, inout, sizeof old);
    TRY(mem_alloc(&grown, n_new, elem_bytes, what));
    if (old != NULL) memcpy(grown, old, (n_old < n_new ? n_old : n_new) * elem_bytes);
    free(old);
    memcpy(inout, &grown, sizeof grown);
    return status_ok();
}

/* Maps more than n_bytes and unmaps the unaligned ends. */
static void *map_aligned(size_t n_bytes)
{
    size_t most;
    if (must_fail() || !mem_add(n_bytes, HUGE_PAGE_BYTES, &most)) return NULL;
    char *p = mmap(NULL, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    const size_t before = (HUGE_PAGE_BYTES - (uintptr_t)p % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (before > 0) munmap(p, before);
    munmap(p + before + n_bytes, most - before - n_bytes);
    (void)madvise(p + before, n_bytes, MADV_HUGEPAGE); /* without huge pages: slower, not wrong */
    return p + before;
}

/* Returns n_bytes rounded up to whole huge pages. */
static size_t whole_pages(size_t n_bytes)
{
    size_t rounded;
    if (!mem_add(n_bytes, HUGE_PAGE_BYTES, &rounded)) return n_bytes;
    return n_bytes == 0 ? HUGE_PAGE_BYTES : (rounded - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
}

struct status mem_map(void *out, size_t n_bytes, const char *what)
{
    void *p = map_aligned(whole_pages(n_bytes));
    memcpy(out, &p, sizeof p);
    if (p != NULL) return status_ok();
    return status_make(STATUS_MEMORY, "%s: could not allocate %zu bytes", what, n_bytes);
}

void mem_unmap(void *inout, size_t n_bytes)
{
    void *p = NULL;
    memcpy(&p, inout, sizeof p);
    if (p != NULL) munmap(p, whole_pages(n_bytes));
    p = NULL;
    memcpy(inout, &p, sizeof p);
}

struct status mem_strndup(char **out, const char *text, size_t n)
{
    *out = NULL;
    size_t with_nul;
    if (!mem_add(n, 1, &with_nul)) return status_make(STATUS_MEMORY, "string: too long");
    TRY(mem_alloc(out, with_nul, 1, "string"));
    if (n > 0) memcpy(*out, text, n);
    return status_ok();
}

void mem_free(void *inout)
{
    void *p = NULL;
    memcpy(&p, inout, sizeof p);
    free(p);
    p = NULL;
    memcpy(inout, &p, sizeof p);
}

uint64_t mem_fail_after(uint64_t n)
{
    const uint64_t made = atomic_exchange(&n_allocations, 0);
    atomic_store(&fail_at, n);
    return made;
}

/* Reads VmHWM, not getrusage: execve keeps ru_maxrss, so a program that a large process starts with
 * vfork begins with the peak of that process. */
uint64_t mem_peak_bytes(void)
{
    FILE *f = fopen("/proc/self/status", "re");
    if (f == NULL) return 0;
    char line[256];
    unsigned long long kib = 0;
    while (kib == 0 && fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "VmHWM: %llu kB", &kib) != 1) kib = 0;
    }
    fclose(f);
    return (uint64_t)kib * 1024;
}

uint64_t mem_resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    if (f == NULL) return 0;
    unsigned long long all = 0, resident = 0;
    if (fscanf(f, "%llu %llu", &all, &resident) != 2) resident = 0;
    fclose(f);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t mem_available_bytes(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    if (f == NULL) return 0;
    unsigned long long kib = 0;
    char line[128];
    while (fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
    }
    fclose(f);
    return (uint64_t)kib * 1024;
}
