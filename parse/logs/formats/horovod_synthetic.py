"""Horovod's synthetic benchmarks (PyTorch, TensorFlow 1 and 2), and those that BytePS and Bagua made of them.

`Total img/sec` is the mean of the rates of one rank's iterations (ten of ten steps each, after a warm-up; the Keras one
leaves out the first) times the ranks. Iterations are no steps, and the number of steps in them is not printed.
"""

from __future__ import annotations

from parse.logs.engine.log_format import LogFormat, fact, summary

PATTERNS = (
    summary(b"Total img/sec on ", rb"(?P<what>Total img/sec) on \d+ [GCT]PU\(s\): (?P<rate>\d+\.\d+) \+-"),
    fact(b"Total img/sec on ", rb"Total img/sec on (?P<world_size>\d+) [GCT]PU\(s\): "),
)

FORMAT = LogFormat(
    name="horovod-synthetic",
    title="Horovod's synthetic benchmarks",
    steps=(),
    patterns=(
        *PATTERNS,
        fact(b"Model: ", rb"(?:^|[>: ])Model: (?P<model>\w{1,60})\s*$"),
        fact(b"Batch size: ", rb"(?:^|[>: ])Batch size: (?P<batch_size>\d+)\s*$"),
    ),
)
