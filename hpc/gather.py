"""Brings what every rank recorded to rank 0, which writes the trace."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpc.clock import GlobalClock
from hpc.environment import describe_job, describe_project, in_common
from hpc.journal.file import Journal
from hpc.journal.folders import kept_at
from hpc.outcome import Outcome
from hpc.outside import without_secrets
from hpc.settings import options_of_run
from hpc.spec import COLLECTIVES, RunSpec
from hpc.stamps import STAMPS
from hpc.telemetry.nodes import gather_telemetry
from hpc.telemetry.recorder import Recording
from hpc.trace import Trace, TraceError
from hpc.trace_file import TraceUnwritable, write_trace
from hpc.workloads.delay import PHASES

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    Array = npt.NDArray[Any]

WAITS_S = (1.0, 4.0, 15.0)
"""How long a trace waits for a file system that does not answer, before each further try."""
# What a server that restarts, a stale handle and a mount that is gone look like. Room and rights do not come back so.
_MAY_COME_BACK = frozenset(
    {errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.ENOENT, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN}
)


@dataclass(frozen=True, kw_only=True)
class Own:
    """What one rank brings. `injected_ns` is int64 [step, phase] where the workload is one that sleeps.

    `recording` is the telemetry of the rank's node where this rank is the one that had it read.
    """

    journal: Journal
    clock: GlobalClock
    losses: Sequence[float]
    injected_ns: npt.NDArray[np.int64] | None
    facts: dict[str, Any]
    recording: Recording | None = None


def write_gathered(
    comm: Intracomm, run: RunSpec, attempt: int, blocks: list[list[int]], own: Own, path: Path, script: Path | None
) -> None:
    """Collective. Rank 0 writes the trace of an attempt that ended `ok`; nobody returns before it is on the disk."""
    points = own.clock.points
    arrays: dict[str, Array] = {
        "stamps": np.frombuffer(own.journal.stamps, np.int64).reshape(run.steps, len(STAMPS)),
        "samples": np.frombuffer(own.journal.samples, np.int64).astype(np.int32),
        "losses": np.array(own.losses, np.float64),
        "clock_local_ns": np.array([point.local_ns for point in points], np.int64),
        "clock_offset_ns": np.array([point.offset_ns for point in points], np.float64),
        "clock_bound_ns": np.array([point.bound_ns for point in points], np.float64),
        "barrier_exits_ns": np.array(own.clock.barrier_exits_ns, np.int64),
    }
    if own.injected_ns is not None:
        arrays["injected_ns"] = own.injected_ns
    gathered: dict[str, Any] = {name: _gather(comm, array) for name, array in arrays.items()}
    telemetry = gather_telemetry(comm, own.recording)
    facts = own.facts if own.recording is None else {**own.facts, "telemetry": own.recording.facts}
    everyone = comm.gather((own.clock.domain, facts))
    if comm.rank == 0:
        assert everyone is not None
        shared, ranks = in_common([facts for _, facts in everyone])
        trace = Trace(
            run=run,
            attempt=attempt,
            outcome=Outcome.OK,
            evidence="" if run.probe == COLLECTIVES else _odd_losses(gathered["losses"]),
            steps_completed=np.full(comm.size, run.steps, np.int64),
            blocks=np.array(blocks, np.int64),
            clock_domains=[domain for domain, _ in everyone],
            injected_phases=PHASES if "injected_ns" in gathered else (),
            ranks=ranks,
            telemetry=telemetry,
            environment={
                **shared,
                "options": options_of_run(run),
                "job": describe_job(os.environ),
                "project": describe_project(),
            },
            script="" if script is None else without_secrets(script.read_text(errors="replace")),
            **gathered,
        )
        write_or_keep(path, trace, own.journal.folder / path.name)
    comm.Barrier()


class TraceKept(TraceError):
    """The trace could not be written to its place; `kept` is where it is, as HOST:PATH, empty where it is nowhere."""

    def __init__(self, text: str, kept: str) -> None:
        super().__init__(text)
        self.kept = kept


def write_or_keep(path: Path, trace: Trace, local: Path, waits_s: Sequence[float] = WAITS_S) -> None:
    """Writes the trace; tries again, after these waits, where a file system may come back.

    Where that does not help it is written to `local`, on this node, and TraceKept says so.
    """
    for wait_s in (*waits_s, None):
        try:
            write_trace(path, trace)
            return
        except TraceUnwritable as error:
            why = error
        if wait_s is None or why.error.errno not in _MAY_COME_BACK:
            break
        print(f"{without_secrets(str(why))}; tried again in {wait_s:g} s", file=sys.stderr, flush=True)
        sleep(wait_s)
    try:
        write_trace(local, trace)
    except TraceError as error:
        raise TraceKept(f"{why}; nor to this node: {error}", "") from why
    raise TraceKept(f"{why}; the whole trace is kept at {kept_at(local)}", kept_at(local)) from why


def _gather(comm: Intracomm, array: Array) -> Array | None:
    """[…] of every rank to [rank, …] on rank 0."""
    everyone = np.empty((comm.size, *array.shape), array.dtype) if comm.rank == 0 else None
    comm.Gather(np.ascontiguousarray(array), everyone)
    return everyone


def _odd_losses(losses: Array) -> str:
    """Says where a loss was not a number: the speed is real, what was learned is not."""
    odd = ~np.isfinite(losses)
    if not odd.any():
        return ""
    ranks = np.flatnonzero(odd.any(axis=1))
    step = int(np.flatnonzero(odd.any(axis=0))[0])
    return f"the loss is not finite on {len(ranks)} of {len(losses)} ranks, first in step {step}"
