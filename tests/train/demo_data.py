"""The corpus as speeches, the train/held-out split, and batches drawn from it.

A speech is a speaker's line and what follows, up to and including its blank line. The text is never
changed: documents are runs of speeches with an end token put between them.
"""
import re

import numpy as np

TRAIN_SHARE = 0.9
ONE_SPEECH = 0.5      # share of documents with only one speech, from which the model learns to stop
MEAN_SPEECHES = 12    # mean number of speeches in the other documents
MID_SPEECH = 0.3      # share of windows that begin inside a speech
LONG_ROW = 512         # length of the long windows


def read_speeches(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    speeches = re.findall(r".+?(?:\n\n+|\Z)", text, flags=re.S)
    assert "".join(speeches) == text
    return speeches


def split_speeches(speeches):
    """Splits the speeches into the first 90 % of the characters, rounded to whole speeches, and
    the rest.
    """
    sizes = np.cumsum([len(s) for s in speeches])
    cut = int(np.searchsorted(sizes, TRAIN_SHARE * sizes[-1]))
    return speeches[:cut], speeches[cut:]


def encode_speeches(tok, speeches):
    # The pre-tokenizer always splits after a blank line, so the speeches' tokens are the text's.
    return [np.array(e.ids, dtype=np.int64) for e in tok.encode_batch(speeches)]


def document_length(rng):
    if rng.random() < ONE_SPEECH:
        return 1
    return 1 + int(rng.geometric(1.0 / (MEAN_SPEECHES - 1)))


def window(speeches, eos, length, rng):
    """Returns `length` tokens of documents that begin with a random speech; documents are cut anew
    each time.
    """
    i = int(rng.integers(len(speeches)))
    first = speeches[i]
    if rng.random() < MID_SPEECH:
        first = first[int(rng.integers(len(first))):]
    parts, n, left = [first], len(first), document_length(rng) - 1
    while n < length:
        if left == 0:
            parts.append([eos])
            n, left = n + 1, document_length(rng)
        i = (i + 1) % len(speeches)
        parts.append(speeches[i])
        n, left = n + len(speeches[i]), left - 1
    return np.concatenate(parts)[:length]


def batch(speeches, eos, length, count, rng):
    """Inputs and targets, both [count, length]."""
    rows = np.stack([window(speeches, eos, length + 1, rng) for _ in range(count)])
    return rows[:, :-1], rows[:, 1:]


def stream(speeches, eos, seed):
    """All speeches once, in order, as documents with fixed cuts: what perplexity is measured on."""
    rng = np.random.default_rng(seed)
    parts, left = [[eos]], document_length(rng)
    for s in speeches:
        parts.append(s)
        left -= 1
        if left == 0:
            parts.append([eos])
            left = document_length(rng)
    return np.concatenate(parts)


def stream_windows(ids, length):
    """Consecutive inputs and targets that together predict every id but the first, once each."""
    for a in range(0, len(ids) - 1, length):
        b = min(a + length, len(ids) - 1)
        yield ids[a:b], ids[a + 1:b + 1]


def unigram_perplexity(train_ids, held_ids, vocab):
    """The perplexities of held_ids by add-one counts of the training text, and by their own counts.
    """
    held = np.bincount(held_ids, minlength=vocab)
    share = held / held.sum()
    train = np.bincount(train_ids, minlength=vocab) + 1
    cross = -(share * np.log(train / train.sum())).sum()
    own = -(share[held > 0] * np.log(share[held > 0])).sum()
    return float(np.exp(cross)), float(np.exp(own))
