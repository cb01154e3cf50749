/* Helpers of the device's kernel tests: an op runs once on the reference and once on the device,
 * and the bytes must be equal. The device is the emulated one or, in a build with the toolkit, a
 * GPU. */
#ifndef SHOAL_TESTS_CUDA_UTIL_DEVICE_H
#define SHOAL_TESTS_CUDA_UTIL_DEVICE_H

#include "kernels/util_kernels.h"
#include "kernels/util_quant.h"

#include "kernels/device.h"
#include "kernels/ops.h"

/* The reference, and a table whose ops run on the device. Each test opens and closes a pair.
 * Opening ends the process with status 77 if there is no device; closing fails the test if the
 * device failed. */
struct both {
    struct kern_table cpu, gpu;
    struct rng rng;
};
struct both both_open(uint64_t seed); /* in the CPU's arithmetic */
struct both both_open_as(uint64_t seed, enum device_arithmetic arithmetic);
void both_close(struct both *b);

/* An array on the host and its copy on the device. */
struct twin {
    void *host, *device;
    size_t n_bytes;
};
struct twin twin_of(const struct both *b, const void *from, size_t n_bytes); /* copies `from` */
struct twin twin_floats(struct both *b, size_t n, float magnitude, size_t every);
struct twin twin_zeros(const struct both *b, size_t n_bytes);
void *twin_found(const struct both *b, const struct twin *t); /* the device's content; free it */
void twin_free(const struct both *b, struct twin *t);

static inline float *twin_host(const struct twin *t)
{
    return t->host;
}

static inline float *twin_device(const struct twin *t)
{
    return t->device;
}

/* Assert that host and device have the same content; for twin_same_floats all NaNs are the same. */
void twin_same(const struct both *b, const struct twin *t, const char *what);
void twin_same_floats(const struct both *b, const struct twin *t, const char *what);

/* A weight in host memory, and its copy on the device. */
struct weight_twin {
    struct packed cpu, gpu;
    struct twin data, scales, zeros;
};
struct weight_twin weight_twin_of(const struct both *b, const struct packed *w);
void weight_twin_free(const struct both *b, struct weight_twin *w);

#endif
