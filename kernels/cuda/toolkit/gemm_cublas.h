/* The gemm entries of a cuda_driver over cuBLASLt. Called only by driver_cuda.cu. */
#ifndef SHOAL_KERNELS_CUDA_GEMM_CUBLAS_H
#define SHOAL_KERNELS_CUDA_GEMM_CUBLAS_H

#include "base/status.h"

struct cuda_gemm;

enum {
    GEMM_ERROR_BASE = 1 << 20, /* added to cuBLAS's errors, above all those of CUDA */
    GEMM_NO_LIBRARY = GEMM_ERROR_BASE + 1000,
};

/* Local. Loads the library from the machine on which the program runs, writes its name
 * and version to `library` [n], and allocates its workspace. */
int gemm_cublas_open(void *stream, void **out, char *library, size_t n);
int gemm_cublas_close(void *gemm);

/* Local. Multiplies as gemm_run of driver.h does. */
int gemm_cublas_run(void *gemm, const struct cuda_gemm *g);

const char *gemm_cublas_error_text(int error);
enum status_code gemm_cublas_error_class(int error);

#endif
