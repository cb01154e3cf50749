#!/usr/bin/env python3
"""Changes one field of a golden's config.json at a time and compares shoal with transformers again.

A field that changes what transformers computes must change what shoal computes in the same way, or
shoal must refuse the file; and a field that transformers does not read must change nothing, or be
refused. Prints one line for each change where neither holds, or which only shoal runs, and counts.
Needs torch, transformers and h5py; no part of the tests.
usage: flip_fields.py SHOAL MODEL...     MODEL: a folder of tests/golden/models
"""
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import h5py
import torch
import transformers
from safetensors.torch import load_file, save_file

from generated_weights import checkpoint_of

HERE = Path(__file__).resolve().parent
BOUND = 1e-4
ABSENT = object()
# Fields that name files, tokens or programs, or on which the shapes of all tensors depend.
LEFT_OUT = {"architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "vocab_size", "hidden_size",
            "num_hidden_layers", "quantization_config", "return_dict", "pad_token_id", "id2label", "label2id", "auto_map"}
GUESSES = {"sliding_window": [16, None], "max_window_layers": [1], "layer_types": [None], "rope_scaling": [
               {"rope_type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0}],
           "n_group": [None, 2], "topk_group": [None, 1], "topk_method": ["greedy", "noaux_tc"], "head_dim": [None, 8],
           "scoring_func": ["softmax", "sigmoid"], "mlp_layer_types": [None], "hidden_act": ["gelu", "gelu_pytorch_tanh"], "use_qk_norm": [True],
           "rope_theta": [5e4], "logit_scale": [0.5], "attn_logit_softcapping": [5.0], "final_logit_softcapping": [5.0],
           "query_pre_attn_scalar": [64], "partial_rotary_factor": [0.5], "attention_chunk_size": [16],
           "time_step_limit": [[0.3, 0.6], [0.0, 0.5]], "time_step_min": [0.4], "position_embedding_type": ["rope", "nope"],
           "hybrid_override_pattern": ["MM-*"], "layers_block_type": [None]}


def values_for(key, value):
    """Other values of a field."""
    found = list(GUESSES.get(key, []))
    if isinstance(value, bool):
        found.append(not value)
    elif isinstance(value, int):
        found += [0, value + 1, value - 1, 2 * value]
    elif isinstance(value, float):
        found += [2 * value, 0.5 * value, 0.01 if "eps" in key else 0.0]
    elif isinstance(value, list) and value and not isinstance(value[0], dict):
        found.append(value[::-1])
    if value is not ABSENT:
        found.append(ABSENT)
    return [v for v in found if v is ABSENT or v != value]


def flips_of(config, defaults):
    """(path, value): every change of one field, of the file's fields and of those of the config's class."""
    for key in sorted({*config, *defaults, *GUESSES} - LEFT_OUT):
        value = config.get(key, ABSENT)
        if isinstance(value, dict):
            for inner in sorted(value):
                if isinstance(value[inner], dict):
                    yield from ((((key, inner, k), v)) for k in value[inner] for v in values_for(k, value[inner][k]))
                else:
                    yield from (((key, inner), v) for v in values_for(inner, value[inner]))
            yield from (((key, more), v) for more, v in (("partial_rotary_factor", 0.5), ("mscale_all_dim", 0.7)))
            continue
        like = value if value is not ABSENT else defaults.get(key)
        yield from (((key,), v) for v in values_for(key, like) if not (v is ABSENT and value is ABSENT))


def changed(config, path, value):
    copy = json.loads(json.dumps(config))
    at = copy
    for key in path[:-1]:
        at = at[key]
    if value is ABSENT:
        at.pop(path[-1], None)
    else:
        at[path[-1]] = value
    return copy


def copy_for_reference(folder, config, copy):
    """A copy of a checkpoint that transformers loads: it wants gate and up also of LongCat's experts without weights,
    which the published files do not have.
    """
    copy.mkdir()
    for path in folder.iterdir():
        os.symlink(path.resolve(), copy / path.name)
    if not config.get("zero_expert_num"):
        return copy
    first = config["n_routed_experts"]
    tensors = load_file(folder / "model.safetensors")
    for name in [n for n in tensors if ".experts.0.gate_proj" in n or ".experts.0.up_proj" in n]:
        for e in range(first, first + config["zero_expert_num"]):
            tensors[name.replace(".experts.0.", f".experts.{e}.")] = torch.zeros_like(tensors[name])
    (copy / "model.safetensors").unlink()
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def reference(folder, cls, ids):
    """Logits [T, V] of transformers, or why there are none."""
    try:
        model, info = cls.from_pretrained(folder, dtype=torch.float32, output_loading_info=True,
                                          attn_implementation="eager")
        if info["missing_keys"] or info["mismatched_keys"]:
            return None, "tensors are missing"
        with torch.no_grad():
            return model.eval()(torch.tensor([ids])).logits[0], ""
    except Exception as e:  # whatever a config may raise
        return None, f"{type(e).__name__}"


def shoal_logits(shoal, folder, work, ids):
    """Logits of shoal, or the sentence with which it refuses."""
    lines, out = work / "in.jsonl", work / "logits.h5"
    lines.write_text(json.dumps(dict(custom_id="p", prompt_token_ids=ids)) + "\n")
    for path in (work / "m.h5", work / "s.jsonl", out):
        path.unlink(missing_ok=True)
    for command in (["convert", folder, work / "m.h5"],
                    ["score", "--model", work / "m.h5", "--input", lines, "--output", work / "s.jsonl", "--logits",
                     out, "--kv-dtype", "f32", "--threads", "1", "--no-journal"]):
        done = subprocess.run([shoal, *map(str, command)], capture_output=True, text=True)
        if done.returncode != 0:
            return None, done.stderr.strip().splitlines()[-1:] or ["?"]
    with h5py.File(out) as f:
        data = []
        f.visititems(lambda name, node: data.append(node[...]) if isinstance(node, h5py.Dataset) and node.ndim == 2
                     else None)
    return torch.tensor(data[0]), ""


def class_of(architecture):
    """transformers' class of an architecture, to which a publisher may give other capitals or another name."""
    architecture = {"BailingMoeV3ForCausalLM": "BailingHybridForCausalLM"}.get(architecture, architecture)
    return next(getattr(transformers, name) for name in dir(transformers) if name.lower() == architecture.lower())


def try_model(shoal, name):
    golden = HERE / "models" / name
    config = json.loads((golden / "hf" / "config.json").read_text())
    cls = class_of(config["architectures"][0])
    ids = json.loads((golden / "sequences.jsonl").read_text().splitlines()[-1])["prompt_token_ids"][:100]
    defaults = {k: v for k, v in cls.config_class().to_dict().items() if not k.startswith("_")}
    n = {"equal": 0, "refused": 0, "no reference": 0, "different": 0}
    with tempfile.TemporaryDirectory() as scratch:
        work, folder = Path(scratch), Path(scratch) / "hf"
        folder.mkdir()
        for path in checkpoint_of(golden, work / "generated").iterdir():
            if path.name != "config.json":
                os.symlink(path, folder / path.name)
        (folder / "config.json").write_text(json.dumps(config))
        theirs = copy_for_reference(folder, config, Path(scratch) / "theirs")
        (theirs / "config.json").unlink()
        os.symlink(folder / "config.json", theirs / "config.json")
        found, why = shoal_logits(shoal, folder, work, ids)
        assert found is not None, why
        for path, value in flips_of(config, defaults):
            shown = "absent" if value is ABSENT else json.dumps(value)
            (folder / "config.json").write_text(json.dumps(changed(config, path, value)))
            found, why = shoal_logits(shoal, folder, work, ids)
            if found is None:
                n["refused"] += 1
                continue
            wanted, why = reference(theirs, cls, ids)
            if wanted is None:
                n["no reference"] += 1
                print(f"{name}: {'.'.join(path)} = {shown}: shoal runs it, transformers does not: {why}")
                continue
            worst = (found - wanted).abs().max().item() / wanted.abs().max().item()
            is_equal = found.shape == wanted.shape and worst <= BOUND
            n["equal" if is_equal else "different"] += 1
            if not is_equal:
                print(f"{name}: {'.'.join(path)} = {shown}: logits differ by {worst:.2g} of the largest")
    print(f"{name}: {n}", flush=True)
    return n["different"]


def main():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(1 if sum(try_model(sys.argv[1], name) for name in sys.argv[2:]) else 0)


if __name__ == "__main__":
    main()
