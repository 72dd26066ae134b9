"""AI-Rank's rules for a folder of logs: their names, the cases, system_information.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parse.published.airank_rules import Violation, violations
from parse.published.training_result import TrainingResult
from parse.published.vocabulary import whole_number

CASES = (1, 8, 32)
NAME = re.compile(r"GPUx(?:1|8|32)\.log(?:\.gz)?")
INFORMATION = "system_information.json"
FIELDS = (
    "accelerator_memory_capacity", "accelerator_name", "accelerators_per_node", "host_memory_capacity",
    "host_processor_core_count", "host_processor_name", "host_processors_per_node", "host_storage_capacity",
    "host_storage_type", "number_of_nodes", "operating_system", "software_stack", "submitter", "hardware_name",
    "hardware_type",
)  # fmt: skip
LEVELS = 3
"""`<system>/system_information.json`, `<system>/<model>/log/GPUx1.log`: from a log's folder up to the system's."""


def judge_folder(results: Sequence[TrainingResult]) -> list[Violation]:
    """Returns the rules that the logs of one folder break together."""
    folder = results[0].training.path.parent
    rules = {"log names": _names, "cases": _cases, INFORMATION: _information}
    return violations(folder, rules, folder, results)


def _names(folder: Path, results: Sequence[TrainingResult]) -> Iterator[str]:
    """Logs are named GPUx1.log, GPUx8.log and GPUx32.log."""
    names = {result.training.path.name for result in results}
    if other := sorted(name for name in names if not NAME.fullmatch(name)):
        more = f" and {len(other) - 3} more" if len(other) > 3 else ""
        yield f"not GPUx1.log, GPUx8.log or GPUx32.log: {', '.join(other[:3])}{more}"


def _cases(folder: Path, results: Sequence[TrainingResult]) -> Iterator[str]:
    """The folder has a log of 1, of 8 and of 32 devices."""
    counts = {result.training.devices for result in results}
    if missing := [str(devices) for devices in CASES if devices not in counts]:
        have = ", ".join(map(str, sorted(filter(None, counts)))) or "none that says so"
        yield f"no log of {_listed(missing)} device{'s' if missing != ['1'] else ''} (there are logs of {have})"


def _information(folder: Path, results: Sequence[TrainingResult]) -> Iterator[str]:
    """system_information.json describes the machine with all fields."""
    places = (folder.absolute(), *folder.absolute().parents)[: LEVELS + 1]
    path = next((place / INFORMATION for place in places if (place / INFORMATION).is_file()), None)
    if path is None:
        yield f"not in {folder} nor in the {LEVELS} folders above it"
        return
    try:
        information: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        yield f"{path} cannot be read ({error})"
        return
    if not isinstance(information, Mapping):
        yield f"{path} holds no object"
        return
    if missing := [name for name in FIELDS if name not in information]:
        yield f"lacks {', '.join(missing)}"
    if empty := [name for name in FIELDS if name in information and information[name] in (None, "", [], {})]:
        yield f"says nothing in {', '.join(empty)}"
    nodes, each = (whole_number(information.get(name)) for name in ("number_of_nodes", "accelerators_per_node"))
    largest = max((result.training.devices or 0 for result in results), default=0)
    if nodes and each and nodes * each < largest:
        yield f"has {nodes} nodes of {each} accelerators = {nodes * each}, but a log is of {largest}"


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} or {items[-1]}"
