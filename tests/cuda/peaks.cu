/* Measures this GPU's peaks for tests/gpu.sh: copy bandwidth, and the products of a model's linears
 * as plain cuBLAS calls. Prints one line of JSON. usage: peaks ROWS SHAPE..., where a shape is
 * OUTPUTSxINPUTS. Exit status: 77 no GPU, 1 a failure. */
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>

enum { REPETITIONS = 20, SKIPPED = 77 };

static bool failed(int error, const char *what)
{
    if (error != 0) fprintf(stderr, "peaks: %s: error %d\n", what, error);
    return error != 0;
}

/* The least of many times of `run`, in seconds; 0 after a failure. */
template <typename Run> static double least_s(Run run)
{
    cudaEvent_t begin, end;
    double least = 0;
    if (failed(cudaEventCreate(&begin), "event") || failed(cudaEventCreate(&end), "event"))
        return 0;
    for (int i = 0; i < REPETITIONS; i++) {
        float ms = 0;
        cudaEventRecord(begin);
        if (run()) return 0;
        cudaEventRecord(end);
        if (failed(cudaEventSynchronize(end), "waiting")) return 0;
        cudaEventElapsedTime(&ms, begin, end);
        if (i > 0 && (least == 0 || ms * 1e-3 < least)) least = ms * 1e-3;
    }
    return least;
}

/* The GB read and written per second. */
static double copy_gbs(void)
{
    const size_t n = (size_t)1 << 30;
    void *a = NULL, *b = NULL;
    if (failed(cudaMalloc(&a, n), "memory") || failed(cudaMalloc(&b, n), "memory")) return 0;
    const double s =
        least_s([&] { return failed(cudaMemcpyAsync(b, a, n, cudaMemcpyDeviceToDevice), "copy"); });
    cudaFree(a);
    cudaFree(b);
    return s > 0 ? 2e-9 * (double)n / s : 0;
}

/* The seconds of y [rows, outputs] = x [rows, inputs] w^T in bf16, summed in f32. */
static double product_s(cublasHandle_t handle, long rows, long outputs, long inputs)
{
    __nv_bfloat16 *x = NULL, *w = NULL, *y = NULL;
    const float one = 1, zero = 0;
    if (failed(cudaMalloc(&x, rows * inputs * sizeof *x), "memory") ||
        failed(cudaMalloc(&w, outputs * inputs * sizeof *w), "memory") ||
        failed(cudaMalloc(&y, rows * outputs * sizeof *y), "memory"))
        return 0;
    cudaMemset(x, 0x3c, rows * inputs * sizeof *x); /* small numbers instead of zeros, because
                                                       power use depends on them */
    cudaMemset(w, 0x3c, outputs * inputs * sizeof *w);
    const double s = least_s([&] {
        return failed(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, (int)outputs, (int)rows,
                                   (int)inputs, &one, w, CUDA_R_16BF, (int)inputs, x, CUDA_R_16BF,
                                   (int)inputs, &zero, y, CUDA_R_16BF, (int)outputs,
                                   CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                      "cuBLAS");
    });
    cudaFree(x);
    cudaFree(w);
    cudaFree(y);
    return s;
}

int main(int argc, char **argv)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) return SKIPPED;
    cublasHandle_t handle;
    if (failed(cublasCreate(&handle), "cuBLAS")) return 1;
    const long rows = argc > 1 ? atol(argv[1]) : 0;
    double seconds = 0, flops = 0;
    for (int i = 2; i < argc; i++) {
        long outputs = 0, inputs = 0;
        if (rows < 1 || sscanf(argv[i], "%ldx%ld", &outputs, &inputs) != 2) {
            fprintf(stderr, "usage: peaks ROWS OUTPUTSxINPUTS...\n");
            return 1;
        }
        const double s = product_s(handle, rows, outputs, inputs);
        if (s == 0) return 1;
        seconds += s;
        flops += 2.0 * (double)rows * (double)outputs * (double)inputs;
    }
    const double copy = copy_gbs();
    if (copy == 0) return 1;
    printf("{\"copy_gbs\":%.1f,\"rows\":%ld,\"chain_s\":%.6f,\"chain_tflops\":%.2f}\n", copy, rows,
           seconds, seconds > 0 ? flops / seconds * 1e-12 : 0.0);
    return 0;
}
