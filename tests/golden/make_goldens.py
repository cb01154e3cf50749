#!/usr/bin/env python3
"""Makes tests/golden/models: tiny random checkpoints and what transformers computes with them.

Runs transformers alone (torch, f32 on the CPU), never shoal. Each model gets
  hf/              the checkpoint directory as transformers saves it, with a small tokenizer.json
  prompts.jsonl    token-id prompts, greedy, 32 tokens each: input of `shoal generate`
  sequences.jsonl  the same prompts with the 32 greedy tokens after them: input of `shoal score`
  logits.N.i24     [T, V] in three bytes each (logits_file.py), row t = logits after token t of sequence N
  golden.json      greedy ids, gaps between the best two logits, largest logit, versions
A model with the key "generated" has weights.json instead of the weights (generated_weights.py), another golden's
tokenizer ("tokenizer"), and the logits of every "every"-th token only.
Weights are rounded to the stored type first; the goldens are computed in f32 from the rounded ones.
usage: make_goldens.py [NAME...]
"""
import json
import platform
import shutil
import sys
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig

from golden_generated import generate, write_generated
from golden_models import MODELS
from golden_predict import Prediction
from logits_file import pack_logits

HERE = Path(__file__).resolve().parent
PROMPT_LENGTHS = (5, 37, 130)  # the last one crosses two borders of tiles of 64 positions
N_DECODE = 32
GAP_LEAST = 2e-3  # relative to the largest logit; a greedy choice must not depend on rounding
INDEX_GAP_LEAST = 5e-6  # between the last chosen and the first rejected position, relative to the row's largest score
ROUNDING_GAP_LEAST = 2e-5  # between an activation and the middle of two 8-bit steps, in steps
ROUTER_GAP_LEAST = 1e-4  # between the keys (routing_keys) of the last chosen and the first rejected expert
TEXT = ("the quick brown fox jumps over the lazy dog and a shoal of small fish swims in the sea, "
        "each one near the others, none of them leading; when one turns, they all turn. ") * 4


def spread_of(name, shape, tied, less_one):
    """(mean, deviation) of the random weights of a tensor: a spread that separates the logits and gives every expert
    work. less_one: the weights of norms are stored less 1.
    """
    if "norm" in name:
        return (0, 0.3) if less_one and "linear_attn" not in name else (1, 0.3)
    if "embed_tokens" in name or name.endswith("embeddings.weight"):
        return 0, 0.4 if tied else 1.0
    if "lm_head" in name:
        return 0, 0.4
    if name.endswith(("gate.weight", "router.weight", "gate.wg.weight")):
        return 0, 1.5 / shape[-1] ** 0.5
    if "moe_statics" in name:
        return 0, 0.1
    if name.endswith(("bias", "sinks")):
        return 0, 0.5
    if "q_proj" in name or "k_proj" in name:
        return 0, 1.4 / shape[-1] ** 0.5
    return 0, 1.0 / max(shape[-1], 1) ** 0.5


def fill(model, generator, less_one):
    """Fills the model with random weights."""
    tied = model.config.get_text_config().tie_word_embeddings
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("A_log"):  # states that last for a few to some hundred tokens
                p.copy_((0.005 + 0.3 * torch.rand(p.shape, generator=generator)).log())
                continue
            mean, deviation = spread_of(name, p.shape, tied, less_one)
            p.copy_(mean + torch.randn(p.shape, generator=generator) * deviation)


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def mxfp4_of(weight):
    """Codes [E, out, groups, 16] and scales [E, out, groups] of experts [E, in, out], and their
    values in the model's shape. OCP Microscaling 1.0: 32 inputs share 2^(scale - 127)."""
    groups = weight.transpose(1, 2).reshape(weight.shape[0], weight.shape[2], -1, 32)
    exponent = (groups.abs().amax(-1, keepdim=True) / 6).log2().ceil()
    near = (groups / 2**exponent).abs()[..., None] - FP4
    codes = near.abs().argmin(-1) + 8 * (groups < 0)
    values = torch.where(groups < 0, -1, 1) * FP4[codes % 8] * 2**exponent
    blocks = (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8)
    values = values.reshape(weight.shape[0], weight.shape[2], -1).transpose(1, 2).contiguous()
    return blocks, (exponent[..., 0] + 127).to(torch.uint8), values


