"""Writes a Hugging Face folder of tests/golden/models as a GGUF file, with the names, keys and
orders of llama.cpp's converter; and reads safetensors. Standard library only.
"""
import json
import math
import re
import struct

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
ALIGNMENT = 32
# Each type's number in GGUF, and the bytes of an element.
KINDS = {"F32": (0, 4), "F16": (1, 2), "BF16": (30, 2), "Q8_0": (8, None)}
BLOCK = 32  # elements of Q8_0 with one scale
SOFTMAX, SIGMOID = 1, 2


class Tensor:
    def __init__(self, kind, shape, data):
        self.kind, self.shape, self.data = kind, list(shape), data

    def row_bytes(self):
        return KINDS[self.kind][1] * self.shape[-1]

    def rows(self):
        n = self.row_bytes()
        return [self.data[at:at + n] for at in range(0, len(self.data), n)]

    def floats(self):
        if self.kind == "F32":
            return struct.unpack(f"<{len(self.data) // 4}f", self.data)
        if self.kind == "F16":
            return struct.unpack(f"<{len(self.data) // 2}e", self.data)
        wide = bytes(2) + b"\0\0".join(self.data[i:i + 2] for i in range(0, len(self.data), 2))
        return struct.unpack(f"<{len(wide) // 4}f", wide)


def read_safetensors(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        n = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:8 + n]).items():
            if name == "__metadata__":
                continue
            begin, end = t["data_offsets"]
            tensors[name] = Tensor(t["dtype"], t["shape"], data[8 + n + begin:8 + n + end])
    return tensors


# ---- tensors ----

COMMON = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
          "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
          "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
          "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
          "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
          "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
          "mlp.shared_experts.up_proj": "ffn_up_shexp",
          "mlp.shared_experts.down_proj": "ffn_down_shexp",
          "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
          "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
          "self_attn.kv_a_layernorm": "attn_kv_a_norm"}
