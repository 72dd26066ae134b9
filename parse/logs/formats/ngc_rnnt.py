"""NVIDIA's RNN-T for MLPerf (1.0 to 2.1), PyTorch, dllogger's text: utterances are its samples.

`took` is the time since the line before. `utts/s` of a step line divides the utterances of one step by that time,
however many steps it spans, and is not read; that of an epoch's line is right. Source of the strings:
mlcommons/training_results_v1.0, NVIDIA/benchmarks/rnnt/implementations/pytorch/train.py.
"""

from __future__ import annotations

from parse.logs.engine.log_format import LogFormat, epoch_line, fact, pause, step
from parse.logs.engine.shared_patterns import LAUNCHED, NCCL_VERSION, SRUN, STAMP

FORMAT = LogFormat(
    name="ngc-rnnt",
    title="NVIDIA RNN-T (MLPerf, PyTorch)",
    steps=(
        step(
            b" | iter ",
            STAMP + rb"epoch +(?P<epoch>\d+) \| iter +(?P<step>\d+)/(?P<epoch_steps>\d+) \| loss +[^|\n]{1,24} \|"
            rb"[^\n]{0,80}? utts/s +\d+ (?:samples/s )?\| took +(?P<elapsed_s>\d+\.\d+) s",
        ),
    ),
    patterns=(
        epoch_line(
            b" | avg train utts/s ",
            STAMP + rb"epoch +(?P<epoch>\d+) \| avg train utts/s +(?P<rate>\d+) (?:samples/s )?\| "
            rb"took +(?P<seconds>\d+\.\d+) s",
        ),
        fact(b"PARAMETER | amp_level : ", rb"PARAMETER \| amp_level : +[12]\s*$", precision="amp-fp16"),
        fact(b"PARAMETER | batch_size : ", rb"PARAMETER \| batch_size : +(?P<batch_size>[1-9]\d{0,8})\s*$"),
        pause(b"dev ", rb"epoch +\d+ \| +(?P<reason>dev (?:ema )?wer) "),
        *LAUNCHED,
        SRUN,
        NCCL_VERSION,
    ),
    mean="durations",
    model="rnnt",
)
