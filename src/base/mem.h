/* Checked allocation. Sizes are counts times element bytes, multiplied with overflow checks. All
 * memory is zeroed and aligned to a cache line. Failures are statuses, never aborts. mem_fail_after
 * makes the n-th allocation fail, so that a test can run every failure path. */
#ifndef SHOAL_BASE_MEM_H
#define SHOAL_BASE_MEM_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { MEM_ALIGN = 64 };

/* Local. Sets *out to n * elem_bytes zeroed bytes, 64-byte aligned; `what` names them in the error.
 * n = 0 gives a valid pointer. Owner: the caller, mem_free. Errors: STATUS_MEMORY; *out is then
 * NULL. */
struct status mem_alloc(void *out, size_t n, size_t elem_bytes, const char *what);

/* Local. Grows *inout (from mem_alloc, or NULL) from n_old to n_new elements and keeps its content;
 * on failure *inout is unchanged. Errors: STATUS_MEMORY. */
struct status mem_grow(void *inout, size_t n_old, size_t n_new, size_t elem_bytes,
                       const char *what);

/* Local. Sets *out to a copy of n bytes and a terminating NUL, freed with mem_free. Errors:
 * STATUS_MEMORY. */
struct status mem_strndup(char **out, const char *text, size_t n);

/* Local. Frees memory from mem_alloc, mem_grow or mem_strndup, and sets the pointer to NULL; pass
 * the pointer's address. */
void mem_free(void *inout);

/* Local. Sets *out to n_bytes zeroed bytes, 2 MiB aligned, in huge pages if the system gives them.
 * A page is on the NUMA node of the thread that touches it first. Owner: the caller, mem_unmap with
 * the same n_bytes. Errors: STATUS_MEMORY. */
struct status mem_map(void *out, size_t n_bytes, const char *what);
void mem_unmap(void *inout, size_t n_bytes);

/* Local. Set *out to a * b and a + b; false when they overflow size_t. */
bool mem_mul(size_t a, size_t b, size_t *out);
bool mem_add(size_t a, size_t b, size_t *out);

/* Local, tests only. Makes the n-th allocation from now on fail (1: the next); 0: none. Returns how
 * many allocations were made since the last call. */
uint64_t mem_fail_after(uint64_t n);

/* Local. Returns the largest resident size of this process so far, in bytes; 0 when unknown. */
uint64_t mem_peak_bytes(void);

/* Local. Returns the resident size of this process now, in bytes; 0 when unknown. */
uint64_t mem_resident_bytes(void);

/* Local. Returns the bytes that this host can still allocate without swapping; 0 when unknown. */
uint64_t mem_available_bytes(void);

#endif
