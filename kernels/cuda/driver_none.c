/* The driver of a build without the CUDA toolkit: none. */
#include "kernels/cuda/driver.h"

const struct cuda_driver *cuda_driver_here(void)
{
    return NULL;
}
