"""Libraries with a training loop: Composer, and the progress bars of Keras, Hugging Face's Trainer and Lightning."""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, fact, heading, pause, step, summary
from parse.logs.engine.shared_patterns import BAR, LIGHTNING_WORLD, RUNTIME, TRAINER_BATCHES, digits, table

# Composer and llm-foundry: blocks that begin with `[batch=10/100]:` (composer/loggers/console_logger.py).
#
# `throughput/samples_per_sec` is the rate of all devices over the last `window_size` batches
# (composer/callbacks/speed_monitor.py): of more than the interval between two blocks where these come more often.
# `time/sample` are the samples before the block's batch. The lines have no time stamps.

_PRECISIONS = {"amp_bf16": "bf16", "amp_fp16": "amp-fp16", "fp32": "fp32"}
_BLOCK = rb"(?:[^\n[]|\[(?!batch=|epoch=))"
"""A character of a block."""
_SETTINGS = {
    "num_gpus_per_node": "gpus_per_node", "num_nodes": "nodes", "n_gpus": "world_size",
    "global_train_batch_size": "global_batch_size", "max_seq_len": "sequence_length", "precision": "precision",
    "composer_version": "composer",
}  # fmt: skip


def _facts(setting: Mapping[str, str]) -> Mapping[str, str]:
    return {name: _PRECISIONS.get(value, value) if name == "precision" else value for name, value in setting.items()}


COMPOSER = LogFormat(
    name="composer",
    title="Composer and llm-foundry",
    steps=(
        step(
            b"Train throughput/samples_per_sec: ",
            rb"(?<!Eval )\[(?:epoch=(?P<epoch>\d+)\]\[)?batch=(?P<step>\d+)(?:/\d+)?\]:(?=[^\n]{0,80}?\t Train )"
            rb"(?>(?:"
            + _BLOCK
            + rb"{0,400}?\sTrain time/sample: (?P<consumed>\d+))?)"
            + _BLOCK
            + rb"{0,6000}?\sTrain throughput/samples_per_sec: (?P<rate>[\d.]{1,24})(?:\s|$)",
        ),
    ),
    patterns=(
        *table(_SETTINGS, _facts),
        pause(b"[Eval batch=", rb"\[(?P<reason>Eval) batch="),
    ),
    continued=re.compile(rb"\n(?=\n?[^\n]{0,80}?\t Train )"),
)


# Keras's progress bars, of Keras 2 and 3, whatever program draws them: the last one of each epoch.
#
# Bars carry neither a time nor an epoch, and how long a step took is a mean since the second step of the epoch, to the
# millisecond; that of the epoch's last bar is read, under the epoch of the line `Epoch 1/5` above it. It takes in the
# validation where the bar has `val_` numbers. Seconds and microseconds (`1s/step`) are too coarse, or are of samples.

_BAR = rb"(?:^|[\s\x08:>])(?P<step>\d+)/(?P<epoch_steps>\d+) "
_TIME = rb"(?:(?P<duration_ms>\d+)ms|\d+[um]?s)/step - "

KERAS = LogFormat(
    name="keras",
    title="Keras progress bars",
    steps=(
        step(b"=] - ", _BAR + rb"\[={1,200}\] - \d+s " + _TIME),
        step("━ ".encode(), _BAR + "(?:━){1,200} ".encode() + rb"(?:\d+:){0,2}\d+s " + _TIME),
        step(b"s/step - ", _BAR + rb"- \d+s - " + _TIME),
    ),
    patterns=(
        heading(b"Epoch ", rb"(?:^|[\s\x08:>])Epoch (?P<epoch>\d+)/\d+\s*$"),
        # Older versions count samples, and call them steps.
        heading(b"Train on ", rb"\bTrain on \d+ samples\b"),
    ),
    printed="durations",
)


# The Trainer of Hugging Face transformers, and programs upon it (LLaMA-Factory's trainer_log.jsonl).
#
# Its dictionaries (`{'loss': …, 'epoch': …}`) have no step and no time: the steps are those of its progress bar, a bare
# one of tqdm, by whole seconds since it began. Evaluation and data sets have bars of their own. A step of the bar is
# one of the optimizer, whatever the accumulation. Many programs draw such bars, of downloads too: the Trainer's own
# lines must be in the log.

_BARE = rb"(?:^(?: {0,6}(?P<rank>\d{1,6}): )?|(?<=>:)|(?<=\]:)|(?<=\]: )) {0,8}"
"""A bar without a description begins its line, or follows a launcher's label."""

HUGGINGFACE = LogFormat(
    name="huggingface",
    title="Hugging Face Trainer",
    steps=(
        step(b"%|", _BARE + BAR + rb"(?P<step>\d+)/(?P<epoch_steps>\d+)" + RUNTIME),
        step(
            b'"current_steps": ',
            rb'"current_steps": (?P<step>\d+), "total_steps": (?P<epoch_steps>\d+), [^\n]{0,800}?'
            rb'"elapsed_time": "(?P<runtime>[\d:]{4,10})"',
        ),
    ),
    patterns=(
        fact(
            b"Instantaneous batch size per ",
            rb"Instantaneous batch size per \w+ = (?P<micro_batch_size>[\d,]{1,12})",
            digits,
        ),
        *TRAINER_BATCHES,
        fact(b"Num examples = ", rb"Num examples = (?P<samples_per_epoch>[\d,]{1,14})", digits),
        fact(b"Num Epochs = ", rb"Num Epochs = (?P<epochs>[\d,]{1,9})\s*$", digits),
        pause(b"_runtime'", rb"'(?P<reason>eval)_runtime': "),
        pause(b"Saving model checkpoint to ", rb"(?P<reason>Saving model checkpoint) to "),
        summary(
            b"train_samples_per_second",
            rb"\b(?P<what>train_samples_per_second)'?(?: += +|: '?)(?P<rate>[\d,.]{1,20})",
            digits,
        ),
    ),
    numbered="run",
    bars=True,
    one_bar=True,
    anywhere=True,
    signs=(b"Num examples = ", b"accumulation) = ", b"'epoch': ", b"train_samples_per_second", b'"current_steps": '),
)


# PyTorch Lightning's progress bar, `Epoch 0:   4%|▍ | 42/1000 [00:12<04:45, …]`.
#
# A step is a batch of every device; the bar knows whole seconds since the epoch began. Before version 2 what it counts
# to holds the batches of the validation, so that nothing says how many steps an epoch has.

LIGHTNING = LogFormat(
    name="lightning",
    title="PyTorch Lightning",
    steps=(step(b"Epoch ", rb"\bEpoch (?P<epoch>\d+): :? *" + BAR + rb"(?P<step>\d+)/[\d?]+" + RUNTIME),),
    patterns=(
        *LIGHTNING_WORLD,
        pause(b"Validation DataLoader", rb"(?P<reason>Validation) DataLoader"),
        pause(b"Validating: ", rb"(?P<reason>Validating): "),
    ),
    bars=True,
    anywhere=True,
)
