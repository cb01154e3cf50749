/* The loops behind kernels/peak.h, one file per instruction set. The results only keep compilers
 * from leaving the work out. Private to peak.c. */
#ifndef SHOAL_KERNELS_PEAK_ISA_H
#define SHOAL_KERNELS_PEAK_ISA_H

#include <stddef.h>

/* Rounds of a loop, and chains side by side: enough to hide each step's latency, few enough to stay
 * in registers beside what the step needs. */
enum { PEAK_ROUNDS = 200000, PEAK_CHAINS = 12, PEAK_INT8_CHAINS = 8, PEAK_TILES = 4 };

float k_peak_fma_f32_avx2(void);
float k_peak_fma_f32_avx512(void);
float k_peak_int8_avx2(void);
float k_peak_int8_16bit_avx2(void);
float k_peak_int8_vnni_avx512(void);
float k_peak_int8_amx(void); /* with the system's permission */

/* Sums n bytes (a multiple of 4096) as one stream of memory, and as four side by side. */
float k_peak_read_1_avx2(const char *from, size_t n);
float k_peak_read_4_avx2(const char *from, size_t n);
float k_peak_read_1_avx512(const char *from, size_t n);

#endif
