/* Facts about attention's heads that a checkpoint stores: their size, and the rotary frequencies as a
 * config.json asks for them, plain or scaled by a rule that depends on the config alone (linear,
 * llama3, yarn). Rules that depend on a sequence's length (dynamic, longrope) are not made here.
 * The config may be of any model, also of one that shoal does not run; for those that it runs
 * arch_parse finds the same sizes. Called when a checkpoint is written; the model room only reads
 * what was made. */
#ifndef SHOAL_ARCH_ARCH_ROPE_H
#define SHOAL_ARCH_ARCH_ROPE_H

#include "base/json.h"

#include <stddef.h>
#include <stdint.h>

enum { ARCH_ROPE_MAX = 65536 };

/* Local. Elements of a head of o_proj's input, the unit of its K-blocks; 0: the config does not
 * say. */
uint32_t arch_value_dim(const struct js_node *config);

struct arch_rope {
    float *inv_freq;        /* owned [n], radians per position; mem_free */
    size_t n;               /* half the rotated dimensions; 0: none were made */
    float attention_factor; /* cos and sin are multiplied by it; 1 but for yarn */
    float softmax_factor;   /* the scale of q.k is; 1 but for yarn with mscale_all_dim (DeepSeek) */
};

/* Local. Computed in double, each value rounded once to f32. The rotated dimensions are d =
 * head_dim
 * * partial_rotary_factor, or qk_rope_head_dim where the config has one:
 *     plain    theta^(-2i/d)                                   (Su et al. 2021, RoFormer)
 *     linear   plain / factor                                  (Chen et al. 2023)
 *     llama3   by wavelength: plain, plain / factor, or between (Llama 3.1)
 *     frequency_factors   plain / factors[i]   (GGUF's Llama 3)
 *     yarn     a ramp from plain / factor to plain, and the factors (Peng et al. 2023, YaRN)
 * out->n = 0 without an error when the config has no attention shape or names another rule. Errors:
 * STATUS_INPUT names a field of a known rule whose value makes no sense; STATUS_MEMORY. */
struct status arch_rope_make(const struct js_node *config, struct arch_rope *out);

#endif
