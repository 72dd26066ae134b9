"""Paddle's ResNet50: PaddlePaddle/models image_classification (1.4 to 2.0), and PaddleClas, which took its place.

image_classification numbers from 0, on trainer 0: `elapse` is how long the step took, `batch_cost` the mean since the
line before; `ips` is batch_size / batch_cost, and its batch_size that of all devices of one machine.
PaddleClas's static graph prints one rank's running means, which leave out the first steps of an epoch; its dynamic one
did until 2023 and prints means since the line before now, in the same words: of its lines only the time stamp counts.
MLPerf's program (`Train Pass 1, batch 40, …`) prints the rate of all trainers since the line before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, evaluation, fact, pause, step

_TIME = rb"(?P<time>\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)"
_STAMP = rb"(?:" + _TIME + rb"[^<\n]{0,60}?)?"
_PASS = _STAMP + rb"\[Pass (?P<epoch>\d+), train batch (?P<step>\d+)\][^[\n]{1,160}?"
_LAUNCH = rb"LAUNCH INFO [\d-]{10} [\d:,]{8,16} +"
_CLAS = _TIME + rb"\]?(?: - INFO - | (?:root |ppcls )?INFO: )"

_ARGUMENTS = {
    "batch_size": "node_batch_size", "print_step": "print_every", "model": "model", "num_epochs": "epochs",
    "total_images": "samples_per_epoch", "class_dim": "classes", "random_seed": "seed", "use_dali": "data",
    "use_fp16": "precision", "use_amp": "precision", "use_pure_fp16": "precision", "data_format": "data_format",
    "batch_size_train": "batch_size",
    "use_dynamic_loss_scaling": "use_dynamic_loss_scaling", "warm_up_epochs": "warmup_epochs",
}  # fmt: skip
"""Names of printed arguments and of facts. `node_batch_size` is that of all devices of one machine."""


def _argument(match: re.Match[bytes]) -> Mapping[str, str]:
    """One line of the printed arguments. Raises ValueError if its value has no meaning."""
    argument, value = match["name"].decode(), match["value"].decode(errors="replace").strip()
    name = _ARGUMENTS[argument]
    if value in ("None", "") or (argument in ("use_dali", "use_amp", "use_pure_fp16") and value != "True"):
        raise ValueError(f"{argument} is not given")
    if name == "precision":
        return {name: "amp-fp16" if value == "True" else "fp32"}
    return {name: "dali" if argument == "use_dali" else value}


def _launched(match: re.Match[bytes]) -> Mapping[str, str]:
    """The devices of one node, from paddle.distributed.launch's configuration."""
    return {"gpus_per_node": str(match["devices"].count(b",") + 1)}


def _shares(match: re.Match[bytes]) -> Mapping[str, str]:
    """An evaluation whose accuracy is printed as a share."""
    accuracy = {"top1": f"{100 * float(match['top1']):.3f}"}
    return {"epoch": match["epoch"].decode(), **accuracy} if "epoch" in match.re.groupindex else accuracy


