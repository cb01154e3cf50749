/* The instruction sets that this process may use: those of the CPU, minus those that the
 * environment variable SHOAL_CPU hides. SHOAL_CPU=avx2 makes the CPU look as if it had nothing
 * better than AVX2; it is for tests. Called by kern_select, peak.c, fp8_plain.c and tests. */
#ifndef SHOAL_KERNELS_CPU_H
#define SHOAL_KERNELS_CPU_H

#include "base/status.h"

#include <stdbool.h>

/* Ascending: a CPU that has a set has all sets before it. */
enum cpu_set { CPU_REF, CPU_AVX2, CPU_AVX512, CPU_AMX, CPU_SET_COUNT };

/* Local. Returns "ref", "avx2", "avx512" or "amx". */
const char *cpu_set_name(enum cpu_set set);

/* Local. Checks SHOAL_CPU. Errors: STATUS_USAGE when it names no instruction set. */
struct status cpu_check_view(void);

/* Local. Whether SHOAL_CPU names a lower set than this one. */
bool cpu_hides(enum cpu_set set);

/* Local. Whether a multiplication with a subnormal float takes no longer than others. AMD's CPUs:
 * yes (measured on Zen 4); Intel's need over 100 cycles (bench/tried.md). */
bool cpu_subnormals_are_fast(void);

/* Local. Returns why the set cannot be used, as the end of a sentence; NULL: it can be used. Asks
 * the system for permission to use AMX. */
const char *cpu_lacks(enum cpu_set set);

#endif
