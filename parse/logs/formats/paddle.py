"""Paddle's suites: ResNet-50, PLSC, benchmark programs with samples or tokens, PaddleNLP."""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, evaluation, fact, pause, step, summary
from parse.logs.engine.shared_patterns import COST, DATED, PATTERNS, STAMP, TRAINER_BATCHES, digits

# Paddle's ResNet50: PaddlePaddle/models image_classification (1.4 to 2.0), and PaddleClas, which took its place.
#
# image_classification numbers from 0, on trainer 0: `elapse` is how long the step took, `batch_cost` the mean since the
# line before; `ips` is batch_size / batch_cost, and its batch_size that of all devices of one machine. PaddleClas's
# static graph prints one rank's running means, which leave out the first steps of an epoch; its dynamic one did until
# 2023 and prints means since the line before now, in the same words: of its lines only the time stamp counts. MLPerf's
# program (`Train Pass 1, batch 40, …`) prints the rate of all trainers since the line before.

_PADDLE_RESNET50_TIME = rb"(?P<time>\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)"
_PADDLE_RESNET50_STAMP = rb"(?:" + _PADDLE_RESNET50_TIME + rb"[^<\n]{0,60}?)?"
_PASS = _PADDLE_RESNET50_STAMP + rb"\[Pass (?P<epoch>\d+), train batch (?P<step>\d+)\][^[\n]{1,160}?"
_LAUNCH = rb"LAUNCH INFO [\d-]{10} [\d:,]{8,16} +"
_CLAS = _PADDLE_RESNET50_TIME + rb"\]?(?: - INFO - | (?:root |ppcls )?INFO: )"

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


