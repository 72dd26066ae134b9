"""The Trainer of Hugging Face transformers, and programs upon it (LLaMA-Factory's trainer_log.jsonl).

Its dictionaries (`{'loss': …, 'epoch': …}`) have no step and no time: the steps are those of its progress bar, a bare
one of tqdm, by whole seconds since it began. Evaluation and data sets have bars of their own. A step of the bar is one
of the optimizer, whatever the accumulation. Many programs draw such bars, of downloads too: the Trainer's own
lines must be in the log.
"""

from __future__ import annotations

from parse.logs.engine.log_format import LogFormat, fact, pause, step, summary
from parse.logs.engine.shared_patterns import BAR, RUNTIME, TRAINER_BATCHES, digits

_BARE = rb"(?:^(?: {0,6}(?P<rank>\d{1,6}): )?|(?<=>:)|(?<=\]:)|(?<=\]: )) {0,8}"
"""A bar without a description begins its line, or follows a launcher's label."""

FORMAT = LogFormat(
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
