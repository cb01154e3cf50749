/* The measuring loops of kernels/peak.h for each instruction set. Their results only keep the
 * compiler from removing the work. Included by peak.c and the loops' files. */
#ifndef SHOAL_KERNELS_PEAK_ISA_H
#define SHOAL_KERNELS_PEAK_ISA_H

#include <stddef.h>

/* Rounds of a loop, and its number of independent chains: enough to hide the latency of a step,
 * and few enough to stay in registers. */
enum { PEAK_ROUNDS = 200000, PEAK_CHAINS = 12, PEAK_INT8_CHAINS = 8, PEAK_TILES = 4 };

float k_peak_fma_f32_avx2(void);
float k_peak_fma_f32_avx512(void);
float k_peak_int8_avx2(void);
float k_peak_int8_16bit_avx2(void);
float k_peak_int8_vnni_avx512(void);
float k_peak_int8_amx(void); /* needs the system's permission (amx_permission.h) */

/* Read n bytes (a multiple of 4096), as one stream of memory or as four side by side. */
float k_peak_read_1_avx2(const char *from, size_t n);
float k_peak_read_4_avx2(const char *from, size_t n);
float k_peak_read_1_avx512(const char *from, size_t n);

#endif
