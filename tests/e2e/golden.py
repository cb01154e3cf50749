#!/usr/bin/env python3
"""Compares shoal with transformers on one tiny random checkpoint of tests/golden/models.

usage: golden.py SHOAL COMPARE_LOGITS WORK_FOLDER MODEL
Every logit of prefill and decode must be within 1e-4 of the largest one, and greedy tokens must be
equal. One rank checks the logits with whole prompts and with one token per step, and the tokens;
each of several layouts checks one of the two. The comparison must fail when one weight is changed.
"""
import json
import random
import shutil
import struct
import sys
from pathlib import Path

from program import GOLDENS, Shoal, expect, fresh_folder, main_of, read_rows, run, write_lines

from generated_weights import checkpoint_of, write_checkpoint

BOUND = "1e-4"
DENSE_LAYOUTS = [["--tp", "2"], ["--tp", "3"], ["--pp", "2"], ["--dp", "2", "--tp", "2"]]
MOE_LAYOUTS = [["--ep", "2"], ["--tp", "2", "--ep", "1"], ["--pp", "2"],
               ["--dp", "2", "--tp", "2", "--ep", "4"]]
# Layouts for models that have two prompts; law.py has more layouts for them.
LIGHT_LAYOUTS = {False: [["--tp", "3"], ["--pp", "2"]],
                 True: [["--tp", "2", "--ep", "1"], ["--dp", "2", "--tp", "2", "--ep", "4"]]}
