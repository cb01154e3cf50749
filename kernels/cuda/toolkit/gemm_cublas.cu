/* Dense products by cuBLASLt, with f32 sums and without TF32. In the arithmetic of the numerics law
 * the algorithm does not depend on the rows and outputs: it is the n-th one without split-K that
 * the library lists for a fixed shape of the product's type and inputs. gemm_trials.c tests whether
 * rows or outputs still change a bit. */
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "kernels/cuda/driver.h"
#include "kernels/cuda/toolkit/gemm_cublas.h"
}

#define CUBLASLT(X)                                                                                \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(GetVersion)                                                                                  \
    X(Matmul)                                                                                      \
    X(MatmulAlgoCheck)                                                                             \
    X(MatmulAlgoConfigGetAttribute)                                                                \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)                                                                \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)                                                                         \
    X(MatrixLayoutSetAttribute)

/* The library's functions. Loaded when a device is opened, so that the program also runs where
 * cuBLASLt is missing. */
struct library {
    void *handle;
#define X(name) decltype(&cublasLt##name) name;
    CUBLASLT(X)
#undef X
};

enum {
    WORKSPACE_BYTES = 32 << 20,
    LIST_ROWS = 128, /* the shape for which algorithms of the law are listed */
    LIST_MANY_ROWS = 2048,
    LIST_OUTPUTS = 4096,
    LIST_MAX = 16,
    KNOWN_MAX = 256,
};

/* An algorithm that was chosen before, so that steps do not ask the library again. rows, n and
 * batch are 0 for algorithms of the numerics law. */
struct known {
    enum dtype dtype;
    size_t rows, n, k, batch;
    uint32_t algorithm;
    cublasLtMatmulAlgo_t algo;
};

struct gemm_cublas {
    struct library lib;
    cublasLtHandle_t handle;
    cudaStream_t stream;
    void *workspace;
    struct known known[KNOWN_MAX]; /* the latest KNOWN_MAX algorithms */
    uint32_t n_known;
};

struct shape {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t w, x, y;
};

static int wrong(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_SUCCESS ? 0 : GEMM_ERROR_BASE + (int)s;
}

static bool is_unsupported(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE ||
           s == CUBLAS_STATUS_ARCH_MISMATCH;
}

static cudaDataType_t type_of(enum dtype t)
{
    return t == DTYPE_F16 ? CUDA_R_16F : t == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static void shape_fini(const struct library *lib, struct shape *s)
{
    if (s->y != NULL) (void)lib->MatrixLayoutDestroy(s->y);
    if (s->x != NULL) (void)lib->MatrixLayoutDestroy(s->x);
    if (s->w != NULL) (void)lib->MatrixLayoutDestroy(s->w);
    if (s->op != NULL) (void)lib->MatmulDescDestroy(s->op);
}

static cublasStatus_t make_layout(const struct library *lib, cublasLtMatrixLayout_t *out,
                                  cudaDataType_t type, const size_t (&n)[3], size_t batch,
                                  size_t step)
{
    const int32_t count = (int32_t)batch;
    const int64_t offset = (int64_t)step;
    cublasStatus_t st = lib->MatrixLayoutCreate(out, type, n[0], n[1], (int64_t)n[2]);
    if (st != CUBLAS_STATUS_SUCCESS || batch <= 1) return st;
    st = lib->MatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                       sizeof count);
    if (st != CUBLAS_STATUS_SUCCESS) return st;
    return lib->MatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset,
                                         sizeof offset);
}