FORMAT = LogFormat(
    name="paddle-resnet50",
    title="PaddlePaddle ResNet50 (models image_classification, PaddleClas)",
    mean="paces",
    mean_from=4,
    steps=(
        step(b", elapse ", _PASS + rb", elapse (?P<duration_s>\d+\.\d+) sec"),
        step(
            b", batch_cost ",
            _PASS + rb", batch_cost (?P<duration_s>\d+\.\d+) sec(?:, reader_cost [\d.]+ sec)?"
            rb", ips (?P<rate>\d+\.\d+) images/sec",
        ),
        step(
            b", trainbatch ",
            _STAMP + rb"Pass (?P<epoch>\d+), trainbatch (?P<step>\d+), loss [^[\n]{1,200}?"
            rb", time (?P<duration_s>\d+\.\d+) sec",
        ),
        step(
            b"[Train][Epoch ",
            _CLAS + rb"\[Train\]\[Epoch (?P<epoch>\d+)/\d+\]\[Iter: ?(?P<step>\d+)/(?P<epoch_steps>\d+)\]",
        ),
        # idx 5 (in 2020's versions 10) restarts the means; a step more or less moves differences by under 0.1 %.
        step(
            b" train step:",
            _CLAS + rb"epoch:(?P<epoch>\d+) *,? train step:(?P<step>\d+)[ ,]"
            rb"(?:[^\n]{0,200}?\bbatch_cost: *(?P<mean_s>\d+\.\d+) s,)?",
        ),
        step(
            b"Train Pass ",
            rb"Train Pass (?P<epoch>\d+), batch (?P<step>\d+), [^\n]{0,160}?\btime \d+\.\d+(?: sec)?, "
            rb"speed (?P<rate>\d+\.\d\d)",
        ),
    ),
    patterns=(
        *(
            fact(
                b" %b : " % name.encode(),
                rb"^(?!.* INFO: ).*?(?<!\w)(?P<name>%b) : (?P<value>.*)" % name.encode(),
                _argument,
            )
            for name in _ARGUMENTS
        ),
        fact(b" name : ResNe", rb"INFO: +name : (?P<model>ResNe[Xx]?t\w+)"),
        fact(
            b"train with paddle ", rb"train with paddle (?P<paddle>[\w.]+)(?:, commit id \w+)? and device (?P<place>.+)"
        ),
        fact(b" devices: ", _LAUNCH + rb"devices: (?P<devices>\d+(?:,\d+){0,63})\s*$", _launched),
        fact(b" nnodes: ", _LAUNCH + rb"nnodes: (?P<nodes>[1-9]\d{0,5})\s*$"),
        pause(b", test ", _STAMP + rb"\[Pass \d+, (?P<reason>test) +batch \d+\]"),
        pause(b",testbatch ", _STAMP + rb"Pass \d+,(?P<reason>test)batch \d+,"),
        pause(b"validate start", _STAMP + rb"ExponentialMovingAverage (?P<reason>validate) start"),
        pause(b"[Eval][Epoch ", _CLAS + rb"\[(?P<reason>Eval)\]\[Epoch \d+\]\["),
        pause(b" step:", _CLAS + rb"(?P<reason>valid|eval) step:\d+ "),
        pause(b"END epoch:", _CLAS + rb"(?P<reason>END epoch):\d+ "),
        pause(b"[End pass ", _STAMP + rb"\[(?P<reason>End pass) \d+\]"),
        pause(b"End pass ", _STAMP + rb"(?<!\[)(?P<reason>End pass) \d+,"),
        pause(b"Already save model in ", _STAMP + rb"Already (?P<reason>save model) in "),
        pause(b"Test Pass ", rb"(?P<reason>Test) Pass \d+, loss "),
        evaluation(b"Test Pass ", rb"Test Pass (?P<epoch>\d+), loss [\d.]{1,24}, acc1 (?P<top1>[01]\.\d+),", _shares),
        evaluation(
            b", test_acc1 ", _STAMP + rb"\[?End pass (?P<epoch>\d+)\b.{0,200}?, test_acc1 (?P<top1>[01]\.\d+),", _shares
        ),
        evaluation(
            b"[Eval][Epoch ",
            _CLAS + rb"\[Eval\]\[Epoch (?P<epoch>\d+)\]\[Avg\].{0,300}?\btop1: (?P<top1>[01]\.\d+)",
            _shares,
        ),
        evaluation(b"END valid ", _CLAS + rb"END valid .{0,300}?\btop1(?:_avg)?: (?P<top1>[01]\.\d+)", _shares),
        evaluation(
            b"END epoch:",
            _CLAS + rb"END epoch:(?P<epoch>\d+) +valid .{0,300}?\btop1(?:_avg)?: (?P<top1>[01]\.\d+)",
            _shares,
        ),
    ),
)
"""Numbers restart in every pass. The rule is the mean of whole batch / printed duration; `ips` is the rate of one
machine's devices, which is all of them only where there is one machine."""
