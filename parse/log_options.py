"""Which options of parse.summarize act on logs alone, and why they cannot act on anything else."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parse.result import Result

LOG_OPTIONS = {
    "log_format": "traces say what they are of",
    "pattern": "traces have no lines",
    "warmup": "traces hold their own warm-up{warmup_steps}",
    "steps": "traces hold their own steps{measured_steps}",
    "window": "the window of a trace is the blocks that its run measured",
    "speed": "traces have one speed, by their time stamps",
    "case": "traces hold their own nodes and devices",
    "batch_size": "traces hold their own batch size{batch_size}",
}
"""The reason of each, by the names of `argparse`; None is the value of an option that was not given."""
UNITS = {"warmup_steps": "steps", "measured_steps": "behind the warm-up", "batch_size": "per device"}


def log_options(options: argparse.Namespace) -> list[str]:
    """The options given that act on logs alone."""
    return [name for name in LOG_OPTIONS if getattr(options, name) is not None]


def not_for_documents(name: str) -> str:
    """The message where documents are read."""
    return f"{_option(name)}: only for logs; published figures are taken as they are printed"


def not_for_traces(name: str, results: Sequence[Result]) -> str:
    """The message where no log was read; `results` are those of traces, empty before they are read."""
    values = {field: _listed(field, results) for field in UNITS}
    return f"{_option(name)}: only for logs; {LOG_OPTIONS[name].format(**values)}"


def _listed(field: str, results: Sequence[Result]) -> str:
    """The values of the runs in brackets; empty where there are none."""
    values = sorted({value for result in results if (value := getattr(result.run, field)) is not None})
    return f" ({', '.join(map(str, values))} {UNITS[field]})" if values else ""


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
