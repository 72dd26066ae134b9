"""Unchanged trainings of two ranks that also meet where no hook sees it, and of which one is 20 ms late there.

`python -m tests.truth.unseen_run [--only WORDS]`. The ledger must not assure that nobody is late. Ends with 1 where one
does, or where it cannot tell of a training without such a meeting, in which nobody is late (one of ten at most).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.truth.programs import SCRIPTS, command, ledgers_in, named, observe

WAYS = (
    "named memory", "file as memory", "unlinked memory", "anonymous memory", "store", "polled store", "file", "socket",
    "stand-in", "mpi", "rpc", "thread", "operator", "graph",
)  # fmt: skip
CONTROLS = 10


@dataclass(frozen=True, kw_only=True)
class Training:
    """How its ranks meet ("none": in nothing else), and which of them is late before that, on its core or asleep."""

    way: str
    late: int
    burns: bool
    ms: int = 20

    @property
    def name(self) -> str:
        how = f"rank {self.late} {'computes' if self.burns else 'sleeps'}" if self.ms else "nobody is late"
        return f"{self.way}, {how}"


def trainings() -> Iterator[Training]:
    """Three or four of each way, and those without one."""
    for number, way in enumerate(WAYS):
        for late, burns in ((1, False), (0, True), (1, True), (0, False))[: 2 if number > 11 else 3]:
            yield Training(way=way, late=late, burns=burns)
    yield from [Training(way="none", late=1, burns=False, ms=0)] * CONTROLS


def ledger_of(training: Training, folder: Path) -> dict[str, Any]:
    """Runs it under hpc.observe; its ledger as JSON. Raises TruthError where it does not end well."""
    meets = folder / "meets"
    meets.mkdir(parents=True)
    spawns = training.way == "anonymous memory"
    script = [SCRIPTS / "unseen_meeting.py", "--way", training.way, "--folder", meets]
    script += ["--late", training.late, training.ms]
    script += (["--burn"] if training.burns else []) + (["--spawn"] if spawns else [])
    observe(0 if spawns else 2, folder, (), script)
    (ledger,) = ledgers_in(folder / "traces")
    return ledger


def judge(options: argparse.Namespace, folder: Path, scratch: Path) -> bool:
    """Whether somebody is assured to be on time who is not, or too often nothing is known."""
    assured = untold = 0
    chosen = named([*trainings()], options.only)
    for number, training in enumerate(chosen):
        verdict, is_wrong = ledger_of(training, folder / str(number))["verdict"], False
        if training.ms:
            is_wrong = verdict["kind"] == "none"
            assured += is_wrong
        else:
            untold += verdict["kind"] == "cannot tell"
        text = f"{verdict['kind']} {verdict['ranks'] or ''} {verdict['because']}"
        print(f"{'WRONG ' if is_wrong else ''}{training.name}: {text}", flush=True)
    late = sum(each.ms > 0 for each in chosen)
    print(
        f"nobody is late, it says, of {assured} of {late} with somebody late; {untold} of {len(chosen) - late} without "
        "such a meeting stays unknown"
    )
    return bool(assured) or untold > 0.1 * (len(chosen) - late)


def main() -> int:
    """Command line: 0 where nothing is assured that is not so, 1 where it is, 2 where the runs could not be made."""
    return command(__doc__, judge)


if __name__ == "__main__":
    sys.exit(main())