/* Row-major y[rows, n] = x[rows, k] w[n, k]^T is column-major y[n, rows] = w[k, n]^T x[k, rows]. */
static int shape_init(const struct library *lib, struct shape *s, const struct cuda_gemm *g)
{
    memset(s, 0, sizeof *s);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    const cudaDataType_t type = type_of(g->dtype);
    cublasStatus_t st = lib->MatmulDescCreate(&s->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = lib->MatmulDescSetAttribute(s->op, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                         sizeof transpose);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = make_layout(lib, &s->w, type, {g->k, g->n, g->w_stride}, g->batch, g->w_step);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = make_layout(lib, &s->x, type, {g->k, g->rows, g->x_stride}, g->batch, g->x_step);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = make_layout(lib, &s->y, CUDA_R_32F, {g->n, g->rows, g->y_stride}, g->batch, g->y_step);
    if (st != CUBLAS_STATUS_SUCCESS) shape_fini(lib, s);
    return wrong(st);
}

/* Returns the shape whose list of algorithms serves all shapes of a type and k. */
static struct cuda_gemm listed_shape(const struct cuda_gemm *g)
{
    struct cuda_gemm of = *g;
    const size_t stride = (g->k + 7) / 8 * 8;
    of.rows = g->algorithm < CUDA_GEMM_MANY ? LIST_ROWS : LIST_MANY_ROWS;
    of.n = LIST_OUTPUTS;
    of.batch = 1;
    of.w_stride = stride;
    of.x_stride = stride;
    of.y_stride = LIST_OUTPUTS;
    return of;
}

static cublasStatus_t list(struct gemm_cublas *b, const struct shape *s, bool free,
                           cublasLtMatmulHeuristicResult_t *found, int *n)
{
    const struct library *lib = &b->lib;
    cublasLtMatmulPreference_t prefer = NULL;
    const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    const size_t workspace = WORKSPACE_BYTES;
    cublasStatus_t st = lib->MatmulPreferenceCreate(&prefer);
    if (st == CUBLAS_STATUS_SUCCESS && !free)
        st = lib->MatmulPreferenceSetAttribute(prefer, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                               &none, sizeof none);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = lib->MatmulPreferenceSetAttribute(prefer, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace, sizeof workspace);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = lib->MatmulAlgoGetHeuristic(b->handle, s->op, s->w, s->x, s->y, s->y, prefer, LIST_MAX,
                                         found, n);
    if (prefer != NULL) (void)lib->MatmulPreferenceDestroy(prefer);
    return st;
}

/* True when an algorithm sums each output in one place (no split-K). */
static bool is_whole(const struct library *lib, const cublasLtMatmulAlgo_t *algo)
{
    int32_t split = 1;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
    (void)lib->MatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                            sizeof split, NULL);
    (void)lib->MatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                            sizeof scheme, NULL);
    return split <= 1 && scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static int choose(struct gemm_cublas *b, const struct cuda_gemm *g, cublasLtMatmulAlgo_t *out)
{
    const bool free = g->algorithm == CUDA_GEMM_FREE;
    const struct cuda_gemm of = free ? *g : listed_shape(g);
    cublasLtMatmulHeuristicResult_t found[LIST_MAX];
    struct shape s;
    int n = 0;
    const int error = shape_init(&b->lib, &s, &of);
    if (error != 0) return error;
    const cublasStatus_t st = list(b, &s, free, found, &n);
    shape_fini(&b->lib, &s);
    if (is_unsupported(st)) return CUDA_GEMM_NONE;
    if (st != CUBLAS_STATUS_SUCCESS) return wrong(st);
    uint32_t at = g->algorithm < CUDA_GEMM_MANY ? 0 : CUDA_GEMM_MANY;
    for (int i = 0; i < n; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
        if (!free && (!is_whole(&b->lib, &found[i].algo) || at++ != g->algorithm)) continue;
        *out = found[i].algo;
        return 0;
    }
    return CUDA_GEMM_NONE;
}

static int algorithm_of(struct gemm_cublas *b, const struct cuda_gemm *g, cublasLtMatmulAlgo_t *out)
{
    const bool free = g->algorithm == CUDA_GEMM_FREE;
    const size_t rows = free ? g->rows : 0, outputs = free ? g->n : 0, batch = free ? g->batch : 0;
    const uint32_t n = b->n_known < KNOWN_MAX ? b->n_known : (uint32_t)KNOWN_MAX;
    for (uint32_t i = 0; i < n; i++) {
        const struct known *k = &b->known[i];
        if (k->dtype != g->dtype || k->rows != rows || k->n != outputs || k->k != g->k ||
            k->batch != batch || k->algorithm != g->algorithm)
            continue;
        *out = k->algo;
        return 0;
    }
    const int error = choose(b, g, out);
    if (error != 0) return error;
    struct known *k = &b->known[b->n_known++ % KNOWN_MAX];
    k->dtype = g->dtype;
    k->rows = rows;
    k->n = outputs;
    k->k = g->k;
    k->batch = batch;
    k->algorithm = g->algorithm;
    k->algo = *out;
    return 0;
}

