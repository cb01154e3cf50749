"""Logits of a golden in three bytes each.

A file NAME.i24 has the unit of its values as one little-endian f32, then the logits as signed integers of
three bytes, little-endian, in the order [T, V]. The unit is the largest |logit| divided by 2^23 - 1, so a
value is off by at most 6e-8 of the largest logit; the tests' bound is 1e-4. compare_logits.c reads it.
"""
import numpy as np

MOST = (1 << 23) - 1


def pack_logits(logits):
    """logits: array [T, V] of f32. Returns the bytes of the file."""
    unit = np.float32(np.abs(logits).max() / MOST)
    codes = np.rint(logits.astype(np.float64) / unit).clip(-MOST, MOST).astype("<i4")
    return unit.astype("<f4").tobytes() + codes.reshape(-1, 1).view(np.uint8)[:, :3].tobytes()


def unpack_logits(data, n_vocab):
    """The inverse of pack_logits, within half a unit: [T, V] of f64."""
    unit = float(np.frombuffer(data[:4], "<f4")[0])
    low = np.frombuffer(data[4:], np.uint8).reshape(-1, 3)
    wide = np.zeros((len(low), 4), np.uint8)
    wide[:, 1:] = low  # the code times 256, with its sign
    return (wide.view("<i4") >> 8).reshape(-1, n_vocab) * unit
