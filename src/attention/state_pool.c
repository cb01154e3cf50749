/* Storage of recurrent states: anonymous memory of the host. */
#include "attention/state_pool.h"

#include "base/mem.h"

#include <assert.h>

static uint64_t conv_floats(const struct delta_shape *s)
{
    return (uint64_t)(s->n_taps - 1) * delta_channels(s);
}

static uint64_t head_floats(const struct delta_shape *s)
{
    return (uint64_t)delta_value_heads(s) * s->key_dim * s->value_dim;
}

uint64_t state_pool_slot_bytes(const struct state_shape *shape)
{
    if (shape->n_layers == 0) return 0;
    if (shape->n_floats > 0) return shape->n_layers * shape->n_floats * sizeof(float);
    return shape->n_layers * (conv_floats(&shape->layer) + head_floats(&shape->layer)) *
           sizeof(float);
}

struct status state_pool_create(const struct state_shape *shape, struct state_pool **out)
{
    *out = NULL;
    struct state_pool *p = NULL;
    TRY(mem_alloc(&p, 1, sizeof *p, "recurrent states"));
    p->shape = *shape;
    struct status st = status_ok();
    if (__builtin_mul_overflow(state_pool_slot_bytes(shape), shape->n_slots, &p->n_bytes))
        st = status_make(STATUS_MEMORY, "recurrent states: too large for %u slots", shape->n_slots);
    if (!status_failed(&st) && p->n_bytes > 0)
        st = mem_map(&p->data, p->n_bytes, "recurrent states");
    if (status_failed(&st)) mem_free(&p);
    *out = p;
    return st;
}

void state_pool_destroy(struct state_pool **pool)
{
    if (*pool == NULL) return;
    if ((*pool)->n_bytes > 0) mem_unmap(&(*pool)->data, (*pool)->n_bytes);
    mem_free(pool);
}

struct delta_states state_pool_layer(const struct state_pool *p, uint32_t i)
{
    const struct delta_shape *s = &p->shape.layer;
    const uint64_t n = p->shape.n_slots;
    float *data = p->data;
    assert(i < p->shape.n_layers);
    data += i * n * (conv_floats(s) + head_floats(s));
    return (struct delta_states){.conv = data, .heads = data + n * conv_floats(s)};
}

float *state_pool_floats(const struct state_pool *p, uint32_t i)
{
    assert(i < p->shape.n_layers && p->shape.n_floats > 0);
    return (float *)p->data + (uint64_t)i * p->shape.n_slots * p->shape.n_floats;
}
