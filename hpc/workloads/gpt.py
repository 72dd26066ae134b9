"""Llama-style decoders in numbers: sizes, parameters, the work of a token, and random ones; no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpc.model.spec import RunSpec
from hpc.workloads import workload_options

LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY = 3e-4, (0.9, 0.95), 1e-8, 0.1
"""AdamW's, as torchtitan trains Llama 3 8B; the rate is constant, norms do not decay."""
INITIAL_STD = 0.02

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
    "tiny": Decoder(layers=2, heads=8, kv_heads=4, width=64, hidden=192, vocabulary=256, tied=True, rope_base=10_000),
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
    """The decoder of a run."""
    return SIZES[str(workload_options(run)["size"])]


def sequence_length(run: RunSpec) -> int:
    """Tokens of a sequence."""
    return int(workload_options(run)["sequence_length"])


def random_tokens(run: RunSpec, rank: int) -> Tokens:
    """Tokens [sequences, 1 + sequence_length] of this rank: each token has the one behind it as its target."""
    random = np.random.default_rng((run.seed, rank))
    return random.integers(decoder(run).vocabulary, size=(run.rank_batch_size, sequence_length(run) + 1))