# By model or type: the tensor of which mutate() changes one element.
MUTATED = {"llama": "model.layers.1.self_attn.k_proj.weight",
           "gpt_oss": "model.layers.1.self_attn.v_proj.weight",
           "mistral": "model.layers.1.self_attn.v_proj.weight",
           "qwen2": "model.layers.1.self_attn.k_proj.weight",
           "qwen3": "model.layers.1.self_attn.k_proj.weight",
           "mixtral": "model.layers.2.block_sparse_moe.experts.3.w2.weight",
           "qwen3_moe": "model.layers.1.mlp.experts.5.up_proj.weight",
           "qwen3_next": "model.layers.2.linear_attn.in_proj_qkvz.weight",
           "qwen3-next-odd": "model.layers.1.linear_attn.in_proj_ba.weight",
           "qwen2_moe": "model.layers.1.mlp.shared_expert.up_proj.weight",
           "olmoe": "model.layers.1.self_attn.q_proj.weight",
           "granitemoe": "model.layers.0.self_attn.v_proj.weight",
           "deepseek_v2": "model.layers.1.self_attn.kv_b_proj.weight",
           "deepseek_v3": "model.layers.1.self_attn.kv_a_proj_with_mqa.weight",
           "qwen3-moe-window": "model.layers.2.mlp.experts.5.up_proj.weight",
           "deepseek-v3-fp8": "model.layers.1.input_layernorm.weight",  # a tensor that is not in fp8
           "kimi_linear": "model.layers.1.self_attn.f_b_proj.weight",
           "kimi-linear-odd": "model.layers.2.self_attn.g_a_proj.weight",
           "bailing_hybrid": "model.layers.3.attention.g_proj.weight",
           "ling3-odd": "model.layers.1.attention.f_proj.weight",
           "deepseek_v4": "model.layers.2.attn.indexer.compressor.wgate.weight",
           "deepseek-v4-odd": "model.layers.2.attn.compressor.ape",
           "kimi_k2": "model.layers.1.self_attn.kv_b_proj.weight",
           "minimax_m3_vl": "language_model.model.layers.2.self_attn.index_q_norm.weight",
           "minimax_m3_vl_text": "model.layers.1.self_attn.indexer.k_norm.weight",
           "minimax_m2": "model.layers.1.block_sparse_moe.experts.3.w2.weight",
           "minimax-m2-fp8": "model.layers.1.self_attn.q_norm.weight",
           "glm4_moe": "model.layers.1.mlp.shared_experts.down_proj.weight",
           "olmo2": "model.layers.1.post_feedforward_layernorm.weight",
           "olmo3": "model.layers.1.post_feedforward_layernorm.weight",
           "exaone4": "model.layers.1.self_attn.q_norm.weight",
           "granite": "model.layers.1.mlp.up_proj.weight",
           "ministral": "model.layers.1.self_attn.k_proj.weight",
           "glm4_moe_lite": "model.layers.1.self_attn.kv_a_layernorm.weight",
           "smollm3": "model.layers.1.self_attn.k_proj.weight",
           "seed_oss": "model.layers.1.self_attn.v_proj.weight",
           "dots1": "model.layers.1.mlp.shared_experts.down_proj.weight",
           "solar_open": "model.layers.1.self_attn.q_proj.weight",
           "gemma2": "model.layers.1.pre_feedforward_layernorm.weight",
           "gemma3_text": "model.layers.1.self_attn.q_norm.weight",
           "gemma3-text": "language_model.model.layers.1.self_attn.q_norm.weight",
           "gemma4": "model.language_model.layers.5.self_attn.k_proj.weight",  # v, too
           "gemma4-dense": "model.layers.3.self_attn.v_proj.weight",
           "phi3": "model.layers.1.self_attn.qkv_proj.weight",
           "glm4": "model.layers.1.post_mlp_layernorm.weight",
           "ernie4_5": "model.layers.1.self_attn.k_proj.weight",
           "ernie4_5-moe-range": "model.layers.1.mlp.experts.1.up_proj.weight",
           "ernie4_5_moe": "model.layers.2.mlp.experts.1.up_proj.weight",
           "hunyuan_v1_dense": "model.layers.1.self_attn.query_layernorm.weight",
           "hunyuan_v1_moe": "model.layers.1.mlp.shared_mlp.up_proj.weight",
           "granitemoeshared": "model.layers.1.self_attn.v_proj.weight",
           "apertus": "model.layers.1.mlp.act_fn.alpha_p",
           "bitnet": "model.layers.1.self_attn.attn_sub_norm.weight",
           "bitnet-bias": "model.layers.1.mlp.ffn_sub_norm.weight",
           "bitnet-packed": "model.layers.0.mlp.ffn_sub_norm.weight",
           "llama4-text": "language_model.model.layers.1.self_attn.v_proj.weight",
           "llama4_text": "model.layers.1.self_attn.v_proj.weight",
           "qwen3_5_moe_text": "model.layers.1.mlp.shared_expert.up_proj.weight",
           "qwen3_5_text": "model.layers.1.linear_attn.in_proj_b.weight",
           "qwen3_5-text": "language_model.model.layers.2.linear_attn.in_proj_qkv.weight",
           "granitemoehybrid": "model.layers.1.mamba.in_proj.weight",
           "granite4-moe": "model.layers.2.mamba.D",
           "nemotron_h": "backbone.layers.2.mixer.in_proj.weight",
           "nemotron-h-moe": "backbone.layers.1.mixer.shared_experts.up_proj.weight",
           "nemotron-h-odd": "backbone.layers.3.mixer.norm.weight",
           "phimoe": "model.layers.1.post_attention_layernorm.bias",
           "mistral4": "model.layers.1.self_attn.kv_b_proj.weight",
           "mistral4-dense": "model.layers.1.mlp.shared_experts.up_proj.weight",
           "ministral3": "model.layers.1.self_attn.k_proj.weight",
           "deepseek_v32": "model.layers.1.self_attn.indexer.wk.weight",
           "deepseek-v32-tied": "model.layers.1.self_attn.indexer.wq_b.weight",
           "glm_moe_dsa": "model.layers.2.self_attn.indexer.weights_proj.weight",
           "glm5-published": "model.layers.0.self_attn.indexer.k_norm.bias",
           "longcat_flash": "model.layers.1.self_attn.0.kv_b_proj.weight",
           "longcat-flash-zero": "model.layers.0.mlp.router.classifier.weight",
           "youtu": "model.layers.1.self_attn.kv_a_proj_with_mqa.weight",
           "youtu-yarn": "model.layers.2.mlp.up_proj.weight",
           "exaone_moe": "model.layers.2.mlp.shared_experts.up_proj.weight",
           "k-exaone-list": "model.layers.3.self_attn.k_norm.weight",
           "hy_v3": "model.layers.1.mlp.router.gate.weight",
           "hy3-bias": "model.layers.2.mlp.shared_mlp.down_proj.weight",
           "mimo_v2_flash": "model.layers.1.self_attn.attention_sink_bias",
           "mimo-v2-flash-list": "model.layers.1.self_attn.v_proj.weight",
           "step3p7": "model.layers.4.self_attn.g_proj.weight",
           "step37-odd": "model.layers.2.share_expert.up_proj.weight",
           "deepseek-v3-unshared": "model.layers.1.self_attn.kv_b_proj.weight"}
