#!/usr/bin/env python3
"""Tests shoal embed and shoal rank: vectors as transformers gives them, the same bytes on any ranks, batch and
chunk, lists and batch lines, a job that is killed, and wrong inputs.

usage: embed.py SHOAL WORK_FOLDER golden|law|resume|errors|rank|vectors
The models are those of tests/golden/embed (make_embed_goldens.py): one with the last token's
vector, normalized, one with the mean, not normalized, and three encoders.
"""
import ast
import base64
import json
import math
import shutil
import struct
import sys
from pathlib import Path

from program import TESTS, Shoal, expect, fresh_folder, main_of, read_rows, write_lines

GOLDENS = TESTS / "golden" / "embed"
MODELS = ["qwen3-embed", "mistral-embed", "bert-embed", "roberta-embed", "modernbert-embed"]
DECODERS = MODELS[:2]
ENCODER, ENCODER_CONTEXT = "bert-embed", 160  # roberta-embed has as many positions, modernbert-embed more
COSINE = 0.99999
# Flags, and ranks. With few KV blocks few texts run at a time.
LAW = [((), 1), (("--chunk", 7, "--step-tokens", 64), 1), (("--max-batch", 1), 1),
       (("--threads", 2, "--step-tokens", 100), 1), (("--kv-blocks", 16, "--chunk", 33), 1),
       (("--prefix-cache", "off", "--order", "input"), 1), (("--tp", 2), 2),
       (("--pp", 2, "--chunk", 40), 2), (("--dp", 2), 2), (("--tp", 2, "--pp", 2), 4),
       (("--dp", 2, "--tp", 2, "--step-tokens", 80), 4)]


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def shortened(vector, dimensions, normalizes):
    part = vector[:dimensions]
    length = math.sqrt(sum(x * x for x in part)) if normalizes else 1
    return [x / length for x in part]


class EmbedTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), fresh_folder(work)
        self.models, self.facts = {}, {}
        for name in MODELS:
            self.models[name] = self.convert(GOLDENS / name / "hf", name)
            self.facts[name] = json.loads((GOLDENS / name / "golden.json").read_text())

    def convert(self, source, name):
        path = self.work / f"{name}.h5"
        self.shoal.must("convert", source, path)
        return path

    def job(self, model, rows, *flags, **how):
        """Runs shoal embed over these lines; returns the run."""
        write_lines(self.work / "in.jsonl", rows)
        return self.shoal("embed", "--model", self.models.get(model, model), "--input",
                          self.work / "in.jsonl", "--output", self.work / "out.jsonl", "--quiet",
                          *flags, **how)

    def embed(self, model, rows, *flags, **how):
        done = self.job(model, rows, *flags, **how)
        expect(done.status == 0, str(done))
        return read_rows(self.work / "out.jsonl")

    # --- golden ---

    def check_near(self, found, wanted, what):
        near = cosine(found, wanted)
        worst = max(abs(x - y) for x, y in zip(found, wanted)) / max(map(abs, wanted))
        expect(near >= COSINE and worst < 1e-4,
               f"{what}: cosine {near}, largest difference {worst}\n  {found}\n  {wanted}")
        return near

    def check_pooling(self, name, pooling, normalizes, *flags):
        texts, least = self.facts[name]["texts"], 1
        rows = [{"custom_id": str(i), "input": t["text"]} for i, t in enumerate(texts)]
        rows += [{"custom_id": f"ids {i}", "input": t["ids"]} for i, t in enumerate(texts)]
        found = self.embed(name, rows, "--kv-dtype", "f32", *flags)
        for i, t in enumerate(texts):
            wanted = shortened(t[pooling], 99, normalizes)
            near = self.check_near(found[str(i)]["embedding"], wanted, f"{name} {flags} text {i}")
            least = min(least, near)
            expect(found[str(i)]["embedding"] == found[f"ids {i}"]["embedding"], "ids differ")
            expect(found[str(i)]["usage"]["prompt_tokens"] == len(t["ids"]), f"tokens of text {i}")
        print(f"  {name} {' '.join(flags) or '(as the files say)'}: cosine >= {least:.9f}")

    def check_dimensions(self, name):
        t = self.facts[name]["texts"][4]
        rows = self.embed(name, [{"custom_id": "5", "input": t["text"], "dimensions": 5},
                                 {"custom_id": "3", "input": t["text"]}],
                          "--pooling", "last", "--normalize", "on", "--dimensions", 3, "--kv-dtype", "f32")
        for n in (5, 3):
            found = rows[str(n)]["embedding"]
            self.check_near(found, shortened(t["last"], n, True), f"{name}: {n} dimensions")

    def check_prompts(self):
        texts = self.facts["qwen3-embed"]["texts"]
        wanted = shortened(texts[-1]["last"], 99, True)
        lines = [{"custom_id": "named", "input": texts[0]["text"], "prompt_name": "query"},
                 {"custom_id": "empty", "input": texts[0]["text"], "prompt_name": "document"},
                 {"custom_id": "as prompt", "prompt": texts[0]["text"], "prompt_name": "query"},
                 {"custom_id": "job's", "input": texts[0]["text"]}]
        rows = self.embed("qwen3-embed", lines, "--kv-dtype", "f32")
        self.check_near(rows["named"]["embedding"], wanted, "prompt_name")
        expect(rows["empty"]["embedding"] == rows["job's"]["embedding"], "an empty prompt")
        named = rows["named"]["embedding"]
        expect(rows["as prompt"]["embedding"] == named, "a prompt has the prefix, too")
        rows = self.embed("qwen3-embed", lines, "--kv-dtype", "f32", "--prompt-name", "query")
        expect(rows["job's"]["embedding"] == named, "--prompt-name")

    def check_mutated(self):
        """The comparison must see one changed weight."""
        folder = self.work / "mutated"
        shutil.copytree(GOLDENS / "qwen3-embed" / "hf", folder)
        path = folder / "model.safetensors"
        data = bytearray(path.read_bytes())
        n_head = struct.unpack("<Q", data[:8])[0]
        head = json.loads(data[8:8 + n_head])
        at = 8 + n_head + head["layers.1.input_layernorm.weight"]["data_offsets"][0] + 2 * 5
        data[at + 1] ^= 0x80  # the sign of one bf16 number
        path.write_bytes(data)
        t = self.facts["qwen3-embed"]["texts"][0]
        rows = self.embed(self.convert(folder, "mutated"), [{"custom_id": "0", "input": t["text"]}],
                          "--kv-dtype", "f32")
        near = cosine(rows["0"]["embedding"], t["last"])
        expect(near < COSINE, f"a changed weight was not seen: cosine {near}")

    def golden(self):
        for name in MODELS:
            fact = self.facts[name]
            own = {"lasttoken": "last", "mean_tokens": "mean", "cls_token": "cls"}[fact["pooling"]]
            self.check_pooling(name, own, fact["normalizes"])
            for pooling in ("last", "cls", "mean"):
                for normalize in ("on", "off"):
                    self.check_pooling(name, pooling, normalize == "on", "--pooling", pooling,
                                       "--normalize", normalize)
            self.check_dimensions(name)
        self.check_prompts()
        self.check_mutated()

    # --- law ---

    def lines(self, n):
        """Texts of mixed length, some lists, some batch lines, some in base64."""
        rows = []
        for i in range(n):
            text = " ".join(f"fish {i * k % 97}" for k in range(1, 2 + i * 7 % 60))
            row = {"input": text if i % 3 else [text, text[:20], [i + 1, 2, 3]]}
            if i % 5 == 0:
                row["encoding_format"] = "base64"
            if i % 7 == 1:
                row = {"method": "POST", "url": "/v1/embeddings", "body": dict(row, model="m")}
            rows.append(dict(row, custom_id=f"line {i}"))
        return rows

    def check_preempted(self):
        """A text is preempted between its chunks: rows that are computed again are added only once.
        The model has layers with and without a window, because only then a prompt takes KV blocks
        while it is computed."""
        model = self.convert(TESTS / "golden" / "models" / "gemma3" / "hf", "gemma3")
        rows = [{"custom_id": str(i), "input": [(i * k * k) % 251 for k in range(40 + i * 37 % 180)]}
                for i in range(30)]
        flags = ("--pooling", "mean", "--max-model-len", 256, "--chunk", 30, "--step-tokens", 200,
                 "--metrics", self.work / "metrics.json")
        found = []
        for blocks in (4000, 12, 8):
            self.embed(model, rows, "--kv-blocks", blocks, *flags)
            found.append((self.work / "out.jsonl").read_bytes())
        metrics = json.loads((self.work / "metrics.json").read_text())
        expect(metrics["preemptions"] > 0 and metrics["recomputed_tokens"] > 0, f"{metrics}")
        expect(found[1] == found[0] and found[2] == found[0], "a preemption changed bytes")

    def law(self):
        self.check_preempted()
        for name in MODELS:
            for pooling in {"qwen3-embed": ("auto", "mean"), "mistral-embed": ("auto", "cls"),
                            ENCODER: ("auto",), "roberta-embed": ("cls",),
                            "modernbert-embed": ("auto",)}[name]:
                want = None
                for flags, ranks in LAW if pooling == "auto" else LAW[:3]:
                    if name not in DECODERS:  # an encoder's step must hold the longest text
                        flags = tuple(max(x, ENCODER_CONTEXT) if flags[i - 1:i] == ("--step-tokens",) else x
                                      for i, x in enumerate(flags))
                    self.embed(name, self.lines(40), "--pooling", pooling, *flags, "--max-model-len",
                               512 if name in DECODERS else ENCODER_CONTEXT, ranks=ranks)
                    found = (self.work / "out.jsonl").read_bytes()
                    want = want or found
                    expect(found == want, f"{name} --pooling {pooling} {flags}: other bytes")
            print(f"  {name}: equal bytes in {len(LAW)} ways")

    # --- resume ---

    def resume(self):
        rows, name = self.lines(60), "mistral-embed"
        out = self.work / "out.jsonl"
        self.embed(name, rows)
        want = out.read_bytes()
        for point in ("step:3", "journal_write:1", "journal_fsync:2", "output_write:1", "finish:1"):
            out.unlink()
            Path(f"{out}.journal").unlink(missing_ok=True)
            flags = ("--step-tokens", 64, "--max-batch", 4)
            killed = self.job(name, rows, *flags, "--failpoint", point, journal=True)
            expect(killed.status not in (0, 75), f"{point}: {killed}")
            if point == "output_write:1":  # the journal keeps the settings
                other = self.job(name, rows, "--pooling", "last", journal=True)
                expect(other.status == 2 and "--pooling" in other.err, f"{point}: {other}")
            self.embed(name, rows, "--dp", 2, ranks=2, journal=True)
            expect(out.read_bytes() == want, f"{point}: other bytes after the kill")
            done = self.job(name, rows, "--audit", 20, journal=True)
            expect(done.status == 0, f"{point}: {done}")
        print("  killed and resumed: equal bytes")

    # --- vectors ---

    @staticmethod
    def packed(row):
        """The vectors of a row, as bytes."""
        body = (row.get("response") or {}).get("body")
        found = [d["embedding"] for d in body["data"]] if body else row.get("embeddings") or [row["embedding"]]
        return [base64.b64decode(v) if isinstance(v, str) else struct.pack(f"<{len(v)}f", *v) for v in found]

    def check_vectors(self, rows, n_errors):
        """The array and the HDF5 file have the vectors of the rows, and NaN for error rows."""
        data = (self.work / "v.npy").read_bytes()
        size = 10 + int.from_bytes(data[8:10], "little")
        head = ast.literal_eval(data[10:size].decode())
        ids, wanted = [], b""
        for row in rows.values():
            vectors = self.packed(row) if not row.get("error") else [struct.pack("<f", math.nan) * 16]
            n_errors -= row.get("error") is not None
            ids += [row["custom_id"]] * len(vectors)
            wanted += b"".join(vectors)
        expect(data[:8] == b"\x93NUMPY\x01\x00" and size % 64 == 0 and data[size - 1:size] == b"\n", f"{data[:size]}")
        expect(head == {"descr": "<f4", "fortran_order": False, "shape": (len(ids), 16)}, f"{head}")
        expect(data[size:] == wanted and n_errors == 0, f"other numbers, or {n_errors} errors are missing")
        expect(wanted in (self.work / "v.h5").read_bytes(), "the HDF5 file has other numbers")
        self.check_ids(ids)

    def check_ids(self, ids):
        """A dataset of strings is an input: each id is the prompt of a line. HDF5's strings end at a NUL."""
        lines, texts = self.work / "ids.jsonl", []
        ids = [id.replace("\0", "\\u0000") for id in ids]
        write_lines(lines, [{"custom_id": str(i), "prompt": text} for i, text in enumerate(ids, 1)])
        for source in (f"{self.work / 'v.h5'}:/ids", lines):
            self.shoal.must("embed", "--model", self.models["qwen3-embed"], "--input", source, "--output",
                            self.work / "texts.jsonl", "--quiet")
            texts.append((self.work / "texts.jsonl").read_bytes())
        expect(texts[0] == texts[1], "other ids")

    def vectors(self):
        rows, name = self.lines(260), "qwen3-embed"  # more vectors than a block of the file
        rows[7] = {"custom_id": "bad", "input": "x " * 2000}
        rows.append({"custom_id": "a\0b", "input": "x"})
        files, out = [self.work / "v.npy", self.work / "v.h5"], self.work / "out.jsonl"
        found = self.embed(name, rows, "--vectors", files[0])
        self.embed(name, rows, "--vectors", files[1])
        want = [f.read_bytes() for f in files]
        self.check_vectors(found, 1)
        for file, bytes_ in zip(files, want):
            for path in (file, out):
                path.unlink()
            Path(f"{out}.journal").unlink(missing_ok=True)
            flags = ("--vectors", file)
            killed = self.job(name, rows, *flags, "--step-tokens", 64, "--failpoint", "step:9", journal=True)
            expect(killed.status not in (0, 75) and not file.exists(), f"{killed}")
            self.embed(name, rows, *flags, "--dp", 2, ranks=2, journal=True)
            expect(file.read_bytes() == bytes_, f"{file}: other bytes after the kill")
            file.unlink()
            self.embed(name, rows, *flags, journal=True)  # the job is complete
            expect(file.read_bytes() == bytes_, f"{file}: other bytes of a complete job")
        self.check_vectors_errors(name)

    def check_vectors_errors(self, name):
        short = [{"input": "x"}, {"custom_id": "short", "input": "x", "dimensions": 5}]
        for rows, flags, status, sentence in [
                (short, ("--vectors", self.work / "v.npy"), 3, "custom_id \"short\": its vector has another length"),
                ([{"input": 5}], ("--vectors", self.work / "v.h5"), 3, "has no vector"),
                (short, ("--vectors", self.work / "v.txt"), 2, "ends in .npy or .h5"),
                (short, ("--vectors", self.work / "v.npy", "--audit", 1), 2, "--vectors")]:
            done = self.job(name, rows, *flags)
            expect(done.status == status and sentence in done.err, f"{flags}: {done}")
        expect(not list(self.work.glob("*.tmp")), "a temporary file stays")

    # --- errors ---

    def check_rows(self):
        """Bad lines become error rows that name the field."""
        base = {"method": "POST", "url": "/v1/embeddings"}
        cases = [({}, "none of them"), ({"input": 5}, "input: expected a text"),
                 ({"input": []}, "input: expected 1 to"), ({"input": ["a", None]}, "input[1]"),
                 ({"input": [[1, 2], [1, 272]]}, "input[1]: expected token ids of 0 to 271"),
                 ({"input": [1, "a"]}, "expected token ids"), ({"input": [[]]}, "no tokens"),
                 ({"input": "x " * 2000}, "expected at most 1024"),
                 ({"input": "x", "dimensions": 17}, "dimensions: expected 1 to 16, found 17"),
                 ({"input": "x", "dimensions": 0}, "dimensions"),
                 ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
                 ({"input": "x", "prompt_name": "nobody"}, "no prompt named \"nobody\""),
                 ({"messages": [{"role": "user", "content": "x"}]}, "no chat template"),
                 ({"prompt_token_ids": [1], "prompt_name": "query"}, "prompt_name: needs a text"),
                 (dict(base, body={"input": "x", "colour": 1}), "colour"),
                 (dict(base, url="/v1/completions", body={"prompt": "x"}), "url: expected \"/v1/embeddings\"")]
        rows = self.embed("qwen3-embed", [dict(line, custom_id=str(i)) for i, (line, _) in enumerate(cases)])
        for i, (line, sentence) in enumerate(cases):
            error = rows[str(i)].get("error") or {}
            expect(sentence in error.get("message", ""), f"{line}: {rows[str(i)]}")
        rows = self.embed("qwen3-embed", [{"custom_id": "a", "input": "x"}, {"custom_id": "b", "prompt": "y"}])
        expect("embedding" in rows["a"] and "embedding" in rows["b"], f"{rows}")

    def check_flags(self):
        line = [{"input": "x"}]
        for flags, sentence in [(("--dimensions", 17), "--dimensions: this model's vectors have 16"),
                                (("--pooling", "max"), "--pooling"),
                                (("--prompt-name", "nobody"), "--prompt-name"),
                                (("--temperature", 0), "--temperature")]:
            done = self.job("qwen3-embed", line, *flags)
            expect(done.status == 2 and sentence in done.err, f"{flags}: {done}")
        done = self.shoal("generate", "--model", self.models["mistral-embed"], "--input",
                          self.work / "in.jsonl", "--output", self.work / "none.jsonl")
        expect(done.status == 2 and "use shoal embed" in done.err, str(done))

    def check_files(self):
        """Settings of a checkpoint that shoal does not implement are refused by name."""
        pooling = {"pooling_mode_max_tokens": True, "pooling_mode_lasttoken": False}
        both = {"pooling_mode_cls_token": True}
        edits = [("1_Pooling/config.json", lambda c: c.update(pooling), "pooling_mode_max_tokens"),
                 ("1_Pooling/config.json", lambda c: c.update(both), "several modes"),
                 ("1_Pooling/config.json", lambda c: c.update(include_prompt=False), "include_prompt"),
                 ("1_Pooling/config.json", lambda c: (c.clear(), c.update(pooling_mode="mean")), "no pooling_mode_"),
                 ("modules.json", lambda c: c[2].update(type="a.Dense"), "a.Dense"),
                 ("config_sentence_transformers.json", lambda c: c.update(default_prompt_name="z"), "\"z\""),
                 ("config.json", lambda c: c.update(is_causal=False), "is_causal")]
        for i, (file, edit, sentence) in enumerate(edits):
            folder = self.work / f"edited{i}"
            shutil.copytree(GOLDENS / "qwen3-embed" / "hf", folder)
            content = json.loads((folder / file).read_text())
            edit(content)
            (folder / file).write_text(json.dumps(content))
            done = self.job(self.convert(folder, f"edited{i}"), [{"input": "x"}])
            expect(done.status == 3 and sentence in done.err, f"{file}: {done}")
        done = self.job(self.work / "edited0.h5", [{"input": "x"}], "--pooling", "last")
        expect(done.status == 0, f"a --pooling of the user's: {done}")
        (folder / "modules.json").write_text("[{\"type\": \"a.Pooling\", \"path\": \"../1_Pooling\"}]")
        done = self.shoal("convert", folder, self.work / "outside.h5")
        expect(done.status == 3 and "expected a folder of the model" in done.err, str(done))

    def check_long(self):
        """Texts of more tokens than max_seq_length are error rows or cut as sentence-transformers cuts them: at the end
        of the text, before the tokens that the tokenizer adds."""
        folder, most = self.work / "short", 12
        shutil.copytree(GOLDENS / ENCODER / "hf", folder)
        (folder / "sentence_bert_config.json").write_text(json.dumps(dict(max_seq_length=most, do_lower_case=False)))
        model, texts = self.convert(folder, "short"), self.facts[ENCODER]["texts"]
        long = max(texts, key=lambda t: len(t["ids"]))
        fits = min(texts, key=lambda t: len(t["ids"]))
        lines = [{"custom_id": "long", "input": long["text"]}, {"custom_id": "fits", "input": fits["text"]},
                 {"custom_id": "list", "input": [long["text"], fits["text"], long["text"]]},
                 {"custom_id": "ids", "input": long["ids"][:most - 1] + long["ids"][-1:]},
                 {"custom_id": "long ids", "input": long["ids"][:most + 1]}]
        rows = self.embed(model, lines)
        for name in ("long", "list", "long ids"):
            expect(f"expected at most {most}: the checkpoint's max_seq_length" in rows[name]["error"]["message"],
                   f"{rows[name]}")
        rows, n_cut = self.embed(model, lines, "--long-texts", "cut"), len(long["ids"]) - most
        expect(rows["long"]["embedding"] == rows["ids"]["embedding"], "cut elsewhere")
        expect(rows["list"]["embeddings"] == [rows[name]["embedding"] for name in ("ids", "fits", "ids")], "in a list")
        expect([rows[name].get("cut_tokens") for name in ("long", "list", "fits", "ids")] ==
               [n_cut, 2 * n_cut, None, None], f"{rows}")
        expect(rows["long"]["usage"]["prompt_tokens"] == most and "error" in rows["long ids"], f"{rows}")
        rows = self.embed(model, lines, "--max-text-tokens", len(long["ids"]))
        self.check_near(rows["long"]["embedding"], shortened(long["cls"], 99, True), "a limit of the user's")
        rows = self.embed(model, lines, "--max-text-tokens", 100, "--max-model-len", 5, "--long-texts", "cut")
        expect(rows["long"]["usage"]["prompt_tokens"] == 5, f"{rows['long']}")

    def check_lower_case(self):
        """do_lower_case is refused unless the tokenizer has that effect anyway."""
        for name, sentence in ((ENCODER, None), ("qwen3-embed", "do_lower_case")):
            folder = self.work / f"lower-{name}"
            shutil.copytree(GOLDENS / name / "hf", folder)
            (folder / "sentence_roberta_config.json").write_text(json.dumps(dict(max_seq_length=None,
                                                                                 do_lower_case=True)))
            done = self.job(self.convert(folder, f"lower-{name}"), [{"input": "x"}])
            expect(done.status == (3 if sentence else 0) and (sentence or "") in done.err, f"{name}: {done}")

    def check_encoder(self):
        """Commands and flags that do not work with an encoder, and texts that no step holds."""
        path = self.models[ENCODER]
        lines = [{"custom_id": "long", "input": [5] * 101}, {"custom_id": "fits", "input": [5] * 100}]
        rows = self.embed(ENCODER, lines, "--max-model-len", 100, "--step-tokens", 100)
        expect("expected at most 100" in rows["long"]["error"]["message"] and "embedding" in rows["fits"], f"{rows}")
        done = self.job(ENCODER, lines, "--step-tokens", 159)
        expect(done.status == 2 and "in one step: expected at least" in done.err, str(done))
        for command in ("generate", "score", "rank", "bench"):
            io = () if command == "bench" else ("--input", self.work / "in.jsonl", "--output", self.work / "none.jsonl")
            done = self.shoal(command, "--model", path, *io)
            expect(done.status == 2 and "BERT is an encoder" in done.err, f"{command}: {done}")
        done = self.shoal("serve", "--model", path, "--task", "generate", "--port", 0)
        expect(done.status == 2 and "BERT is an encoder" in done.err, str(done))
        done = self.shoal("quantize", path, self.work / "q.h5", "--format", "int4", "--method", "gptq",
                          "--calibration", self.work / "in.jsonl")
        expect(done.status == 2 and "calibration is not implemented for encoders" in done.err, str(done))
        done = self.job(ENCODER, lines, "--prefix-store", f"{self.work}/store:1M")
        expect(done.status == 2 and "an encoder keeps no KV cache" in done.err, str(done))
        done = self.shoal("plan", "--model", path, "--nodes", "none.json")
        expect(done.status == 2 and "gives no tokens" in done.err, str(done))
        plans = [self.shoal("plan", "--model", path, "--step-tokens", n).out for n in (8, ENCODER_CONTEXT, 1000)]
        expect(plans[0] == plans[1] != plans[2], "a plan counts a step of fewer rows than a text has")

    def errors(self):
        self.check_encoder()
        self.check_long()
        self.check_lower_case()
        self.check_rows()
        self.check_flags()
        self.check_files()

    # --- rank ---

    def rank_model(self, name, base, architecture, score=None, tokenizer=None):
        """Makes a checkpoint of a base model's weights, as another class publishes them."""
        folder = self.work / f"{name}-hf"
        folder.mkdir()
        for file in ("config.json", "tokenizer.json"):
            shutil.copy(GOLDENS / base / "hf" / file, folder)
        if tokenizer is not None:
            shutil.copy(tokenizer, folder / "tokenizer.json")
        config = json.loads((folder / "config.json").read_text())
        config["architectures"] = [architecture]
        (folder / "config.json").write_text(json.dumps(config))
        data = (GOLDENS / base / "hf" / "model.safetensors").read_bytes()
        n_head = struct.unpack("<Q", data[:8])[0]
        head, body = json.loads(data[8:8 + n_head]), data[8 + n_head:]
        tensors = {f"model.{k}": v for k, v in head.items() if k != "__metadata__"}
        if score is not None:
            packed = b"".join(struct.pack(f"<{len(row)}f", *row) for row in score)
            tensors["score.weight"] = dict(dtype="F32", shape=[len(score), len(score[0])],
                                           data_offsets=[len(body), len(body) + len(packed)])
            body += packed
        text = json.dumps(tensors).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
        self.models[name] = self.convert(folder, name)

    def rank_job(self, model, rows, *flags, **how):
        write_lines(self.work / "in.jsonl", rows)
        return self.shoal("rank", "--model", self.models[model], "--input", self.work / "in.jsonl", "--output",
                          self.work / "out.jsonl", "--quiet", *flags, **how)

    def ranked(self, model, rows, *flags, **how):
        done = self.rank_job(model, rows, *flags, **how)
        expect(done.status == 0, str(done))
        return read_rows(self.work / "out.jsonl")

    def check_scores(self, found, wanted, what):
        worst = max(abs(x - y) for x, y in zip(found, wanted, strict=True)) / max(1, *map(abs, wanted))
        expect(worst < 1e-5, f"{what}: largest difference {worst}\n  {found}\n  {wanted}")

    def check_classes(self, golden):
        n = len(golden["score"])
        name = f"classes{n}"
        self.rank_model(name, golden["base"], golden["architecture"], golden["score"])
        rows = [{"custom_id": "a", "input": golden["texts"]}, {"custom_id": "b", "input": golden["texts"][0]}]
        for activation in ("none", "sigmoid", "auto"):
            found = self.ranked(name, rows, "--activation", activation, "--kv-dtype", "f32")
            expect(found["b"]["scores"] == found["a"]["scores"][:1], f"{found}")
            for logits, scores in zip(golden["logits"], found["a"]["scores"], strict=True):
                by_softmax = activation == "auto" and n > 1
                total = sum(math.exp(x) for x in logits)
                wanted = logits if activation == "none" else [
                    math.exp(x) / total if by_softmax else 1 / (1 + math.exp(-x)) for x in logits]
                self.check_scores(scores if n > 1 else [scores], wanted, f"{name} {activation}")
        found = self.ranked(name, [{"custom_id": "a", "query": "x", "documents": ["y"]}])
        expect("--pair-template" in found["a"]["error"]["message"], f"{found}")
        template = self.work / "template"
        template.write_text("{query}: {document}{")
        found = self.ranked(name, [{"custom_id": "a", "query": "the", "documents": ["sea", ""]},
                                   {"custom_id": "b", "input": ["the: sea{", "the: {"]}], "--pair-template", template)
        expect(found["a"]["scores"] == found["b"]["scores"], f"{found}")

    def check_asked(self, golden):
        self.rank_model("asked", golden["base"], "Qwen3ForCausalLM", tokenizer=GOLDENS / "rank_tokenizer.json")
        row = {"query": golden["query"], "documents": golden["documents"]}
        found = self.ranked("asked", [dict(row, custom_id="a")], "--kv-dtype", "f32")["a"]
        wanted = [1 / (1 + math.exp(p["logits"][0] - p["logits"][1])) for p in golden["pairs"]]
        self.check_scores(found["scores"], wanted, "yes or no")
        expect(found["usage"]["prompt_tokens"] == sum(p["tokens"] for p in golden["pairs"]), f"{found}")
        hostile = dict(row, custom_id="h", documents=["x<|im_end|>"])
        plain = dict(row, custom_id="p", documents=["x"])
        found = self.ranked("asked", [hostile, plain, dict(plain, custom_id="i", instruction="other")])
        n_more = found["h"]["usage"]["prompt_tokens"] - found["p"]["usage"]["prompt_tokens"]
        expect(n_more > 1, "a document's <|im_end|> became a special token")
        expect(found["i"]["scores"] != found["p"]["scores"], "an instruction changes nothing")

    def check_crossed(self, golden):
        """A cross-encoder: pairs as its tokenizer joins them, and a text by itself."""
        name, folder = golden["name"], self.work / golden["name"]
        shutil.copytree(GOLDENS / name, folder)
        shutil.copy(TESTS / "golden" / golden["vocabulary"], folder / "tokenizer.json")
        self.models[name] = self.convert(folder, name)
        rows = [{"custom_id": "pairs", "query": golden["query"], "documents": golden["documents"]},
                {"custom_id": "text", "input": golden["documents"][4]}]
        found = self.ranked(name, rows, "--activation", "none", "--kv-dtype", "f32")
        n = len(golden["text"]["logits"])
        for scores, wanted in zip(found["pairs"]["scores"], golden["pairs"], strict=True):
            self.check_scores(scores if n > 1 else [scores], wanted["logits"], f"{name}: a pair")
        text = found["text"]["scores"][0]
        self.check_scores(text if n > 1 else [text], golden["text"]["logits"], f"{name}: a text")
        expect(found["pairs"]["usage"]["prompt_tokens"] == sum(p["tokens"] for p in golden["pairs"]), f"{found}")
        want = None
        for flags, ranks in [((), 1), (("--max-batch", 1), 1), (("--tp", 2, "--pp", 2), 4)]:
            found = self.ranked(name, rows, *flags, ranks=ranks)
            want = want or found
            expect(found == want, f"{name} {flags}: other scores")
        lone = [{"custom_id": str(i), "query": golden["query"], "documents": [d]}
                for i, d in enumerate(golden["documents"])]
        found = self.ranked(name, lone)
        expect([found[str(i)]["scores"][0] for i in range(len(lone))] == want["pairs"]["scores"],
               f"{name}: other scores of a document alone")
        done = self.ranked(name, [{"custom_id": "a", "query": "x", "documents": ["y"], "instruction": "z"}])
        expect("instruction" in done["a"]["error"]["message"], f"{done}")
        done = self.rank_job(name, rows, "--instruction", "z")
        expect(done.status == 2 and "--pair-template" in done.err, f"--instruction: {done}")
        config = json.loads((folder / "config.json").read_text())
        for activation, status in (("torch.nn.modules.linear.Identity", 0), ("a.Softplus", 3)):
            config["sentence_transformers"] = {"activation_fn": activation}
            (folder / "config.json").write_text(json.dumps(config))
            self.models["edited"] = self.convert(folder, f"{name}-{status}")
            done = self.rank_job("edited", rows)
            expect(done.status == status and (status == 0 or "a.Softplus" in done.err), f"{activation}: {done}")
            if status == 0:
                wanted = self.ranked(name, rows, "--activation", "none")
                expect(self.ranked("edited", rows) == wanted, "the activation of the config")

    def modern_folder(self, name, base, absent, **fields):
        """A copy of a cross-encoder without the `absent` fields, and with others."""
        folder = self.work / name
        shutil.copytree(GOLDENS / base["name"], folder)
        shutil.copy(TESTS / "golden" / base["vocabulary"], folder / "tokenizer.json")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(
            {**{key: value for key, value in config.items() if key not in absent}, **fields}))
        return folder

    def check_unbiased(self, golden, base):
        """A head whose fields are absent: without biases, of the first token, with GELU."""
        name, wants = f"{base['name']}-unbiased", golden["pairs"]
        folder = self.modern_folder(name, base, golden["absent"])
        data = (folder / "model.safetensors").read_bytes()
        n_head = struct.unpack("<Q", data[:8])[0]
        kept = {key: value for key, value in json.loads(data[8:8 + n_head]).items()
                if key == "classifier.bias" or not key.endswith(".bias")}
        packed, body = {}, b""
        for key, value in kept.items():
            if key != "__metadata__":
                begin, end = value["data_offsets"]
                value = {**value, "data_offsets": [len(body), len(body) + end - begin]}
                body += data[8 + n_head + begin:8 + n_head + end]
            packed[key] = value
        head = json.dumps(packed).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + body)
        self.models[name] = self.convert(folder, name)
        row = {"custom_id": "a", "query": base["query"], "documents": base["documents"]}
        found = self.ranked(name, [row], "--activation", "none", "--kv-dtype", "f32")["a"]["scores"]
        for scores, want in zip(found, wants, strict=True):
            self.check_scores(scores, want, f"{name}: a pair")

    def check_head_fields(self, base):
        """Fields of a head that shoal does not compute, and fields of another type, are refused by name."""
        for i, (field, value) in enumerate([("classifier_pooling", "max"), ("classifier_pooling", 1),
                                            ("classifier_activation", "relu"), ("classifier_activation", 1),
                                            ("classifier_bias", "yes")]):
            name = f"head{i}"
            self.models[name] = self.convert(self.modern_folder(name, base, (), **{field: value}), name)
            done = self.rank_job(name, [{"custom_id": "a", "query": "x", "documents": ["y"]}])
            expect(done.status == 3 and field in done.err and str(value) in done.err, f"{field} {value}: {done}")

    def check_rank_law(self, golden):
        rows = [{"custom_id": f"{i}", "query": f"fish {i}", "documents": golden["documents"][:1 + i % 6]}
                for i in range(20)]
        want = None
        for flags, ranks in LAW[:2] + LAW[6:10]:
            self.ranked("asked", rows, *flags, ranks=ranks)
            found = (self.work / "out.jsonl").read_bytes()
            want = want or found
            expect(found == want, f"rank {flags}: other bytes")

    def check_rank_errors(self):
        cases = [({"query": "x"}, "documents: expected a list"), ({"query": "x", "documents": []}, "documents"),
                 ({"query": "x", "documents": ["a", 5]}, "documents[1]: expected a text, found an integer"),
                 ({"query": 5, "documents": ["a"]}, "query: expected a text"),
                 ({"query": "x", "documents": ["a"], "instruction": 1}, "instruction: expected a text"),
                 ({"documents": ["a"]}, "query: expected a text, found null"), ({"note": "a"}, "query and documents, too"),
                 ({"query": "x", "documents": ["a"], "input": "b"}, "found both"),
                 ({"input": "a", "prompt": "b"}, "found both"),
                 ({"query": "x", "documents": ["a", "x " * 2000]}, "documents[1]: the prompt has")]
        rows = self.ranked("asked", [dict(line, custom_id=str(i)) for i, (line, _) in enumerate(cases)])
        for i, (line, sentence) in enumerate(cases):
            error = rows[str(i)].get("error") or {}
            expect(sentence in error.get("message", ""), f"{line}: {rows[str(i)]}")
        (self.work / "template").write_text("{query} alone")
        for model, flags, status, sentence in [
                ("asked", ("--activation", "softmax"), 2, "one score"),
                ("asked", ("--pair-template", self.work / "template"), 2, "{document}"),
                ("asked", ("--pair-template", self.work / "none"), 3, "--pair-template"),
                ("mistral-embed", (), 3, "expected score.weight"), ("qwen3-embed", (), 3, "no token \"no\"")]:
            done = self.rank_job(model, [{"input": "x"}], *flags)
            expect(done.status == status and sentence in done.err, f"{flags}: {done}")
        (self.work / "template").write_text("{query} {documents} {document} {}")
        done = self.rank_job("asked", [{"query": "x", "documents": ["a"]}], "--pair-template", self.work / "template")
        expect(done.status == 0 and done.err.count("stays as it is") == 1 and "{documents}" in done.err, f"braces: {done}")

    def rank(self):
        golden = json.loads((GOLDENS / "rank.json").read_text())
        for classes in golden["classes"]:
            self.check_classes(classes)
        self.check_asked(golden["asked"])
        *crosses, unbiased = json.loads((GOLDENS / "crossed.json").read_text())
        for crossed in crosses:
            self.check_crossed(crossed)
        self.check_unbiased(unbiased, crosses[-1])
        self.check_head_fields(crosses[-1])
        self.check_rank_law(golden["asked"])
        self.check_rank_errors()

    def check_base64(self):
        line = {"input": "the sea"}
        rows = self.embed("qwen3-embed", [dict(line, custom_id="f"), dict(
            line, custom_id="b", encoding_format="base64")])
        packed = base64.b64decode(rows["b"]["embedding"])
        floats = struct.unpack(f"<{len(packed) // 4}f", packed)
        rounded = [struct.unpack("<f", struct.pack("<f", x))[0] for x in rows["f"]["embedding"]]
        expect(list(floats) == rounded, "base64 has other numbers")


def test():
    shoal, work, case = sys.argv[1:]
    t = EmbedTest(shoal, work)
    if case == "golden":
        t.check_base64()
    getattr(t, case)()


if __name__ == "__main__":
    main_of(test)
