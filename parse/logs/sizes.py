"""The sizes of a run: nodes, devices, batch sizes, by what a log says, else its names, else the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc.system.regular_file import parse_json, read_text
from hpc.system.text import plural
from parse.logs.path_facts import PathFacts

NOWHERE = PathFacts()
SUBMISSION_LEVELS = 4
"""SUBMITTER/results/SYSTEM/BENCHMARK are the folders of a log of an MLPerf submission."""
MAX_SYSTEM_BYTES, MAX_SHOWN = 1 << 16, 40
SYSTEM_KEYS = ("number_of_nodes", "accelerators_per_node")


@dataclass(frozen=True, kw_only=True)
class Size:
    """Sizes, None if unknown. `batch_size` is per device; `per_step` is what all devices take in per printed step, in
    the unit of the log's format."""

    nodes: int | None
    devices: int | None
    batch_size: int | None
    per_step: float | None


def size_of(facts: Mapping[str, str], place: PathFacts, otherwise: PathFacts, remarks: list[str]) -> Size:
    """Sizes by the log, else its names, else the command line; a remark where log and names differ."""
    facts = _unpacked(facts)
    devices, nodes = _devices(facts, place, otherwise, remarks)
    batch_size, per_step = _batch(_of_each(facts, devices, nodes), place, otherwise, devices, remarks)
    return Size(nodes=nodes, devices=devices, batch_size=batch_size, per_step=per_step)


def _devices(
    facts: Mapping[str, str], place: PathFacts, otherwise: PathFacts, remarks: list[str]
) -> tuple[int | None, int | None]:
    world, nodes, each = (whole_number(facts.get(name)) for name in ("world_size", "nodes", "gpus_per_node"))
    if world and nodes and each and world != nodes * each:
        remarks.append(f"it says world size {world}, and {nodes} nodes of {each} GPUs: the world size is taken")
        nodes = each = None
    devices = (
        world
        or (nodes * each if nodes and each else None)
        or _by_processes(facts, remarks)
        or _by_micro_batches(facts, remarks)
    )
    if devices and place.devices and place.devices != devices:
        remarks.append(f"it ran on {devices} devices, its name says {place.devices}: the log is believed")
    elif nodes and place.nodes and place.nodes != nodes:
        remarks.append(f"it ran on {nodes} nodes, its name says {place.nodes}: the log is believed")
    if devices is None and place.devices is None:
        devices = _by_batches(facts, nodes or place.nodes, each or place.gpus_per_node, remarks)
    if devices is None:
        sized = place if place.devices else otherwise
        devices = nodes * sized.gpus_per_node if nodes and sized.gpus_per_node else sized.devices
    if devices is None:
        return None, nodes or place.nodes
    if nodes is None and each and devices % each == 0:
        nodes = devices // each
    if nodes is None and devices > 1:
        nodes = next(
            (source.nodes for source in (place, otherwise) if source.devices == devices and source.nodes), None
        )
    return devices, 1 if devices == 1 else nodes if nodes and devices % nodes == 0 else None


def _by_micro_batches(facts: Mapping[str, str], remarks: list[str]) -> int | None:
    """The devices, where a header has the batch, and of a device its passes per step and their size."""
    names = "global_batch_size", "micro_batch_size", "micro_batches"
    whole, size, passes = (whole_number(facts.get(name)) for name in names)
    if not (whole and size and passes) or whole % (size * passes):
        return None
    devices = whole // (size * passes)
    remarks.append(f"its {plural(devices, 'device')}: {whole} samples a step / {size} a pass / {passes} passes a step")
    return devices


def _by_processes(facts: Mapping[str, str], remarks: list[str]) -> int | None:
    """The devices of all processes, where each prints its rank and the log says how many devices one has.

    One process may print for all, so that a single rank says nothing.
    """
    processes, each = whole_number(facts.get("processes")), whole_number(facts.get("gpus_per_process"))
    if not processes or not each or processes == 1:
        return None
    devices, by_batches = processes * each, _quotient(facts)
    if by_batches in (None, devices):
        return devices
    remarks.append(
        f"ranks 0 to {processes - 1} print in it, which makes {devices} devices, but its batch sizes make "
        f"{by_batches}: neither is taken"
    )
    return None


