"""Random weights in the formats of the benchmark's models, drawn without drawing floats. Used by models.py.

A weight is one of 256 quantiles of a normal distribution, all equally probable: one random byte. Each format has a
table of the 256 codes, so weights of all formats are the same numbers, rounded, and bytes.translate makes them. The
quantiles are symmetric, so a matrix's mean is 0 but for chance. All weights of a tensor share one
scale, which stands at every place where the format has a scale. Formats: ggml's F32, F16, BF16,
Q8_0, Q4_0, MXFP4; of safetensors also F8_E4M3 and the int4 words of compressed-tensors.
"""
import dataclasses
import math
import statistics

import numpy as np

N_QUANTILES = 256
QUANTILES = np.array([statistics.NormalDist().inv_cdf((i + 0.5) / N_QUANTILES) for i in range(N_QUANTILES)])
BLOCK = 32  # weights that share a scale in Q8_0, Q4_0, MXFP4 and int4
CHUNK = 1 << 23  # weights in memory at a time; a multiple of every block
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # the magnitudes of MXFP4's codes


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor to draw. dims: experts (if any), outputs, inputs. role: "matrix", "embed" (also for
    the head), "expert", "vector" or "router". std and mean describe the values. If `part` is
    given, the tensor takes its bytes, in order, from the `drawn` bytes of a larger tensor.
    """
    name: str
    dims: tuple
    role: str
    std: float
    mean: float = 0.0
    part: object = None
    drawn: int = 0

    @property
    def count(self):
        return math.prod(self.dims)


def nearest(magnitudes, x):
    """For each |x|, the index of the nearest magnitude."""
    return np.abs(np.abs(x)[:, None] - magnitudes[None, :]).argmin(axis=1)


def e4m3_magnitudes():
    """The magnitudes of codes 0 to 126: 3 bits of fraction, 4 of exponent with bias 7; exponent 0
    is subnormal.
    """
    code = np.arange(127)
    exponent, fraction = code >> 3, (code & 7) / 8
    return np.where(exponent == 0, fraction * 2.0 ** -6, (1 + fraction) * 2.0 ** (exponent - 7.0))


def bf16(x):
    """x rounded to the nearest bfloat16, as 16 bits."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float_table(kind, t):
    """The 256 values of a float format."""
    x = (t.mean + t.std * QUANTILES).astype(np.float32)
    return {"F32": x, "F16": x.astype(np.float16), "BF16": bf16(x)}[kind]


def code_table(kind, std):
    """The 256 codes, one byte each, and the scale. Code times scale is the value nearest to the
    weight.
    """
    x = std * QUANTILES
    peak = x[-1]
    if kind == "MXFP4":  # the scale is a power of two, so that the largest magnitude becomes 4 or 6
        scale = 2.0 ** (math.floor(math.log2(peak)) - 2)
        codes = nearest(E2M1, x / scale) | np.where(x < 0, 8, 0)
    elif kind == "F8_E4M3":
        scale = peak / 448
        codes = nearest(e4m3_magnitudes(), x / scale) | np.where(x < 0, 128, 0)
    elif kind == "Q8_0":
        scale = peak / 127
        codes = np.rint(x / scale).astype(np.int8)
    else:  # 4 bits, stored with the offset 8
        scale = peak / 7
        codes = np.rint(x / scale) + 8
    return codes.astype(np.uint8).tobytes(), scale


def scale_bytes(kind, scale):
    """The scale as GGUF stores it before a block: an f16, or a biased power of two (E8M0)."""
    if kind == "MXFP4":
        return np.array([int(math.log2(scale)) + 127], np.uint8)
    return np.array([scale], np.float16).view(np.uint8)


def halves(codes):
    """Packs two 4-bit codes in each byte: byte i of a block holds element i in its low half and
    element i + 16 in its high half (GGUF).
    """
    pairs = codes.reshape(-1, 2, BLOCK // 2)
    return pairs[:, 0] | pairs[:, 1] << 4


def neighbours(codes):
    """Packs two 4-bit codes in each byte: byte i holds elements 2i and 2i + 1
    (compressed-tensors).
    """
    pairs = codes.reshape(-1, 2)
    return pairs[:, 0] | pairs[:, 1] << 4


class Drawing:
    """The weights of one tensor in one format, chunk by chunk. With gguf, each block of codes is
    preceded by its scale.
    """

    def __init__(self, kind, tensor, seed, gguf):
        self.kind, self.tensor, self.gguf = kind, tensor, gguf
        self.rng = np.random.Generator(np.random.SFC64(seed))
        self.table, self.scale = None, None
        if kind in ("F32", "F16", "BF16"):
            self.table = float_table(kind, tensor)
        else:
            self.codes, self.scale = code_table(kind, tensor.std)

    def encode(self, drawn):
        """Turns random bytes into a numpy array of the format's bytes."""
        if self.table is not None:
            return self.table[np.frombuffer(drawn, np.uint8)]
        codes = np.frombuffer(drawn.translate(self.codes), np.uint8)
        if self.kind == "F8_E4M3":
            return codes
        if not self.gguf:
            return neighbours(codes)
        body = halves(codes) if self.kind in ("Q4_0", "MXFP4") else codes.reshape(-1, BLOCK)
        scale = scale_bytes(self.kind, self.scale)
        out = np.empty((len(body), len(scale) + body.shape[1]), np.uint8)
        out[:, :len(scale)] = scale
        out[:, len(scale):] = body
        return out

    def chunks(self, count):
        """Yields the next `count` weights. A tensor that is part of another one takes all its
        weights at once.
        """
        t = self.tensor
        if t.part is not None:
            yield self.encode(t.part(np.frombuffer(self.rng.bytes(t.drawn), np.uint8)).tobytes())
            return
        for at in range(0, count, CHUNK):
            yield self.encode(self.rng.bytes(min(CHUNK, count - at)))