OUTER = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}
GEMMA = {**COMMON, "post_attention_layernorm": "post_attention_norm",
         "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}
QWEN3_NEXT = {**COMMON, "post_attention_layernorm": "post_attention_norm",
              "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.norm": "ssm_norm",
              "linear_attn.out_proj": "ssm_out", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
              "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
              "mlp.shared_expert.up_proj": "ffn_up_shexp",
              "mlp.shared_expert.down_proj": "ffn_down_shexp"}
GRANITE_MOE = {**COMMON, "block_sparse_moe.router.layer": "ffn_gate_inp",
               "block_sparse_moe.output_linear": "ffn_down_exps",
               "shared_mlp.output_linear": "ffn_down_shexp"}
LLAMA4 = {**COMMON, "feed_forward.router": "ffn_gate_inp",
          **{f"feed_forward.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
          **{f"feed_forward.shared_expert.{part}_proj": f"ffn_{part}_shexp"
             for part in ("gate", "up", "down")}}
NAMES = {"granitemoe": GRANITE_MOE, "llama4": LLAMA4, "gemma2": GEMMA, "gemma3": GEMMA, "qwen3next": QWEN3_NEXT,
         "glm4moe": {**COMMON, "post_attention_layernorm": "post_attention_norm"}}
SELECT_BIAS = "mlp.gate.e_score_correction_bias"


def of_floats(shape, floats):
    floats = list(floats)
    return Tensor("F32", shape, struct.pack(f"<{len(floats)}f", *floats))


def in_q8(t, as_values):
    """Rounds a tensor to Q8_0; as_values: the same values in F32."""
    floats, data, values = t.floats(), b"", []
    for at in range(0, len(floats), BLOCK):
        block = floats[at:at + BLOCK]
        packed = struct.pack("<e", max(map(abs, block)) / 127)
        scale = struct.unpack("<e", packed)[0]
        codes = [max(-127, min(127, round(x / scale))) for x in block]
        data += packed + struct.pack(f"<{BLOCK}b", *codes)
        values += [scale * q for q in codes]
    return of_floats(t.shape, values) if as_values else Tensor("Q8_0", t.shape, data)


def with_norm_plus_one(t):
    return of_floats(t.shape, (x + 1 for x in t.floats()))


def paired(t, n_heads):
    """Reorders the rows of each head, or the elements of a bias, from halves to the pairs of an
    interleaved rotation."""
    n, half = len(t.data) // t.shape[0], t.shape[0] // n_heads // 2
    rows = [t.data[at:at + n] for at in range(0, len(t.data), n)]
    order = [h * 2 * half + side * half + i for h in range(n_heads) for i in range(half)
             for side in (0, 1)]
    return Tensor(t.kind, t.shape, b"".join(rows[r] for r in order))


def latent_halves(t, c):
    """Splits kv_b_proj into the transposed keys and the values of each head."""
    heads, nope, value = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"]
    lora, size, rows = t.shape[1], KINDS[t.kind][1], t.rows()
    keys, values = [], []
    for h in range(heads):
        at = h * (nope + value)
        values += rows[at + nope:at + nope + value]
        for col in range(lora):
            keys += [row[col * size:(col + 1) * size] for row in rows[at:at + nope]]
    return (Tensor(t.kind, [heads, lora, nope], b"".join(keys)),
            Tensor(t.kind, [heads, value, lora], b"".join(values)))


def split_delta(t, c):
    """Splits in_proj_qkvz, which has the rows of q, k, v and z of each key head in turn, into the
    rows of all heads' q, k and v, and those of z."""
    heads, key, rows = c["linear_num_key_heads"], c["linear_key_head_dim"], t.rows()
    value = c["linear_num_value_heads"] // heads * c["linear_value_head_dim"]
    parts, n = [b"", b"", b"", b""], 2 * (key + value)
    for at in range(0, len(rows), n):
        ends = [at, at + key, at + 2 * key, at + 2 * key + value, at + n]
        for i in range(4):
            parts[i] += b"".join(rows[ends[i]:ends[i + 1]])
    return (Tensor(t.kind, [2 * heads * (key + value // 2), t.shape[1]], b"".join(parts[:3])),
            Tensor(t.kind, [heads * value, t.shape[1]], parts[3]))


def transposed(t):
    """Turns each expert's matrix, [experts, inputs, outputs]."""
    experts, n_in, n_out = t.shape
    size, data = KINDS[t.kind][1], []
    for e in range(experts):
        at = e * n_in * n_out
        data += [t.data[(at + i * n_out + o) * size:(at + i * n_out + o + 1) * size]
                 for o in range(n_out) for i in range(n_in)]
    return Tensor(t.kind, [experts, n_out, n_in], b"".join(data))


def halves(t):
    """Splits a tensor whose rows, of each expert if it has experts, are those of gate, then of up."""
    *experts, n_rows, _ = t.shape
    rows, n, parts = t.rows(), n_rows // 2, [b"", b""]
    for at in range(0, len(rows), n):
        parts[at // n % 2] += b"".join(rows[at:at + n])
    return [Tensor(t.kind, [*experts, n, t.shape[-1]], part) for part in parts]


def expert_tensors(inner, t):
    """The tensors into which a fused one of Llama-4 or Granite-MoE is divided, in the form of
    delta_tensors."""
    if inner == "feed_forward.experts.down_proj":
        return {"ffn_down_exps.weight": transposed(t)}
    ends = {"feed_forward.experts.gate_up_proj": "exps",
            "block_sparse_moe.input_linear.weight": "exps",
            "shared_mlp.input_linear.weight": "shexp"}
    if inner not in ends:
        return {}
    gate, up = halves(transposed(t) if inner.endswith("gate_up_proj") else t)
    return {f"ffn_gate_{ends[inner]}.weight": gate, f"ffn_up_{ends[inner]}.weight": up}


def delta_tensors(inner, t, c, old):
    """The tensors of a gated delta rule, and others of its layers, that are not stored as they are:
    {name after "blk.N.": tensor}; empty for any other. old: in_proj_qkvz stays whole."""
    if inner == "linear_attn.in_proj_qkvz.weight":
        qkv, z = split_delta(t, c)
        return {"ssm_in.weight": t} if old else {"attn_qkv.weight": qkv, "attn_gate.weight": z}
    if inner == "linear_attn.A_log":
        return {"ssm_a": of_floats(t.shape, [-math.exp(x) for x in t.floats()])}
    if inner == "linear_attn.dt_bias":
        return {"ssm_dt.bias": t}
    if inner == "linear_attn.conv1d.weight":
        return {"ssm_conv1d.weight": of_floats([t.shape[0], t.shape[2]], t.floats())}
    if inner == "mlp.shared_expert_gate.weight":
        return {"ffn_gate_inp_shexp.weight": of_floats(t.shape[1:], t.floats())}
    return {}


def gguf_tensors(arch, c, tensors, old):
    """old: as converters wrote the tensors before llama.cpp split kv_b_proj for latent attention's
    cache, and in_proj_qkvz for gated delta rules."""
    out, experts = {}, {}
    names = NAMES.get(arch, COMMON)
    for name, t in tensors.items():
        if arch in ("gemma2", "gemma3", "qwen3next") and name.endswith("norm.weight") and (
                not name.endswith("linear_attn.norm.weight")):
            t = with_norm_plus_one(t)
        if name in OUTER:
            out[OUTER[name]] = t
            continue
        layer, inner = re.match(r"model\.layers\.(\d+)\.(.+)", name).groups()
        blk = f"blk.{layer}."
        if int(layer) >= c["num_hidden_layers"]:  # a prediction layer: its names do not matter
            out[blk + inner] = t
            continue
        if inner == SELECT_BIAS:
            out[blk + "exp_probs_b.bias"] = t
            continue
        own = delta_tensors(inner, t, c, old) if arch == "qwen3next" else expert_tensors(inner, t)
        if own:
            out.update({blk + end: tensor for end, tensor in own.items()})
            continue
        stem, kind = inner.rsplit(".", 1)
        if stem == "self_attn.kv_b_proj":
            if old:
                out[blk + "attn_kv_b.weight"] = t
                continue
            out[blk + "attn_k_b.weight"], out[blk + "attn_v_b.weight"] = latent_halves(t, c)
            continue
        expert = re.match(r"mlp\.experts\.(\d+)\.(\w+)_proj", stem)
        if expert:
            experts.setdefault(f"{blk}ffn_{expert[2]}_exps.weight", {})[int(expert[1])] = t
            continue
        if arch in ("granite", "granitemoe") and stem in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = "num_attention_heads" if "q_proj" in stem else "num_key_value_heads"
            t = paired(t, c[heads])
        out[f"{blk}{names[stem]}.{kind}"] = t
    for name, group in experts.items():
        out[name] = Tensor(group[0].kind, [len(group), *group[0].shape],
                           b"".join(group[e].data for e in range(len(group))))
    return out


# ---- metadata ----

def keys_of(arch, c, old):
    """The metadata after the architecture's prefix: {key: (type, value)}."""
    rope = {**c.get("rope_parameters", {}), **c.get("rope_scaling", {})}
    rope = rope.get("full_attention", rope)
    keys = {"block_count": (U32, c["num_hidden_layers"]),
            "context_length": (U32, c["max_position_embeddings"]),
            "embedding_length": (U32, c["hidden_size"]),
            "feed_forward_length": (U32, c["intermediate_size"]),
            "attention.head_count": (U32, c["num_attention_heads"]),
            "attention.head_count_kv": (U32, c["num_key_value_heads"]),
            "attention.layer_norm_rms_epsilon": (F32, c["rms_norm_eps"]),
            "rope.freq_base": (F32, rope["rope_theta"])}
    if "head_dim" in c:
        keys["attention.key_length"] = keys["attention.value_length"] = (U32, c["head_dim"])
    if rope.get("rope_type", "default") != "default":
        keys["rope.scaling.type"] = (STRING, rope["rope_type"])
        keys["rope.scaling.factor"] = (F32, rope["factor"])
    if rope.get("rope_type") == "yarn":
        keys["rope.scaling.original_context_length"] = (
            U32, rope["original_max_position_embeddings"])
        keys["rope.scaling.yarn_beta_fast"] = (F32, rope["beta_fast"])
        keys["rope.scaling.yarn_beta_slow"] = (F32, rope["beta_slow"])
    if c.get("num_experts") or c.get("n_routed_experts"):
        keys["expert_count"] = (U32, c.get("num_experts") or c["n_routed_experts"])
        keys["expert_used_count"] = (U32, c["num_experts_per_tok"])
    if "n_group" in c:
        keys["expert_group_count"] = (U32, c["n_group"])
        keys["expert_group_used_count"] = (U32, c["topk_group"])
    if "num_local_experts" in c:
        keys["expert_count"] = (U32, c["num_local_experts"])
        keys["expert_used_count"] = (U32, c["num_experts_per_tok"])
    keys.update(OWN_KEYS[arch](c, rope))
    if arch == "deepseek2" and not old:
        keys["attention.head_count_kv"] = (U32, 1)
        keys["attention.key_length"] = (U32, c["kv_lora_rank"] + c["qk_rope_head_dim"])
        keys["attention.value_length"] = (U32, c["kv_lora_rank"])
    return keys


def gemma2(c, _):
    return {"attn_logit_softcapping": (F32, c["attn_logit_softcapping"]),
            "final_logit_softcapping": (F32, c["final_logit_softcapping"]),
            "attention.sliding_window": (U32, c["sliding_window"])}


def gemma3(c, _):
    local = c.get("rope_parameters", {}).get("sliding_attention", {}).get("rope_theta")
    cap = c.get("final_logit_softcapping")
    return {"attention.sliding_window": (U32, c["sliding_window"]),
            **({"final_logit_softcapping": (F32, cap)} if cap else {}),
            **({"rope.freq_base_swa": (F32, local)} if local else {})}


def granite(c, _):
    return {"attention.scale": (F32, c["attention_multiplier"]),
            "embedding_scale": (F32, c["embedding_multiplier"]),
            "residual_scale": (F32, c["residual_multiplier"]),
            "logit_scale": (F32, c["logits_scaling"])}


def granitemoe(c, rope):
    shared = c.get("shared_intermediate_size")
    return {**granite(c, rope),
            **({"expert_shared_feed_forward_length": (U32, shared)} if shared else {})}


def llama4(c, _):
    return {"feed_forward_length": (U32, c["intermediate_size_mlp"]),
            "expert_feed_forward_length": (U32, c["intermediate_size"]),
            "interleave_moe_layer_step": (U32, c["interleave_moe_layer_step"]),
            "vocab_size": (U32, c["vocab_size"])}


def olmoe(*_):
    return {}


def qwen3(*_):
    return {}


def routed(c):
    return {"expert_feed_forward_length": (U32, c["moe_intermediate_size"]),
            "expert_shared_count": (U32, c["n_shared_experts"]),
            "leading_dense_block_count": (U32, c["first_k_dense_replace"]),
            "expert_weights_scale": (F32, c["routed_scaling_factor"]),
            "expert_weights_norm": (BOOL, c["norm_topk_prob"])}


def glm4moe(c, rope):
    n_predict = c.get("num_nextn_predict_layers") or 0
    return {**routed(c), "expert_gating_func": (U32, SIGMOID),
            "block_count": (U32, c["num_hidden_layers"] + n_predict),
            "nextn_predict_layers": (U32, n_predict),
            "rope.dimension_count": (U32, int(c["head_dim"] * rope["partial_rotary_factor"]))}


def deepseek2(c, rope):
    v2 = c["model_type"] == "deepseek_v2"
    query = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    keys = {**routed(c), "expert_gating_func": (U32, SOFTMAX if v2 else SIGMOID),
            "attention.kv_lora_rank": (U32, c["kv_lora_rank"]),
            "attention.key_length": (U32, query),
            "attention.value_length": (U32, c["v_head_dim"]),
            "attention.key_length_mla": (U32, query),
            "attention.value_length_mla": (U32, c["v_head_dim"]),
            "vocab_size": (U32, c["vocab_size"]),
            "rope.dimension_count": (U32, c["qk_rope_head_dim"])}
    if "mscale_all_dim" in rope:
        keys["rope.scaling.yarn_log_multiplier"] = (F32, 0.1 * rope["mscale_all_dim"])
    if c.get("q_lora_rank"):
        keys["attention.q_lora_rank"] = (U32, c["q_lora_rank"])
    return keys


def qwen3next(c, rope):
    return {"expert_feed_forward_length": (U32, c["moe_intermediate_size"]),
            "expert_shared_feed_forward_length": (U32, c["shared_expert_intermediate_size"]),
            "full_attention_interval": (U32, c["full_attention_interval"]),
            "ssm.conv_kernel": (U32, c["linear_conv_kernel_dim"]),
            "ssm.state_size": (U32, c["linear_key_head_dim"]),
            "ssm.group_count": (U32, c["linear_num_key_heads"]),
            "ssm.time_step_rank": (U32, c["linear_num_value_heads"]),
            "ssm.inner_size": (U32, c["linear_num_value_heads"] * c["linear_value_head_dim"]),
            "rope.dimension_count": (U32, int(c["head_dim"] * rope["partial_rotary_factor"]))}


OWN_KEYS = {f.__name__: f for f in (gemma2, gemma3, granite, granitemoe, llama4, olmoe, qwen3,
                                    glm4moe, deepseek2, qwen3next)}

# ---- the file ----


def packed_text(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def packed_value(kind, value):
    if kind == STRING:
        return packed_text(value)
    if kind == ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(packed_value(inner, v)
                                                                for v in items)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], value)


def padded(data):
    return data + bytes(-len(data) % ALIGNMENT)


def write_gguf(path, arch, folder, old=False, without=(), put={}, q8=(), q8_values=(),
               **changed):
    """Writes the folder's model as `arch`. old: see gguf_tensors. without: keys of the architecture
    that are left out. put: {name: tensor} to replace tensors, or None to leave one out. q8: tensors
    whose names end so are written in Q8_0; q8_values: in F32, with the values that Q8_0 would have.
    changed: other values of keys, or (type, value); dots in keys are written as two underscores."""
    c = json.loads((folder / "config.json").read_text())
    keys = keys_of(arch, c, old)
    for key in without:
        del keys[key]
    for key, value in changed.items():
        key = key.replace("__", ".")
        keys[key] = value if isinstance(value, tuple) else (keys.get(key, (U32,))[0], value)
    tokens = [f"<{i}>" for i in range(c["vocab_size"])]
    values = {"general.architecture": (STRING, arch),
              **{f"{arch}.{key}": value for key, value in keys.items()},
              "tokenizer.ggml.model": (STRING, "gpt2"), "tokenizer.ggml.pre": (STRING, "smollm"),
              "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
              "tokenizer.ggml.token_type": (ARRAY, (I32, [1] * len(tokens))),
              "tokenizer.ggml.merges": (ARRAY, (STRING, []))}
    tensors = gguf_tensors(arch, c, read_safetensors(folder), old)
    tensors = {name: in_q8(t, name.endswith(q8_values)) if name.endswith((*q8, *q8_values)) else t
               for name, t in {**tensors, **put}.items() if t}
    head, data = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(values)), b""
    for key, (kind, value) in values.items():
        head += packed_text(key) + struct.pack("<I", kind) + packed_value(kind, value)
    for name, t in tensors.items():
        head += packed_text(name) + struct.pack("<I", len(t.shape))
        head += struct.pack(f"<{len(t.shape)}Q", *reversed(t.shape))
        head += struct.pack("<IQ", KINDS[t.kind][0], len(data))
        data = padded(data + t.data)
    path.write_bytes(padded(head) + data)