# The tensor whose scale check_other_weights changes, where norms hide the scale of its first
# choice, where that tensor is of the vision part, or where the test is to show that an index decides.
SCALED = {"bitnet-packed": "model.layers.1.mlp.down_proj.weight_scale",
          "gemma4": "model.language_model.layers.1.experts.gate_up_proj",
          "gemma4-dense": "model.layers.1.mlp.gate_proj.weight",
          "minimax-m3": "language_model.model.layers.2.self_attn.index_q_norm.weight",
          "minimax-m3-odd": "model.layers.1.self_attn.indexer.k_norm.weight",
          "step37": "model.layers.1.moe.up_proj.weight",
          "step37-odd": "model.layers.1.self_attn.v_proj.weight"}
# Models that are published in fp8 blocks and have tensors that convert renames or layers of
# different KV heads.
FP8_TWINS = {"longcat-flash", "mimo-v2-flash", "ling3"}
FORMATS = {"F32": ("<f", 4), "F16": ("<e", 2)}


def n_ranks(layout):
    """The number of ranks that a list of layout flags needs. With ep alone, tp is the same number."""
    flags = dict(zip(layout[::2], map(int, layout[1::2])))
    n = flags.get("--tp", 1) * flags.get("--pp", 1) * flags.get("--dp", 1)
    return n if n > 1 else flags.get("--ep", 1)


