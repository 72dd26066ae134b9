"""The leaves: what is beside the way of sweep, observe, summarize and report, each behind one module.

The core reaches a leaf by this table alone: without its line and its files, all else works (tests/leaf_removal.py).
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

COMMANDS = {
    "doctor": "launch.doctor",
    "compare": "parse.compare",
    "history": "parse.history",
    "watch": "parse.watch",
    "export": "parse.export",
    "timeline": "parse.timeline",
    "forecast": "parse.forecast",
    "collective-trace": "parse.collective_trace",
}
"""Commands of `rankwise`, each with its module."""
DOORS = {
    "accept": "launch.sweep.accept",
    "find-max": "launch.sweep.find_max",
    "auto repeats": "launch.sweep.auto_repeats",
    "recipes": "launch.sweep.recipes",
    "retry": "launch.sweep.retry",
    "airank": "parse.airank",
    "forecasts of a report": "parse.page.forecast",
    "section of a paper": "parse.page.paper",
}
"""Modules that a command of the core calls for some of its options."""
TABLE = "hpc/system/leaves.py"


def door(leaf: str) -> Any:
    """The module of a leaf of DOORS. Ends the command with 2 and a line where the table has none."""
    if leaf not in DOORS:
        print(f"{leaf}: not part of this installation ({TABLE})", file=sys.stderr)
        raise SystemExit(2)
    return import_module(DOORS[leaf])
