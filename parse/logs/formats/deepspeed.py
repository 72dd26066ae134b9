"""DeepSpeed (deepspeed/utils/timer.py, `ThroughputTimer`; runtime/pipe/engine.py): a line per `steps_per_print`.

`CurrSamplesPerSec` is all devices' rate in that one step, without the time between steps. `0/20, SamplesPerSec=` (2021)
is a mean since the beginning and not taken. Before `global_step` was printed the number counted micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, fact, pause, step
from parse.logs.engine.shared_patterns import DATED, table

_STAMP = rb"(?:" + DATED + rb"\] [^\n]{0,120}?)?"
_RATE = rb"\d{1,15}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?"
_SETTINGS = {
    "train_batch_size": "global_batch_size", "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "micro_batches", "steps_per_print": "print_every",
    "bfloat16_enabled": "bf16", "fp16_enabled": "amp-fp16",
}  # fmt: skip


def _facts(setting: Mapping[str, str]) -> Mapping[str, str]:
    (name,) = setting
    return {"precision": name} if name in ("bf16", "amp-fp16") else setting


FORMAT = LogFormat(
    name="deepspeed",
    title="DeepSpeed",
    steps=(
        step(
            b"RunningAvgSamplesPerSec=",
            _STAMP + rb"epoch=(?P<epoch>\d+)/micro_step=\d+/global_step=(?P<step>\d+), "
            rb"RunningAvgSamplesPerSec=[^,\s]{1,30}, CurrSamplesPerSec=(?P<rate>" + _RATE + rb"),",
        ),
        step(
            b"SamplesPerSec=",
            _STAMP + rb"(?<![=\d])(?P<epoch>\d+)/(?P<step>\d+), (?:RunningAvg)?SamplesPerSec=[^,\s]{1,30}"
            rb"(?:, CurrSamplesPerSec=(?P<rate>" + _RATE + rb"))?(?:,|\s|$)",
        ),
        step(
            b" iter time (s): ",
            _STAMP + rb"\bsteps: (?P<step>\d+) loss: [-\w.]{1,20} iter time \(s\): (?P<duration_s>\d+\.\d+) "
            rb"samples/sec: (?P<rate>\d+\.\d+)",
        ),
    ),
    patterns=(
        fact(b"dist_world_size=", rb"\bdist_world_size=(?P<world_size>\d{1,7})"),
        fact(b"num_local_procs=", rb"\bnnodes=(?P<nodes>\d{1,6}), num_local_procs=(?P<gpus_per_node>\d{1,4})"),
        fact(b"DeepSpeed info: version=", rb"DeepSpeed info: version=(?P<deepspeed>[\w.+-]{1,40})"),
        *table(_SETTINGS, _facts),
        fact(b"world_size .", rb"print\] +world_size \.{2,40} (?P<data_parallel>\d{1,7})"),
        pause(b" is about to be saved", rb"(?P<reason>Checkpoint) [^\n]{1,200} is about to be saved"),
    ),
    numbered="run",
)