def _by_batches(facts: Mapping[str, str], nodes: int | None, each: int | None, remarks: list[str]) -> int | None:
    """The global batch size / that of a device, where it is whole and fits the nodes and the devices of one."""
    devices = None if _counts_packs(facts) else _quotient(facts)
    if devices is None or (nodes and devices % nodes) or (each and devices % each) or (nodes and each):
        return None
    if not whole_number(facts.get("accumulation")):
        remarks.append(
            f"{facts['global_batch_size']} samples a step, {facts['batch_size']} on each device: {devices} devices, if "
            "no gradients are accumulated"
        )
    return devices


def _quotient(facts: Mapping[str, str]) -> int | None:
    whole, local = whole_number(facts.get("global_batch_size")), whole_number(facts.get("batch_size"))
    each = (local or 0) * (whole_number(facts.get("accumulation")) or 1)
    return whole // each if whole and each and whole % each == 0 else None


def _counts_packs(facts: Mapping[str, str]) -> bool:
    """Whether the batch of a device may count packs of samples: MLPerf's BERT does, and its results do not say of how
    many."""
    return facts.get("model") == "bert" and "platform" in facts and "packing" not in facts


def _unpacked(facts: Mapping[str, str]) -> Mapping[str, str]:
    """The facts with the samples of a device, where its batch counts packs of several; without its batch where packs
    are not of a whole number."""
    if "packing" not in facts or "batch_size" not in facts:
        return facts
    each, packed = float(facts["packing"]), whole_number(facts["batch_size"])
    others = {name: value for name, value in facts.items() if name != "batch_size"}
    return {**others, "batch_size": str(packed * int(each))} if packed and each.is_integer() else others


def _of_each(facts: Mapping[str, str], devices: int | None, nodes: int | None) -> Mapping[str, str]:
    """The facts with the batch of a device, if the log has that of a node."""
    of_node = whole_number(facts.get("node_batch_size"))
    if not (of_node and devices and nodes) or of_node % (devices // nodes):
        return facts
    return {"batch_size": str(of_node // (devices // nodes)), **facts}


def _batch(
    facts: Mapping[str, str], place: PathFacts, otherwise: PathFacts, devices: int | None, remarks: list[str]
) -> tuple[int | None, int | None]:
    local, whole = whole_number(facts.get("batch_size")), whole_number(facts.get("global_batch_size"))
    accumulated = whole_number(facts.get("accumulation")) or 1
    named = place.batch_size
    if local is None and whole and devices and whole % (devices * accumulated) == 0:
        local = whole // (devices * accumulated)
        if named and local > named and local % named == 0:
            remarks.append(
                f"{local} samples a step and device are {local // named} times the batch size {named} of its name: "
                "gradients are accumulated"
            )
            return named, whole // accumulated
    if local and named and local != named:
        remarks.append(f"it ran with batch size {local}, its name says {named}: the log is believed")
    local = local or (None if whole else named or otherwise.batch_size)
    product = local * devices if local and devices else None
    if whole is None or (product and whole in (product, product * accumulated)):
        return local, product
    if product is None:
        return local, whole // accumulated if whole % accumulated == 0 else None
    remarks.append(
        f"it says {whole} samples a step, and batch size {local} on {devices} devices, which is {product}: the former "
        "is taken"
    )
    return whole // devices if devices and whole % devices == 0 else None, whole


def with_submission(place: PathFacts, path: Path, facts: Mapping[str, str]) -> PathFacts:
    """The facts of the path of a log of an MLPerf submission, with the sizes that the file of its system beside the
    results says, `SUBMITTER/systems/SYSTEM.json`, and a remark that says so. The log may say them itself."""
    folders = path.absolute().parents
    is_submission = "platform" in facts or "submitter" in facts
    if place.devices or not is_submission or len(folders) < SUBMISSION_LEVELS or folders[2].name != "results":
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
    nodes, each = (whole_number(system.get(key)) for key in SYSTEM_KEYS)
    if not nodes or not each:
        stated = " and ".join(f"{key} {repr(system.get(key))[:MAX_SHOWN]}" for key in SYSTEM_KEYS)
        return remarked(f"the submission's {name} has {stated}, no counts: its sizes are not used")
    devices = nodes * each
    return remarked(
        f"{nodes} nodes, {each} GPUs per node, {devices} devices: by the submission's {name}",
        nodes=nodes, gpus_per_node=each, devices=devices,
    )  # fmt: skip


def whole_number(value: object, max_digits: int = 9) -> int | None:
    """The count that a text or a JSON value holds; None if it holds none, 0 or too many digits."""
    text = str(value).strip()
    return int(text) or None if text.isascii() and text.isdecimal() and len(text) <= max_digits else None
