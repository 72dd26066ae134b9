"""torchtitan: `step: 10  loss: …  tps: 3,456` (torchtitan/components/metrics.py, `MetricsProcessor.log`).

`tps` (`wps` in 2024) are tokens per second of one device, of all its parallel dimensions, since the line before; the
ranks that LOG_RANK names print, with colours. Validation, checkpoints and profiler traces have lines of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, fact, pause, step
from parse.logs.engine.shared_patterns import DATED, digits

_STAMP = rb"(?:" + DATED + rb"[^\n]{0,60}?)?"
_RANKS = re.compile(rb"\d+")


def _mesh(match: re.Match[bytes]) -> Mapping[str, str]:
    """The devices of a mesh: the product of its dimensions."""
    return {"world_size": str(math.prod(int(size) for size in _RANKS.findall(match["sizes"])))}


def _model(match: re.Match[bytes]) -> Mapping[str, str]:
    return {"model": match["model"].decode(errors="replace").replace(" ", "_")}


FORMAT = LogFormat(
    name="torchtitan",
    title="torchtitan",
    unit="tokens",
    rates="rank",
    steps=(
        step(
            b"  loss: ",
            _STAMP + rb"(?<!validate )\bstep: +(?P<step>\d+) +loss: +[-\w.]{1,20} +(?:grad_norm: +[-\w.]{1,40} +)?"
            rb"memory: [^\n]{1,40}? +[tw]ps: (?P<rate>[\d,]{1,20})(?:\s|$)",
        ),
    ),
    patterns=(
        fact(
            b"-D device mesh with ",
            rb"Building \d-D device mesh with \[[^]\n]{1,200}\], \[(?P<sizes>[\d, ]{1,60})\]",
            _mesh,
        ),
        fact(
            b"device mesh with parallelism: ",
            rb"with parallelism: (?P<sizes>pp=\d{1,6}, dp_replicate=\d{1,6}, dp_shard=\d{1,6}, cp=\d{1,6}, tp=\d{1,6})",
            _mesh,
        ),
        fact(
            b"global batch size",
            rb"local batch size:? (?P<local_batch_size>\d+), (?:\w+ accumulation steps:? \d+, )?"
            rb"global batch size:? (?P<global_batch_size>\d+), (?:\w+ accumulation steps:? \d+, )?"
            rb"(?:sequence length:? (?P<sequence_length>\d+), )?total steps",
        ),
        fact(
            b" tokens per train step",
            rb"tokens per DP rank, (?P<tokens_per_step>[\d,]{1,20}) tokens per train step",
            digits,
        ),
        fact(
            b" total parameters",
            rb"Model (?P<model>[\w.-]{1,40} [\w.-]{1,40}) size: [\d,]{1,20} total parameters",
            _model,
        ),
        fact(b" capacity: ", rb"\w capacity: (?P<device>[^\n]{1,60}?) with [\d.]{1,12}GiB memory"),
        pause(b"validate step: ", _STAMP + rb"(?P<reason>validate) step: "),
        pause(b" checkpoint", _STAMP + rb"(?P<reason>Saving (?:the|a)(?: full)? checkpoint)"),
        pause(b" profiler ", _STAMP + rb"(?P<reason>Dumping profiler traces) at step "),
    ),
    numbered="run",
)