def experts_of(model):
    return [(name, p) for name, p in model.named_parameters()
            if name.endswith((".gate_up_proj", "experts.down_proj"))]


def publish_mxfp4(hf, model):
    """Replaces the experts of the saved checkpoint by blocks and scales, as gpt-oss is published."""
    path = hf / "model.safetensors"
    tensors = load_file(path)
    for name, p in experts_of(model):
        del tensors[name]
        tensors[name + "_blocks"], tensors[name + "_scales"], values = mxfp4_of(p.float())
        assert torch.equal(values, p.float())
    save_file(tensors, path, metadata={"format": "pt"})
    edit_config(hf, quantization_config=dict(quant_method="mxfp4"))


def fp8_of(weight):
    """Codes and scales of blocks of 128 x 128 as DeepSeek-V3 has them, and the values. Scales have 12 bits, so
    that values give the same codes again."""
    rows, cols = weight.shape
    blocks = torch.nn.functional.pad(weight, (0, -cols % 128, 0, -rows % 128))
    blocks = blocks.view(blocks.shape[0] // 128, 128, -1, 128)
    mantissa, exponent = torch.frexp(blocks.abs().amax((1, 3)) / 448)
    scales = torch.ldexp((mantissa * 4096).ceil() / 4096, exponent)
    wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :cols]
    codes = (weight / wide).to(torch.float8_e4m3fn)
    return codes, scales, codes.to(torch.float32) * wide


def in_fp8(name):
    experts = (".w1.weight", ".w2.weight", ".w3.weight")
    return name.endswith(("_proj.weight", "_with_mqa.weight", *experts)) and "lm_head" not in name


def round_fp8(model):
    """Replaces the linears by the values of their fp8 codes. An expert's gate and up are rounded
    separately.
    """
    for name, p in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            for expert in p:
                for half in expert.chunk(2) if "gate_up" in name else [expert]:
                    half.copy_(fp8_of(half)[2])
        elif in_fp8(name):
            p.copy_(fp8_of(p)[2])


def publish_fp8(hf, dtype):
    """Replaces the linears of the saved f32 checkpoint by fp8 codes; the other tensors become
    `dtype`.
    """
    tensors = {}
    for name, p in load_file(hf / "model.safetensors").items():
        if in_fp8(name):
            tensors[name], tensors[name + "_scale_inv"], values = fp8_of(p)
            assert torch.equal(values, p)
        else:
            tensors[name] = p if name.endswith("correction_bias") else p.to(dtype)
            assert torch.equal(tensors[name].float(), p)
    save_file(tensors, hf / "model.safetensors", metadata={"format": "pt"})
    edit_config(hf, dtype="bfloat16", quantization_config=dict(
        quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128]))


