"""A node's copier seen from the rank that starts it: never a reason to fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc.measure.world import World
from hpc.node_agent.copier import END_COMMAND
from hpc.recovery.folders import PARTIAL

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

_ROOT = Path(__file__).resolve().parents[2]
STOP_S = 10.0
"""How long a copier may take to remove its copies: where the shared folder does not answer, it is left behind."""


class Copier:
    """The process that copies the journals of the ranks in `folders`, by rank, to `partial`, every `interval_s`.

    `cores` are those that the ranks may run on. What goes wrong is one of its `facts`.
    """

    def __init__(self, folders: Mapping[int, Path], partial: Path, cores: Iterable[int], *, interval_s: float) -> None:
        ranks: dict[str, list[str]] = {}
        for rank, folder in folders.items():
            ranks.setdefault(str(folder), []).append(str(rank))
        self._argv = [
            sys.executable, "-m", "hpc.node_agent.copier", "--to", str(partial), "--interval-s", str(interval_s),
            *(argument for group in ranks.items() for argument in ("--ranks", group[0], *group[1])),
            "--cores", *map(str, sorted(cores)),
        ]  # fmt: skip
        self._facts: dict[str, Any] = {"interval_s": interval_s}
        self._output = b""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process; does not wait for it."""
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        try:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)
        except OSError as error:
            self._facts["problem"] = f"did not start: {error}"
            print(f"stamps are not copied while the run goes on: {error}", file=sys.stderr, flush=True)

    def facts(self) -> dict[str, Any]:
        """The interval, where the process runs, which copies failed and why, and whether it ended early."""
        if self._process is not None:
            assert self._process.stdout is not None
            self._output += self._process.stdout.read() or b""
            if (status := self._process.poll()) is not None:
                self._facts["problem"] = f"ended early with {status}"
        reports = [json.loads(line) for line in self._output.splitlines(keepends=True) if line.endswith(b"\n")]
        failed = [what["failed"] for what in reports if "failed" in what]
        placed = {key: value for what in reports for key, value in what.items() if key != "failed"}
        return self._facts | placed | ({"failed": failed} if failed else {})

    def end(self) -> None:
        """The trace is on the disk: has the copies removed, and ends the process."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(END_COMMAND)
            process.stdin.flush()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            print(f"copies of stamps could not be removed within {STOP_S:g} s", file=sys.stderr, flush=True)
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()


def start_copier(
    comm: Intracomm, world: World, folder: Path, traces: Path, stem: str, interval_s: float
) -> Copier | None:
    """Starts a copier on each node and returns it on the node's first rank; None on all others. Collective.

    `folder` is where this rank has made its journal. With an interval of 0 nobody copies, which is said.
    """
    if interval_s <= 0:
        if comm.rank == 0:
            print("copies are off: what a lost node has measured is lost", file=sys.stderr, flush=True)
        return None
    node = comm.Split(world.node_rank, world.rank)
    everyone = node.gather((world.rank, folder, os.sched_getaffinity(0)))
    node.Free()
    if everyone is None:
        return None
    cores = {core for _, _, of_rank in everyone for core in of_rank}
    folders = {rank: of_rank for rank, of_rank, _ in everyone}
    copier = Copier(folders, traces / f"{stem}{PARTIAL}", cores, interval_s=interval_s)
    copier.start()
    return copier
