#!/usr/bin/env python3
"""Tests shoal convert on several ranks.

usage: convert.py SHOAL WORK_FOLDER
The file has the same bytes from 1, 2 and 4 ranks: for floats, kept quantized values and GGUF. A
wrong source gives one sentence and the right status on any number of ranks. A convert that is
killed leaves nothing under the final name, and the next one succeeds.
"""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

from program import (GOLDENS, HANGS_S, TESTS, Shoal, expect, fresh_folder, main_of, processes_with, read_rows,
                     write_lines)

GGUF, IMPORTS = TESTS / "golden" / "gguf", TESTS / "golden" / "imports"
FLOATS = ["--quantized", "dequantize"]
SOURCES = [(GOLDENS / "mixtral" / "hf", []), (GOLDENS / "llama-gqa" / "hf", ["--dtype", "f16"]),
           (GGUF / "qwen3moe" / "model.gguf", []),
           (GGUF / "quantized" / "mixed.gguf", []),
           (IMPORTS / "awq" / "hf", FLOATS), (IMPORTS / "ct-int8" / "hf", [])]
# convert's lines about a source's quantized tensors.
KEPT = {
    GOLDENS / "deepseek-v3-fp8" / "hf": [
        "code for code, in fp8-g32: 5, the first is model.layers.0.mlp.down_proj.weight",
        "code for code, in fp8-g128: 12, the first is model.layers.0.mlp.gate_proj.weight",
        "dequantized to bf16: 2, the first is model.layers.0.self_attn.kv_b_proj.weight"],
    GGUF / "quantized" / "mixed.gguf": [
        "code for code, in int4-g32: 7, the first is lm_head.weight",
        "dequantized to f16: 1, the first is model.layers.0.block_sparse_moe.experts.w2.weight"],
}
# Sources, flags of convert, formats. One has a policy; the others' sources are quantized already.
ROUNDED = [(GOLDENS / "deepseek-v3-fp8" / "hf", [], (["int4-g32"], ["int8"])),
           (GOLDENS / "deepseek-v3-fp8" / "hf", FLOATS, (["int4-g32"],)),
           (GOLDENS / "qwen3-moe-mixed" / "hf", ["--dtype", "f16"],
            (["mxfp4", "--policy", "attention=int8-asym-g64,head=keep,router=f32"], ["bf16"])),
           (GOLDENS / "gpt-oss-mxfp4" / "hf", [], (["int4-asym-g32"], ["mxfp4"]))]
EMBEDDING = "model.embed_tokens.weight"
BIG_VOCAB = 800000
BIG_ROWS, BIG_COLS = 24576, 2048  # 200 MB in f32: takes seconds, so that it can be killed


class ConvertTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), fresh_folder(work)

    def check_same_bytes(self):
        one, many = self.work / "one.h5", self.work / "many.h5"
        for source, flags in SOURCES:
            self.shoal.must("convert", source, one, *flags)
            for ranks in (2, 4):
                done = self.shoal.must("convert", source, many, *flags, ranks=ranks)
                expect(done.out.count("tensors") == 1, f"{source}: {ranks} ranks: {done.out}")
                expect(many.read_bytes() == one.read_bytes(),
                       f"{source} {flags}: {ranks} ranks make another file")
        print(f"  {len(SOURCES)} sources: the same bytes from 1, 2 and 4 ranks")

    def check_kept(self):
        """Codes are kept unless floats are asked for, and convert says which tensors in which format."""
        path = self.work / "kept.h5"
        for source, lines in KEPT.items():
            done, files = {}, {}
            for way in ("default", "keep", "dequantize"):
                flags = ["--quantized", way] if way != "default" else []
                done[way] = self.shoal.must("convert", source, path, *flags).out
                files[way] = path.read_bytes()
            expect(files["default"] == files["keep"] != files["dequantize"],
                   f"{source}: codes are not kept by default")
            expect(all(line in done["default"] for line in lines), f"{source}: {done}")
            expect("code for code" not in done["dequantize"], f"{source}: {done}")
        print(f"  {len(KEPT)} quantized sources: codes kept by default, and said")

    def check_format(self):
        """convert --format makes the bytes of convert and then quantize, from 1 and 4 ranks, and
        reports the same error."""
        kept, want, found = (self.work / f"{name}.h5" for name in ("kept", "want", "found"))
        for source, flags, formats in ROUNDED:
            self.shoal.must("convert", source, kept, *flags)
            for form in formats:
                two = self.shoal.must("quantize", kept, want, "--format", *form, "--quiet")
                for ranks, threads in ((0, 3), (4, 1)):
                    one = self.shoal.must("convert", source, found, *flags, "--format", *form,
                                          "--threads", threads, ranks=ranks)
                    expect(found.read_bytes() == want.read_bytes(),
                           f"{source} {flags} {form}: {ranks} ranks: not the file of two steps")
                    lost = [re.findall(r"an error of (\S+) %", done.err) for done in (two, one)]
                    expect(lost[0] == lost[1] and len(lost[0]) == (not flags and form != ["mxfp4"]),
                           f"{source} {form}: {two.err} {one.err}")
        for argv, status, word in ((["--format", "int3"], 2, "int3"),
                                   (["--policy", "ffn=int4"], 2, "--format"),
                                   (["--format", "int4", "--policy", "norms=int4"], 2, "norms")):
            found.unlink(missing_ok=True)
            done = self.shoal("convert", ROUNDED[0][0], found, *argv)
            expect(done.status == status and word in done.err and not found.exists(), f"{argv}: {done}")
        print(f"  {len(ROUNDED)} sources in other formats: the bytes of convert and quantize")

    def check_run(self):
        """A GGUF whose heads of 8 elements are padded gives the answers of the folder from which it was made."""
        lines, answers = self.work / "in.jsonl", []
        write_lines(lines, [dict(custom_id=str(n), prompt_token_ids=list(range(2, 2 + n)),
                                 temperature=0, max_tokens=20, ignore_eos=True) for n in (1, 9)])
        for source in (GGUF / "llama" / "hf", GGUF / "llama" / "model.gguf"):
            model, rows = self.work / "run.h5", self.work / "rows.jsonl"
            self.shoal.must("convert", source, model)
            for flags, ranks in (([], 0), (["--tp", "2"], 2)):
                self.shoal.must("generate", "--model", model, "--input", lines, "--output", rows,
                                *flags, ranks=ranks)
                answers.append({k: row["token_ids"] for k, row in read_rows(rows).items()})
        expect(all(a == answers[0] for a in answers) and len(answers[0]["9"]) == 20,
               f"the answers differ: {answers}")
        print("  a GGUF with padded heads answers as its folder does")

    def check_refusals(self):
        target = self.work / "no.h5"
        folder = self.work / "cut"
        shutil.copytree(IMPORTS / "gptq" / "hf", folder)
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"]["sym"] = True
        config["quantization_config"]["group_size"] = 64
        (folder / "config.json").write_text(json.dumps(config))
        for argv, status, word in (((folder, target), 3, "group_size"),
                                   ((self.work / "absent", target), 3, "absent"),
                                   ((GOLDENS / "mixtral" / "hf", self.work / "no" / "a.h5"), 3, "no"),
                                   ((folder, target, "--dtype", "f8"), 2, "--dtype")):
            for ranks in (0, 3):
                done = self.shoal("convert", *argv, ranks=ranks)
                expect(done.status == status and done.err.count(word) >= 1, f"{argv}: {done}")
                expect(not target.exists(), "a refused convert left a file")
        print("  refusals: one sentence from one rank and from three")

    def check_unused(self):
        """A prediction layer's copy of the embedding, a second such layer and an indexer are left
        out, and convert says so."""
        plain, folder = GOLDENS / "deepseek-v3" / "hf", self.work / "more"
        shutil.copytree(plain, folder)
        data = (plain / "model.safetensors").read_bytes()
        n = struct.unpack("<Q", data[:8])[0]
        header, values = json.loads(data[8:8 + n]), bytearray(data[8 + n:])
        n_layers = json.loads((plain / "config.json").read_text())["num_hidden_layers"]
        for name in (f"layers.{n_layers}.embed_tokens.weight", f"layers.{n_layers + 1}.eh_proj.weight",
                     "layers.0.self_attn.indexer.wk.weight"):
            header["model." + name] = {"dtype": "F32", "shape": [4, 4],
                                       "data_offsets": [len(values), len(values) + 64]}
            values += bytes(64)
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + values)
        one, other = self.work / "plain.h5", self.work / "more.h5"
        self.shoal.must("convert", plain, one)
        done = self.shoal.must("convert", folder, other)
        expect("3 tensors are left out" in done.err and any(name in done.err for name in ("eh_proj", "embed_tokens", "indexer")),
               f"not named: {done}")
        expect(one.read_bytes() == other.read_bytes(), "tensors that nothing reads change the file")
        print("  prediction layers and indexers: named, left out, the same file")

    def big_source(self):
        """A model folder with one tensor that takes some seconds to convert."""
        folder = self.work / "big"
        folder.mkdir()
        (folder / "config.json").write_text('{"hidden_size": 64, "num_attention_heads": 4}')
        n = BIG_ROWS * BIG_COLS * 2
        header = json.dumps({"big.weight": {"dtype": "BF16", "shape": [BIG_ROWS, BIG_COLS],
                                            "data_offsets": [0, n]}}).encode()
        with open(folder / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + n)
        return folder

    def big_model(self):
        """A model whose embedding, all zeros, takes a while; its 77 million values are rounded."""
        plain, folder = GOLDENS / "smollm-tied" / "hf", self.work / "big-model"
        shutil.copytree(plain, folder)
        config = json.loads((plain / "config.json").read_text())
        data = (plain / "model.safetensors").read_bytes()
        n = struct.unpack("<Q", data[:8])[0]
        header, values = json.loads(data[8:8 + n]), b""
        for name, tensor in header.items():
            if name in ("__metadata__", EMBEDDING):
                continue
            begin, end = tensor["data_offsets"]
            tensor["data_offsets"] = [len(values), len(values) + end - begin]
            values += data[8 + n + begin:8 + n + end]
        config["vocab_size"] = BIG_VOCAB
        (folder / "config.json").write_text(json.dumps(config))
        end = len(values) + BIG_VOCAB * config["hidden_size"] * 2
        header[EMBEDDING] = {"dtype": "F16", "shape": [BIG_VOCAB, config["hidden_size"]],
                             "data_offsets": [len(values), end]}
        text = json.dumps(header).encode()
        with open(folder / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + values)
            file.truncate(8 + len(text) + end)
        return folder

    def kill_while_it_writes(self, argv, target):
        """Kills a convert while it writes. If the file was complete before this process got a CPU,
        it tries again."""
        for _ in range(5):
            before = set(self.work.iterdir())
            with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  start_new_session=True) as process:
                while process.poll() is None:
                    begun = [p for p in self.work.iterdir() if p not in before]
                    if any(p.stat().st_size > 8 << 20 for p in begun if p.exists()):
                        break
                    time.sleep(0.005)
                is_killed = process.poll() is None
                if is_killed:
                    os.killpg(process.pid, signal.SIGKILL)
            if is_killed and not target.exists():
                return
            expect(is_killed or process.returncode == 0, f"{argv}: status {process.returncode}")
            self.shoal.must("inspect", target, "--verify")
            target.unlink()
        expect(False, "five converts ended before they could be killed")

    def check_killed(self):
        target = self.work / "killed.h5"
        folder, model = self.big_source(), self.big_model()
        for ranks, source, flags in ((1, folder, ["--dtype", "f32"]), (3, folder, ["--dtype", "f32"]),
                                     (1, model, ["--format", "int8"]), (3, model, ["--format", "int8"])):
            argv = [TESTS / "mpirun.sh", ranks] if ranks > 1 else []
            argv = [str(a) for a in (*argv, self.shoal.path, "convert", source, target, *flags)]
            self.kill_while_it_writes(argv, target)
            # ranks outlive a killed mpirun for a moment and may finish the file
            end = time.monotonic() + HANGS_S
            while processes_with(str(target)):
                expect(time.monotonic() < end, f"{ranks} ranks: a killed convert still runs")
                time.sleep(0.02)
            if ranks > 1 and target.exists():
                self.shoal.must("inspect", target, "--verify")
                target.unlink()
            expect(not target.exists(), f"{ranks} ranks: a killed convert left {target}")
        done = self.shoal.must("convert", folder, target, "--dtype", "f32", ranks=2)
        expect("1 tensors" in done.out and target.stat().st_size > BIG_ROWS * BIG_COLS * 4,
               f"after the kills: {done}\n{done.out}{target.stat().st_size} bytes")
        done = self.shoal.must("convert", model, target, "--format", "int8", ranks=2)
        expect("rounded to int8-g32" in done.out, f"after the kills: {done}")
        print("  killed: nothing under the final name; the next one succeeds")

    def main(self):
        self.check_same_bytes()
        self.check_kept()
        self.check_format()
        self.check_run()
        self.check_refusals()
        self.check_unused()
        self.check_killed()
        shutil.rmtree(self.work)


if __name__ == "__main__":
    main_of(ConvertTest(*sys.argv[1:3]).main)
