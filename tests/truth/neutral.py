"""Scripts with hooks and without, and whether anything of them differs: one table.

`python -m tests.truth.neutral [--more DIR]`; every script of DIR is run on two ranks, too. Compared rank by rank are
exit status, standard output, all parameters behind each update to the last bit (and so every loss before), random
numbers, threads, signals, and the most memory, which may differ by 1 %. What differs is run again, twice at most,
because scripts may differ from themselves; memory by its least. Ends with 1 where something still does, or where a
script fails without hooks.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mpi.observed import ROOT, SCRIPTS, run
from tests.truth.programs import command

MEMORY = 0.01
TRIES = 3
PROBE = "neutral_probe.py"
STEPS = 40
HERE = "HERE"
"""In an argument, the folder of a run."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script of tests/observe_scripts, or a path, and its arguments."""

    words: str
    ranks: int = 1

    @property
    def name(self) -> str:
        path, *arguments = self.words.split()
        return " ".join([Path(path).name, *arguments])


SINGLE = (
    "ddp_loop.py --overflow-every 3", "ddp_loop.py --workers 2 --evaluate-every 6", "optimizers.py turns",
    "optimizers.py lbfgs", "optimizers.py in-backward", "optimizers.py both", "optimizers.py outer",
    "optimizers.py compiled-step", "optimizers.py by-hand", "own_loader.py stateful", "own_loader.py generator",
    "unchanged.py", "reductions.py", "odd_device.py reads HERE/truth", "odd_device.py streams HERE/truth",
)  # fmt: skip
IN_PAIRS = (
    "ddp_loop.py", "ddp_loop.py --accumulate 2 --no-sync around", "ddp_loop.py --compile", "fsdp2.py --clip",
    "rollouts.py", "graph_collectives.py", "checkpoints.py HERE/out", "counted.py ddp", "counted.py fsdp2",
    "unseen_meeting.py --way thread --folder HERE", "unseen_meeting.py --way store --folder HERE",
    "delayed.py --plan HERE/plan --truth HERE/truth --parallel ddp",
    "delayed.py --plan HERE/plan --truth HERE/truth --parallel fsdp2",
    "delayed.py --plan HERE/plan --truth HERE/truth --parallel by-hand",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a run: by rank exit status, output, and what the probe wrote."""

    statuses: Sequence[int]
    output: Sequence[str]
    states: Sequence[dict[str, Any]]

    def of(self, *names: str) -> list[list[Any]]:
        return [[state.get(name) for name in names] for state in self.states]

    @property
    def memory_kb(self) -> list[int]:
        return [state.get("memory_kb", 0) for state in self.states]


def outcome_of(script: Script, folder: Path, *, hooks: bool) -> Outcome:
    """Runs the script in a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "plan").write_text(json.dumps({"steps": STEPS, "windows": [None]}))
    path, *arguments = script.words.replace(HERE, str(folder)).split()
    ended = run(
        folder, PROBE, str(folder / "state"), str(SCRIPTS / path), *arguments, ranks=script.ranks, hooks=hooks,
        path=ROOT if "by-hand" in script.words or "compiled-step" in script.words else None,
    )  # fmt: skip
    states = [folder / f"state.{rank}" for rank in range(script.ranks)]
    output = [text.replace(str(folder), HERE) for text in ended.output]
    return Outcome(
        statuses=ended.statuses, output=output,
        states=[json.loads(state.read_text()) if state.exists() else {} for state in states],
    )  # fmt: skip


def differences(plain: Outcome, hooked: Outcome, memory: float) -> list[str]:
    """In words, what is not alike."""
    pairs = {
        "status": (plain.statuses, hooked.statuses),
        "output": (plain.output, hooked.output),
        "losses": (plain.of("updates", "parameters"), hooked.of("updates", "parameters")),
        "random numbers": (plain.of("random"), hooked.of("random")),
        "threads": (plain.of("threads", "native_threads"), hooked.of("threads", "native_threads")),
        "signals": (plain.of("signals", "masks"), hooked.of("signals", "masks")),
    }
    return [
        *(name for name, (without, its) in pairs.items() if without != its),
        *(["memory"] if abs(memory) > MEMORY else []),
        *(["fails"] if any(plain.statuses) or not all(plain.states) else []),
    ]


def compare(script: Script, folder: Path) -> tuple[list[str], float, Outcome]:
    """What differs in each of its tries, the rank's memory with hooks beside that without, and a run without."""
    least: dict[bool, list[int]] = {}
    lasting: set[str] | None = None
    for _ in range(TRIES):
        its = {hooks: outcome_of(script, folder, hooks=hooks) for hooks in (False, True)}
        for hooks, outcome in its.items():
            least[hooks] = [*map(min, least.get(hooks, outcome.memory_kb), outcome.memory_kb)]
        growth = [its / without - 1 for without, its in zip(least[False], least[True], strict=True) if without]
        memory = max(growth, key=abs, default=0.0)
        new = {*differences(its[False], its[True], memory)}
        lasting = new if lasting is None else lasting & new
        if not lasting:
            break
    return sorted(lasting or ()), memory, its[False]


def judge(options: argparse.Namespace, folder: Path, scratch: Path) -> bool:
    """Whether anything differs."""
    more = [str(path) for path in sorted(options.more.glob("*.py"))] if options.more else []
    scripts = [
        *(Script(words=words) for words in SINGLE),
        *(Script(words=words, ranks=2) for words in (*IN_PAIRS, *more)),
    ]
    chosen = [each for each in scripts if not options.only or options.only in each.name]
    differ = 0
    print("| script | ranks | exit status | updates | memory with hooks | differs |\n|---|---:|---|---:|---:|---|")
    for script in chosen:
        lasting, memory, plain = compare(script, scratch / "run")
        differ += bool(lasting)
        updates = " ".join(str(state.get("updates")) for state in plain.states)
        statuses = " ".join(map(str, plain.statuses))
        print(
            f"| {script.name} | {script.ranks} | {statuses} | {updates} | {memory:+.2%} | {', '.join(lasting)} |",
            flush=True,
        )
    print(f"{differ} of {len(chosen)} scripts differ with hooks")
    return bool(differ)


def main() -> int:
    """Command line: 0 where nothing differs, 1 where something does."""
    return command(__doc__, judge, ("--more", {"type": Path, "metavar": "DIR", "help": "further scripts"}))


if __name__ == "__main__":
    sys.exit(main())
