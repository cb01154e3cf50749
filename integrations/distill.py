"""Trains a small student on the file of `shoal generate --save-logprobs` (docs/distill.md).

    python integrations/distill.py teacher.h5 [more.h5 ..] --steps 200

Reading needs h5py and numpy, training torch. The student is a decoder of two layers, so that the
example needs no download; any model with the teacher's tokenizer and logits [B, T, V] can take its
place, such as transformers' AutoModelForCausalLM.
"""
import argparse

import h5py
import numpy as np


class Teacher:
    """The rows of a file. The candidates of a token are the teacher's guesses before it saw it."""

    def __init__(self, path):
        self.file = h5py.File(path, "r")
        version = int(self.file.attrs["shoal_logprobs"])
        if version != 1:
            raise ValueError(f"{path}: version {version}, expected 1")
        self.k, self.vocab = int(self.file.attrs["k"]), int(self.file.attrs["vocab_size"])
        self.offsets = self.file["row_offsets"][:]

    def __len__(self):
        return len(self.offsets) - 1

    def row(self, i):
        """custom_id, tokens [T], is_generated [T], top_ids [T, k] and top_logprobs [T, k] as f32. Places without
        a candidate have id -1 and -inf.
        """
        part = slice(self.offsets[i], self.offsets[i + 1])
        top = self.file["top_logprobs"]
        codes = top[part]
        logprobs = codes.astype(np.float32) * np.float32(top.attrs["scale"])
        if "none" in top.attrs:
            logprobs[codes == top.attrs["none"]] = -np.inf
        name = self.file["custom_id"].asstr()[i]
        return name, self.file["tokens"][part], self.file["is_generated"][part], self.file["top_ids"][part], logprobs

    def hidden(self, i):
        """The hidden rows of --save-hidden: the token of the first of them, and the rows [n, layers, D]."""
        begin, end = self.file["hidden_offsets"][i:i + 2]
        return int(self.file["hidden_first"][i]), self.file["hidden"][begin:end]


def batch_of(teachers, draw, n_rows, most_tokens, only_answers):
    """Rows drawn at random, padded on the right. Position t predicts token t + 1: arrays of T - 1 positions."""
    rows = []
    while len(rows) < n_rows:
        teacher = teachers[draw.integers(len(teachers))]
        _, tokens, generated, ids, logprobs = teacher.row(draw.integers(len(teacher)))
        if len(tokens) > 1:
            rows.append((tokens[:most_tokens], generated[:most_tokens], ids[:most_tokens], logprobs[:most_tokens]))
    shape = (n_rows, max(len(row[0]) for row in rows))
    tokens = np.zeros(shape, np.int64)
    ids = np.full((*shape, teachers[0].k), -1, np.int64)
    logprobs = np.full(ids.shape, -np.inf, np.float32)
    counts = np.zeros(shape, bool)
    for i, (t, g, d, p) in enumerate(rows):
        tokens[i, :len(t)], ids[i, :len(t)], logprobs[i, :len(t)] = t, d, p
        counts[i, :len(t)] = g if only_answers else True
    return tokens[:, :-1], ids[:, 1:], logprobs[:, 1:], counts[:, 1:]


def make_student(vocab, most_tokens, width=128, n_heads=4, n_layers=2):
    import torch

    class Student(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = torch.nn.Embedding(vocab, width)
            self.places = torch.nn.Embedding(most_tokens, width)
            for table in (self.tokens, self.places):
                torch.nn.init.normal_(table.weight, std=0.02)
            layer = torch.nn.TransformerEncoderLayer(width, n_heads, 4 * width, 0.0, batch_first=True, norm_first=True)
            self.layers = torch.nn.TransformerEncoder(layer, n_layers, torch.nn.LayerNorm(width),
                                                      enable_nested_tensor=False)

        def forward(self, tokens):
            n = tokens.shape[1]
            mask = torch.nn.Transformer.generate_square_subsequent_mask(n)
            x = self.tokens(tokens) + self.places(torch.arange(n))
            return self.layers(x, mask=mask, is_causal=True) @ self.tokens.weight.T

    return Student()


def distance(logits, ids, logprobs, counts):
    """The mean KL divergence of the student from the teacher, over the k candidates and, as one more
    outcome, all other tokens together: so the student also learns how much is left for them.
    """
    import torch
    student = logits.log_softmax(-1).gather(-1, ids.clamp(min=0))
    student = student.masked_fill(ids < 0, -torch.inf)
    least = 1e-6  # rounded probabilities may add up to a little more than 1

    def rest(x):
        return (1 - x.exp().sum(-1)).clamp(min=least).log()

    p, q = torch.cat([logprobs, rest(logprobs)[..., None]], -1), torch.cat([student, rest(student)[..., None]], -1)
    kl = (p.exp() * (p - q)).masked_fill(p == -torch.inf, 0).sum(-1)
    return (kl * counts).sum() / counts.sum().clamp(min=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256, help="of a row, at most")
    parser.add_argument("--all", action="store_true", help="learn the tokens of prompts too, not of answers alone")
    parser.add_argument("--save", help="write the student's weights there")
    o = parser.parse_args()
    import torch
    teachers = [Teacher(path) for path in o.files]
    if len({(t.k, t.vocab) for t in teachers}) > 1:
        parser.error("the files have different k or vocabularies")
    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    student = make_student(teachers[0].vocab, o.tokens)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    for step in range(o.steps):
        arrays = batch_of(teachers, draw, o.batch, o.tokens, not o.all)
        tokens, ids, logprobs, counts = (torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)
        loss = distance(student(tokens), ids, logprobs, counts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == o.steps - 1:
            print(f"step {step}: KL {loss.item():.4f}", flush=True)
    if o.save:
        torch.save(student.state_dict(), o.save)


if __name__ == "__main__":
    main()