def edit_config(hf, **fields):
    config = json.loads((hf / "config.json").read_text())
    config.update(fields)
    config = {key: value for key, value in config.items() if key not in fields or value is not None}
    (hf / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_null(hf, key):
    """Sets a field to null. transformers does not write a field that is None, and reads a missing one as its default."""
    config = json.loads((hf / "config.json").read_text())
    config[key] = None
    (hf / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def publish_joined(hf):
    """Joins the experts of a layer, and gate with up, as Qwen3.5-MoE is published."""
    path = hf / "model.safetensors"
    tensors = load_file(path)
    layers = sorted({name.split(".experts.")[0] for name in tensors if ".experts." in name})
    for layer in layers:
        n = len([name for name in tensors if name.startswith(f"{layer}.experts.") and name.endswith("up_proj.weight")])
        kind = {k: torch.stack([tensors.pop(f"{layer}.experts.{e}.{k}_proj.weight") for e in range(n)])
                for k in ("gate", "up", "down")}
        tensors[f"{layer}.experts.gate_up_proj"] = torch.cat((kind["gate"], kind["up"]), 1)
        tensors[f"{layer}.experts.down_proj"] = kind["down"]
    save_file(tensors, path, metadata={"format": "pt"})


def publish_wrapped(hf, fields):
    """Makes the checkpoint the text model of a multimodal one, whose class cannot run without images."""
    path, config_path = hf / "model.safetensors", hf / "config.json"
    tensors = {f"language_model.{name}": p for name, p in load_file(path).items()}
    tensors["vision_model.patch_embedding.weight"] = torch.zeros(4, 4)
    save_file(tensors, path, metadata={"format": "pt"})
    text = json.loads(config_path.read_text())
    del text["architectures"]
    config_path.write_text(json.dumps(dict(text_config=text, **fields), indent=2) + "\n")


def drop_tensors(hf, part):
    """Removes the tensors of a part that the model does not have."""
    tensors = load_file(hf / "model.safetensors")
    gone = {name for name in tensors if part in name}
    assert gone and all(tensors[name].numel() == 0 for name in gone)
    save_file({name: p for name, p in tensors.items() if name not in gone},
              hf / "model.safetensors", metadata={"format": "pt"})


def drop_experts(hf, first):
    """Removes the matrices that transformers stores for experts without weights, from number `first` on."""
    path = hf / "model.safetensors"
    kept = {name: p for name, p in load_file(path).items()
            if ".experts." not in name or int(name.split(".experts.")[1].split(".")[0]) < first}
    save_file(kept, path, metadata={"format": "pt"})


def routing_keys(config, module, x):
    """The keys by which experts are chosen, with -inf for experts of groups that were not chosen;
    and the smallest distance between two groups.
    """
    if hasattr(module, "per_expert_scale"):  # as Gemma-4
        return module.proj(module.norm(x) * module.scale * module.scalar_root_size), 1.0
    inner = next((getattr(module, name) for name in ("wg", "classifier") if hasattr(module, name)), module)
    keys = x.reshape(-1, x.shape[-1]) @ inner.weight.T
    if hasattr(module, "classifier"):  # as LongCat-Flash
        return keys.softmax(-1) + module.e_score_correction_bias, 1.0
    if hasattr(module, "moe_statics"):
        return keys.softmax(-1) + module.moe_statics.e_score_correction_bias, 1.0
    if getattr(module, "bias", None) is not None:
        keys = keys + module.bias
    if hasattr(module, "score_fn"):  # as DeepSeek-V4
        return module.score_fn(keys) + module.e_score_correction_bias, 1.0
    if hasattr(module, "e_score_correction_bias"):
        keys = keys.sigmoid() + module.e_score_correction_bias
    n_groups = getattr(config, "n_group", None) or 1
    if n_groups == 1 or getattr(config, "topk_method", None) == "greedy":
        return keys, 1.0
    groups = keys.view(keys.shape[0], n_groups, -1)
    best = groups.topk(2, dim=-1).values
    best = best.sum(-1) if hasattr(module, "e_score_correction_bias") else best[..., 0]
    order = best.sort(dim=-1, descending=True)
    n_open = config.topk_group
    closed = torch.ones_like(best).scatter_(1, order.indices[:, :n_open], 0).bool()
    gap = (order.values[:, n_open - 1] - order.values[:, n_open]).min().item()
    return groups.masked_fill(closed.unsqueeze(-1), float("-inf")).reshape(keys.shape), gap


def router_gaps(model, ids):
    """The smallest distance between a chosen and a rejected expert, and the tokens per expert."""
    found, hooks = [], []
    config = model.config.get_text_config()
    k = getattr(config, "num_experts_per_tok", 0) or getattr(config, "top_k_experts", 0)
    k = k[0] if isinstance(k, list) else k
    for name, module in model.named_modules():
        if name.endswith((".gate", ".router")) and not hasattr(module, "tid2eid"):
            hooks.append(module.register_forward_hook(
                lambda m, a, out: found.append(routing_keys(model.config, m, a[0]))))
    model(ids)
    for hook in hooks:
        hook.remove()
    if not found:
        return None, None
    keys = torch.cat([rows for rows, _ in found])
    best = keys.sort(dim=-1, descending=True).values
    load = torch.bincount(keys.topk(k, dim=-1).indices.flatten(), minlength=keys.shape[-1])
    gap = (best[:, k - 1] - best[:, k]).min().item()
    return min([gap, *(g for _, g in found)]), load.tolist()


def index_gap(model, ids):
    """The smallest distance between a chosen and a rejected position of sparse attention, relative to the
    largest score of the row; 1 without such attention.
    """
    few, found, topk = getattr(model.config, "index_topk", None), [], torch.Tensor.topk
    rate = getattr(model.config, "compress_rates", {}).get("compressed_sparse_attention", 1)

    def seen(scores, k, *rest, **more):
        if scores.dim() == 3 and scores.shape[-1] == len(ids) // rate and k == few:
            best = scores[0, rate * (few + 1) - 1:].sort(dim=-1, descending=True).values
            largest = best.masked_fill(best < -1e30, 0).abs().amax(-1)  # the mask is no infinity
            found.append(((best[:, few - 1] - best[:, few]) / largest).min().item())
        return topk(scores, k, *rest, **more)

    if few is None or len(ids) // rate <= few:
        return block_gap(model, ids)
    torch.Tensor.topk = seen
    model(torch.tensor([ids]))
    torch.Tensor.topk = topk
    return min(found)


def block_gap(model, ids):
    """The same for an index that chooses blocks."""
    config, found, topk = model.config.get_text_config(), [], torch.Tensor.topk
    few, size = getattr(config, "index_topk_blocks", 0), getattr(config, "index_block_size", 1)

    def seen(scores, k, *rest, **more):
        if scores.dim() == 4 and k == few:
            best = scores[0, :, few * size:].sort(dim=-1, descending=True).values  # rows that see more blocks
            largest = best.masked_fill(best.isinf(), 0).abs().amax(-1)
            found.append(((best[..., few - 1] - best[..., few]) / largest).min().item())
        return topk(scores, k, *rest, **more)

    if not few or len(ids) <= few * size:
        return 1.0
    torch.Tensor.topk = seen
    model(torch.tensor([ids]))
    torch.Tensor.topk = topk
    return min(found)


def rounding_gap(model, ids):
    """The smallest distance of a scaled activation to the middle between two integers, over all of BitNet's linears; 1
    without such linears.
    """
    found, hooks = [1.0], []

    def see(module, args):
        x = args[0].float()
        steps = x * (127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5))
        found.append((steps - steps.floor() - 0.5).abs().min().item())

    for module in model.modules():
        if type(module).__name__ == "AutoBitLinear":
            hooks.append(module.register_forward_pre_hook(see))
    if hooks:
        model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return min(found)


def decode(model, prompt):
    """Prefill, then N_DECODE greedy steps through transformers' cache: ids and logits [T, V]."""
    rows, ids, cache = [], list(prompt), None
    step = torch.tensor([ids])
    for _ in range(N_DECODE + 1):
        out = model(step, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0])
        if len(ids) == len(prompt) + N_DECODE:
            break
        ids.append(int(out.logits[0, -1].argmax()))
        step = torch.tensor([ids[-1:]])
    return ids, torch.cat(rows)


