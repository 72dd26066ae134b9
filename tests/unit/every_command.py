"""A folder in which every command has something to print, and a command line of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from hpc.model.outcome import Outcome
from tests.unit.airank_logs import submission
from tests.unit.arrivals.recordings import Hosts, Model, inspector
from tests.unit.commands import DRY_RUN
from tests.unit.comparisons import FOUR, ONE, TWO, folder, times
from tests.unit.histories import put_nights
from tests.unit.test_collectives import FOUR as FOUR_RANKS
from tests.unit.test_collectives import measured, spec_of
from tests.unit.traces import make_run, put, put_exit_record, put_plan, repeats

PAPER = "| case | runs (ok/total) | median (samples/s) |\n|---|---|---|\n| 1g | - | 100 |\n| 8g | - | 750 |\n"
SCALING = ((ONE, times(1)), (TWO, times(1.9)), (FOUR, times(3.1)))
SLOWER = ((ONE, times(0.9)), (TWO, times(1.9)), (FOUR, times(2.5, (100.0, 130.0, 70.0, 95.0, 105.0))))
READING: dict[str, tuple[tuple[str, ...], ...]] = {
    "hpc.collectives": (("--show", "collectives.h5"),),
    "hpc.recovery": (("collect", "--stem", "x.1", "--to", "traces"), ("recover", "traces")),
    "launch.devcluster": (("status", "--root", "nothing"),),
    "launch.doctor": (("--cluster", "local"),),
    "parse.collective_trace": (("inspector",), ("inspector", "--format", "json")),
    "parse.compare": (("traces", "after"), ("traces", "after", "--format", "markdown")),
    "parse.export": (("traces", "--to", "csv"),),
    "parse.forecast": (("traces", "--devices", "2,3"),),
    "parse.history": (
        tuple(f"nights/n{day:02}" for day in range(12)), ("nights/n00", "nights/n01", "--format", "json")
    ),
    "parse.report": (("traces",),),
    "parse.summarize": (
        ("traces",), ("traces", "after", "--ledger"), ("traces", "--format", "json"), ("traces", "--format", "csv"),
        ("--airank", "linux/resnet50/log"),
    ),
    "parse.timeline": (("traces", "--out", "timeline.json.gz"),),
}  # fmt: skip
"""Command lines that read the folder and print what they find, by command."""
SWEEPS = (
    DRY_RUN, ("launch.catalog",),
    ("hpc.sweep", "status", "--out", "sweep"), ("hpc.sweep", "cancel", "--out", "sweep"),
    ("hpc.sweep", "recover", "traces"),
    ("hpc.sweep", "retry", "--help"), ("hpc.sweep", "accept", "--reference", "none.toml"),
)  # fmt: skip
HELP_ALONE = ("hpc.data", "hpc.observe", "hpc.preflight", "parse.watch")
"""Commands that print nothing before they have imported a framework, made a set of images or traces, or started MPI; or
that do not end."""
PRINTING = (
    *((name, *arguments) for name, lines in READING.items() for arguments in lines), *SWEEPS,
    *((name, "--help") for name in HELP_ALONE), ("hpc.sweep", "find-max", "--help"),
)  # fmt: skip


def main_of(name: str) -> Callable[[Sequence[str]], int]:
    """The `main` of a command."""
    inside = {
        "hpc.observe": "__main__", "hpc.preflight": "__main__", "hpc.recovery": "__main__",
        "launch.doctor": "command", "parse.export": "__main__", "parse.report": "__main__",
    }  # fmt: skip
    main: Callable[[Sequence[str]], int] = import_module(f"{name}.{inside[name]}" if name in inside else name).main
    return main


def make_workplace(path: Path) -> Path:
    """The folder."""
    folder(path / "traces", *SCALING)
    folder(path / "after", *SLOWER)
    put_nights(path / "nights", [1.0] * 6 + [0.8] * 6)
    put(path, measured(spec_of(FOUR_RANKS, ["all-reduce"]))).rename(path / "collectives.h5")
    inspector(path / "inspector", Model(count=5).kernels(), Hosts())
    submission(path)
    (path / "empty").mkdir()
    (path / "cut").mkdir()
    whole = next((path / "traces").glob("*.h5")).read_bytes()
    (path / "cut" / "x_r1.1.h5").write_bytes(whole[: len(whole) // 2])
    (path / "paper.md").write_text(PAPER)
    runs = repeats(make_run(), 2)
    traces = path / "sweep" / "traces"
    traces.mkdir(parents=True)
    (path / "sweep" / "jobs").mkdir()
    put_plan(traces, runs)
    put_exit_record(traces, runs[0], Outcome.OOM)
    (path / "run.json").write_text(json.dumps(runs[0].to_json()))
    return path