class GoldenTest:
    def __init__(self, shoal, compare, work, name):
        self.shoal, self.compare, self.name = Shoal(shoal), compare, name
        self.golden = GOLDENS / name
        self.facts = json.loads((self.golden / "golden.json").read_text())
        self.config = json.loads((self.golden / "hf" / "config.json").read_text())
        self.work = fresh_folder(Path(work) / name)
        self.hf = checkpoint_of(self.golden, self.work / "hf")

    def convert(self, source, name, *flags):
        path = self.work / name
        self.shoal.must("convert", source, path, *self.facts.get("convert", []), *flags)
        return path

    def convert_floats(self, source, name):
        return self.convert(source, name, "--quantized", "dequantize")

    def score(self, model, flags, ranks):
        """Scores with shoal and runs compare_logits on the result."""
        logits = self.work / "logits.h5"
        self.shoal.must("score", "--model", model, "--input", self.golden / "sequences.jsonl",
                        "--output", self.work / "scores.jsonl", "--logits", logits,
                        "--kv-dtype", "f32", *flags, ranks=ranks)
        every = self.facts.get("every", 1)
        pairs = [f"{i + 1}/{every}={self.golden / f'logits.{i}.i24'}"
                 for i in range(len(self.facts["sequences"]))]
        return run([self.compare, logits, BOUND, *pairs])

    def check_logits(self, model, flags, ranks):
        done = self.score(model, flags, ranks)
        print(f"  score {' '.join(flags) or '(whole prompts)'}: {done.out.strip()}")
        expect(done.status == 0, f"logits differ from transformers: {done}\n{done.out}")

    def check_greedy(self, model, flags, ranks):
        output = self.work / "greedy.jsonl"
        self.shoal.must("generate", "--model", model, "--input", self.golden / "prompts.jsonl",
                        "--output", output, "--kv-dtype", "f32", *flags, ranks=ranks)
        rows = read_rows(output)
        for i, sequence in enumerate(self.facts["sequences"]):
            found = rows[f"p{i}"].get("token_ids")
            expect(found == sequence["greedy"],
                   f"greedy tokens of p{i} with {flags}: {found}, golden {sequence['greedy']}")
        print(f"  generate {' '.join(flags) or '(one rank)'}: greedy tokens equal")

    def check_text(self, model):
        """A prompt given as text has the ids that the golden's tokenizer gives."""
        text, lines, output = self.facts["text"], self.work / "text.jsonl", self.work / "out.jsonl"
        write_lines(lines, [dict(custom_id="w", prompt=text["prompt"], temperature=0, max_tokens=8),
                            dict(custom_id="i", prompt_token_ids=text["ids"], temperature=0,
                                 max_tokens=8)])
        self.shoal.must("generate", "--model", model, "--input", lines, "--output", output)
        rows = read_rows(output)
        for key in "token_ids", "text", "usage":
            expect(rows["w"][key] == rows["i"][key], f"{key} of a text and of its ids: {rows}")

    def mutate(self):
        """A copy of the checkpoint folder with one weight changed."""
        copy = self.work / "mutated"
        shutil.copytree(self.hf, copy)
        wanted = MUTATED.get(self.name) or MUTATED[self.config["model_type"]]
        for path in sorted(copy.glob("*.safetensors")):
            data = bytearray(path.read_bytes())
            (n_header,) = struct.unpack_from("<Q", data)
            tensor = json.loads(data[8:8 + n_header]).get(wanted)
            if tensor is None:
                continue
            index = 3 * tensor["shape"][-1] + 5 if len(tensor["shape"]) > 1 else min(5, tensor["shape"][0] - 1)
            change(data, tensor["dtype"], 8 + n_header + tensor["data_offsets"][0], index)
            path.write_bytes(data)
            return copy
        expect(False, f"no tensor {wanted} to mutate")

    def write_twin(self, name, in_fp8):
        """A copy of the checkpoint whose projections have random e4m3 values times 2^-8: as codes in blocks of
        128 x 128 with scales, or as BF16.
        """
        copy, draw = self.work / name, random.Random(5)
        shutil.copytree(self.hf, copy)
        data = (copy / "model.safetensors").read_bytes()
        (n_header,) = struct.unpack_from("<Q", data)
        tensors = {}
        for key, tensor in json.loads(data[8:8 + n_header]).items():
            if key == "__metadata__":
                continue
            begin, end = tensor["data_offsets"]
            tensors[key] = tensor["dtype"], tensor["shape"], data[8 + n_header + begin:8 + n_header + end]
            if not key.endswith(("_proj.weight", "_with_mqa.weight", ".dense.weight")):
                continue
            rows, cols = tensor["shape"]
            codes = bytes(draw.choice(CODES) for _ in range(rows * cols))
            if not in_fp8:
                tensors[key] = "BF16", [rows, cols], b"".join(E4M3_AS_BF16[code] for code in codes)
                continue
            tensors[key] = "F8_E4M3", [rows, cols], codes
            blocks = [(rows + 127) // 128, (cols + 127) // 128]
            tensors[key + "_scale_inv"] = "F32", blocks, struct.pack("<f", 2**-8) * (blocks[0] * blocks[1])
        tensors["model.mtp.layers.0.enorm.weight"] = "BF16", [4], bytes(8)  # a prediction layer, left out
        write_safetensors(copy / "model.safetensors", tensors)
        if in_fp8:
            fields = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128])
            (copy / "config.json").write_text(json.dumps({**self.config, "quantization_config": fields}))
        return copy

    def check_fp8_twin(self):
        """A checkpoint in fp8 blocks gives the rows of the same values in BF16."""
        found = []
        for name in ("fp8", "bf16"):
            model = self.convert_floats(self.write_twin(name, name == "fp8"), f"{name}.h5")
            self.score(model, [], 0)
            found.append((self.work / "scores.jsonl").read_bytes())
        expect(found[0] == found[1], "fp8 blocks and the same values in BF16 give other rows")
        print("  fp8 blocks: the rows of the same values in BF16")

    def check_other_weights(self):
        """Weights of another seed, and a tensor of another scale, fail the comparison."""
        weights = json.loads((self.golden / "weights.json").read_text())
        group = max(weights["groups"], key=lambda g: (len(g["shape"]), g["names"][0]))
        wanted = SCALED.get(self.name, group["names"][0])
        group = next(g for g in weights["groups"] if wanted in g["names"])
        other = {**group, "names": [wanted], "deviation": 1.25 * group["deviation"]}
        rest = {**group, "names": [name for name in group["names"] if name != wanted]}
        groups = [g for g in weights["groups"] if g is not group] + [g for g in (other, rest) if g["names"]]
        for name, changed in (("seed", {**weights, "seed": weights["seed"] + 1}), ("scale", {**weights, "groups": groups})):
            copy = write_checkpoint(self.golden, self.work / name, changed)
            done = self.score(self.convert_floats(copy, f"{name}.h5"), [], 0)
            print(f"  another {name}: {done.out.strip()}")
            expect(done.status == 1, f"weights of another {name} must fail the comparison: {done}")

    def main(self):
        text = self.config.get("text_config", self.config)
        moe = any(text.get(key) for key in ("num_experts", "num_local_experts",
                                              "n_routed_experts", "moe_num_experts"))
        model = self.convert_floats(self.hf, "model.h5")
        self.shoal.must("inspect", model, "--verify")
        self.check_logits(model, [], 0)
        self.check_logits(model, ["--chunk", "1"], 0)
        self.check_greedy(model, [], 0)
        if "text" in self.facts:
            self.check_text(model)
        layouts = MOE_LAYOUTS if moe else DENSE_LAYOUTS
        if len(self.facts["sequences"]) < 3:
            layouts = LIGHT_LAYOUTS[moe]
        for i, layout in enumerate(layouts):  # law.py compares whole rows in all of them
            if i % 2 == 0:
                self.check_logits(model, layout, n_ranks(layout))
            else:
                self.check_greedy(model, [*layout, "--chunk", "7"], n_ranks(layout))
        if "quantization_config" in self.config:
            kept = self.convert(self.hf, "kept.h5")
            self.check_logits(kept, ["--activations", "f32", "--tp", "2", "--ep", "1"], 2)
        if self.hf != self.golden / "hf":
            self.check_other_weights()
        if self.name in FP8_TWINS:
            self.check_fp8_twin()
        done = self.score(self.convert_floats(self.mutate(), "mutated.h5"), [], 0)
        print(f"  one weight changed: {done.out.strip()}")
        expect(done.status == 1, f"one changed weight must fail the comparison: {done}")