def fill_model(spec, generator):
    """A model with random weights that its stored type can hold, in f32."""
    model = spec["cls"](spec["config"]()).eval()
    model.set_attn_implementation("eager")  # the others leave out softcaps
    fill(model, generator, spec.get("less_one", False))
    for _, p in experts_of(model) if spec.get("mxfp4") else []:
        p.copy_(mxfp4_of(p)[2])
    for p in model.parameters():  # casting the whole model would round the rotary frequencies too
        p.copy_(p.to(spec["dtype"]).to(torch.float32))
    if spec.get("fp8"):
        round_fp8(model)
    for name, p in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            bias = 0.1 * torch.randn(p.shape, generator=generator)
            p.copy_(bias.to(spec["dtype"]).to(torch.float32))
    return model


def try_seed(spec, seed):
    """Makes one model from a seed, with its goldens. Returns None if a choice is too close."""
    generator = torch.Generator().manual_seed(seed)
    weights = None
    if spec.get("generated"):
        model, weights = generate(spec, seed, spread_of)
        model.set_attn_implementation("eager")
    else:
        model = fill_model(spec, generator)
    config = model.config
    prediction = Prediction(model, generator) if spec.get("predicts") else None
    goldens, gap_min, router_min, load_sum = [], 1.0, None, None
    for length in spec.get("prompts", PROMPT_LENGTHS):
        prompt = torch.randint(0, config.get_text_config().vocab_size, (length,), generator=generator).tolist()
        early, _ = router_gaps(model, torch.tensor([prompt]))
        if index_gap(model, prompt) < INDEX_GAP_LEAST or (early is not None and early < ROUTER_GAP_LEAST):
            return None
        if rounding_gap(model, prompt) < ROUNDING_GAP_LEAST:
            return None
        ids, logits = decode(model, prompt)
        if len(set(ids[length:])) < spec.get("distinct", 1):
            return None
        if index_gap(model, ids) < INDEX_GAP_LEAST or rounding_gap(model, ids) < ROUNDING_GAP_LEAST:
            return None
        whole = model(torch.tensor([ids])).logits[0]
        largest = logits.abs().max().item()
        is_same = (whole - logits).abs().max().item() < 2e-5 * largest
        if spec.get("ternary") and not is_same:  # an activation was rounded to another step
            return None
        assert is_same
        best = logits[length - 1:-1].topk(2, dim=-1).values
        gaps = ((best[:, 0] - best[:, 1]) / largest).tolist()
        gap_min = min(gap_min, *gaps)
        if gap_min < GAP_LEAST:
            return None
        router_gap, load = router_gaps(model, torch.tensor([ids]))
        if router_gap is not None:
            router_min = min(router_gap, router_min if router_min is not None else router_gap)
            load_sum = load if load_sum is None else [a + b for a, b in zip(load_sum, load)]
        goldens.append(dict(prompt=prompt, ids=ids, logits=logits, largest=largest, gaps=gaps))
    if gap_min < GAP_LEAST or (router_min is not None and router_min < ROUTER_GAP_LEAST):
        return None
    if prediction is not None:
        prediction.train(goldens)
        if not prediction.guess(goldens, spec["dtype"]):
            return None
    return model, prediction, goldens, weights, dict(seed=seed, gap_min=gap_min, router_gap_min=router_min,
                                                     tokens_per_expert=load_sum)


