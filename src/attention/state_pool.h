/* Recurrent states of one rank: a number of slots, each with the states of one sequence in the
 * layers and heads that the rank holds. It does not know which request owns a slot: the lead's plan
 * says so. Created by the stage. */
#ifndef SHOAL_ATTENTION_STATE_POOL_H
#define SHOAL_ATTENTION_STATE_POOL_H

#include "base/status.h"
#include "kernels/ops.h"

struct state_shape {
    uint32_t n_layers, n_slots; /* n_layers: those with states */
    struct delta_shape layer;
    uint64_t n_floats; /* of a sequence's states in a layer with compressed entries; 0: the layers
                          have states as in `layer` */
};

struct state_pool {
    struct state_shape shape;
    void *data; /* owned: for each layer, the convolutions of all slots, then their heads; or, with
                   shape.n_floats, [n_slots, n_floats]. A page is allocated at its first write */
    uint64_t n_bytes;
};

/* Local. Bytes of one slot over all layers of a rank. */
uint64_t state_pool_slot_bytes(const struct state_shape *shape);

/* Local. Allocates a pool in host memory. Errors: STATUS_MEMORY. destroy accepts NULL. */
struct status state_pool_create(const struct state_shape *shape, struct state_pool **out);
void state_pool_destroy(struct state_pool **p);

/* Local. Returns the states of the i-th layer that has some; shape.n_floats is 0. */
struct delta_states state_pool_layer(const struct state_pool *p, uint32_t i);

/* Local. Returns the states [slots, shape.n_floats] of the i-th layer that has some; shape.n_floats
 * is above 0. */
float *state_pool_floats(const struct state_pool *p, uint32_t i);

#endif
