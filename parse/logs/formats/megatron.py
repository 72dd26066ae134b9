"""Megatron-LM and its descendants: Megatron-DeepSpeed, GPT-NeoX, Megatron-Bridge, FlagScale, MindSpeed.

One rank prints a line every `log_interval` iterations (megatron/training/training.py, `training_log`): the time is the
mean over the iterations since the line before, `consumed samples` those of the run so far. A batch that grows
(`--rampup-batch-size`) is counted by the latter. In `271.2/270.1` the second time is a mean over more lines.
"""

from __future__ import annotations

from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, evaluation, fact, pause, step
from parse.logs.engine.shared_patterns import DATED, table

_SETTINGS = {
    "global_batch_size": "global_batch_size", "train_batch_size": "global_batch_size",
    "micro_batch_size": "micro_batch_size", "train_micro_batch_size_per_gpu": "micro_batch_size",
    "seq_length": "sequence_length", "num_layers": "num_layers", "hidden_size": "hidden_size",
    "tensor_model_parallel_size": "tensor_parallel", "pipeline_model_parallel_size": "pipeline_parallel",
    "context_parallel_size": "context_parallel", "params_dtype": "precision", "fp8": "fp8",
    "log_interval": "print_every",
}  # fmt: skip
_PRECISIONS = {"torch.float32": "fp32", "torch.float16": "amp-fp16", "torch.half": "amp-fp16", "torch.bfloat16": "bf16"}


def _facts(setting: Mapping[str, str]) -> Mapping[str, str]:
    return {name: _PRECISIONS.get(value, value) if name == "precision" else value for name, value in setting.items()}


FORMAT = LogFormat(
    name="megatron",
    title="Megatron-LM",
    mean="durations",
    steps=(
        step(
            b"elapsed time per iteration (ms): ",
            rb"(?:" + DATED + rb"[^|\n]{0,120}?)?\biteration +(?P<step>\d+)/ *\d+ \|"
            rb"(?: consumed samples: +(?P<consumed>\d+) \|)?(?: consumed tokens: +\d+ \|)?"
            rb" elapsed time per iteration \(ms\): +(?P<duration_ms>\d+\.\d+)",
        ),
    ),
    patterns=(
        fact(b"using world size: ", rb"using world size: (?P<world_size>\d+)"),
        fact(b"batch size: ", rb"\| glob\w{1,2} batch size: +(?P<global_batch_size>\d+) \|"),
        *table(_SETTINGS, _facts),
        evaluation(b" loss at iteration ", rb"\b(?:validation|test) loss at iteration \d"),
        pause(b"saving checkpoint at iteration ", rb"(?P<reason>saving checkpoint) at iteration "),
    ),
    numbered="run",
)
"""A world of model-parallel ranks: a batch is that of a device only on the average."""
