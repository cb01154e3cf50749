#!/usr/bin/env python3
"""Makes tests/golden/adapters: random LoRA adapters of golden models, as peft publishes them, and
the logits of the models with them.

Runs peft and transformers alone (torch, f32 on the CPU), never shoal. Each adapter gets
  hf/          adapter_config.json and adapter_model.safetensors, as peft saves them
  logits.i24   [T, V] (logits_file.py), row t = logits after token t
  golden.json  the model, the T token ids, the largest logit, and how far the adapter moves a logit of each row
Weights are rounded to the stored type first; the logits are computed in f32 from the rounded ones.
usage: make_lora_goldens.py [NAME...]      needs torch, transformers and peft (0.21.2)
"""
import contextlib
import json
import platform
import shutil
import sys
import tempfile
from pathlib import Path

import peft
import torch
import transformers
from peft import LoraConfig, get_peft_model
from peft.utils import transformers_weight_conversion
from safetensors.torch import load_file, save_file

from generated_weights import checkpoint_of
from logits_file import pack_logits
from make_goldens import ROUTER_GAP_LEAST, router_gaps

HERE = Path(__file__).resolve().parent
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEARS = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
FFN = LINEARS[4:]
SHARED = [f"{module}.{linear}" for module in ("shared_expert", "shared_experts") for linear in FFN]
LATENT = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
MOVES_LEAST = 0.1  # the least change of the logit that changes most in a row, relative to the largest one

