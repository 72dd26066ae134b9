"""fairseq (fairseq/logging/progress_bar.py): JSON and simple lines of `train_inner`, and those before version 0.9.

`wps` are tokens per second of all workers, `wpb` tokens per update: means over the updates since the line before.
Before 0.9 both are means since the epoch began.
"""

from __future__ import annotations

from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, fact, line, pause, step
from parse.logs.engine.shared_patterns import DATED, arguments

_STAMP = rb"(?:" + DATED + rb" \| [^\n]{0,40}?)?"
_NUMBER = rb"[\d.]{1,16}(?:e\+?\d{1,3})?"
_NAMES = {"distributed_world_size": "world_size", "arch": "model", "seed": "seed", "log_interval": "print_every"}
RUNNING_MEANS = (
    "its wps are means since the epoch began, as fairseq printed before 0.9: its beginning is in all of them"
)


def _facts(flags: Mapping[str, str]) -> Mapping[str, str]:
    facts = {name: flags[flag] for flag, name in _NAMES.items() if flags.get(flag, "") not in ("", "None")}
    return {**facts, "precision": "amp-fp16"} if flags.get("fp16") == "True" else facts


FORMAT = LogFormat(
    name="fairseq",
    title="fairseq",
    unit="tokens",
    steps=(
        step(
            b'"num_updates": "',
            _STAMP + rb'train_inner \| \{"epoch": (?P<epoch>\d+), "update": [^\n]{0,1200}?"wps": "(?P<rate>' + _NUMBER
            + rb')", [^\n]{0,100}?"wpb": "(?P<batch>' + _NUMBER + rb')", [^\n]{0,200}?"num_updates": "(?P<step>\d+)"',
        ),
        step(
            b", num_updates=",
            _STAMP + rb"train_inner \| epoch (?P<epoch>\d+): +\d+ / \d+ [^\n]{0,1500}?\bwps=(?P<rate>" + _NUMBER
            + rb"), [^\n]{0,60}?\bwpb=(?P<batch>" + _NUMBER + rb"), [^\n]{0,100}?\bnum_updates=(?P<step>\d+)",
        ),
        step(
            b", wps=",
            rb"(?<!train_inner )\| epoch (?P<epoch>\d+):? +(?P<step>\d+) / (?P<epoch_steps>\d+) [^|\n]{0,1500}?"
            rb"\bwps=(?P<rate>" + _NUMBER + rb")[,/ ]",
        ),
    ),
    patterns=(
        line(
            "remark", b", wps=", rb"(?<!train_inner )\| epoch \d+:? +\d+ / \d+ [^|\n]{0,1500}?\bwps=",
            text=RUNNING_MEANS,
        ),
        fact(b"training on ", rb"\btraining on (?P<world_size>\d{1,6}) (?:GPUs|devices)"),
        arguments(b"Namespace(", rb"", _facts),
        pause(b"begin validation on ", rb"(?P<reason>begin validation) on "),
        pause(b"| valid ", rb"\| (?P<reason>valid) (?:\||on )"),
        pause(b"aved checkpoint", rb"(?P<reason>[Ss]aved checkpoint)"),
        pause(b"| train ", rb"\| (?P<reason>train) (?:loss|\| )"),
    ),
    numbered="run",
)  # fmt: skip