extern "C" int gemm_cublas_run(void *gemm, const struct cuda_gemm *g)
{
    struct gemm_cublas *b = (struct gemm_cublas *)gemm;
    const struct library *lib = &b->lib;
    const float one = 1.0f, zero = 0.0f;
    cublasLtMatmulAlgo_t algo;
    cublasLtMatmulHeuristicResult_t facts;
    struct shape s;
    int error = algorithm_of(b, g, &algo);
    if (error != 0) return error;
    error = shape_init(lib, &s, g);
    if (error != 0) return error;
    cublasStatus_t st = lib->MatmulAlgoCheck(b->handle, s.op, s.w, s.x, s.y, s.y, &algo, &facts);
    if (st == CUBLAS_STATUS_SUCCESS && facts.workspaceSize > WORKSPACE_BYTES)
        st = CUBLAS_STATUS_NOT_SUPPORTED;
    if (st == CUBLAS_STATUS_SUCCESS)
        st = lib->Matmul(b->handle, s.op, &one, g->w, s.w, g->x, s.x, &zero, g->y, s.y, g->y, s.y,
                         &algo, b->workspace, WORKSPACE_BYTES, b->stream);
    shape_fini(lib, &s);
    return is_unsupported(st) ? (int)CUDA_GEMM_NONE : wrong(st);
}

static bool library_open(struct library *l)
{
    char name[64];
    snprintf(name, sizeof name, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    l->handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (l->handle == NULL) return false;
    bool all = true;
#define X(f)                                                                                       \
    l->f = (decltype(l->f))dlsym(l->handle, "cublasLt" #f);                                        \
    all = all && l->f != NULL;
    CUBLASLT(X)
#undef X
    return all;
}

extern "C" int gemm_cublas_open(void *stream, void **out, char *library, size_t n)
{
    struct gemm_cublas *b = (struct gemm_cublas *)calloc(1, sizeof *b);
    *out = NULL;
    if (b == NULL) return cudaErrorMemoryAllocation;
    b->stream = (cudaStream_t)stream;
    int error = library_open(&b->lib) ? wrong(b->lib.Create(&b->handle)) : (int)GEMM_NO_LIBRARY;
    if (error == 0) error = cudaMalloc(&b->workspace, WORKSPACE_BYTES);
    if (error != 0) {
        (void)gemm_cublas_close(b);
        return error;
    }
    snprintf(library, n, "cublasLt %zu", b->lib.GetVersion());
    *out = b;
    return 0;
}

extern "C" int gemm_cublas_close(void *gemm)
{
    struct gemm_cublas *b = (struct gemm_cublas *)gemm;
    int error = 0;
    if (b == NULL) return 0;
    if (b->workspace != NULL) error = cudaFree(b->workspace);
    if (b->handle != NULL) {
        const int last = wrong(b->lib.Destroy(b->handle));
        if (error == 0) error = last;
    }
    free(b); /* the library stays loaded, because the GPU's context holds its kernels */
    return error;
}

extern "C" const char *gemm_cublas_error_text(int error)
{
    switch (error - GEMM_ERROR_BASE) {
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "cuBLAS: out of memory";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "cuBLAS: a product failed on the GPU";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "cuBLAS: could not start";
    case GEMM_NO_LIBRARY - GEMM_ERROR_BASE:
        return "cuBLASLt could not be loaded";
    default:
        return "cuBLAS: an error of its own";
    }
}

extern "C" enum status_code gemm_cublas_error_class(int error)
{
    if (error == GEMM_NO_LIBRARY) return STATUS_USAGE;
    return error == GEMM_ERROR_BASE + (int)CUBLAS_STATUS_ALLOC_FAILED ? STATUS_MEMORY : STATUS_LOST;
}
