"""The helper of a node, `python -m hpc.node_agent`: reads telemetry and copies the journals, in a thread each.

A NodeAgent of the node's first rank starts it, outside MPI and every framework, in a session of its own. Standard input
has the request (a line of JSON), then the commands `sample` (read telemetry now), `stop` (telemetry) and `end` (the
trace is on the disk: remove the copies). Standard output has a line of JSON per report, {part: facts}. On SIGTERM, sent
before a job is killed, it copies at once and goes on. It outlives its rank only to copy, until no rank of the attempt
is alive on its node.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread

from hpc.node_agent.copies import Copies
from hpc.node_agent.sources import RankProcess
from hpc.node_agent.telemetry import read_telemetry, stand_aside
from hpc.system.sanitize import deny_world_writing

SAMPLE, STOP, END = b"sample", b"stop", b"end"
_PR_SET_PDEATHSIG = 1
_ORPHANED_POLL_S = 0.1
_output = Lock()


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `python -m hpc.node_agent`."""
    parser = argparse.ArgumentParser(prog="python -m hpc.node_agent", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parent", type=int, required=True, metavar="PID", help="the rank to which this belongs")
    arguments = parser.parse_args(argv)
    wake = _catch_signals()
    deny_world_writing()
    line, _, commands = _first_line().partition(b"\n")
    request = json.loads(line)
    ranks = [RankProcess(**{**rank, "cores": tuple(rank["cores"])}) for rank in request["ranks"]]
    placed = stand_aside({core for rank in ranks for core in rank.cores})  # before the threads, which inherit it
    _report("agent", placed=placed)
    telemetry_stop, sample_due, copies = Event(), Event(), None
    if telemetry := request["telemetry"]:
        report = partial(_report, "telemetry")
        _start(
            "telemetry", partial(read_telemetry, ranks, **telemetry, stop=telemetry_stop, report=report, due=sample_due)
        )
    if request["copies"]:
        folders = {int(rank): Path(folder) for rank, folder in request["copies"]["folders"].items()}
        to, interval_s = Path(request["copies"]["partial"]), request["copies"]["interval_s"]
        copies = Copies(folders, to, interval_s, partial(_report, "copies"))
        _start("copies", copies.run)
    _serve(arguments.parent, wake, commands, (telemetry_stop, sample_due), copies)
    return 0


def _serve(parent: int, wake: int, commands: bytes, events: tuple[Event, Event], copies: Copies | None) -> None:
    """Carries out commands and signals until the helper has to end. Never waits for a disk or a driver before that."""
    stdin_open, (telemetry_stop, sample_due) = True, events
    while True:
        *whole, commands = commands.split(b"\n")
        for command in whole:
            if command == STOP:
                telemetry_stop.set()
            if command in (STOP, SAMPLE):
                sample_due.set()
            elif command == END:
                if copies is not None:
                    copies.end(remove=True)
                return
        orphaned = not stdin_open or os.getppid() != parent
        if orphaned:
            telemetry_stop.set()
            sample_due.set()
            if copies is None:
                return
            if not copies.ranks_live():
                copies.end(remove=False)
                return
        ready, _, _ = select.select([wake] + [0] * stdin_open, [], [], _ORPHANED_POLL_S if orphaned else None)
        if wake in ready:
            os.read(wake, 64)
            if copies is not None:
                copies.look_now()
        if 0 in ready:
            more = os.read(0, 1 << 12)
            stdin_open = bool(more)
            commands += more


def _catch_signals() -> int:
    """Ignores signals to all of a job; SIGTERM, and the death of the parent, make the returned file readable."""
    for each in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, signal.SIG_IGN)
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    # A child of the rank, such as a data loader, may hold standard input open after the rank's death.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return read


def _first_line() -> bytes:
    received = b""
    while b"\n" not in received:
        if not (chunk := os.read(0, 1 << 16)):
            raise SystemExit("the rank is gone already")
        received += chunk
    return received


def _start(part: str, work: Callable[[], None]) -> None:
    """Does a part's work in a thread of its own; its failure is that part's alone."""

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the other part goes on, whatever error this one has
            problem = f"ended early: {type(error).__name__}: {error}"
            print(f"{part} of this node {problem}", file=sys.stderr, flush=True)
            _report(part, problem=problem)

    Thread(target=run, name=part, daemon=True).start()


def _report(part: str, **facts: object) -> None:
    """Sends a line of JSON to the rank that started this; it may be gone."""
    with _output, suppress(OSError):
        view = memoryview(json.dumps({part: facts}).encode() + b"\n")
        while view:
            view = view[os.write(1, view) :]


if __name__ == "__main__":
    sys.exit(main())
