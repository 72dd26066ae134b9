"""AI-Rank's four rules: each yields the ways in which a log or the folder of a submission breaks it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc.model.findings import FigureValue, Finding
from hpc.model.training import FIELDS, INFORMATION
from hpc.system.regular_file import parse_json, read_whole
from hpc.system.text import first_of
from parse.logs.sizes import whole_number
from parse.trainings.result import ACCURACY, SPEEDUP, TIME_TO_TRAIN, TrainingResult
from parse.trainings.training import MARKS, TARGET_TIME

FILES = "files"
RULES = (TIME_TO_TRAIN, ACCURACY, SPEEDUP, FILES)
TIME_TOLERANCE_S = 1.0
"""A printed time and its time stamps agree within it."""
CASES = (1, 8, 32)
LOG_NAME = re.compile(r"GPUx(?:1|8|32)\.log(?:\.gz)?")
LEVELS = 3
"""`<system>/system_information.json`, `<system>/<model>/log/GPUx1.log`: from a log's folder up to the system's."""


@dataclass(frozen=True, kw_only=True)
class Violation(Finding):
    """A rule that the log or folder at `path` breaks."""

    path: Path


def judge(result: TrainingResult) -> Iterator[Violation]:
    """Yields the rules that a log breaks by itself."""
    training, target, best = result.training, result.target, result.best

    def broken(rule: str, text: str, **figures: FigureValue) -> Violation:
        return Violation(path=training.path, name=rule, text=text, figures=figures)

    time_s, printed = result.time_to_train_s, training.printed_s
    if printed is not None and time_s is None:
        text = f"{printed:.2f} s is printed, but there is no such time: {result.reasons[TIME_TO_TRAIN]}"
        yield broken(TIME_TO_TRAIN, text, printed_s=printed)
    elif printed is not None and time_s is not None and abs(printed - time_s) > TIME_TOLERANCE_S:
        pass_s = f"{printed:.2f} s is printed, {time_s:.2f} s pass until the first evaluation at {target:g} %"
        whole = training.whole_s
        is_whole = whole is not None and abs(printed - whole) <= max(TIME_TOLERANCE_S, 1e-3 * whole)
        end = f": it runs to {training.end}" if is_whole else ""
        yield broken(TIME_TO_TRAIN, f"{pass_s}{end}", printed_s=printed, time_s=time_s)
    elif printed is None and time_s is not None and training.source == MARKS:
        yield broken(
            TIME_TO_TRAIN, f"no {TARGET_TIME} is printed, {time_s:.2f} s pass by its time stamps", time_s=time_s
        )
    if best is None:
        yield broken(ACCURACY, "nothing is evaluated")
    elif target is not None and result.reached is None:
        text = f"{target:g} % is not reached in {len(training.evaluations)} evaluations: {best.accuracy:.3f} % at best"
        yield broken(ACCURACY, text, target=target, evaluations=len(training.evaluations), best=best.accuracy)
    if time_s is not None and result.speedup is None:
        yield broken(SPEEDUP, result.reasons[SPEEDUP])
    if None not in (training.devices, training.named_devices) and training.devices != training.named_devices:
        named, in_log = training.named_devices, training.devices
        assert named is not None and in_log is not None
        yield broken(FILES, f"its name says {named} devices, the log says {in_log}", named=named, in_log=in_log)


def judge_folder(results: Sequence[TrainingResult]) -> Iterator[Violation]:
    """Yields how the logs of one folder together break the rule of files: their names, the cases 1, 8 and 32, and what
    system_information.json says."""
    folder = results[0].training.path.parent

    def broken(text: str, **figures: FigureValue) -> Violation:
        return Violation(path=folder, name=FILES, text=text, figures=figures)

    if others := sorted({name for each in results if not LOG_NAME.fullmatch(name := each.training.path.name)}):
        yield broken(f"not GPUx1.log, GPUx8.log or GPUx32.log: {first_of(others, 3)}", names=others)
    counts = {result.training.devices for result in results}
    if missing := [devices for devices in CASES if devices not in counts]:
        known = ", ".join(map(str, sorted(filter(None, counts)))) or "none that says so"
        text = f"no log of {' nor of '.join(map(str, missing))} devices (there are logs of {known})"
        yield broken(text, missing=missing)
    places = (folder.absolute(), *folder.absolute().parents)[: LEVELS + 1]
    path = next((place / INFORMATION for place in places if (place / INFORMATION).is_file()), None)
    if path is None:
        yield broken(f"no {INFORMATION} in {folder} nor in the {LEVELS} folders above it")
        return
    yield from (
        broken(f"{INFORMATION} {text}") for text in _wrong_information(path, max(filter(None, counts), default=0))
    )


def _wrong_information(path: Path, largest: int) -> Iterator[str]:
    """What is wrong with the description of the machine that logs of up to `largest` devices are of."""
    try:
        information: Any = parse_json(read_whole(path))
    except (OSError, ValueError) as error:
        yield f"cannot be read ({error})"
        return
    if not isinstance(information, Mapping):
        yield "holds no object"
        return
    if missing := [name for name in FIELDS if name not in information]:
        yield f"lacks {', '.join(missing)}"
    if empty := [name for name in FIELDS if name in information and information[name] in (None, "", [], {})]:
        yield f"says nothing in {', '.join(empty)}"
    nodes, each = (whole_number(information.get(name)) for name in ("number_of_nodes", "accelerators_per_node"))
    if nodes and each and nodes * each < largest:
        yield f"has {nodes} nodes of {each} accelerators = {nodes * each}, but a log is of {largest}"
