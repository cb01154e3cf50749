"""GGUF files of the benchmark's models. Used by models.py. Needs gguf."""
import dataclasses

import gguf
import numpy as np

from models_weights import Drawing

CONTEXT = 8192
TYPES = {k: gguf.GGMLQuantizationType[k] for k in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "MXFP4")}


class Stream:
    """A tensor for GGUFWriter whose weights are drawn while they are written."""

    def __init__(self, drawing, n_bytes):
        self.drawing, self.nbytes = drawing, n_bytes

    def tofile(self, file):
        for chunk in self.drawing.chunks(self.drawing.tensor.count):
            chunk.tofile(file)


def kind_of(s, t, kind):
    """The type in which a tensor is stored in a file of type `kind`. Norms and routers are floats,
    as in llama.cpp. MXFP4 is used for experts only: the other matrices are then BF16. So are
    embedding and head of models with latent attention. Both are as published.
    """
    if t.role in ("vector", "router"):
        return "F32"
    if kind == "MXFP4" and t.role != "expert" or s["arch"] == "deepseek2" and t.role == "embed":
        return "BF16"
    return kind


def add_header(w, s):
    latent = s["arch"] == "deepseek2"
    w.add_context_length(CONTEXT)
    w.add_embedding_length(s["width"])
    w.add_block_count(s["layers"])
    w.add_feed_forward_length(s["ffn"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(1 if latent else s["kv_heads"])
    w.add_rope_freq_base(s["rope"])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(s["vocab"])
    if latent:
        add_latent(w, s)
    else:
        w.add_key_length(s["head_dim"])
        w.add_value_length(s["head_dim"])
        w.add_rope_dimension_count(s["head_dim"])
    if "experts" in s:
        w.add_expert_count(s["experts"])
        w.add_expert_used_count(s["chosen"])
    if s["arch"] != "llama":
        w.add_expert_feed_forward_length(s["expert_ffn"])
    if "window" in s:
        w.add_sliding_window(s["window"])


def add_latent(w, s):
    """Adds the keys of latent attention: heads attend to the latent itself, so there is one KV
    head, of the latent and the rotated part.
    """
    w.add_q_lora_rank(s["q_rank"])
    w.add_kv_lora_rank(s["kv_rank"])
    w.add_key_length(s["kv_rank"] + s["rotary"])
    w.add_value_length(s["kv_rank"])
    w.add_key_length_mla(s["head_dim"] + s["rotary"])
    w.add_value_length_mla(s["head_dim"])
    w.add_rope_dimension_count(s["rotary"])
    w.add_leading_dense_block_count(s["dense_layers"])
    w.add_expert_shared_count(1)
    w.add_expert_group_count(s["groups"])
    w.add_expert_group_used_count(s["groups_chosen"])
    w.add_expert_weights_scale(s["routed_scale"])
    w.add_expert_weights_norm(True)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def byte_alphabet():
    """The character for each byte in byte-level BPE: the byte itself if it can be printed,
    otherwise a character from 256 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (b for b in range(256) if b not in plain)
    letters = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [letters[b] for b in range(256)]


def add_tokenizer(w, n):
    """Adds a vocabulary: an end token, the 256 bytes, and pairs of bytes for the rest."""
    letters = byte_alphabet()
    pairs = [(a, b) for a in letters for b in letters][:n - 257]
    tokens = ["<end>", *letters, *(a + b for a, b in pairs)]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (n - 1))
    w.add_token_merges([f"{a} {b}" for a, b in pairs])
    w.add_bos_token_id(0)
    w.add_eos_token_id(0)
    w.add_add_bos_token(False)


def split_kv_b(s, t):
    """Splits the matrix that multiplies the latent as GGUF stores it: for each head the part of
    the keys, transposed, and the part of the values.
    """
    heads, own, rank = s["heads"], s["head_dim"], s["kv_rank"]

    def of_heads(drawn):
        return drawn.reshape(heads, 2 * own, rank)

    def keys(drawn):
        return np.ascontiguousarray(of_heads(drawn)[:, :own].transpose(0, 2, 1))

    def values(drawn):
        return np.ascontiguousarray(of_heads(drawn)[:, own:])

    for name, dims, part in (("k_b", (heads, rank, own), keys), ("v_b", (heads, own, rank), values)):
        yield dataclasses.replace(t, name=t.name.replace("kv_b", name), dims=dims, part=part, drawn=t.count)


def write(path, s, plan, kind, seed):
    """plan: the model's tensors; kind: the type of its matrices."""
    w = gguf.GGUFWriter(path, s["arch"])
    add_header(w, s)
    add_tokenizer(w, s["vocab"])
    streams = []
    for index, whole in enumerate(plan):
        for t in split_kv_b(s, whole) if ".attn_kv_b." in whole.name else [whole]:
            stored = kind_of(s, t, kind)
            elems, n_bytes = gguf.GGML_QUANT_SIZES[TYPES[stored]]
            size = t.count // elems * n_bytes
            w.add_tensor_info(t.name, t.dims, None, size, TYPES[stored])
            streams.append(Stream(Drawing(stored, t, [seed, index], True), size))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for stream in streams:
        w.write_tensor_data(stream)
    w.close()
