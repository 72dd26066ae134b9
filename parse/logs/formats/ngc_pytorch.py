"""NVIDIA DeepLearningExamples, PyTorch image classification: dllogger's text and JSON, raport.json."""

from __future__ import annotations

from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, evaluation, fact, pause, step, summary
from parse.logs.engine.shared_patterns import ABSENT, JSON, STAMP, parameters

_NAMES = {
    "arch": "model", "batch_size": "batch_size", "world_size": "world_size", "epochs": "epochs",
    "print_freq": "print_every", "data_backend": "data", "seed": "seed", "num_classes": "classes",
}  # fmt: skip


def _facts(flags: Mapping[str, str]) -> dict[str, str]:
    facts = {name: flags[flag] for flag, name in _NAMES.items() if flags.get(flag, "") not in ABSENT}
    if amp := flags.get("amp", flags.get("fp16")):
        facts["precision"] = "amp-fp16" if "true" in (amp.lower(), flags.get("fp16", "").lower()) else "fp32"
    whole, local, world = (flags.get(name, "") for name in ("optimizer_batch_size", "batch_size", "world_size"))
    if whole.isdigit() and local.isdigit() and world.isdigit() and int(local) * int(world):
        facts["accumulation"] = str(int(whole) // (int(local) * int(world)))
    return facts


FORMAT = LogFormat(
    name="ngc-pytorch",
    title="NVIDIA DeepLearningExamples PyTorch image classification",
    steps=(
        step(
            b"train.total_ips : ",
            STAMP + rb"Epoch: (?P<epoch>\d+) Iteration: (?P<step>\d+) +(?:train\.loss : \S+ +(?:None +)?)?"
            rb"(?:train\.compute_ips : \S+ \S+ +)?train\.total_ips : (?P<rate>[\d.]+) ",
        ),
        step(
            b'"train.total_ips": ',
            JSON + rb'"step": \[(?P<epoch>\d+), (?P<step>\d+)\].{0,300}?"train\.total_ips": (?P<rate>[\d.]+)[,}]',
        ),
    ),
    patterns=(
        *parameters(_facts),
        pause(
            b" Validation Iteration: ",
            STAMP + rb"Epoch: (?P<epoch>\d+) Iteration: \d+ (?P<reason>Validation) Iteration: ",
        ),
        fact(
            b" Validation Iteration: ",
            STAMP + rb"Epoch: \d+ Iteration: (?P<steps_per_epoch>\d+) Validation Iteration: ",
        ),
        evaluation(
            b"val.top1 : ",
            STAMP + rb"Epoch: (?P<epoch>\d+) +(?:train\.loss : [^%\n]{0,300}?)?val\.top1 : (?P<top1>[\d.]+) %",
        ),
        evaluation(b'"val.top1": ', JSON + rb'"step": \[(?P<epoch>\d+)\].{0,300}?"val\.top1": (?P<top1>[\d.]+)'),
        pause(b'"val.', JSON + rb'"step": \[(?P<epoch>\d+), \d+, \d+\].{0,300}?"(?P<reason>val)\.'),
        fact(b'"val.', JSON + rb'"step": \[\d+, (?P<steps_per_epoch>\d+), \d+\].{0,300}?"val\.'),
        summary(b"Summary: ", STAMP + rb"Summary: .*?(?P<what>train\.total_ips) : (?P<rate>[\d.]+)"),
        summary(
            b"Summary: ",
            STAMP + rb"Summary: (?!.*train\.total_ips).*?(?P<what>train\.compute_ips) : (?P<rate>[\d.]+)",
        ),
        pause(b"SAVING ", rb"(?P<reason>SAVING) "),
        fact(b"--nnodes ", rb"--nnodes (?P<nodes>\d+) "),
    ),
)
