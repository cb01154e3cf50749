/* In a build without the CUDA toolkit there is no driver. */
#include "kernels/cuda/driver.h"

const struct cuda_driver *cuda_driver_here(void)
{
    return NULL;
}