def train_tokenizer(vocab_size):
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    assert bpe.get_vocab_size() == vocab_size
    return bpe


def write_tiktoken(directory, vocab_size):
    """Writes tiktoken.model and tokenizer_config.json in the form of Kimi-K2. Returns a text and
    its ids.
    """
    import tiktoken
    from make_tiktoken_goldens import PIECES, tokens_of, write_ranks
    vocab = train_tokenizer(vocab_size - 256).get_vocab()
    ranks = {token: rank for rank, token in enumerate(tokens_of(vocab))}
    special = write_ranks(directory, ranks)
    encoding = tiktoken.Encoding("kimi", pat_str=PIECES, mergeable_ranks=ranks, special_tokens=special)
    text = "<|im_user|>The fish 1234 swims 中文字 in the Sea's\n\n  shoal<|im_end|><|reserved_token_300|>"
    return dict(prompt=text, ids=encoding.encode(text, allowed_special="all"))


def write_weights(spec, hf, model, prediction, facts):
    """Writes the checkpoint as the family publishes it."""
    if prediction is not None:
        prediction.put_back()
    stored = model if spec.get("fp8") else model.to(spec["dtype"])
    stored.generation_config = GenerationConfig()
    stored.save_pretrained(hf, max_shard_size=spec.get("shard", "5GB"))
    if prediction is not None:
        prediction.publish(hf, spec["dtype"])
    if spec.get("mxfp4"):
        publish_mxfp4(hf, model)
    if spec.get("fp8"):
        publish_fp8(hf, spec["dtype"])
        facts["convert"] = ["--dtype", "f32"]  # codes times scales do not fit bfloat16
    if "drop" in spec:
        drop_tensors(hf, spec["drop"])
    if "drop_experts_from" in spec:
        drop_experts(hf, spec["drop_experts_from"])


