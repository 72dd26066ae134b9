"""A Llama-style decoder in torch: RMSNorm, rotary embedding, SwiGLU, grouped-query attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hpc.model.spec import RunSpec
from hpc.workloads import gpt, workload_options
from hpc.workloads.gpt import Decoder


class Attention(nn.Module):
    """Causal attention; groups of heads share keys and values (Ainslie et al. 2023, GQA)."""

    def __init__(self, shape: Decoder) -> None:
        super().__init__()
        self._head_width = shape.head_width
        its_kv = shape.kv_heads * shape.head_width
        self.q = nn.Linear(shape.width, shape.width, bias=False)
        self.k = nn.Linear(shape.width, its_kv, bias=False)
        self.v = nn.Linear(shape.width, its_kv, bias=False)
        self.o = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """[N, T, width] to the same; of the heads those whose weights are on this rank."""
        sequences, length, _ = x.shape
        heads = (sequences, length, -1, self._head_width)
        q, k, v = (layer(x).view(heads).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(
            rotated(q, cosine, sine), rotated(k, cosine, sine), v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
        )
        result: torch.Tensor = self.o(y.transpose(1, 2).reshape(sequences, length, -1))
        return result


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, shape: Decoder) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return result


class Block(nn.Module):
    """One layer. With `checkpointed` backward computes its activations again."""

    def __init__(self, shape: Decoder, checkpointed: bool) -> None:
        super().__init__()
        self._checkpointed = checkpointed
        self.attention_norm, self.attention = _norm(shape), Attention(shape)
        self.feed_forward_norm, self.feed_forward = _norm(shape), FeedForward(shape)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        if not self._checkpointed:
            return self._layers(x, cosine, sine)
        result: torch.Tensor = checkpoint(self._layers, x, cosine, sine, use_reentrant=False)
        return result

    def _layers(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        result: torch.Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return result


class GPT(nn.Module):
    """Tokens [N, T] to logits [N, T, vocabulary]."""

    def __init__(self, shape: Decoder, length: int, checkpointed: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape, checkpointed) for _ in range(shape.layers))
        self.norm = _norm(shape)
        self.output = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if shape.tied:
            self.output.weight = self.tokens.weight
        cosine, sine = rotations(shape, length)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        logits: torch.Tensor = self.output(self.norm(x))
        return logits


def _norm(shape: Decoder) -> nn.RMSNorm:
    return nn.RMSNorm(shape.width, eps=1e-5)


def rotations(shape: Decoder, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [T, head width] of the rotary embedding (Su et al. 2021), both halves of a head alike."""
    exponents = torch.arange(0, shape.head_width, 2, dtype=torch.float32) / shape.head_width
    angles = torch.outer(torch.arange(length, dtype=torch.float32), shape.rope_base**-exponents)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """[N, heads, T, head width], each pair of the two halves turned by its token's angle; in the type of `x`."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x * cosine + turned * sine).to(x.dtype)


def initialise(model: GPT, seed: int) -> None:
    """Normal weights from the seed, in the order of the modules; norms stay 1."""
    device = model.tokens.weight.device
    random = torch.Generator(device).manual_seed(seed)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    with torch.no_grad():
        for matrix in matrices:
            matrix.normal_(std=gpt.INITIAL_STD, generator=random)


class TorchGPT:
    """The decoder of the run, trained by AdamW on the next token. A sample is a token."""

    def __init__(self, run: RunSpec, device: torch.device, rank: int) -> None:
        shape, self._length = gpt.decoder(run), gpt.sequence_length(run)
        with device:  # a large model is never built on the host
            self.model = GPT(shape, self._length, bool(workload_options(run)["activation_checkpointing"]))
        initialise(self.model, run.seed)
        self.flops_per_token, self.flops_by = shape.flops_per_token(self._length), gpt.FLOPS_BY
        self._tokens = torch.from_numpy(gpt.random_tokens(run, rank)).to(device)

    @property
    def blocks(self) -> list[nn.Module]:
        """The modules that FSDP gathers one at a time. The others go with the whole model: two may share a weight."""
        return [*self.model.blocks]

    def batch(self, step: int) -> torch.Tensor:
        return self._tokens

    def samples(self, batch: torch.Tensor) -> int:
        return batch.shape[0] * self._length

    def loss(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        logits = model(batch[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def optimizer(self, **implementation: bool) -> torch.optim.Optimizer:
        parameters = [*self.model.parameters()]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": gpt.WEIGHT_DECAY},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, gpt.LEARNING_RATE, gpt.BETAS, gpt.EPSILON, **implementation)
