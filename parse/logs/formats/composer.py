"""Composer and llm-foundry: blocks that begin with `[batch=10/100]:` (composer/loggers/console_logger.py).

`throughput/samples_per_sec` is the rate of all devices over the last `window_size` batches
(composer/callbacks/speed_monitor.py): of more than the interval between two blocks where these come more often.
`time/sample` are the samples before the block's batch. The lines have no time stamps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, pause, step
from parse.logs.engine.shared_patterns import table

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


FORMAT = LogFormat(
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
