"""The options of every command that forecasts: which sizes, for how much work, and what is known of the machine."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parse.extrapolation.outlook import SizeRequest

MAX_NODES = 1_000_000
"""No machine has as many nodes."""
MAX_SIZES = 100
MILLION = 1e6
MAX_WORK = 1e18
"""No training takes more samples or tokens."""
CONDITIONS = ("devices_per_node", "switch_nodes", "global_batch_size")
FORECAST_HELP = (
    "speed, efficiency and node hours at sizes that were not measured, each with its interval or why it cannot be told "
    "(docs/forecast.md); 64 are nodes, 256g devices"
)


def add_forecast(group: argparse._ArgumentGroup) -> None:
    """Adds --forecast with what is known of the machine, for commands that also show what was measured."""
    group.add_argument("--forecast", type=cases, default=(), metavar="SIZE,…", help=FORECAST_HELP)
    add_conditions(group)


def add_work(group: argparse._ActionsContainer) -> None:
    """Adds --samples."""
    group.add_argument(
        "--samples", type=positive, metavar="N",
        help="the work that node hours are for, in the unit of the speed; default: a million",
    )  # fmt: skip


def add_conditions(group: argparse._ActionsContainer) -> None:
    """Adds what inputs may not say of the machine and the batch."""
    group.add_argument(
        "--devices-per-node", type=whole, metavar="N", help="where no input says it: what a table in devices lacks"
    )
    group.add_argument(
        "--switch-nodes", type=whole, metavar="N",
        help="nodes behind one switch: nothing beyond is forecast from sizes inside one",
    )  # fmt: skip
    group.add_argument(
        "--global-batch-size", type=positive, metavar="N",
        help="the samples per step of all devices at the requested sizes; default: the batch per device of weak "
        "scaling, the global batch of strong scaling",
    )  # fmt: skip


def unused(options: argparse.Namespace, *names: str) -> str:
    """Why one of these options acts on nothing; empty where a forecast was requested, or none of them."""
    given = [name for name in (*names, *CONDITIONS) if getattr(options, name)]
    if options.forecast or not given:
        return ""
    return f"--{given[0].replace('_', '-')}: of a forecast, and none is requested: --forecast 8,16 does"


def request_of(options: argparse.Namespace, work: float | None) -> SizeRequest:
    """The request of --forecast, for that work."""
    nodes = tuple(size for unit, size in options.forecast if unit == "n")
    devices = tuple(size for unit, size in options.forecast if unit == "g")
    return size_request(options, nodes, devices, work)


def size_request(
    options: argparse.Namespace, nodes: tuple[int, ...], devices: tuple[int, ...], work: float | None
) -> SizeRequest:
    """The request of these sizes, with what the options say of the machine and the batch."""
    from parse.extrapolation.outlook import SizeRequest

    return SizeRequest(
        nodes=nodes, devices=devices, work=work or MILLION, devices_per_node=options.devices_per_node,
        switch_nodes=options.switch_nodes, global_batch=options.global_batch_size,
    )  # fmt: skip


def sizes(text: str) -> tuple[int, ...]:
    """Numbers of nodes or devices, from `8,16,64`."""
    return tuple(sorted({*map(whole, _few(text))}))


def cases(text: str) -> tuple[tuple[str, int], ...]:
    """Sizes with their unit, n for nodes and g for devices, from `8,16n,256g`."""
    return tuple(sorted({(part[-1] if part[-1:] in ("n", "g") else "n", _case(part)) for part in _few(text)}))


def _few(text: str) -> list[str]:
    parts = text.split(",")
    if len(parts) > MAX_SIZES:
        raise argparse.ArgumentTypeError(f"{len(parts)} sizes: at most {MAX_SIZES}")
    return parts


def _case(text: str) -> int:
    if re.fullmatch(r"[1-9][0-9]*n[1-9][0-9]*g", text):
        raise argparse.ArgumentTypeError(f"{text}: a size is nodes, {text.partition('n')[0]}, or all devices, 256g")
    return whole(text[:-1] if text[-1:] in ("n", "g") else text)


def whole(text: str) -> int:
    """A size. Raises ArgumentTypeError for what is none."""
    if not (text.isascii() and text.isdigit()) or len(text) > 12 or not 1 <= int(text) <= MAX_NODES:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: a whole number from 1 to {MAX_NODES:,} is needed")
    return int(text)


def positive(text: str) -> float:
    """A number above 0, up to MAX_WORK. Raises ArgumentTypeError for what is none."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= MAX_WORK:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0, up to {MAX_WORK:g}")
    return value
