"""The trace: everything one attempt measured, in one HDF5 file. The only file that knows HDF5.

Nothing is derived at write time: stamps are nanoseconds of the rank's own clock, the clocks' synchronisation points
are stored as they are. docs/trace_format.md describes the file for readers that have nothing of ours.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.clock import ClockError, bounds_ns, offsets_to_global
from hpc.outcome import Outcome
from hpc.spec import RunSpec, SpecError
from hpc.stamps import ABSENT, STAMPS

SCHEMA = "rankwise-trace"
SCHEMA_VERSION = 1
"""Raised only where an older reader would misread the file; what is merely added does not raise it."""

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


class TraceError(ValueError):
    """A trace cannot be written or read, or is not what it says; the text names the file."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """One attempt of a run. Times are nanoseconds; a stamp or an injected delay that is absent holds `ABSENT`.

    `run_id` and `point_id` are those made when the run was planned. `run_extra` holds what a later version's plan
    asked for and this version does not know. Step indices count warm-up steps too. Raises TraceError on wrong shapes.
    """

    run: RunSpec
    attempt: int
    outcome: Outcome
    stamps: Int64  # [rank, step, 6], of the rank's own clock
    samples: npt.NDArray[np.int32]  # [rank, step]
    losses: Float64  # [rank, step]; NaN where absent
    steps_completed: Int64  # [rank]
    blocks: Int64  # [block, 2]: first step of each measured block, one past its last
    clock_local_ns: Int64  # [rank, point]
    clock_offset_ns: Float64  # [rank, point]; global = local + offset
    clock_bound_ns: Float64  # [rank, point]
    clock_domains: Sequence[str]  # [rank]
    barrier_exits_ns: Int64  # [rank, barrier], of the rank's own clock
    ranks: Sequence[Mapping[str, Any]]
    environment: Mapping[str, Any] = field(default_factory=dict)
    evidence: str = ""
    script: str = ""
    injected_ns: Int64 | None = None  # [rank, step, phase]
    injected_phases: Sequence[str] = ()
    recovered: bool = False
    run_id: str = ""
    point_id: str = ""
    run_extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "run_id", self.run_id or self.run.run_id)
        object.__setattr__(self, "point_id", self.point_id or self.run.point_id)
        if self.stamps.ndim != 3:
            raise TraceError(f"stamps has shape {list(self.stamps.shape)}; it must be [rank, step, {len(STAMPS)}]")
        ranks, steps, _ = self.stamps.shape
        self._expect("stamps", np.int64, ranks, steps, len(STAMPS))
        self._expect("samples", np.int32, ranks, steps)
        self._expect("losses", np.float64, ranks, steps)
        self._expect("steps_completed", np.int64, ranks)
        self._expect("blocks", np.int64, None, 2)
        self._expect("clock_local_ns", np.int64, ranks, None)
        self._expect("clock_offset_ns", np.float64, *self.clock_local_ns.shape)
        self._expect("clock_bound_ns", np.float64, *self.clock_local_ns.shape)
        self._expect("barrier_exits_ns", np.int64, ranks, None)
        if self.injected_ns is not None:
            self._expect("injected_ns", np.int64, ranks, steps, len(self.injected_phases))
        for name in ("ranks", "clock_domains"):
            if len(getattr(self, name)) != ranks:
                raise TraceError(f"{name} has {len(getattr(self, name))} entries for {ranks} ranks")
        if not all(isinstance(facts, Mapping) for facts in self.ranks):
            raise TraceError("ranks has entries that are no tables of facts")
        if any(not 0 < first < past <= steps for first, past in self.blocks):
            raise TraceError(f"blocks {self.blocks.tolist()} do not lie inside the {steps} steps after the first")

    def _expect(self, name: str, dtype: type, *lengths: int | None) -> None:
        """Raises TraceError unless the array has that type and those lengths; None is any length."""
        found = getattr(self, name)
        fits = len(found.shape) == len(lengths) and all(
            wanted in (None, length) for wanted, length in zip(lengths, found.shape, strict=True)
        )
        if not fits or found.dtype != dtype:
            wanted = ", ".join("any" if length is None else str(length) for length in lengths)
            raise TraceError(f"{name} is {found.dtype} {list(found.shape)}; it must be {np.dtype(dtype)} [{wanted}]")

    def to_global(self, stamp: int) -> Int64:
        """One of the six stamps on the global clock, int64 [rank, step] ns. Raises TraceError without such a clock."""
        local_ns = self.stamps[:, :, stamp]
        if self._one_clock():
            return local_ns
        try:
            return offsets_to_global(local_ns, self.clock_local_ns, self.clock_offset_ns, self.clock_bound_ns)
        except ClockError as error:
            raise TraceError(f"{self.run_id}: {error}") from error

    def bounds_ns(self, stamp: int, steps: Int64) -> Float64:
        """How far these steps' stamp may be off on the global clock, [rank, one of `steps`] ns; raises as to_global.

        To the clocks' bounds comes that of stamps which a device took, `stamp_bound_ns` among the facts of a rank.
        """
        local_ns = self.stamps[:, steps, stamp]
        own_ns = np.array([[float(facts.get("stamp_bound_ns") or 0)] for facts in self.ranks])
        if self._one_clock():
            return np.broadcast_to(own_ns, local_ns.shape)
        try:
            return own_ns + bounds_ns(local_ns, self.clock_local_ns, self.clock_offset_ns, self.clock_bound_ns)
        except ClockError as error:
            raise TraceError(f"{self.run_id}: {error}") from error

    def _one_clock(self) -> bool:
        """Whether all ranks read the same clock and never compared it; raises TraceError where they should have."""
        if self.clock_local_ns.shape[1]:
            return False
        if len(set(self.clock_domains)) > 1:
            raise TraceError(f"{self.run_id}: the ranks' clocks were never synchronised")
        return True


# Where each array of a Trace lies in the file, and what its attributes say of it.
_ARRAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "stamps": ("stamps", {"unit": "ns", "axes": "rank, step, stamp", "absent": ABSENT, "stamps": STAMPS}),
    "samples": ("samples", {"unit": "samples", "axes": "rank, step"}),
    "losses": ("losses", {"unit": "1", "axes": "rank, step", "absent": "NaN"}),
    "steps_completed": ("steps_completed", {"unit": "steps", "axes": "rank"}),
    "blocks": ("blocks", {"unit": "step", "axes": "block, (first, one past the last)"}),
    "clock_local_ns": ("clock/local_ns", {"unit": "ns", "axes": "rank, point"}),
    "clock_offset_ns": ("clock/offset_ns", {"unit": "ns", "axes": "rank, point"}),
    "clock_bound_ns": ("clock/bound_ns", {"unit": "ns", "axes": "rank, point"}),
    "barrier_exits_ns": ("clock/barrier_exits_ns", {"unit": "ns", "axes": "rank, barrier"}),
}
_INJECTED = "injected_ns"


def write_trace(path: Path, trace: Trace) -> None:
    """Writes the file beside its place, flushes it to the disk, then gives it its name: whole or not at all.

    Raises TraceError where it cannot be written or is there already; a trace is never overwritten.
    """
    if path.exists():
        raise TraceError(f"{path}: is there already; a trace is never overwritten")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        _write(beside, trace)
        _to_disk(beside)
        beside.replace(path)
        _to_disk(path.parent)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error})") from error
    finally:
        beside.unlink(missing_ok=True)


def _write(path: Path, trace: Trace) -> None:
    import h5py

    # The 1.8 format: checksummed metadata, readable by every HDF5 library of the last fifteen years.
    with h5py.File(path, "w", libver=("v108", "v110"), locking=False) as file:
        file.attrs["schema"] = _stored(SCHEMA)
        file.attrs["schema_version"] = np.int64(SCHEMA_VERSION)
        file.attrs["attempt"] = np.int64(trace.attempt)
        file.attrs["recovered"] = np.int8(trace.recovered)
        for name in ("run_id", "point_id", "outcome"):
            file.attrs[name] = _stored(getattr(trace, name))
        for name, (where, attributes) in _ARRAYS.items():
            _describe(file.create_dataset(where, data=getattr(trace, name)), attributes)
        if trace.injected_ns is not None:
            attributes = {"unit": "ns", "axes": "rank, step, phase", "absent": ABSENT, "phases": trace.injected_phases}
            _describe(file.create_dataset(_INJECTED, data=trace.injected_ns), attributes)
        described = {**trace.run_extra, **asdict(trace.run), "run_id": trace.run_id, "point_id": trace.point_id}
        texts = {"run": described, "ranks": list(trace.ranks), "environment": dict(trace.environment)}
        for name, value in texts.items():
            # A value of a kind that JSON has not (a path, a version object) is kept as its text, not lost.
            text = file.create_dataset(name, data=_stored(json.dumps(value, default=str)))
            _describe(text, {"content": "JSON"})
        for name in ("evidence", "script"):
            file.create_dataset(name, data=_stored(getattr(trace, name)))
        file.create_dataset("clock/domains", data=_stored(trace.clock_domains))


def _describe(dataset: Any, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        dataset.attrs[name] = np.int64(value) if isinstance(value, int) else _stored(value)


def _stored(text: str | Sequence[str]) -> npt.NDArray[Any]:
    """A text, or several, as HDF5 strings of one length.

    Not of variable length: those lie in a heap without a checksum, on which the HDF5 library can hang when it is
    damaged. Replaced is what such a string cannot hold: NUL characters and halves of surrogate pairs.
    """
    import h5py

    texts = [text] if isinstance(text, str) else text
    stored = [each.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace") for each in texts]
    longest = max((len(each) for each in stored), default=0)
    values = np.array(stored, dtype=h5py.string_dtype("utf-8", max(1, longest)))
    return values.reshape(()) if isinstance(text, str) else values


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot fsync a folder; the file itself is on the disk by then.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)


def read_trace(path: Path) -> Trace:
    """The trace in a file, opened without locking. Raises TraceError, naming the file, where it holds none."""
    import h5py

    try:
        if path.is_dir():
            raise TraceError("is a folder, not a trace")
        size_bytes = path.stat().st_size
        if size_bytes == 0:
            raise TraceError("the file is empty")
        with h5py.File(path, "r", locking=False) as file:
            return _read(file, size_bytes)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    # What the file system, HDF5 and JSON raise on an absent, cut, overwritten or foreign file.
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise TraceError(f"{path}: {_why_unreadable(error)}") from error


def _why_unreadable(error: Exception) -> str:
    said = " ".join(str(error).split())
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if "file signature not found" in said:
        return "not an HDF5 file"
    if "truncated file" in said:
        return f"the file is cut off ({said})"
    return f"damaged, or not a trace ({type(error).__name__}: {said})"


def _read(file: Any, size_bytes: int) -> Trace:
    schema, version = _decoded(file.attrs.get("schema")), file.attrs.get("schema_version")
    if schema != SCHEMA:
        raise TraceError(f"an HDF5 file, but not a trace of ours (its schema is {schema!r}, not {SCHEMA!r})")
    if int(version) > SCHEMA_VERSION:
        raise TraceError(f"written by a newer version (schema {version}; this one reads up to {SCHEMA_VERSION})")
    described = _json(file, "run", dict, size_bytes)
    run, extra = run_of(described)
    injected = file.get(_INJECTED)
    return Trace(
        run=run,
        run_extra=extra,
        run_id=str(described.get("run_id", "")),
        point_id=str(described.get("point_id", "")),
        attempt=int(file.attrs["attempt"]),
        outcome=Outcome(_decoded(file.attrs["outcome"])),
        recovered=bool(file.attrs["recovered"]),
        evidence=_text(file, "evidence", size_bytes),
        script=_text(file, "script", size_bytes),
        ranks=_json(file, "ranks", list, size_bytes),
        environment=_json(file, "environment", dict, size_bytes),
        clock_domains=[_decoded(domain) for domain in _array(file, "clock/domains", size_bytes)],
        injected_ns=None if injected is None else _array(file, _INJECTED, size_bytes),
        injected_phases=[] if injected is None else [_decoded(phase) for phase in injected.attrs["phases"]],
        **{name: _array(file, where, size_bytes) for name, (where, _) in _ARRAYS.items()},
    )


def run_of(described: Mapping[str, Any]) -> tuple[RunSpec, dict[str, Any]]:
    """The run that a trace or a plan of any age describes, and those of its fields that this version does not know.

    Fields that the description is too old to have take their defaults. Raises TraceError where one without a default
    is missing or a value is impossible.
    """
    kinds = {"int": int, "str": str}
    known = {f.name: f for f in fields(RunSpec)}
    for name, f in known.items():
        if name not in described:
            if f.default is MISSING and f.default_factory is MISSING:
                raise TraceError(f"the description of the run lacks {name}")
        elif not isinstance(described[name], kinds.get(str(f.type), Mapping)):
            raise TraceError(f"the description of the run has {name} = {described[name]!r}")
    extra = {k: v for k, v in described.items() if k not in known and k not in ("run_id", "point_id")}
    try:
        return RunSpec(**{k: v for k, v in described.items() if k in known}), extra
    except SpecError as error:
        raise TraceError(f"the description of the run is impossible: {error}") from None


def _dataset(file: Any, name: str) -> Any:
    import h5py

    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise TraceError(f"the dataset {name} is missing")
    return found


def _array(file: Any, name: str, size_bytes: int) -> Any:
    found = _dataset(file, name)
    # A damaged header can claim any shape; memory is asked for only where the file can hold the data.
    if found.chunks is None and found.nbytes > size_bytes:
        raise TraceError(f"the dataset {name} claims {found.nbytes} bytes in a file of {size_bytes}")
    return found[()]


def _text(file: Any, name: str, size_bytes: int) -> str:
    return _decoded(_array(file, name, size_bytes))


def _decoded(stored: Any) -> str:
    """A string as h5py gives it, whether its file (or a tool that rewrote it) has fixed or variable lengths."""
    return stored.decode("utf-8") if isinstance(stored, bytes) else str(stored)


def _json(file: Any, name: str, kind: type, size_bytes: int) -> Any:
    value = json.loads(_text(file, name, size_bytes))
    if not isinstance(value, kind):
        raise TraceError(f"{name} holds no JSON {kind.__name__}")
    return value
