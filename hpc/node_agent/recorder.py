"""The helper process seen from its rank: started before the steps, stopped after them, never a reason to fail."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.node_agent.sources import Beside

_ROOT = Path(__file__).resolve().parents[2]
START_S, STOP_S = 30.0, 10.0
"""How long a helper may take until it knows what there is to read (a driver that sleeps takes seconds to wake), and
until it has ended."""
_REASON_CHARACTERS = 500


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What one helper read: `local_ns` [sample] of the node's perf_counter_ns, `values` [sample, series], NaN absent.

    `facts` says where the helper ran, what it could not read and why, and, as `problem`, why it ended early.
    """

    local_ns: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    series: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


class Recorder:
    """A helper process that reads clocks, power, load and counters of this node beside its ranks.

    `ranks` are those of the node, in the order of their MPI rank; `gpus` the UUIDs of their GPUs, an empty list for
    all that the driver shows, None where the run uses none. What goes wrong is a fact of the recording, no error.
    """

    def __init__(self, ranks: Sequence[Beside], gpus: Sequence[str] | None = None, *, interval_s: float = 1.0) -> None:
        self._request = {
            "interval_s": interval_s,
            "ranks": [asdict(rank) for rank in ranks],
            "gpus": {"used": gpus is not None, "uuids": list(gpus or ())},
        }
        self._facts: dict[str, Any] = {"interval_s": interval_s}
        self._series: tuple[str, ...] = ()
        self._helper: subprocess.Popen[bytes] | None = None
        self._samples = self._errors = -1

    def start(self) -> None:
        """Starts the helper and waits for its list of series.

        The helper ends with the thread that calls this, whatever ends that.
        """
        try:
            # Files without a name: whatever ends this process leaves nothing behind.
            self._samples, self._errors = os.memfd_create("samples"), os.memfd_create("errors")
            path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
            self._helper = subprocess.Popen(
                [sys.executable, "-m", "hpc.node_agent", "--parent", str(os.getpid()), "--samples", str(self._samples)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                pass_fds=(self._samples,),
                env={**os.environ, "PYTHONPATH": path},
            )
            assert self._helper.stdin is not None and self._helper.stdout is not None
            with suppress(BrokenPipeError):  # a helper that ended at once is reported below
                self._helper.stdin.write(json.dumps(self._request).encode() + b"\n")
                self._helper.stdin.flush()
            reply = json.loads(_line(self._helper.stdout.fileno(), START_S))
            self._series = tuple(reply.pop("series"))
            self._facts |= reply
        except (OSError, ValueError) as error:
            self._end(f"did not start: {error}")

    def stop(self) -> Recording:
        """Ends the helper, takes one last sample and returns all of them."""
        if self._helper is not None:
            self._end()
        recording = Recording(**self._rows(), series=self._series, facts=self._facts)
        for file in (self._samples, self._errors):
            if file >= 0:
                os.close(file)
        self._samples = self._errors = -1
        return recording

    def _end(self, problem: str = "") -> None:
        """Ends the helper, by force where it does not end by itself, and notes its problem and its failed series."""
        helper, self._helper = self._helper, None
        output = b""
        if helper is not None:
            if problem:
                helper.kill()
            try:
                output, _ = helper.communicate(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                helper.kill()
                helper.communicate()
                problem = problem or f"did not end within {STOP_S:g} s"
            if not problem and helper.returncode:
                problem = f"ended early: {_status(helper.returncode)}"
        if problem:
            self._facts["problem"] = " ".join(f"{problem} {_last_line(self._errors)}".split())
        elif failed := json.loads(output)["failed"]:
            self._facts["failed"] = failed

    def _rows(self) -> dict[str, Any]:
        """The samples in the file; a row that was cut off is left out."""
        row = np.dtype([("ns", np.int64), ("values", np.float64, (len(self._series),))])
        stored = _content(self._samples)
        rows = np.frombuffer(stored, row, count=len(stored) // row.itemsize)
        return {"local_ns": rows["ns"].copy(), "values": rows["values"].copy()}


def _content(file: int) -> bytes:
    """All that was written to the file; its own place in it, which the helper shares, stays."""
    return b"" if file < 0 else os.pread(file, os.fstat(file).st_size, 0)


def _line(pipe: int, limit_s: float) -> bytes:
    """The bytes of the pipe up to the end of a line. Raises OSError where the pipe ends before, or the time is up."""
    received, until_s = b"", monotonic() + limit_s
    while not received.endswith(b"\n"):
        if not select.select([pipe], [], [], max(0.0, until_s - monotonic()))[0]:
            raise TimeoutError(f"said nothing within {limit_s:g} s")
        piece = os.read(pipe, 1 << 16)
        if not piece:
            raise OSError("ended at once:")
        received += piece
    return received


def _status(returncode: int) -> str:
    return f"signal {-returncode}" if returncode < 0 else f"exit status {returncode}"


def _last_line(errors: int) -> str:
    """The end of what the helper complained about: an exception's own words."""
    lines = _content(errors).decode(errors="replace").strip().splitlines()
    return lines[-1][:_REASON_CHARACTERS] if lines else ""
