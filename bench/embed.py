#!/usr/bin/env python3
"""`shoal embed` beside sentence-transformers and plain transformers, on texts of mixed length, in turns.

usage: embed.py --shoal SHOAL --work FOLDER [--texts 1000] [--threads 2] [--pairs 5] [--formats f32,int8]
                [--peers sentence-transformers,transformers] [--max-wait 60]

Needs Python's torch, transformers and sentence-transformers. The model has the shape of all-MiniLM-L6 (6 layers of
384), random weights, and the vocabulary of a golden encoder; half of the texts have up to 40 words, the longest 240. A
turn of shoal is a whole process: start, loading, tokens, vectors and the output file; a turn of a peer is its work on the
texts alone, in a process that has loaded the model and computed all texts once. sentence-transformers' encode() sorts the
texts by length and computes --batch of them at a time. Plain transformers, as in its model cards, takes --batch texts in
the order in which they come, pads them to the longest and takes the mean of the last hidden states.
Each turn waits until the machine is quiet. Printed are, for each peer, texts a second, medians over
the rounds with the least and the largest ratio, and the least cosine of the two programs' vectors.
"""
import argparse
import json
import math
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from quiet import Quiet  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "embed" / "bert-embed" / "hf"
SHAPE = dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
             max_position_embeddings=512)
WORDS_LEAST, WORDS_MOST = 6, 240


def make_model(folder):
    """Writes a model with random weights beside the golden encoder's tokenizer."""
    import torch
    from transformers import AutoConfig, BertModel
    config = AutoConfig.from_pretrained(SOURCE, dtype="float32", **SHAPE)
    torch.manual_seed(1)
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    BertModel(config).save_pretrained(folder)
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": SHAPE["hidden_size"], "pooling_mode_mean_tokens": True}))


def make_texts(n):
    """Texts whose lengths are spread evenly by their logarithm."""
    draw = random.Random(2)
    vocabulary = json.loads((SOURCE / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(word for word in vocabulary if word.isalpha() and len(word) > 1)
    spread = math.log(WORDS_MOST / WORDS_LEAST)
    return [" ".join(draw.choices(words, k=round(WORDS_LEAST * math.exp(spread * draw.random()))))
            for _ in range(n)]


class Sorting:
    """sentence-transformers."""
    name = "sentence-transformers"

    def __init__(self, folder, texts, threads, batch):
        import torch
        from sentence_transformers import SentenceTransformer
        torch.set_num_threads(threads)
        self.model = SentenceTransformer(str(folder), device="cpu")
        self.texts, self.batch = texts, batch
        self.vectors = self.encode()

    def encode(self):
        return self.model.encode(self.texts, batch_size=self.batch, show_progress_bar=False)


class Plain:
    """transformers alone."""
    name = "transformers"

    def __init__(self, folder, texts, threads, batch):
        import torch
        from transformers import AutoModel, AutoTokenizer
        torch.set_num_threads(threads)
        self.torch, self.texts, self.batch = torch, texts, batch
        self.model, self.tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
        self.vectors = self.encode()

    def encode(self):
        found = []
        with self.torch.inference_mode():
            for i in range(0, len(self.texts), self.batch):
                inputs = self.tokenizer(self.texts[i:i + self.batch], padding=True, return_tensors="pt")
                rows = self.model(**inputs).last_hidden_state
                mask = inputs["attention_mask"].unsqueeze(-1)
                found.append((rows * mask).sum(1) / mask.sum(1))
        return self.torch.cat(found).numpy()


def embed(shoal, model, work, threads):
    subprocess.run([shoal, "embed", "--model", model, "--input", work / "texts.jsonl", "--output", work / "rows.jsonl",
                    "--restart", "--no-journal", "--quiet", "--threads", str(threads)], check=True)


def least_cosine(rows, vectors):
    import numpy
    least = 1.0
    for line, other in zip(rows.read_text().splitlines(), vectors):
        own = numpy.array(json.loads(line)["embedding"])
        least = min(least, float(own @ other / numpy.linalg.norm(own) / numpy.linalg.norm(other)))
    return least


def timed(work):
    since = time.perf_counter()
    work()
    return time.perf_counter() - since


def compare(args, peers, model, name):
    own, others = [], [[] for _ in peers]
    quiet = Quiet()
    for pair in range(args.pairs):
        turns = [(own, lambda: embed(args.shoal, model, args.work, args.threads)),
                 *((seconds, peer.encode) for seconds, peer in zip(others, peers))]
        for seconds, work in turns if pair % 2 == 0 else reversed(turns):
            quiet.wait(args.max_wait)
            seconds.append(timed(work))
    for peer, other in zip(peers, others):
        ratios = [b / a for a, b in zip(own, other)]
        n = len(peer.texts)
        print(f"{name}: shoal {n / statistics.median(own):.0f} texts/s, {peer.name} {n / statistics.median(other):.0f}, "
              f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f}); least cosine "
              f"{least_cosine(args.work / 'rows.jsonl', peer.vectors):.8f}", flush=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--shoal", required=True)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=5, help="rounds: a turn of each program")
    parser.add_argument("--formats", default="f32,int8")
    parser.add_argument("--peers", default="sentence-transformers,transformers")
    parser.add_argument("--max-wait", type=float, default=60)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    folder, model = args.work / "hf", args.work / "f32.h5"
    if not folder.exists():
        make_model(folder)
        subprocess.run([args.shoal, "convert", folder, model], check=True)
    texts = make_texts(args.texts)
    (args.work / "texts.jsonl").write_text(
        "".join(json.dumps({"custom_id": str(i), "input": text}) + "\n" for i, text in enumerate(texts)))
    peers = [kind(folder, texts, args.threads, args.batch) for kind in (Sorting, Plain)
             if kind.name in args.peers.split(",")]
    for name in args.formats.split(","):
        file = args.work / f"{name}.h5"
        if not file.exists():
            subprocess.run([args.shoal, "quantize", model, file, "--format", name], check=True)
        compare(args, peers, file, name)


if __name__ == "__main__":
    main()
