"""Llama-style decoders in numbers: sizes, parameters, the work of a token, and where tokens come from; no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpc.model.options import data_source
from hpc.model.spec import RunSpec
from hpc.system.regular_file import open_regular
from hpc.workloads import workload_options

LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY = 3e-4, (0.9, 0.95), 1e-8, 0.1
"""AdamW's, as torchtitan trains Llama 3 8B; the rate is constant, norms do not decay."""
INITIAL_STD = 0.02
BYTES = 256
"""Tokens of a text: its bytes, whatever its language."""

FLOPS_BY = "6 N + 12 L H Q T (Chowdhery et al. 2022, appendix B)"

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The shape of a decoder. `width` is that of the residual stream, `hidden` that of the feed-forward layers.

    With `tied` the embedding of the tokens is also the output layer's weight.
    """

    layers: int
    heads: int
    kv_heads: int
    width: int
    hidden: int
    vocabulary: int
    tied: bool
    rope_base: float

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def block_parameters(self) -> int:
        attention = 2 * self.width**2 + 2 * self.width * self.kv_heads * self.head_width
        return attention + 3 * self.width * self.hidden + 2 * self.width

    @property
    def parameters(self) -> int:
        embedding = self.vocabulary * self.width
        return self.layers * self.block_parameters + self.width + embedding * (1 if self.tied else 2)

    def flops_per_token(self, sequence_length: int) -> int:
        """Model FLOPs of a training token: 6 N + 12 L H Q T (Chowdhery et al. 2022, PaLM, appendix B).

        L are the layers, H the heads, Q a head's width, T the tokens of a sequence. N leaves out the embedding where it
        is only looked up: a look-up multiplies nothing. What activation checkpointing computes again is not counted.
        """
        looked_up = 0 if self.tied else self.vocabulary * self.width
        attention = 12 * self.layers * self.heads * self.head_width * sequence_length
        return 6 * (self.parameters - looked_up) + attention


SIZES: Mapping[str, Decoder] = {
    "tiny": Decoder(layers=2, heads=8, kv_heads=4, width=64, hidden=192, vocabulary=BYTES, tied=True, rope_base=10_000),
    # GPT-2's smallest shape (Radford et al. 2019); hidden 8/3 of the width, the vocabulary padded to a multiple of 128.
    "125m": Decoder(
        layers=12, heads=12, kv_heads=12, width=768, hidden=2048, vocabulary=50_304, tied=True, rope_base=10_000
    ),
    # Llama 3.2 1B and Llama 3 8B, as their model cards and config.json have them. The scaling of Llama 3.2's rotary
    # frequencies is left out: it changes the values of the embedding, and no speed.
    "1b": Decoder(
        layers=16, heads=32, kv_heads=8, width=2048, hidden=8192, vocabulary=128_256, tied=True, rope_base=500_000
    ),
    "8b": Decoder(
        layers=32, heads=32, kv_heads=8, width=4096, hidden=14_336, vocabulary=128_256, tied=False, rope_base=500_000
    ),
}


def decoder(run: RunSpec) -> Decoder:
    """The decoder of a run; option `kv_heads` replaces those of its size."""
    options = workload_options(run)
    size = SIZES[str(options["size"])]
    return replace(size, kv_heads=int(options["kv_heads"]) or size.kv_heads)


def sequence_length(run: RunSpec) -> int:
    """Tokens of a sequence."""
    return int(workload_options(run)["sequence_length"])


def why_not(run: RunSpec) -> str:
    """The reason why the options make no decoder, and what to do; else empty."""
    shape = decoder(run)
    if shape.heads % shape.kv_heads:
        return (
            f"kv_heads={shape.kv_heads} was requested; the {shape.heads} heads of this size are shared by groups of "
            f"equal size: take a number that divides {shape.heads}"
        )
    return ""


class NoText(ValueError):
    """The text cannot be trained on; the message names the file and the fix."""


class TokenSequences:
    """The sequences of a rank in each step: random tokens, the same in every step, or the bytes of a file in order.

    A sequence has one token more than `sequence_length`, so that each token has the one behind it as its target. Of a
    file the ranks' sequences follow one another: step s of rank r reads those from (s · ranks + r) · n on, each begins
    where the one before has its last target, and after the last whole one the file begins again. `is_fixed`: every step
    has the same ones.
    """

    def __init__(self, run: RunSpec, rank: int) -> None:
        self._run, self._rank, self._length = run, rank, sequence_length(run)
        self._text: npt.NDArray[np.uint8] | None = None
        if (source := data_source(run.data)) is None:
            random = np.random.default_rng((run.seed, rank))
            self._random = random.integers(decoder(run).vocabulary, size=(run.rank_batch_size, self._length + 1))
        else:
            self._text = _text_at(Path(source.path), self._length)
        self.is_fixed = self._text is None or run.data_cache == "device"

    def batch(self, step: int) -> Tokens:
        """Tokens [sequences, 1 + sequence_length] of this rank."""
        if self._text is None:
            return self._random
        sequences = self._run.rank_batch_size
        whole = (len(self._text) - 1) // self._length
        step = 0 if self.is_fixed else step
        first = (step * self._run.ranks + self._rank) * sequences
        begins = np.arange(first, first + sequences) % whole * self._length
        rows: Tokens = self._text[begins[:, None] + np.arange(self._length + 1)].astype(np.int64)
        return rows


def _text_at(path: Path, length: int) -> npt.NDArray[np.uint8]:
    """The bytes of the file, mapped into memory. Raises NoText."""
    if not path.is_file():
        raise NoText(f"{path} is no file; --data text:PATH names one, whose bytes are the tokens")
    if (size := path.stat().st_size) <= length:
        raise NoText(f"{path} has {size} bytes; a sequence takes {length} and its last target: take a longer text")
    with open_regular(path) as file:
        return np.memmap(file, np.uint8, mode="r")
