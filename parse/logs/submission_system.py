"""The sizes of an MLPerf submission by the file of its system, `SUBMITTER/systems/SYSTEM.json`, beside the results.

A log may say them itself, by number_of_nodes, accelerators_per_node and number_of_ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from hpc.system.regular_file import parse_json, read_text
from parse.logs.path_facts import PathFacts
from parse.logs.sizes import whole_number

LEVELS = 4
"""SUBMITTER/results/SYSTEM/BENCHMARK are the folders of a log."""
MAX_SYSTEM_BYTES = 1 << 16


def with_submission(place: PathFacts, path: Path, facts: Mapping[str, str]) -> PathFacts:
    """The facts of the path, with the sizes of the submission's file of its system, and a remark that says so."""
    folders = path.absolute().parents
    is_submission = "platform" in facts or "submitter" in facts
    if place.devices or not is_submission or len(folders) < LEVELS or folders[2].name != "results":
        return place
    name = f"systems/{folders[1].name}.json"
    try:
        system = parse_json(read_text(folders[3] / name, MAX_SYSTEM_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return place
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        remark = f"the submission's {name} cannot be read, and its sizes are not used: {reason}"
        return dataclasses.replace(place, remarks=(*place.remarks, remark))
    values = system if isinstance(system, dict) else {}
    nodes, each = (whole_number(str(values.get(key, ""))) for key in ("number_of_nodes", "accelerators_per_node"))
    if not nodes or not each:
        return place
    remark = f"{nodes} nodes, {each} GPUs per node, {nodes * each} devices: by the submission's {name}"
    return dataclasses.replace(
        place, nodes=nodes, gpus_per_node=each, devices=nodes * each, remarks=(*place.remarks, remark)
    )
