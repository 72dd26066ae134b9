"""The sizes of an MLPerf submission by the file of its system, `SUBMITTER/systems/SYSTEM.json`, beside the results.

A log may say them itself, by number_of_nodes, accelerators_per_node and number_of_ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpc.system.regular_file import parse_json, read_text
from parse.logs.path_facts import PathFacts
from parse.logs.sizes import whole_number

LEVELS = 4
"""SUBMITTER/results/SYSTEM/BENCHMARK are the folders of a log."""
MAX_SYSTEM_BYTES, MAX_SHOWN = 1 << 16, 40
KEYS = ("number_of_nodes", "accelerators_per_node")


def with_submission(place: PathFacts, path: Path, facts: Mapping[str, str]) -> PathFacts:
    """The facts of the path, with the sizes of the submission's file of its system, and a remark that says so."""
    folders = path.absolute().parents
    is_submission = "platform" in facts or "submitter" in facts
    if place.devices or not is_submission or len(folders) < LEVELS or folders[2].name != "results":
        return place
    name = f"systems/{folders[1].name}.json"

    def remarked(remark: str, **sizes: Any) -> PathFacts:
        return dataclasses.replace(place, remarks=(*place.remarks, remark), **sizes)

    try:
        system = parse_json(read_text(folders[3] / name, MAX_SYSTEM_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return place
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        return remarked(f"the submission's {name} cannot be read, and its sizes are not used: {reason}")
    if not isinstance(system, dict):
        return remarked(f"the submission's {name} holds no object: its sizes are not used")
    nodes, each = (whole_number(system.get(key)) for key in KEYS)
    if not nodes or not each:
        stated = " and ".join(f"{key} {repr(system.get(key))[:MAX_SHOWN]}" for key in KEYS)
        return remarked(f"the submission's {name} has {stated}, no counts: its sizes are not used")
    devices = nodes * each
    return remarked(
        f"{nodes} nodes, {each} GPUs per node, {devices} devices: by the submission's {name}",
        nodes=nodes, gpus_per_node=each, devices=devices,
    )  # fmt: skip