PADDLE_RESNET50 = LogFormat(
    name="paddle-resnet50",
    title="PaddlePaddle ResNet50 (models image_classification, PaddleClas)",
    printed="durations",
    publishes_mean=True,
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
            _PADDLE_RESNET50_STAMP + rb"Pass (?P<epoch>\d+), trainbatch (?P<step>\d+), loss [^[\n]{1,200}?"
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
        pause(b", test ", _PADDLE_RESNET50_STAMP + rb"\[Pass \d+, (?P<reason>test) +batch \d+\]"),
        pause(b",testbatch ", _PADDLE_RESNET50_STAMP + rb"Pass \d+,(?P<reason>test)batch \d+,"),
        pause(b"validate start", _PADDLE_RESNET50_STAMP + rb"ExponentialMovingAverage (?P<reason>validate) start"),
        pause(b"[Eval][Epoch ", _CLAS + rb"\[(?P<reason>Eval)\]\[Epoch \d+\]\["),
        pause(b" step:", _CLAS + rb"(?P<reason>valid|eval) step:\d+ "),
        pause(b"END epoch:", _CLAS + rb"(?P<reason>END epoch):\d+ "),
        pause(b"[End pass ", _PADDLE_RESNET50_STAMP + rb"\[(?P<reason>End pass) \d+\]"),
        pause(b"End pass ", _PADDLE_RESNET50_STAMP + rb"(?<!\[)(?P<reason>End pass) \d+,"),
        pause(b"Already save model in ", _PADDLE_RESNET50_STAMP + rb"Already (?P<reason>save model) in "),
        pause(b"Test Pass ", rb"(?P<reason>Test) Pass \d+, loss "),
        evaluation(b"Test Pass ", rb"Test Pass (?P<epoch>\d+), loss [\d.]{1,24}, acc1 (?P<top1>[01]\.\d+),", _shares),
        evaluation(
            b", test_acc1 ",
            _PADDLE_RESNET50_STAMP + rb"\[?End pass (?P<epoch>\d+)\b.{0,200}?, test_acc1 (?P<top1>[01]\.\d+),",
            _shares,
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
"""Numbers restart in every pass. The protocol publishes the mean of whole batch / printed duration; `ips` is the rate
of one machine's devices, which is all of them only where there is one machine."""


# PLSC, face recognition by Paddle: version 1 (`Pass:0 batch:50 … qps:`) and version 2 (`step: 200 … throughput:`).
#
# Both print the rate of all trainers together. Version 1 leaves out the reader's time, numbers from 0 and prints on
# every trainer; version 2 takes in everything, evaluation too, and numbers from 1 through the whole run.

_PLSC_TIME = rb"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?|\d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d)"
_PLSC_STAMP = rb"(?:" + _PLSC_TIME + rb"[^<\n]{0,60}?)?"

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


PLSC = LogFormat(
    name="plsc",
    title="PaddlePaddle PLSC",
    steps=(
        step(
            b"throughput: ",
            _PLSC_STAMP + rb"loss [^ \n]+ lr: [^ \n]+ epoch: (?P<epoch>\d+), step: (?P<step>\d+), "
            rb"eta: [^,\n]{1,40}, throughput: (?P<rate>\d+\.\d+) ",
        ),
        step(
            b" qps:",
            _PLSC_STAMP + rb"Pass:(?P<epoch>\d+) batch:(?P<step>\d+) lr:[^ \n]+ loss:[^ \n]+ qps:(?P<rate>\d+\.\d\d)",
        ),
    ),
    patterns=(
        fact(
            b"Training: ",
            rb"Training: " + _PLSC_TIME + rb" - (?P<name>" + _either(_NAMES_2) + rb"): (?P<value>.*)",
            _fact,
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
        pause(b"]XNorm: ", _PLSC_STAMP + rb"\[[^]\n]{1,60}\](?:\[\d+\]){1,3}XNorm: ", reason="verification"),
        evaluation(
            b"]Accuracy-Flip: ",
            _PLSC_STAMP
            + rb"\[(?P<set>[^]\n]{1,60})\](?:\[\d+\]){0,2}\[(?P<step>\d+)\]Accuracy-Flip: (?P<accuracy>\d+\.\d+)\+",
            _verification,
        ),
        pause(b"test time: ", _PLSC_STAMP + rb"(?P<reason>test) time: "),
        pause(b"Save model to ", _PLSC_STAMP + rb"(?P<reason>Save model) to "),
        pause(b"End pass ", _PLSC_STAMP + rb"(?P<reason>End pass) \d+, "),
    ),
    numbered="run",
    publishes_mean=True,
    warmup=50,
    total=150,
    model="ResNet50",
    task="arcface",
)
"""In version 1 numbers restart in every pass; its published runs have one."""


# Paddle 2's suites: PaddleNLP, PaddleSeg, PaddleDetection, PaddleOCR, PaddleRec, and programs of their making.
#
# `ips` is the rate of the one rank that prints, with the reader's time: the samples since the line before by their
# time; in PaddleDetection the batch by the mean of the last `log_iter` steps, which is the same. PaddleClas and
# PaddleVideo are read as `paddle-resnet50`; lines whose `ips` counts tokens or words as `paddle-tokens`.

_RATE = rb"(?P<rate>\d+\.\d+) (?:sequences|samples|images|instances?|examples?|ins)/s"

PADDLE_SUITES = LogFormat(
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


# Paddle 2's language models: PaddleNLP's GPT (`ips: 499 tokens/s`) and Transformer (`ips: 37152.57 words/sec`).
#
# `ips` is the rate of the one rank that prints, over the steps since the line before; its words are the pieces of the
# vocabulary, that is, tokens. `ips_total` is that of all ranks, and is not read.

PADDLE_TOKENS = LogFormat(
    name="paddle-tokens",
    title="PaddleNLP language models",
    unit="tokens",
    steps=(
        step(
            b" tokens/s",
            STAMP + rb"global step (?P<step>\d+), epoch: \d+, batch: \d+, [^\n\[]{1,300}?"
            rb"avg_batch_cost: " + COST + rb" sec, (?:speed: [\d.]{1,24} step/s, )?(?:ips_total: \d+ tokens/s, )?"
            rb"ips: (?P<rate>\d+(?:\.\d+)?) tokens/s",
        ),
        step(
            b" words/sec",
            STAMP + rb"step_idx: (?P<step>\d+), epoch: \d+, batch: \d+, [^\n\[]{1,300}?"
            rb"batch_cost: " + COST + rb" sec, [^\n\[]{1,120}?ips: (?P<rate>\d+\.\d+) words/sec",
        ),
    ),
    patterns=PATTERNS,
    rates="rank",
)


# The Trainer of PaddleNLP (paddlenlp/trainer/trainer.py, `_maybe_log_save_evaluate`): a line per `logging_steps`.
#
# `interval_runtime` are the seconds since the line before. Of its rates none is taken: until 2023
# `interval_samples_per_second` counted one step of an interval of several.

PADDLENLP = LogFormat(
    name="paddlenlp",
    title="PaddleNLP Trainer",
    printed="durations",
    steps=(
        step(
            b"interval_runtime: ",
            rb"(?:" + DATED + rb"[^\n]{0,60}?)?\bloss: [-\w.]{1,24}, learning_rate: [-\w.]{1,24}, "
            rb"global_step: (?P<step>\d+), [^\n]{0,400}?interval_runtime: (?P<elapsed_s>\d+\.\d+)",
        ),
    ),
    patterns=(
        fact(b"world_size ", rb"\bworld_size +: ?(?P<world_size>\d+)"),
        fact(
            b"batch size per device = ",
            rb"Instantaneous batch size per device = (?P<micro_batch_size>[\d,]{1,12})",
            digits,
        ),
        *TRAINER_BATCHES,
        pause(b"***** Running Evaluation", rb"(?P<reason>Running Evaluation)"),
        pause(b"Saving model checkpoint to ", rb"(?P<reason>Saving model checkpoint) to "),
        summary(b"train_samples_per_second", rb"\b(?P<what>train_samples_per_second)(?: += +|: )(?P<rate>[\d.]{1,20})"),
    ),
    numbered="run",
)
