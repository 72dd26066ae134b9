"""NVIDIA NeMo: lines of NeMo 2 (nemo/lightning/pytorch/callbacks/progress_printer.py), the progress bar of NeMo 1.

`train_step_timing in s` are the seconds of the last step. NeMo 2 numbers from 0, up to `max_steps - 1`, in each epoch.
The bar's values are rounded to three digits where that is shorter, and lag a step behind its number: of them only the
batch is read, from a line that has `consumed_samples` and `global_step` (from 0) whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, fact, pause, step
from parse.logs.engine.shared_patterns import BAR, DATED, LIGHTNING_WORLD, RUNTIME, table

_SETTINGS = {
    "global_batch_size": "global_batch_size", "micro_batch_size": "micro_batch_size",
    "encoder_seq_length": "sequence_length", "seq_length": "sequence_length", "num_layers": "num_layers",
    "hidden_size": "hidden_size", "tensor_model_parallel_size": "tensor_parallel",
    "pipeline_model_parallel_size": "pipeline_parallel", "context_parallel_size": "context_parallel",
}  # fmt: skip
_LINE = (
    rb"(?:" + DATED + rb"[^\n]{0,40}?)?Training epoch (?P<epoch>\d+), iteration (?P<step>\d+)/\d+ \|"
    rb"[^\n]{0,400}? "
)
_CONSUMED = rb"consumed_samples: (?P<consumed>\d{1,15}) \|"
_TIMING = rb"train_step_timing in s: (?P<duration_s>[\d.]{1,16}(?:e[+-]?\d{1,3})?)(?:\s|$)"


def _batch(match: re.Match[bytes]) -> Mapping[str, str]:
    """The samples of a step. Raises ValueError where the numbers are not whole."""
    steps, consumed = int(match["step"]) + 1, int(match["consumed"])
    if consumed % steps or not consumed:
        raise ValueError("the batch is not the same in all steps")
    return {"global_batch_size": str(consumed // steps)}


FORMAT = LogFormat(
    name="nemo",
    title="NVIDIA NeMo",
    mean="durations",
    steps=(
        step(b"train_step_timing in s: ", _LINE + _CONSUMED + rb"[^\n]{0,400}? " + _TIMING),
        step(
            b"train_step_timing in s: ",
            _LINE + _TIMING + rb"(?:[^\n]{0,200}?consumed_samples: (?P<consumed>\d{1,15})(?:\s|$))?",
        ),
        step(
            b"reduced_train_loss=",
            rb"\bEpoch (?P<epoch>\d+): :? *"
            + BAR
            + rb"(?P<step>\d+)/[\d?]+"
            + RUNTIME
            + rb"[^\n]{0,200}?reduced_train_loss=",
        ),
    ),
    patterns=(
        fact(
            b"consumed_samples=",
            rb"\bglobal_step=(?P<step>\d{1,9})\.0*, consumed_samples=(?P<consumed>\d{1,12})\.0*[,\]]",
            _batch,
        ),
        fact(b"global_batch_size: ", rb"\| global_batch_size: (?P<global_batch_size>\d{1,9}) \|"),
        *LIGHTNING_WORLD,
        *table(_SETTINGS, dict),
        pause(b"Validation DataLoader", rb"(?P<reason>Validation) DataLoader"),
        pause(b"Validation: ", rb"(?P<reason>Validation): iteration "),
        pause(b"Saving ", rb"(?P<reason>Saving) (?:model )?checkpoint"),
    ),
    bars=True,
)
