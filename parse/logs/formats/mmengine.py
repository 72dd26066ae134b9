"""OpenMMLab's trainers: mmengine's Runner (`Epoch(train) [1][ 50/1000]`) and mmcv's before it (`Epoch [1][50/1000]`).

`time` is the seconds of a step, with the wait for input: mmengine prints the mean of the last steps (LogProcessor's
`window_size`, 10 where a configuration does not say 50), mmcv the mean since the line before (`log_buffer.average`).
One rank prints. There is no rate; the batch is in the configuration that is printed first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, block, evaluation, fact, pause, step

_STAMP = (
    rb"(?:(?P<time>(?:\d{4}/)?\d\d/\d\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)?)"
    rb"(?: - [\w.]{1,40})? - INFO - )?"
)
_TIME = rb"(?:[^\n\[]{1,400}?[ ,]time: (?P<duration_s>\d+\.\d+))?"
_EPOCH = rb" *\[ *(?P<epoch>\d+)\]\[ *(?P<step>\d+)/(?P<epoch_steps>\d+)\]"
_ITER = rb" *\[ *(?P<step>\d+)/\d+\]"
_PRECISIONS = {"AmpOptimWrapper": "amp-fp16", "OptimWrapper": "fp32"}


def _precision(match: re.Match[bytes]) -> Mapping[str, str]:
    """The precision of an optimizer's wrapper. Raises ValueError for one that is not mmengine's own."""
    settings = dict(
        re.findall(r"(?:\n    |\(|, )(type|dtype)='(\w{1,40})'", match["settings"].decode(errors="replace"))
    )
    if settings.get("type") not in _PRECISIONS:
        raise ValueError("another wrapper")
    half = settings["type"] == "AmpOptimWrapper" and settings.get("dtype") == "bfloat16"
    return {"precision": "bf16" if half else _PRECISIONS[settings["type"]]}


FORMAT = LogFormat(
    name="mmengine",
    title="OpenMMLab (mmengine, mmcv)",
    steps=(
        step(b"Epoch(train)", _STAMP + rb"Epoch\(train\)" + _EPOCH + _TIME),
        step(b"Iter(train)", _STAMP + rb"Iter\(train\)" + _ITER + _TIME),
        step(b" - Epoch [", _STAMP + rb"Epoch" + _EPOCH + rb"\s+lr: " + _TIME),
        step(b" - Iter [", _STAMP + rb"Iter" + _ITER + rb"\s+lr: " + _TIME),
    ),
    patterns=(
        fact(b"GPU number: ", rb"^\s*GPU number: (?P<world_size>\d+)\s*$"),
        fact(b"the current batch size is ", rb"and the current batch size is (?P<global_batch_size>\d+)\."),
        fact(b"samples_per_gpu=", rb"^(?:data = dict\()?\s*samples_per_gpu=(?P<batch_size>\d+),"),
        block(
            b"train_dataloader = dict(",
            rb"^train_dataloader = dict\(\s{1,8}(?:batch_size=|(?:    [^\n]{0,200}\n){1,60}?    batch_size=)"
            rb"(?P<batch_size>\d+),",
        ),
        block(
            b"optim_wrapper = dict(",
            rb"^optim_wrapper = dict(?P<settings>\([^\n]{0,400}(?:\n    [^\n]{0,200}){0,40})",
            _precision,
        ),
        fact(b"fp16 = dict(", rb"^fp16 = dict\(", precision="amp-fp16"),
        fact(b"Exp name: ", rb"Exp name: (?P<model>[\w.-]{1,120}?)(?:_\d{8}_\d{6}|\.py)?\s*$"),
        pause(b"(val) ", _STAMP + rb"(?:Epoch|Iter)\((?P<reason>val)\) *\["),
        pause(b"Saving checkpoint at ", _STAMP + rb"(?P<reason>Saving checkpoint) at "),
        evaluation(
            b"accuracy/top1: ",
            _STAMP
            + rb"(?:Epoch|Iter)\(val\) *\[(?:(?P<epoch>\d+)\]\[)?[^\n\[]{1,400}?accuracy/top1: (?P<top1>\d+\.\d+)",
        ),
        evaluation(
            b"accuracy_top-1: ",
            _STAMP + rb"Epoch\(val\) *\[(?P<epoch>\d+)\]\[[^\n\[]{1,400}?accuracy_top-1: (?P<top1>\d+\.\d+)",
        ),
    ),
    mean="durations",
)
"""Steps are numbered from 1, in every epoch or, where a trainer counts iterations, through the run."""
