/* The largest model dimensions that a device's kernels accept. They are constants, so that shoal
 * can refuse a model before it opens a device. */
#ifndef SHOAL_KERNELS_DEVICE_LIMITS_H
#define SHOAL_KERNELS_DEVICE_LIMITS_H

enum {
    DEVICE_HEADS_MAX = 1024,    /* query heads of a rank */
    DEVICE_HEAD_DIM_MAX = 1024, /* elements of a head; for latent attention, the latent with its
                                   rotated part */
    DEVICE_EXPERTS_MAX = 4096,
};

#endif
