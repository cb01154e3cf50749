/* Experts' weights that the other ranks of the EP axis can compute with: they stand in the host's
 * memory, and each rank learns where. Private to weights_load. */
#ifndef SHOAL_WEIGHTS_WEIGHTS_PRIVATE_H
#define SHOAL_WEIGHTS_WEIGHTS_PRIVATE_H

#include "weights/weights.h"

/* Local. Zeroed memory for experts in the shared segment that other ranks read; NULL: no room. */
void *weights_lend_memory(struct weights *w, size_t n_bytes);

/* **Collective (EP)**, once the weights are loaded. Takes the others' experts beside this rank's,
 * in each layer whose experts all stand in shared segments. Errors: STATUS_MEMORY. */
struct status weights_lend(struct weights *w, const struct layout *l);

#endif