ADAPTERS = {
    # patterns: a linear with another rank, and linears with another alpha
    "attention": dict(model="llama-gqa", dtype=torch.float16, n_tokens=20, config=dict(
        r=4, lora_alpha=8, target_modules=ATTENTION, rank_pattern={"layers.1.self_attn.k_proj": 2},
        alpha_pattern={"o_proj": 3})),
    "all-linears": dict(model="llama-gqa", dtype=torch.bfloat16, n_tokens=16, config=dict(
        r=8, lora_alpha=5, use_rslora=True, target_modules=LINEARS, layers_to_transform=[1, 3])),
    # six more of the same model, so that a batch can have eight different ones
    "query": dict(model="llama-gqa", dtype=torch.float16, n_tokens=5, config=dict(
        r=1, lora_alpha=3, target_modules=["q_proj", "v_proj"])),
    "key-value": dict(model="llama-gqa", dtype=torch.bfloat16, n_tokens=6, config=dict(
        r=3, lora_alpha=6, target_modules=["k_proj", "v_proj"], layers_to_transform=[0, 2])),
    "output": dict(model="llama-gqa", dtype=torch.float16, n_tokens=4, config=dict(
        r=2, lora_alpha=4, target_modules=["o_proj"])),
    "gate-up": dict(model="llama-gqa", dtype=torch.float16, n_tokens=7, config=dict(
        r=2, lora_alpha=3, target_modules=["gate_proj", "up_proj"])),
    "down": dict(model="llama-gqa", dtype=torch.bfloat16, n_tokens=3, config=dict(
        r=2, lora_alpha=2, target_modules=["down_proj"])),
    "one-layer": dict(model="llama-gqa", dtype=torch.float16, n_tokens=5, config=dict(
        r=5, lora_alpha=5, use_rslora=True, target_modules=LINEARS, layers_to_transform=[2])),
    # q and k whose rows convert reorders, and heads that are rotated in part
    "pairs": dict(model="glm4", dtype=torch.float32, n_tokens=10, config=dict(
        r=2, lora_alpha=4, target_modules=["q_proj", "k_proj", "v_proj"])),
    # a layer whose v is k, so that k's adapter changes both, with heads wider than those of the other layer
    "key-is-value": dict(model="gemma4", dtype=torch.float16, n_tokens=5, config=dict(
        r=2, lora_alpha=8, target_modules=["k_proj"], layers_to_transform=[4, 5])),
    "experts": dict(model="qwen3-moe", dtype=torch.float32, n_tokens=16, config=dict(
        r=2, lora_alpha=4, target_modules=ATTENTION)),
    # latent attention, with the dense layer and the shared experts; the parts of kv_b_proj alone; a q without a latent
    "latent": dict(model="deepseek-v3", dtype=torch.bfloat16, n_tokens=14, config=dict(
        r=3, lora_alpha=6, target_modules=[*LATENT, *FFN], rank_pattern={"kv_b_proj": 2})),
    "latent-heads": dict(model="deepseek-v3", dtype=torch.float16, n_tokens=9, config=dict(
        r=4, lora_alpha=12, target_modules=["kv_b_proj"])),
    "shared-experts": dict(model="deepseek-v3", dtype=torch.float16, n_tokens=5, config=dict(
        r=2, lora_alpha=8, target_modules=SHARED)),
    "latent-query": dict(model="deepseek-v2-lite", dtype=torch.float16, n_tokens=8, config=dict(
        r=2, lora_alpha=6, target_modules=["q_proj", "kv_a_proj_with_mqa", "kv_b_proj"])),
    # linears whose modules have other names in transformers than the tensors have in a checkpoint
    "renamed-shared": dict(model="hy3", dtype=torch.float16, n_tokens=4, config=dict(
        r=1, lora_alpha=6, target_modules=SHARED)),
    "renamed-blocks": dict(model="kimi-linear", dtype=torch.float16, n_tokens=4, config=dict(
        r=1, lora_alpha=8, target_modules=SHARED)),
    "renamed-dense": dict(model="llama4", dtype=torch.float16, n_tokens=4, config=dict(
        r=1, lora_alpha=6, target_modules=[f"feed_forward.{linear}" for linear in FFN])),
    # every expert's linears, under the names of the checkpoint; the experts' parameters; one whose gate and up alternate
    "each-expert": dict(model="mixtral", dtype=torch.float16, n_tokens=5, by_expert=["w1", "w2", "w3"], config=dict(
        r=1, lora_alpha=4, target_modules=["w1", "w2", "w3"])),
    "parameters": dict(model="deepseek-v3", dtype=torch.float16, n_tokens=6, config=dict(
        r=2, lora_alpha=6, target_modules=["o_proj"], alpha_pattern={"down_proj": 10},
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])),
    "one-parameter": dict(model="gpt-oss", dtype=torch.float16, n_tokens=5, config=dict(
        r=1, lora_alpha=3, target_modules=[], target_parameters=["mlp.experts.gate_up_proj"])),
    # shared experts again, and both numbers of query heads
    "two-head-counts": dict(model="step37", dtype=torch.float16, n_tokens=5, cls=transformers.Step3p7ForConditionalGeneration,
                            config=dict(r=1, lora_alpha=6, target_modules=["q_proj", "o_proj", *SHARED],
                                        layers_to_transform=[3, 4], exclude_modules=".*vision.*")),
    # a model with a prediction layer, which no adapter changes
    "predicted": dict(model="deepseek-v3-mtp", dtype=torch.float16, n_tokens=7, config=dict(
        r=2, lora_alpha=6, target_modules=[*LATENT, *FFN])),
    # shared experts with a gate of their own
    "gated-shared": dict(model="qwen2-moe", dtype=torch.float16, n_tokens=6, config=dict(
        r=2, lora_alpha=8, target_modules=["v_proj", *SHARED])),
}


def adapted_experts(model):
    return next(m.num_experts for m in model.modules() if isinstance(m, peft.tuners.lora.ParamWrapper))


def fill(model, dtype, generator):
    """Fills A and B so that an adapter's outputs are about a third of the linear's."""
    for name, p in model.named_parameters():
        if "lora_" not in name:
            continue
        columns = p.shape[1]
        if ".experts." in name and "lora_B" in name:  # of each expert
            columns /= adapted_experts(model)
        std = columns ** -0.5 * (0.25 if "lora_B" in name else 1)
        p.copy_((torch.randn(p.shape, generator=generator) * std).to(dtype).float())


