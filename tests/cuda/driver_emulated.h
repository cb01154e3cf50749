/* Settings of the emulated driver (driver_emulated.c), for tests. */
#ifndef SHOAL_TESTS_DRIVER_EMULATED_H
#define SHOAL_TESTS_DRIVER_EMULATED_H

#include <stdint.h>

/* Errors of the emulated driver. */
enum {
    EMULATED_NO_DEVICE = 1,
    EMULATED_OLD_DRIVER,
    EMULATED_NO_IMAGE, /* no code for this architecture was built */
    EMULATED_MEMORY,
    EMULATED_LOST, /* the GPU is gone */
    EMULATED_NO_LIBRARY,
    EMULATED_NO_GRAPHS,
};

/* The emulated machine. All zero: one working device of capability 9.0. The environment variable
 * SHOAL_EMULATED also sets it (all but `dry` and `gemm_ends`), with words like "devices=2 major=7
 * lost=100 memory=1000000 hangs=1". */
struct emulated {
    uint64_t devices;      /* number of devices; 0: one */
    uint64_t count_error;  /* error of counting devices */
    uint64_t major;        /* compute capability; 0: 9 */
    uint64_t another_from; /* devices from this number on are of another type; 0: none */
    uint64_t memory_bytes; /* 0: 8 GiB */
    uint64_t launch_error; /* error of every launch */
    uint64_t lost_after;   /* calls until the device is gone; 0: never */
    uint64_t hangs_after;  /* launches until no work ends; 0: never */
    uint64_t dry;          /* not 0: launches are checked but not run */
    uint64_t copies;       /* copies beside the compute stream run 1: at once, 2: as late as
                              possible, 0: alternately */
    uint64_t no_graphs;    /* graphs cannot be made */
    uint64_t stale_graphs; /* a fault: a graph's launches keep their first arguments */
    uint64_t no_gemm;      /* there is no library for products */
    uint64_t gemm_varies;  /* how many of the library's first algorithms depend on the rows */
    uint64_t gemm_many;    /* how many of its first algorithms for many rows add in another order */
    uint64_t gemm_cores;   /* 16-bit products add as the emulated tensor cores do (mma.h) */
    uint64_t gemm_wide;    /* products of more outputs than this add in another order; 0: none */
    uint64_t gemm_ends;    /* the library takes gemm_ends - 1 products more; 0: any number */
    uint64_t faults_from;  /* memory_bytes, launch_error, lost_after, hangs_after and gemm_varies
                              apply to devices from this number on */
};
void emulated_set(struct emulated e);

/* From now on the library takes n products, and then none. */
void emulated_leave_products(uint64_t n);

struct cuda_gemm;

/* gemm_emulated.c: a product of the library, in its own order of additions, or in another order
 * where `e` says that it varies. */
void emulated_gemm(const struct cuda_gemm *g, const struct emulated *e);

/* Kernels launched since the start or the last emulated_set; tests check that there were some. */
uint64_t emulated_launches(void);

/* Dry launches of grids that a device may refuse. (Such launches that are not dry end the process.)
 */
uint64_t emulated_bad_launches(void);

#endif
