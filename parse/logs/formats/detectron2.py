"""detectron2 (CommonMetricPrinter).

`last_time`, which newer versions print, is the seconds of the last step. `time` is the mean of all steps since the
third one, without what hooks take (`storage.history("time").global_avg()`), and is not read: of older versions' lines
only the time stamp counts, to the second. One rank prints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from parse.logs.engine.log_format import LogFormat, block, fact, pause, step
from parse.logs.engine.shared_patterns import ABSENT, arguments

_TIME = rb"\[(?P<time>\d\d/\d\d \d\d:\d\d:\d\d)\]? "
_PRECISIONS = {b"true": "amp-fp16", b"false": "fp32"}


def _facts(arguments: Mapping[str, str]) -> Mapping[str, str]:
    names = {"num_gpus": "gpus_per_node", "num_machines": "nodes"}
    facts = {name: arguments[argument] for argument, name in names.items() if arguments.get(argument, "") not in ABSENT}
    if config := arguments.get("config_file"):
        facts["model"] = PurePosixPath(config).stem
    return facts


def _precision(match: re.Match[bytes]) -> Mapping[str, str]:
    return {"precision": _PRECISIONS[match["amp"].lower()]}


FORMAT = LogFormat(
    name="detectron2",
    title="detectron2",
    steps=(
        step(
            b"d2.utils.events",
            _TIME
            + rb"d2\.utils\.events(?:\]| INFO): +(?:AI-Rank-log )?(?:eta: [^:\n]{1,40}(?::\d\d){1,2} +|eta: N/A +)?"
            rb"iter: (?P<step>\d+) (?:[^]\n]{1,8000}? last_time: (?P<duration_s>\d+\.\d+) )?",
        ),
    ),
    patterns=(
        fact(b"World size: ", rb"Rank of current process: (?P<rank>\d+)\. World size: (?P<world_size>\d+)"),
        arguments(b"Command line arguments: ", rb"Command line arguments: ", _facts),
        # The whole configuration has its names in their order; the file that it came from may be overridden.
        block(b"  IMS_PER_BATCH: ", rb"^  IMS_PER_BATCH: (?P<global_batch_size>\d+)\n  LR_SCHEDULER_NAME: "),
        block(b"SOLVER:", rb"^SOLVER:\n  AMP:\n    ENABLED: (?P<amp>[Tt]rue|[Ff]alse)\n  BASE_LR: ", _precision),
        fact(b"total_batch_size: ", rb"\btotal_batch_size: (?P<global_batch_size>\d+)\b"),
        pause(b"Start inference on ", rb"(?P<reason>Start inference) on "),
        pause(b"Saving checkpoint to ", rb"(?P<reason>Saving checkpoint) to "),
    ),
    mean="durations",
    numbered="run",
)
"""Steps are numbered from 0 through the run."""
