/* Computes the size of attention heads, and the rotary frequencies that a config.json asks for:
 * plain, or scaled by a rule that depends on the config alone. Rules that change with the length of
 * a sequence are not implemented. Also reads configs of models that shoal does not run; for models
 * that it runs, arch_parse finds the same sizes. Sizes and frequencies are computed when a
 * checkpoint is written, which stores the results; a running model reads them there. The order of
 * the rows of q and k is also asked for when an adapter is loaded. */
#ifndef SHOAL_ARCH_ARCH_ROPE_H
#define SHOAL_ARCH_ARCH_ROPE_H

#include "base/json.h"

#include <stddef.h>
#include <stdint.h>

struct arch_family; /* arch/arch.h */

enum { ARCH_ROPE_MAX = 65536 };

/* Local. Returns the number of elements of a head, or of a group of heads, in o_proj's input, which
 * is the unit of its K-blocks; 0 when the config does not give it. */
uint32_t arch_value_dim(const struct js_node *config);

/* Local. As arch_value_dim, for layers without a window in a family where these have heads of
 * another width; returns 0 in others, and when the config does not give it. Also sets *n_heads to
 * the heads for which o_proj's K-blocks are chosen in all layers, if layers differ in the width or
 * number of heads; else to 0. */
uint32_t arch_full_dim(const struct js_node *config, uint64_t *n_heads);

/* Local. As arch_value_dim, for recurrent layers: the value heads of one key head together, or one
 * head of a Mamba-2 scan. */
uint32_t arch_delta_unit(const struct js_node *config);

struct arch_rope {
    float *inv_freq;        /* owned [n], radians per position; mem_free */
    size_t n;               /* half the rotated dimensions; 0: none were made */
    float attention_factor; /* multiplies cos and sin; 1 except for yarn and longrope */
    float softmax_factor;   /* multiplies the scale of q.k; 1 except for yarn with mscale_all_dim.
                               Only latent attention uses it (DeepSeek) */
};

/* Local. Computes the frequencies in double and rounds each once to f32. The number of rotated
 * elements is d = qk_rope_head_dim; if the config has no such field, floor(head_dim *
 * partial_rotary_factor); if that factor is absent or 1, rotary_dim, or else head_dim.
 *     plain    theta^(-2i/d)                                   (Su et al. 2021, RoFormer)
 *     linear   plain / factor                                  (Chen et al. 2023)
 *     llama3   by wavelength: plain, plain / factor, or between (Llama 3.1)
 *     frequency_factors   plain / factors[i]                   (GGUF's Llama 3)
 *     yarn     a ramp from plain to plain / factor; sets both factors (Peng et al. 2023)
 *     longrope (also "su")   plain / short_factor[i]        (Ding et al. 2024)
 *     dynamic  plain, with theta * alpha^(d / (d - 2))         (Hunyuan)
 *     proportional   plain / factor for the first part of d = head_dim, then 0 (Gemma-4)
 * out->n = 0 without an error when the config has no attention shape or names another rule. Errors:
 * STATUS_INPUT names a field of a known rule whose value makes no sense; STATUS_MEMORY. */
struct status arch_rope_make(const struct js_node *config, struct arch_rope *out);

/* Local. Computes the frequencies of layers with a window, in a family whose other layers may have
 * another RoPE; in other families out->n = 0. In these families arch_parse refuses rules other than
 * plain for the layers with a window. Errors: as from arch_rope_make. */
struct status arch_rope_make_local(const struct js_node *config, struct arch_rope *out);

/* Local. True for a family whose q and k are published with the elements that rotate together next
 * to each other (2i, 2i + 1) and whose rows convert reorders, so that these are at i and i + d / 2.
 * False for latent and compressed attention, whose rows stay where they are. */
bool arch_rope_in_pairs(const struct arch_family *family);

/* Local. Returns the row to which convert moves row `row` of a q or k published in pairs. Its heads
 * have head_rows rows each, the first `rotated` of which are in pairs. */
uint64_t arch_rope_unpaired(uint64_t row, uint32_t head_rows, uint32_t rotated);

#endif