def write_model(name, spec):
    seed = 1
    while (made := try_seed(spec, seed)) is None:
        seed += 1
    model, prediction, goldens, weights, facts = made
    folder = HERE / "models" / name
    shutil.rmtree(folder, ignore_errors=True)
    hf = folder / "hf"
    if weights is not None:
        write_generated(spec, folder, model, weights)
    else:
        write_weights(spec, hf, model, prediction, facts)
    if "fields" in spec:
        edit_config(hf, **spec["fields"])
    for key in spec.get("nulls", []):
        write_null(hf, key)
    if spec.get("joined"):
        publish_joined(hf)
    if "wrapped" in spec:
        publish_wrapped(hf, spec["wrapped"])
    if "edit" in spec:
        config = json.loads((hf / "config.json").read_text())
        spec["edit"](config)
        (hf / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if "published" in spec:
        edit_config(hf, model_type=spec["published"])
        facts["text"] = write_tiktoken(hf, model.config.get_text_config().vocab_size)
    elif weights is None:
        train_tokenizer(model.config.get_text_config().vocab_size).save(str(hf / "tokenizer.json"))
    every = spec.get("every", 1)
    if every != 1:
        facts["every"] = every
    lines = {"prompts": [], "sequences": []}
    for i, g in enumerate(goldens):
        sampling = dict(max_tokens=N_DECODE, temperature=0)
        lines["prompts"].append(dict(custom_id=f"p{i}", prompt_token_ids=g["prompt"], **sampling))
        lines["sequences"].append(dict(custom_id=f"p{i}", prompt_token_ids=g["ids"]))
        (folder / f"logits.{i}.i24").write_bytes(pack_logits(g["logits"][::every].numpy()))
    for kind, rows in lines.items():
        (folder / f"{kind}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    golden = dict(
        model=name, dtype=str(spec["dtype"]).removeprefix("torch."), **facts,
        vocab_size=model.config.get_text_config().vocab_size, n_decode=N_DECODE,
        versions=dict(python=platform.python_version(), torch=torch.__version__,
                      transformers=transformers.__version__, tokenizers=tokenizers.__version__),
        sequences=[dict(n_prompt=len(g["prompt"]), n_tokens=len(g["ids"]), largest=g["largest"],
                        greedy=g["ids"][len(g["prompt"]):],
                        **{key: g[key] for key in ("guesses",) if key in g},
                        gaps=[float(f"{x:.3g}") for x in g["gaps"]]) for g in goldens])
    fields = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in golden.items()]
    (folder / "golden.json").write_text("{\n" + ",\n".join(fields) + "\n}\n")
    print(f"{name}: {facts}")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    names = sys.argv[1:] or list(MODELS)
    with torch.no_grad():
        for name in names:
            write_model(name, MODELS[name])


if __name__ == "__main__":
    main()
