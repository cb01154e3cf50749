"""Models of goldens whose weights are generated (generated_weights.py): the checkpoint as transformers saves the model,
with other values.
"""
import hashlib
import json
import re
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

from generated_weights import safetensors_of

DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.uint8: "U8",
          torch.int64: "I64"}


def spread_by(spec, name, shape, spread_of, tied):
    less_one = spec.get("less_one", False)
    if "head_norm" in spec and name.endswith(("q_norm.weight", "k_norm.weight")):
        return spec["head_norm"], 0.3 * spec["head_norm"]
    if "embed" in spec and name.endswith("embed_tokens.weight"):
        return 0, spec["embed"]
    if name.endswith("weight_scale"):
        return 0.2, 0.04
    if name.endswith("A_log"):  # states that last for a few to some hundred tokens
        return -2.2, 0.8
    if name.endswith("tid2eid"):
        return 0, spec["config"]().n_routed_experts
    if name.endswith(("_scale", "_base")) and ".hc_" in f".{name}":
        return (1, 0.3) if name.endswith("_scale") else (0, 0.5)
    if name.endswith(("ape", "attn_sink")):
        return 0, 0.5
    if name.endswith(("embed.weight", "head.weight")):
        return 0, 1.0 if name.endswith("embed.weight") else 0.4
    if name.endswith(("e_score_correction_bias", "expert_bias", "ffn.gate.bias", "moe.router_bias")):
        return 0, 0.1
    if name.endswith(("router.scale", "per_expert_scale", "layer_scalar")):
        return (0.8, 0.1) if name.endswith("layer_scalar") else (1, 0.3)
    if name.endswith("router.proj.weight"):
        return 0, 1.5
    return spread_of(name, shape, tied, less_one)


def weights_of(spec, seed, tensors, spread_of, tied):
    """The content of weights.json. tensors: as transformers saves them. spec["floats"]: ends of the names of those that
    are stored as f32; spec["head_norm"]: mean weight of norms of q and k, where it is not 1; spec["embed"]: deviation of
    the embedding, where another would repeat the token before.
    """
    groups = {}
    for name, p in sorted(tensors.items()):
        dtype = "F32" if name.endswith(spec.get("floats", ())) else DTYPES[p.dtype]
        mean, deviation = spread_by(spec, name, p.shape, spread_of, tied)
        key = dtype, tuple(p.shape), mean, deviation if dtype == "I64" else float(f"{deviation:.4g}")
        groups.setdefault(key, []).append(name)
    weights = dict(seed=seed, tokenizer=spec["tokenizer"], groups=[
        dict(dtype=dtype, shape=shape, mean=mean, deviation=deviation, names=names)
        for (dtype, shape, mean, deviation), names in groups.items()])
    return dict(sha256=hashlib.sha256(safetensors_of(weights)).hexdigest(), **weights)


def as_published(spec, name):
    """The publisher's name of a tensor; spec["renames"]: pairs of a pattern and what replaces it."""
    for pattern, text in spec.get("renames", ()):
        name = re.sub(pattern, text, name)
    return name


def pack_ternary(tensors):
    """The tensors of a checkpoint whose projections are BitNet's packed ternary weights; only shapes and types matter."""
    packed = {}
    for name, p in tensors.items():
        is_packed = name.endswith("_proj.weight")
        packed[name] = p.new_empty(p.shape[0] // 4, p.shape[1], dtype=torch.uint8) if is_packed else p
        if is_packed:
            packed[name + "_scale"] = p.new_empty(1)
    return packed


def generate(spec, seed, spread_of):
    """A model of a row of MODELS with generated weights, computing in f32, and its weights.json."""
    config = spec["config"]()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        spec["cls"](config).to(spec["dtype"]).save_pretrained(folder)
        path = folder / "model.safetensors"
        tensors = {as_published(spec, name): p for name, p in load_file(path).items()}
        tensors = pack_ternary(tensors) if spec.get("ternary") else tensors
        tied = getattr(config, "tie_word_embeddings", False)  # Step-3.7 says it of the text model alone
        weights = weights_of(spec, seed, tensors, spread_of, tied)
        path.write_bytes(safetensors_of(weights))
        model, info = spec["cls"].from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    if spec.get("ternary"):
        torch.nn.Module.float(model)  # its linears kept the stored type
    return model.eval(), weights


def write_generated(spec, folder, model, weights):
    """Writes hf/config.json and weights.json into the golden's folder."""
    model.config.dtype, model.config.architectures = spec["dtype"], [spec["cls"].__name__]
    model.config.save_pretrained(folder / "hf")
    fields = [f" {json.dumps(key)}: {json.dumps(weights[key])}" for key in weights if key != "groups"]
    groups = ",\n".join(f"  {json.dumps(group)}" for group in weights["groups"])
    (folder / "weights.json").write_text("{\n" + ",\n".join([*fields, f' "groups": [\n{groups}\n ]']) + "\n}\n")
