"""Runs a script of tests/observe_scripts with or without the hooks; what it printed, and what was recorded."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpc.observe.events import ProcessEvents, read_events
from hpc.observe.stamps import CollectiveCall, ObservedSteps, placed_collectives
from hpc.observe.steps import steps_of
from tests.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "observe_scripts"
SITE = ROOT / "hpc" / "observe" / "site"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The ranks of a script, in their order: exit status, output, and the processes that recorded, rank by rank."""

    statuses: list[int]
    output: list[str]
    errors: list[str]
    recorded: list[ProcessEvents]

    @property
    def observed(self) -> list[ObservedSteps]:
        return [steps_of(each) for each in self.recorded]

    @property
    def only(self) -> ObservedSteps:
        (observed,) = self.observed
        return observed


def run(
    folder: Path,
    script: str,
    *arguments: str,
    ranks: int = 1,
    hooks: bool = True,
    path: Path | None = None,
    events: Path | None = None,
) -> Ended:
    """Each rank is a plain process with torchrun's variables and a folder of its own, or `events`.

    Its interpreter has nothing of this project on its path but the hooks, and `path`.
    """
    # Bound as long as the ranks live, so that no other process gets the port. It listens to nobody: a store, which sets
    # SO_REUSEADDR too, may listen there.
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    processes = []
    for rank in range(ranks):
        (folder / f"events{rank}").mkdir(parents=True, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "WORLD_SIZE")}
        entries = [str(entry) for entry in ((SITE if hooks else None), path) if entry]
        environment |= {"PYTHONPATH": os.pathsep.join(entries), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        environment["PYTHONFAULTHANDLER"] = "1"
        if hooks:
            environment["RANKWISE_OBSERVE"] = str(events or folder / f"events{rank}")
        if ranks > 1:
            environment |= {
                "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }  # fmt: skip
        processes.append(
            subprocess.Popen(
                [sys.executable, str(SCRIPTS / script), *arguments], env=environment, cwd=folder, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
    try:
        outputs = [process.communicate(timeout=LIMIT_S) for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.send_signal(signal.SIGABRT)  # each writes where it stands
        pytest.fail("\n".join(f"{script} has not ended: {process.communicate()}" for process in processes))
    finally:
        for process in processes:
            process.kill()
        held.close()
    files = [path for rank in range(ranks) for path in sorted((folder / f"events{rank}").glob("*.events"))]
    return Ended(
        statuses=[process.returncode for process in processes],
        output=[out for out, _ in outputs],
        errors=[err for _, err in outputs],
        recorded=[each for path in files if (each := read_events(path)).events],
    )


def collectives_of(recorded: ProcessEvents) -> list[CollectiveCall]:
    """All of a process, in the order of their calls."""
    return [call for _, call in placed_collectives(recorded)]
