"""The options of the commands that forecast: which sizes, for how much work, and what is known of the machine."""

from __future__ import annotations

import argparse

MAX_NODES = 1_000_000
"""No machine has as many nodes."""
MAX_SIZES = 100
MILLION = 1e6


def add_devices_per_node(group: argparse._ActionsContainer) -> None:
    """Adds what inputs may not say of the machine."""
    group.add_argument(
        "--devices-per-node", type=whole, metavar="N", help="where no input says it: what a table in devices lacks"
    )


def sizes(text: str) -> tuple[int, ...]:
    """Numbers of nodes or devices, from `8,16,64`."""
    parts = text.split(",")
    if len(parts) > MAX_SIZES:
        raise argparse.ArgumentTypeError(f"{len(parts)} sizes: at most {MAX_SIZES}")
    return tuple(sorted({*map(whole, parts)}))


def nodes_and_devices(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Numbers of nodes and of devices, from `8,16,256g`."""
    parts = text.split(",")
    devices = ",".join(part.removesuffix("g") for part in parts if part.endswith("g"))
    nodes = ",".join(part for part in parts if not part.endswith("g"))
    return sizes(nodes) if nodes or not devices else (), sizes(devices) if devices else ()


def whole(text: str) -> int:
    """A size. Raises ArgumentTypeError for what is none."""
    if not (text.isascii() and text.isdigit()) or len(text) > 12 or not 1 <= int(text) <= MAX_NODES:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: a whole number from 1 to {MAX_NODES:,} is needed")
    return int(text)
