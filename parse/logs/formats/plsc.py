"""PLSC, face recognition by Paddle: version 1 (`Pass:0 batch:50 … qps:`) and version 2 (`step: 200 … throughput:`).

Both print the rate of all trainers together. Version 1 leaves out the reader's time, numbers from 0 and prints on every
trainer; version 2 takes in everything, evaluation too, and numbers from 1 through the whole run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, evaluation, fact, pause, step

_TIME = rb"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?|\d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d)"
_STAMP = rb"(?:" + _TIME + rb"[^<\n]{0,60}?)?"

_NAMES_2 = {
    "batch_size": "batch_size", "total_batch_size": "global_batch_size", "world_size": "world_size",
    "num_classes": "classes", "log_interval_step": "print_every", "steps_per_epoch": "steps_per_epoch",
    "total_epoch": "epochs", "seed": "seed", "dataset": "dataset", "use_synthetic_dataset": "data",
    "fp16": "precision", "backbone": "model", "sample_ratio": "sample_ratio", "model_parallel": "model_parallel",
    "is_static": "is_static", "loss": "loss",
}  # fmt: skip
_NAMES_1 = {
    "model_name": "model", "model": "model", "num_classes": "classes", "train_epochs": "epochs",
    "train_image_num": "samples_per_epoch", "sample_ratio": "sample_ratio", "model_parallel": "model_parallel",
    "loss_type": "loss",
}  # fmt: skip
"""Settings of version 1; the defaults that it prints before may be changed afterwards and are not read."""
_MIXED = {"Use mixed precision training": "precision"}
_MODEL = re.compile(r"^(?:<[\w.]*\.)?(?:Fres)?(\w+)")
"""The name in `FresResNet50` and in `<plsc.models.resnet.ResNet object at 0x…>`."""
_PRECISIONS = {"True": "amp-fp16", "False": "fp32"}


def _fact(match: re.Match[bytes]) -> Mapping[str, str]:
    """One line of a printed configuration. Raises ValueError if its value has no meaning."""
    setting, value = match["name"].decode(), match["value"].decode(errors="replace").strip()
    name = (_NAMES_1 | _NAMES_2 | _MIXED)[setting]
    if value in ("None", ""):
        raise ValueError(f"{setting} is not given")
    if name == "precision":
        return {name: _PRECISIONS.get(value, value)}
    if name == "data":
        return {name: "synthetic" if value == "True" else "real"}
    if name == "model" and (model_match := _MODEL.search(value)):
        return {name: model_match[1]}
    return {name: value}


def _verification(match: re.Match[bytes]) -> Mapping[str, str]:
    """The accuracy of a verification set in percent: correctly classified pairs, which is no top-1 accuracy."""
    accuracy = f"{100 * float(match['accuracy']):.3f}"
    return {"set": match["set"].decode(errors="replace"), "step": match["step"].decode(), "verification": accuracy}


def _either(names: Mapping[str, str]) -> bytes:
    return b"|".join(name.encode() for name in names)


FORMAT = LogFormat(
    name="plsc",
    title="PaddlePaddle PLSC",
    steps=(
        step(
            b"throughput: ",
            _STAMP + rb"loss [^ \n]+ lr: [^ \n]+ epoch: (?P<epoch>\d+), step: (?P<step>\d+), "
            rb"eta: [^,\n]{1,40}, throughput: (?P<rate>\d+\.\d+) ",
        ),
        step(
            b" qps:",
            _STAMP + rb"Pass:(?P<epoch>\d+) batch:(?P<step>\d+) lr:[^ \n]+ loss:[^ \n]+ qps:(?P<rate>\d+\.\d\d)",
        ),
    ),
    patterns=(
        fact(
            b"Training: ", rb"Training: " + _TIME + rb" - (?P<name>" + _either(_NAMES_2) + rb"): (?P<value>.*)", _fact
        ),
        fact(
            b"read label file finished, total num: ",
            rb"read label file finished, total num: (?P<samples_per_epoch>\d+)",
        ),
        *(
            fact(
                b"Set %b to " % name.encode(),
                rb"Set (?P<name>%b) to (?P<value>.{1,200}?)(?: by user)?(?:,|\.?\s*$)" % name.encode(),
                _fact,
            )
            for name in _NAMES_1
        ),
        fact(b"Set train batch size ", rb"Set train batch size (?:per trainer )?to (?P<batch_size>\d+)\b"),
        fact(b"num_trainers: ", rb"trainer_id: (?P<rank>\d+), num_trainers: (?P<world_size>\d+)"),
        fact(b"Set log period to ", rb"Set log period to (?P<print_every>\d+)"),
        fact(b"Use mixed precision training: ", rb"(?P<name>Use mixed precision training): (?P<value>\w+)", _fact),
        pause(b"]XNorm: ", _STAMP + rb"\[[^]\n]{1,60}\](?:\[\d+\]){1,3}XNorm: ", reason="verification"),
        evaluation(
            b"]Accuracy-Flip: ",
            _STAMP
            + rb"\[(?P<set>[^]\n]{1,60})\](?:\[\d+\]){0,2}\[(?P<step>\d+)\]Accuracy-Flip: (?P<accuracy>\d+\.\d+)\+",
            _verification,
        ),
        pause(b"test time: ", _STAMP + rb"(?P<reason>test) time: "),
        pause(b"Save model to ", _STAMP + rb"(?P<reason>Save model) to "),
        pause(b"End pass ", _STAMP + rb"(?P<reason>End pass) \d+, "),
    ),
    numbered="run",
    warmup=50,
    total=150,
    model="ResNet50",
    task="arcface",
)
"""In version 1 numbers restart in every pass; its published runs have one."""
