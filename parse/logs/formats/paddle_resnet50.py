"""Paddle's ResNet50: PaddlePaddle/models image_classification (1.4 to 2.0), and PaddleClas, which took its place.

image_classification numbers from 0, on trainer 0: `elapse` is how long the step took, `batch_cost` the mean since the
line before; `ips` is batch_size / batch_cost, and its batch_size that of all devices of one machine.
PaddleClas prints one rank's means since the fifth or tenth step of the epoch: of its lines only the time stamp counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, LogPattern, StepLine

_TIME = rb"(?P<time>\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)"
_STAMP = rb"(?:" + _TIME + rb"[^<\n]{0,60}?)?"
_PASS = _STAMP + rb"\[Pass (?P<epoch>\d+), train batch (?P<step>\d+)\][^[\n]{1,160}?"
_CLAS = _TIME + rb"\]?(?: - INFO - | (?:root |ppcls )?INFO: )"

_ARGUMENTS = {
    "batch_size": "node_batch_size", "print_step": "print_every", "model": "model", "num_epochs": "epochs",
    "total_images": "samples_per_epoch", "class_dim": "classes", "random_seed": "seed", "use_dali": "data",
    "use_fp16": "precision", "use_amp": "precision", "use_pure_fp16": "precision", "data_format": "data_format",
    "use_dynamic_loss_scaling": "use_dynamic_loss_scaling", "warm_up_epochs": "warmup_epochs",
}  # fmt: skip
"""Names of printed arguments and of facts. `node_batch_size` is that of all devices of one machine."""


def _argument(match: re.Match[bytes]) -> Mapping[str, str]:
    """One line of the printed arguments. Raises ValueError where its value says nothing."""
    argument, value = match["name"].decode(), match["value"].decode(errors="replace").strip()
    name = _ARGUMENTS[argument]
    if value in ("None", "") or (argument in ("use_dali", "use_amp", "use_pure_fp16") and value != "True"):
        raise ValueError(f"{argument} is not given")
    if name == "precision":
        return {name: "amp-fp16" if value == "True" else "fp32"}
    return {name: "dali" if argument == "use_dali" else value}


def _shares(match: re.Match[bytes]) -> Mapping[str, str]:
    """An evaluation whose accuracy is printed as a share."""
    accuracy = {"top1": f"{100 * float(match['top1']):.3f}"}
    return {"epoch": match["epoch"].decode(), **accuracy} if "epoch" in match.re.groupindex else accuracy


FORMAT = LogFormat(
    name="paddle-resnet50",
    title="PaddlePaddle ResNet50 (models image_classification, PaddleClas)",
    mean="paces",
    steps=(
        StepLine(marker=b", elapse ", pattern=re.compile(_PASS + rb", elapse (?P<duration_s>\d+\.\d+) sec")),
        StepLine(
            marker=b", batch_cost ",
            pattern=re.compile(
                _PASS + rb", batch_cost (?P<duration_s>\d+\.\d+) sec(?:, reader_cost [\d.]+ sec)?"
                rb", ips (?P<rate>\d+\.\d+) images/sec"
            ),
        ),
        StepLine(
            marker=b", trainbatch ",
            pattern=re.compile(
                _STAMP + rb"Pass (?P<epoch>\d+), trainbatch (?P<step>\d+), loss [^[\n]{1,200}?"
                rb", time (?P<duration_s>\d+\.\d+) sec"
            ),
        ),
        StepLine(
            marker=b"[Train][Epoch ",
            pattern=re.compile(
                _CLAS + rb"\[Train\]\[Epoch (?P<epoch>\d+)/\d+\]\[Iter: ?(?P<step>\d+)/(?P<epoch_steps>\d+)\]"
            ),
        ),
        StepLine(
            marker=b" train step:",
            pattern=re.compile(_CLAS + rb"epoch:(?P<epoch>\d+) *,? train step:(?P<step>\d+)[ ,]"),
        ),
    ),
    patterns=(
        *(
            LogPattern(
                kind="facts",
                marker=b" %b : " % name.encode(),
                pattern=re.compile(rb"^(?!.* INFO: ).*?(?<!\w)(?P<name>%b) : (?P<value>.*)" % name.encode()),
                values=_argument,
            )
            for name in _ARGUMENTS
        ),
        LogPattern(
            kind="facts",
            marker=b" name : ResNe",
            pattern=re.compile(rb"INFO: +name : (?P<model>ResNe[Xx]?t\w+)"),
        ),
        LogPattern(
            kind="facts",
            marker=b"train with paddle ",
            pattern=re.compile(rb"train with paddle (?P<paddle>[\w.]+)(?:, commit id \w+)? and device (?P<place>.+)"),
        ),
        LogPattern(
            kind="pause",
            marker=b", test ",
            pattern=re.compile(_STAMP + rb"\[Pass \d+, (?P<why>test) +batch \d+\]"),
        ),
        LogPattern(
            kind="pause",
            marker=b",testbatch ",
            pattern=re.compile(_STAMP + rb"Pass \d+,(?P<why>test)batch \d+,"),
        ),
        LogPattern(
            kind="pause",
            marker=b"validate start",
            pattern=re.compile(_STAMP + rb"ExponentialMovingAverage (?P<why>validate) start"),
        ),
        LogPattern(
            kind="pause", marker=b"[Eval][Epoch ", pattern=re.compile(_CLAS + rb"\[(?P<why>Eval)\]\[Epoch \d+\]\[")
        ),
        LogPattern(
            kind="pause",
            marker=b" step:",
            pattern=re.compile(_CLAS + rb"(?P<why>valid|eval) step:\d+ "),
        ),
        LogPattern(kind="pause", marker=b"END epoch:", pattern=re.compile(_CLAS + rb"(?P<why>END epoch):\d+ ")),
        LogPattern(kind="pause", marker=b"[End pass ", pattern=re.compile(_STAMP + rb"\[(?P<why>End pass) \d+\]")),
        LogPattern(kind="pause", marker=b"End pass ", pattern=re.compile(_STAMP + rb"(?<!\[)(?P<why>End pass) \d+,")),
        LogPattern(
            kind="pause",
            marker=b"Already save model in ",
            pattern=re.compile(_STAMP + rb"Already (?P<why>save model) in "),
        ),
        LogPattern(
            kind="evaluation",
            marker=b", test_acc1 ",
            pattern=re.compile(
                _STAMP + rb"\[?End pass (?P<epoch>\d+)\b.{0,200}?, test_acc1 (?P<top1>[01]\.\d+),",
            ),
            values=_shares,
        ),
        LogPattern(
            kind="evaluation",
            marker=b"[Eval][Epoch ",
            pattern=re.compile(_CLAS + rb"\[Eval\]\[Epoch (?P<epoch>\d+)\]\[Avg\].{0,300}?\btop1: (?P<top1>[01]\.\d+)"),
            values=_shares,
        ),
        LogPattern(
            kind="evaluation",
            marker=b"END valid ",
            pattern=re.compile(_CLAS + rb"END valid .{0,300}?\btop1(?:_avg)?: (?P<top1>[01]\.\d+)"),
            values=_shares,
        ),
        LogPattern(
            kind="evaluation",
            marker=b"END epoch:",
            pattern=re.compile(
                _CLAS + rb"END epoch:(?P<epoch>\d+) +valid .{0,300}?\btop1(?:_avg)?: (?P<top1>[01]\.\d+)"
            ),
            values=_shares,
        ),
    ),
)
"""Numbers start anew in every pass. The rule is the mean of whole batch / printed duration; `ips` is the rate of one
machine's devices, which is all of them only where there is one machine."""