def publish(model, hf, spec):
    """Saves the adapter alone, in its stored type, without the path of its model."""
    shutil.rmtree(hf, ignore_errors=True)
    model.save_pretrained(hf)
    (hf / "README.md").unlink()
    path, config_path = hf / "adapter_model.safetensors", hf / "adapter_config.json"
    tensors = {name: t.to(spec["dtype"]).contiguous() for name, t in load_file(path).items()}
    path.unlink()
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads(config_path.read_text())
    config.update(base_model_name_or_path=spec["model"], target_modules=sorted(config["target_modules"]))
    config_path.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def publish_by_expert(checkpoint, hf, spec, generator):
    """Saves an adapter with A and B for each expert's linears, as peft published it while these were modules."""
    shutil.rmtree(hf, ignore_errors=True)
    hf.mkdir(parents=True)
    tensors, r = {}, spec["config"]["r"]
    for path in sorted(checkpoint.glob("*.safetensors")):
        for name, weight in sorted(load_file(path).items()):
            if ".experts." in name and name.split(".")[-2] in spec["by_expert"]:
                linear = f"base_model.model.{name.removesuffix('.weight')}"
                (n_out, n_in), dtype = weight.shape, spec["dtype"]
                a, b = torch.randn(r, n_in, generator=generator), torch.randn(n_out, r, generator=generator)
                tensors[f"{linear}.lora_A.weight"] = (a * n_in ** -0.5).to(dtype)
                tensors[f"{linear}.lora_B.weight"] = (b * r ** -0.5 * 0.25).to(dtype)
    save_file(tensors, hf / "adapter_model.safetensors", metadata={"format": "pt"})
    config = dict(LoraConfig(**spec["config"]).to_dict(), base_model_name_or_path=spec["model"], inference_mode=True)
    config.update(peft_type="LORA", target_modules=sorted(config["target_modules"]))
    (hf / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


@contextlib.contextmanager
def keep_targets():
    """Lets targets named gate_proj, up_proj and down_proj be linears alone. With a transformers that joins the
    routed experts into one parameter, peft would move these targets to the experts.
    """
    convert = transformers_weight_conversion.convert_peft_config_for_transformers
    transformers_weight_conversion.convert_peft_config_for_transformers = lambda *_, **__: None
    yield
    transformers_weight_conversion.convert_peft_config_for_transformers = convert


def adapt(model, checkpoint, hf, spec, generator):
    """Returns the model with the adapter, whose files are in hf."""
    if "by_expert" in spec:
        publish_by_expert(checkpoint, hf, spec, generator)
        return peft.PeftModel.from_pretrained(model, hf).eval()
    with keep_targets():
        adapted = get_peft_model(model, LoraConfig(**spec["config"])).eval()
    fill(adapted, spec["dtype"], generator)
    publish(adapted, hf, spec)
    return adapted


def write_adapter(name, spec):
    folder = HERE / "adapters" / name
    generator = torch.Generator().manual_seed(7)
    with tempfile.TemporaryDirectory() as work:
        checkpoint = checkpoint_of(HERE / "models" / spec["model"], Path(work) / "hf")
        load = spec.get("cls", transformers.AutoModelForCausalLM).from_pretrained
        model = load(checkpoint, dtype=torch.float32).eval()
        model.set_attn_implementation("eager")
        ids = torch.randint(0, model.config.get_text_config().vocab_size, (1, spec["n_tokens"]), generator=generator)
        plain = model(ids).logits[0]
        with torch.no_grad():
            adapted = adapt(model, checkpoint, folder / "hf", spec, generator)
            logits = adapted(ids).logits[0]
            gap, _ = router_gaps(adapted, ids)
    largest = logits.abs().max().item()
    moved = ((logits - plain).abs().amax(-1) / largest).min().item()
    assert moved > MOVES_LEAST and (gap is None or gap > ROUTER_GAP_LEAST), (moved, gap)
    (folder / "logits.i24").write_bytes(pack_logits(logits.numpy()))
    golden = dict(model=spec["model"], prompt_token_ids=ids[0].tolist(), largest=largest,
                  moved_least=moved, router_gap_min=gap,
                  versions=dict(python=platform.python_version(), torch=torch.__version__,
                                transformers=transformers.__version__, peft=peft.__version__))
    fields = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in golden.items()]
    (folder / "golden.json").write_text("{\n" + ",\n".join(fields) + "\n}\n")
    print(f"{name}: a row's logits move by {moved:.3f} of the largest or more, router gap {gap}")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    with torch.no_grad():
        for name in sys.argv[1:] or list(ADAPTERS):
            write_adapter(name, ADAPTERS[name])


if __name__ == "__main__":
    main()
