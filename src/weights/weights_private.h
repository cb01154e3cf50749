/* Lending of experts: their weights stand in memory that the other ranks of the EP axis can read,
 * and each rank learns the addresses. Private to weights_load. */
#ifndef SHOAL_WEIGHTS_WEIGHTS_PRIVATE_H
#define SHOAL_WEIGHTS_WEIGHTS_PRIVATE_H

#include "weights/weights.h"

/* Local. Zeroed memory for experts in the shared segment that other ranks read; NULL: no room. */
void *weights_lend_memory(struct weights *w, size_t n_bytes);

/* **Collective (EP)**, once the weights are loaded. Finds the other ranks' experts in each layer
 * whose experts all stand in shared segments. Errors: STATUS_MEMORY. */
struct status weights_lend(struct weights *w, const struct layout *l);

#endif