CODES = [code for code in range(256) if code % 128 != 127]  # the others are NaN


def e4m3_as_bf16(code):
    """The two bytes of the value times 2^-8 in BF16, which is exact."""
    exponent, mantissa = code >> 3 & 15, code & 7
    value = (8 + mantissa if exponent else mantissa) * 2.0 ** (max(exponent, 1) - 10 - 8)
    return struct.pack("<f", -value if code & 128 else value)[2:]


E4M3_AS_BF16 = {code: e4m3_as_bf16(code) for code in CODES}


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[at, at + len(data)])
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def change(data, dtype, start, index):
    """Multiplies element `index` of the tensor that starts at byte `start` by -3; a value near 0
    becomes 1.
    """
    if dtype == "BF16":
        at = start + 2 * index
        (value,) = struct.unpack("<f", b"\0\0" + data[at:at + 2])
        data[at:at + 2] = struct.pack("<f", -3 * value if abs(value) > 0.01 else 1.0)[2:]
        return
    form, size = FORMATS[dtype]
    (value,) = struct.unpack_from(form, data, start + size * index)
    struct.pack_into(form, data, start + size * index, -3 * value if abs(value) > 0.01 else 1.0)


if __name__ == "__main__":
    main_of(GoldenTest(*sys.argv[1:5]).main)
