/* Low-rank adapters as Hugging Face's peft publishes them: a folder with adapter_config.json and
 * adapter_model.safetensors. Checks that the adapter is a plain LoRA of linears; everything else
 * that changes a result is refused by name. Reads no values. Called by source.c.
 * Fields: peft 0.21, peft/tuners/lora/config.py. Scaling: Kalajdzievski, 2023, arXiv 2312.03732. */
#ifndef SHOAL_CHECKPOINT_CONVERT_PEFT_H
#define SHOAL_CHECKPOINT_CONVERT_PEFT_H

#include "base/strbuf.h"
#include "checkpoint/convert/safetensors.h"

/* Local. Sets *is_adapter when the folder has an adapter_config.json. Errors: STATUS_INPUT for a
 * folder that also has the weights of a model; STATUS_MEMORY. */
struct status peft_find(const char *folder, bool *is_adapter);

/* Local. Opens the adapter's tensors. Errors: as safetensors_open. */
struct status peft_open(const char *folder, struct safetensors **out);

/* Local. Reads the folder's adapter_config.json, checks it and the names, shapes and types of all
 * tensors, and writes the config of the adapter's checkpoint:
 *     {"adapter_type": "lora", "r": R, "scaling": S, "scalings": {"LINEAR": S, ...}, ...}
 * `scalings` has the linears whose scaling is not S; a linear is a tensor's name in the checkpoint
 * without ".lora_A.weight". Errors: STATUS_INPUT names file, field or tensor; STATUS_MEMORY. */
struct status peft_config(const char *folder, const struct safetensors *tensors,
                          struct strbuf *out);

/* Local. Writes to out [n] a tensor's name in the checkpoint,
 * "model.layers.0.self_attn.q_proj.lora_A.weight". Errors: STATUS_INPUT when the tensor is neither
 * A nor B of a linear outside the experts, or its name is too long. */
struct status peft_tensor_name(const char *name, char *out, size_t n);

#endif
