"""The helper process, `python -m hpc.node_agent`: reads until its rank closes the pipe, or dies.

It stands apart from MPI and every framework. Standard input tells what is asked (a line of JSON) and, by its end, when
to stop; standard output says what there is to read, and at the end how it went; samples go to an open file: rows of an
int64, the nanoseconds of perf_counter_ns before the readings, and a float64 for each series.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from math import nan
from struct import Struct
from time import perf_counter_ns
from typing import Any

from hpc.node_agent.cores import stand_aside
from hpc.node_agent.sources import UNREADABLE, Beside, Reading, Unread, sources_of_node

_PR_SET_PDEATHSIG = 1
MAX_NAMED = 32
"""How many series that failed later are named, so that the pipe takes the report in one piece."""


class Readings:
    """All readings of this node. Each is tried once; one that fails is `absent`, with the reason."""

    def __init__(self, sources: Mapping[str, Iterable[Reading]]) -> None:
        self.series: list[str] = []
        self.absent: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self._readings: list[Reading] = []
        for what, source in sources.items():
            try:
                for reading in source:
                    self._try(reading)
            except UNREADABLE as error:
                self.absent[what] = reason_of(error)

    def _try(self, reading: Reading) -> None:
        try:
            count = len(reading.read())
        except UNREADABLE as error:
            self.absent |= dict.fromkeys(reading.series, reason_of(error))
            return
        if count != len(reading.series):
            raise Unread(f"{count} numbers for {', '.join(reading.series)}")
        self._readings.append(reading)
        self.series += reading.series

    def read(self) -> list[float]:
        """A number for each of the series, NaN where it could not be read now."""
        values: list[float] = []
        for reading in self._readings:
            try:
                values += reading.read()
            except UNREADABLE as error:
                values += [nan] * len(reading.series)
                if len(self.failed) < MAX_NAMED:
                    self.failed.setdefault(reading.series[0], reason_of(error))
        return values


def reason_of(error: Exception) -> str:
    """A short reason for the error."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) if isinstance(error, Unread) else f"{type(error).__name__}: {error}"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `python -m hpc.node_agent`; a Recorder starts it."""
    parser = argparse.ArgumentParser(prog="python -m hpc.node_agent", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parent", type=int, required=True, metavar="PID", help="the rank to which this belongs")
    parser.add_argument("--samples", type=int, required=True, metavar="FD", help="the open file that samples go to")
    arguments = parser.parse_args(argv)
    _die_with(arguments.parent)
    request = json.loads(sys.stdin.buffer.readline())
    ranks = [Beside(**{**rank, "cores": tuple(rank["cores"])}) for rank in request["ranks"]]
    placed = stand_aside({core for rank in ranks for core in rank.cores})
    readings = Readings({**sources_of_node(ranks), **_gpus(request["gpus"])})
    _send({"placed": placed, "series": readings.series, "absent": readings.absent})
    sample(readings, int(request["interval_s"] * 1e9), arguments.samples)
    _send({"failed": readings.failed})
    return 0


def sample(readings: Readings, interval_ns: int, samples: int) -> None:
    """Writes a row every `interval_ns` until standard input ends, and one more then. A missed round is skipped."""
    row = Struct(f"=q{len(readings.series)}d")
    due_ns = perf_counter_ns()
    while True:
        now_ns = perf_counter_ns()
        os.write(samples, row.pack(now_ns, *readings.read()))
        due_ns += -(-(perf_counter_ns() - due_ns) // interval_ns) * interval_ns
        if select.select([0], [], [], max(0, due_ns - perf_counter_ns()) / 1e9)[0]:
            os.write(samples, row.pack(perf_counter_ns(), *readings.read()))
            return


def _gpus(request: Mapping[str, Any]) -> dict[str, Iterable[Reading]]:
    """The source of the GPUs; none where the run uses none."""
    if not request["used"]:
        return {}
    try:
        import pynvml
    except ImportError:
        return {"GPU": _absent("nvidia-ml-py is not installed: pip install nvidia-ml-py")}
    from hpc.node_agent.nvidia import gpus

    return {"GPU": gpus(request["uuids"], pynvml)}


def _absent(reason: str) -> Iterable[Reading]:
    raise Unread(reason)
    yield


def _die_with(parent: int) -> None:
    """Dies when the rank dies, even where its children hold the pipe open; of signals to all of a job, takes none."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the rank is gone already")
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, signal.SIG_IGN)


def _send(what: Mapping[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    sys.exit(main())
