/* Facts about a layer's experts that every rank knows, also a rank that holds none of them: the
 * grid of their sums, and the format of their first linears' inputs. Called by weights_load. */
#include "kernels/act.h"
#include "kernels/fp8_int8.h"
#include "weights/weights_private.h"

/* Returns the format in which weights of a stored format are kept in memory. */
static struct quant_format in_memory(struct quant_format stored, bool fp8_as_int8)
{
    const struct packed w = {.quant = stored};
    return fp8_as_int8 && fp8_int8_fits(&w) ? fp8_int8_format(stored) : stored;
}

void weights_describe_experts(struct weights *w, const struct ckpt *c, const struct arch *m,
                              bool fp8_as_int8)
{
    for (uint32_t layer = w->layers.begin; layer < w->layers.end; layer++) {
        if (!m->layer.is_moe[layer]) continue;
        struct moe_weights *moe = &w->stage_layers[layer - w->layers.begin].moe;
        struct packed gate = {0}, up = {0};
        const struct arch_tensor *t;
        for (size_t i = 0; (t = arch_tensor_at(i)) != NULL; i++) {
            char name[sizeof((struct weight_spec *)0)->name];
            if (t->role != WEIGHT_EXPERT_GATE && t->role != WEIGHT_EXPERT_UP &&
                t->role != WEIGHT_EXPERT_DOWN)
                continue;
            if ((t->part & arch_layer_parts(m, layer)) == 0) continue;
            arch_tensor_name(t, m->family, layer, name, sizeof name);
            const struct ckpt_tensor *stored = ckpt_find(c, name);
            if (t->role == WEIGHT_EXPERT_GATE) gate.quant = in_memory(stored->quant, fp8_as_int8);
            if (t->role == WEIGHT_EXPERT_UP) up.quant = in_memory(stored->quant, fp8_as_int8);
            if (t->role == WEIGHT_EXPERT_DOWN) moe->grid_bits = stored->grid_bits;
        }
        if (m->gate == GATE_RELU2) up = gate;
        if (act_codes_alike(&gate, &up)) moe->reads.quant = gate.quant;
    }
}
