"""Paddle 2's suites: PaddleNLP, PaddleSeg, PaddleDetection, PaddleOCR, PaddleRec, and programs of their making.

`ips` is the rate of the one rank that prints, with the reader's time: the samples since the line before by their time;
in PaddleDetection the batch by the mean of the last `log_iter` steps, which is the same. PaddleClas and PaddleVideo are
read as `paddle-resnet50`; lines whose `ips` counts tokens or words as `paddle-tokens`.
"""

from __future__ import annotations

from parse.logs.engine.log_format import LogFormat, step
from parse.logs.engine.shared_patterns import COST, PATTERNS, STAMP

_RATE = rb"(?P<rate>\d+\.\d+) (?:sequences|samples|images|instances?|examples?|ins)/s"

FORMAT = LogFormat(
    name="paddle-suites",
    title="PaddlePaddle suites (PaddleNLP, PaddleSeg, PaddleDetection, PaddleOCR, PaddleRec)",
    steps=(
        # PaddleNLP; the misprint was its own for years.
        step(
            b"avg_batch_cost: ",
            STAMP + rb"(?:global|total|tobal) step:? (?P<step>\d+), epoch: \d+, batch: \d+, [^\n\[]{1,300}?"
            rb"avg_batch_cost: " + COST + rb" sec, (?:avg_samples: [\d.]{1,24}, )?(?:ips_total: [^,\n]{1,40}, )?"
            rb"(?:avg_)?ips: " + _RATE,
        ),
        # PaddleSeg
        step(
            b"[TRAIN] epoch: ",
            STAMP + rb"\[TRAIN\] epoch: \d+, iter: (?P<step>\d+)/\d+, [^\n\[]{1,300}?"
            rb"batch_cost: " + COST + rb", reader_cost: [\d.]{1,24}, ips: " + _RATE,
        ),
        # PaddleDetection
        step(
            b" data_cost: ",
            STAMP
            + rb"Epoch: \[(?P<epoch>\d+)\] \[ *(?P<step>\d+)/(?P<epoch_steps>\d+)\] learning_rate: [^\n\[]{1,600}?"
            rb"batch_cost: " + COST + rb" data_cost: [\d.]{1,24} ips: " + _RATE,
        ),
        # PaddleOCR; the sums of its older lines are over the steps since the line before.
        step(
            b", global_step: ",
            STAMP + rb"epoch: \[\d+/\d+\], global_step: (?P<step>\d+), [^\n\[]{1,600}?"
            rb"avg_batch_cost: " + COST + rb" s, avg_samples: [\d.]{1,24}, ips: " + _RATE,
        ),
        step(
            b", samples: ",
            STAMP + rb"epoch: \[\d+/\d+\], iter: (?P<step>\d+), [^\n\[]{1,600}?"
            rb", samples: \d+, ips: (?P<rate>\d+\.\d+)(?:\s|$)",
        ),
        # PaddleRec, and the parameter servers of PaddlePaddle/Perf
        step(
            b"avg_batch_cost: ",
            STAMP + rb"[Ee]poch: (?P<epoch>\d+), (?:batch_id|Batch): (?P<step>\d+), [^\n]{1,600}?"
            rb"avg_batch_cost: " + COST + rb" sec, avg_samples: [\d.]{1,24}, ips: " + _RATE,
        ),
        # Papers that Paddle reproduced
        step(
            b"avg_batch_cost: ",
            STAMP + rb"\[Epoch (?P<epoch>\d+), iter: (?P<step>\d+)\] [^\n\[]{1,300}?"
            rb"avg_batch_cost: " + COST + rb" sec, avg_samples: [\d.]{1,24}, avg_ips: " + _RATE,
        ),
    ),
    patterns=PATTERNS,
    rates="rank",
)
"""Steps go through the run, but for those of PaddleDetection and PaddleRec, which restart at 0 in every epoch."""
