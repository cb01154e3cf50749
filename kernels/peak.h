/* Loops from which their callers measure the peaks of this machine: bytes read from memory, fused
 * multiply-adds and int8 products per second. A loop does nothing else, with the instructions that
 * kernels use, so no kernel can be faster. Caches and mixed work are not measured. Called by `shoal
 * bench`, `shoal diagnose`, bench_kernels and bench_quant. */
#ifndef SHOAL_KERNELS_PEAK_H
#define SHOAL_KERNELS_PEAK_H

#include "base/status.h"
#include "base/team.h"

#include <stddef.h>
#include <stdint.h>

/* Columns: id, name in JSON, heading of a table, one operation in words */
#define PEAK_LIST(X)                                                                               \
    X(FMA_AVX2, "fma_f32_avx2_gflops", "f32 AVX2", "fused multiply-add, 8 lanes: two operations")  \
    X(FMA_AVX512, "fma_f32_avx512_gflops", "f32 AVX512", "the same, 16 lanes")                     \
    X(INT8_AVX2, "int8_avx2_gops", "int8 AVX2", "maddubs, maddwd, add to 32 bits")                 \
    X(INT8_AVX2_16, "int8_avx2_16bit_gops", "..16 bit", "maddubs, add to 16 bits")                 \
    X(INT8_VNNI, "int8_vnni_gops", "int8 VNNI", "dpbusd of AVX-512 VNNI")                          \
    X(INT8_AMX, "int8_amx_gops", "int8 AMX", "tdpbssd of AMX, whole tiles")

enum peak_kind {
#define X(id, name, title, what) PEAK_##id,
    PEAK_LIST(X)
#undef X
        PEAK_COUNT
};

/* Local. Returns the kind's name in JSON, and its heading. */
const char *peak_name(enum peak_kind kind);
const char *peak_title(enum peak_kind kind);

/* Local. Runs the kind's loop once on every thread of the team (NULL: on the calling thread).
 * Returns the operations done (a multiply-add is two); 0 if this CPU lacks the instructions. The
 * loop takes a few milliseconds at most; the caller measures the time. */
double peak_run(struct team *team, enum peak_kind kind);

/* An array to read. It uses huge pages if the system gives them, and each part is first touched
 * by the thread that reads it, unless another thread takes the part over. */
struct peak_memory {
    void *base; /* owned */
    size_t n_bytes;
};

/* Local. Maps n_bytes, rounded up to whole huge pages, and first touches them on the team's
 * threads. peak_memory_fini unmaps them. Errors: STATUS_MEMORY. */
struct status peak_memory_init(struct peak_memory *m, struct team *team, size_t n_bytes);
void peak_memory_fini(struct peak_memory *m);

/* Local. Reads the array once, except a small remainder, on all threads of the team; returns the
 * bytes read. Variant 0 .. PEAK_READS - 1 chooses a way to read; the best one counts. */
enum { PEAK_READS = 3 };
double peak_read(const struct peak_memory *m, struct team *team, int variant);

/* Local. Returns the size in bytes of one last-level cache of this CPU; 0 if the CPU does not say.
 * A host may have several such caches (struct topo_node, n_l3). */
size_t peak_cache_bytes(void);

enum { PEAK_CPU_NAME_BYTES = 49 };

/* Local. Writes the CPU's own name, or "unknown". */
void peak_cpu_name(char out[PEAK_CPU_NAME_BYTES]);

#endif
