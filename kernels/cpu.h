/* The instruction sets that this process may use: those of the CPU, without those that the variable
 * SHOAL_CPU hides. SHOAL_CPU=avx2 gives the view of a CPU that has AVX2 and no better set; it is
 * for tests. Called by kern_select, by the loops of the machine's peaks and by tests. */
#ifndef SHOAL_KERNELS_CPU_H
#define SHOAL_KERNELS_CPU_H

#include "base/status.h"

#include <stdbool.h>

/* Best set last; a CPU that has one has those before it. */
enum cpu_set { CPU_REF, CPU_AVX2, CPU_AVX512, CPU_AMX, CPU_SET_COUNT };

/* Local. "ref", "avx2", "avx512", "amx". */
const char *cpu_set_name(enum cpu_set set);

/* Local. Errors: STATUS_USAGE when SHOAL_CPU is set and names no set. */
struct status cpu_check_view(void);

/* Local. True when SHOAL_CPU names a set below this one. */
bool cpu_hides(enum cpu_set set);

/* Local. Why the set cannot be used, as the end of a sentence; NULL: it can be used. */
const char *cpu_lacks(enum cpu_set set);

#endif
