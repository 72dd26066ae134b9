"""NVIDIA's single-stage detector for MLPerf: PyTorch (0.6, 0.7) and MXNet (0.7 to 1.1).

PyTorch prints the rate of all processes since the line before, MXNet that since the line before or the begin of the
epoch. Source of the strings: mlcommons/training_results_v0.7, NVIDIA/benchmarks/ssd/implementations/pytorch/train.py,
and mlcommons/training_results_v1.0, NVIDIA/benchmarks/ssd/implementations/DGXA100_1x8x114/mxnet/model.py.
"""

from __future__ import annotations

from parse.logs.engine.log_format import LogFormat, epoch_line, fact, step, summary
from parse.logs.engine.shared_patterns import LAUNCHED, NCCL_VERSION, SRUN

FORMAT = LogFormat(
    name="ngc-ssd",
    title="NVIDIA SSD (MLPerf, PyTorch and MXNet)",
    steps=(
        step(
            b", avg. samples / sec: ",
            rb"Iteration: +(?P<step>\d+), Loss function: [^,\n]{1,24}, Average Loss: [^,\n]{1,24}, "
            rb"avg\. samples / sec: (?P<rate>\d+\.\d\d)",
        ),
        step(
            b"[Training][Iteration ",
            rb"\[Training\]\[Iteration (?P<step>\d+)\]\[Epoch \d+, Batch \d+/(?P<epoch_steps>\d+)\] [^\n]{0,120}?"
            rb"speed: (?P<rate>\d+\.\d+) \[imgs/sec\]",
        ),
    ),
    patterns=(
        epoch_line(
            b"[Training][Epoch ",
            rb"\[Training\]\[Epoch (?P<epoch>\d+)\] training time: (?P<seconds>\d+\.\d+) \[sec\],"
            rb"avg speed: (?P<rate>\d+\.\d+) \[imgs/sec\]",
        ),
        summary(b"\tAverage images/sec: ", rb"(?P<what>Average images/sec): (?P<rate>\d+\.\d+)"),
        fact(b"--use-fp16", rb"\btrain\.py [^\n]{0,2000}?--use-fp16", precision="amp-fp16"),
        fact(b" --batch-size", rb"\btrain\.py [^\n]{0,2000}? --batch-size[= ](?P<batch_size>[1-9]\d{0,8})\b"),
        *LAUNCHED,
        SRUN,
        NCCL_VERSION,
    ),
    numbered="run",
    model="ssd",
)
"""MXNet's lines restart at every epoch, whose end MLPerf's marks show: an interval over it is a pause."""
