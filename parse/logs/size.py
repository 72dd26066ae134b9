"""How large a run is that a log tells of: the log's own header is believed, then names, then the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from parse.logs.path_facts import Place


@dataclass(frozen=True, kw_only=True)
class Size:
    """None where nobody says it. `batch_size` is per device; `per_step` are samples of all devices per printed step."""

    nodes: int | None
    devices: int | None
    batch_size: int | None
    per_step: int | None


def size_of(facts: Mapping[str, str], place: Place, otherwise: Place, remarks: list[str]) -> Size:
    """Sizes by the log, its names, or what is said of logs that do not say it; a remark where log and names differ."""
    devices, nodes = _devices(facts, place, otherwise, remarks)
    batch_size, per_step = _batch(_of_each(facts, devices, nodes), place, otherwise, devices, remarks)
    return Size(nodes=nodes, devices=devices, batch_size=batch_size, per_step=per_step)


def _devices(
    facts: Mapping[str, str], place: Place, otherwise: Place, remarks: list[str]
) -> tuple[int | None, int | None]:
    """Devices in all, and nodes."""
    world, nodes, each = (_whole(facts, name) for name in ("world_size", "nodes", "gpus_per_node"))
    if world and nodes and each and world != nodes * each:
        remarks.append(f"it says world size {world}, and {nodes} nodes of {each} GPUs: the world size is taken")
        nodes = each = None
    devices = world or (nodes * each if nodes and each else None)
    if devices and place.devices and place.devices != devices:
        remarks.append(f"it ran on {devices} devices, its name says {place.devices}: the log is believed")
    elif nodes and place.nodes and place.nodes != nodes:
        remarks.append(f"it ran on {nodes} nodes, its name says {place.nodes}: the log is believed")
    if devices is None:
        sized = place if place.devices else otherwise
        devices = nodes * sized.gpus_per_node if nodes and sized.gpus_per_node else sized.devices
    if devices is None:
        return None, None
    if nodes is None and each and devices % each == 0:
        nodes = devices // each
    if nodes is None and devices > 1:
        nodes = next(
            (source.nodes for source in (place, otherwise) if source.devices == devices and source.nodes), None
        )
    return devices, 1 if devices == 1 else nodes if nodes and devices % nodes == 0 else None


def _of_each(facts: Mapping[str, str], devices: int | None, nodes: int | None) -> Mapping[str, str]:
    """The facts with the batch of a device, where the log tells that of a node."""
    of_node = _whole(facts, "node_batch_size")
    if not (of_node and devices and nodes) or of_node % (devices // nodes):
        return facts
    return {"batch_size": str(of_node // (devices // nodes)), **facts}


def _batch(
    facts: Mapping[str, str], place: Place, otherwise: Place, devices: int | None, remarks: list[str]
) -> tuple[int | None, int | None]:
    """Samples of a device and of all, per printed step."""
    local, whole = _whole(facts, "batch_size"), _whole(facts, "global_batch_size")
    accumulated = _whole(facts, "accumulation") or 1
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


def _whole(facts: Mapping[str, str], name: str) -> int | None:
    """A whole number above 0 that the header tells; None where it tells none."""
    text = facts.get(name, "").strip()
    return int(text) or None if text.isascii() and text.isdecimal() and len(text) < 10 else None
