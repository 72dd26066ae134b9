"""Paddle 2's language models: PaddleNLP's GPT (`ips: 499 tokens/s`) and Transformer (`ips: 37152.57 words/sec`).

`ips` is the rate of the one rank that prints, over the steps since the line before; its words are the pieces of the
vocabulary, that is, tokens. `ips_total` is that of all ranks, and is not read.
"""

from __future__ import annotations

from parse.logs.engine.log_format import LogFormat, step
from parse.logs.engine.shared_patterns import COST, PATTERNS, STAMP

FORMAT = LogFormat(
    name="paddle-tokens",
    title="PaddleNLP language models",
    unit="tokens",
    steps=(
        step(
            b" tokens/s",
            STAMP + rb"global step (?P<step>\d+), epoch: \d+, batch: \d+, [^\n\[]{1,300}?"
            rb"avg_batch_cost: " + COST + rb" sec, (?:speed: [\d.]{1,24} step/s, )?(?:ips_total: \d+ tokens/s, )?"
            rb"ips: (?P<rate>\d+(?:\.\d+)?) tokens/s",
        ),
        step(
            b" words/sec",
            STAMP + rb"step_idx: (?P<step>\d+), epoch: \d+, batch: \d+, [^\n\[]{1,300}?"
            rb"batch_cost: " + COST + rb" sec, [^\n\[]{1,120}?ips: (?P<rate>\d+\.\d+) words/sec",
        ),
    ),
    patterns=PATTERNS,
    rates="rank",
)
