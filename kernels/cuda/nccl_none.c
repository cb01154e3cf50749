/* A build without NCCL has no table of its functions. GPUs then exchange data through host memory.
 */
#include "kernels/cuda/nccl_table.h"

const struct nccl_table *nccl_table_here(void)
{
    return NULL;
}
