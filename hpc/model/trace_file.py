"""Writes and reads the HDF5 file of a trace; docs/trace_format.md describes the format for other readers."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.outcome import Outcome
from hpc.model.timestamps import ABSENT, MEETING_STAMPS, STAMPS
from hpc.model.trace import Telemetry, Trace, TraceError, run_of
from hpc.model.trace_rows import Rows, with_waits
from hpc.model.training import TrainingHistory
from hpc.system.regular_file import NotRegularError, open_regular

SCHEMA = "rankwise-trace"
SCHEMA_VERSION = 2
"""Raised only where an older reader would misread the file, not for additions."""

# The dataset of each array of a Trace, and its attributes.
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
_UNIX: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "unix_offset_ns": ("clock/unix_offset_ns", {"unit": "ns", "axes": "rank, point"}),
    "unix_bound_ns": ("clock/unix_bound_ns", {"unit": "ns", "axes": "rank, point"}),
}
"""As _ARRAYS; older files have neither."""
_OF_STEPS = ("stamps", "samples", "losses", "meetings", "input")
_INJECTED, _MEETINGS, _INPUT, _TRAINING = "injected_ns", "meetings", "input", "training"
_TELEMETRY: Mapping[str, Mapping[str, Any]] = {
    "ranks": {"unit": "1", "axes": "node"},
    "local_ns": {"unit": "ns", "axes": "node, sample", "absent": ABSENT},
    "values": {"axes": "node, sample, series", "absent": "NaN"},
}


def load_hdf5() -> None:
    """Loads the HDF5 library, so that it cannot fail when a trace is to be written. Raises ImportError."""
    import h5py  # noqa: F401 - loading it is the purpose


class TraceUnwritable(TraceError):
    """A trace could not be written; `error` is the system's."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path}: cannot be written ({error.strerror or error})")
        self.error = error


def write_trace(path: Path, trace: Trace) -> None:
    """Writes the file beside its place, flushes it to the disk, then renames it: whole or not at all.

    Raises TraceUnwritable where it cannot be written, TraceError where it exists: a trace is never overwritten.
    """
    beside = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.part")
    try:
        if path.exists():
            raise TraceError(f"{path}: is there already; a trace is never overwritten")
        try:
            with _Flushed(beside, "w+") as raw:
                _write(raw, trace)
            beside.replace(path)
            try:
                _to_disk(path.parent)
            except OSError:
                path.unlink(missing_ok=True)  # a power cut could still remove it
                raise
        finally:
            with suppress(OSError):  # the error above has the details
                beside.unlink(missing_ok=True)
    except OSError as error:
        raise TraceUnwritable(path, error) from error


class _Flushed(io.FileIO):
    """The file that HDF5 writes to; leaving the `with` flushes it to the disk and raises the first error of any write.

    HDF5 itself must not see such an error: on a full disk it hides the error, or ends the process (1.14).
    """

    error: OSError | None = None

    def write(self, content: Any, /) -> int:
        view, offset = memoryview(content).cast("B"), self.tell()
        try:
            while view and self.error is None:
                written = os.pwrite(self.fileno(), view, offset)
                view, offset = view[written:], offset + written
        except OSError as error:
            self.error = error
        return len(content)

    def truncate(self, size: int | None = None, /) -> int:
        try:
            return super().truncate(size) if self.error is None else 0
        except OSError as error:
            self.error = error
            return 0

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, traceback: Any) -> None:
        try:
            if self.error is None and kind is None:
                os.fsync(self.fileno())
        finally:
            super().__exit__(kind, raised, traceback)
        if self.error is not None:
            raise self.error from None


def _write(raw: _Flushed, trace: Trace) -> None:
    import h5py

    # The 1.8 format: checksummed metadata, readable by every HDF5 library of the last fifteen years.
    aligned = {"alignment_threshold": 1, "alignment_interval": 8}  # numbers can be mapped as they lie
    with h5py.File(raw, "w", libver=("v108", "v110"), **aligned) as file:
        file.attrs["schema"] = _stored(SCHEMA)
        file.attrs["schema_version"] = np.int64(SCHEMA_VERSION)
        file.attrs["attempt"] = np.int64(trace.attempt)
        file.attrs["recovered"] = np.int8(trace.recovered)
        for name in ("run_id", "point_id", "outcome"):
            file.attrs[name] = _stored(getattr(trace, name))
        unix = {} if trace.unix_offset_ns is None else _UNIX
        for name, (where, attributes) in {**_ARRAYS, **unix}.items():
            _describe(file.create_dataset(where, data=getattr(trace, name)), attributes)
        file["samples"].attrs["unit"] = _stored(trace.run.unit)  # of language models tokens
        if trace.injected_ns is not None:
            attributes = {"unit": "ns", "axes": "rank, step, phase", "absent": ABSENT, "phases": trace.injected_phases}
            _describe(file.create_dataset(_INJECTED, data=trace.injected_ns), attributes)
        if trace.meetings is not None:
            attributes = {
                "unit": "ns", "axes": f"rank, step, meeting, ({', '.join(MEETING_STAMPS)})", "absent": ABSENT,
                "names": trace.meeting_names, "roots": np.array(trace.meeting_roots, np.int64),
            }  # fmt: skip
            _describe(file.create_dataset(_MEETINGS, data=trace.meetings), attributes)
        if trace.input is not None:
            attributes = {"unit": "ns", "axes": "rank, step, figure", "absent": ABSENT, "names": trace.input_names}
            _describe(file.create_dataset(_INPUT, data=trace.input), attributes)
        if trace.telemetry is not None:
            for name, attributes in _TELEMETRY.items():
                _describe(file.create_dataset(f"telemetry/{name}", data=getattr(trace.telemetry, name)), attributes)
            file.create_dataset("telemetry/series", data=_stored(trace.telemetry.series))
        described = {**trace.run_extra, **asdict(trace.run), "run_id": trace.run_id, "point_id": trace.point_id}
        texts = {"run": described, "ranks": list(trace.ranks), "environment": dict(trace.environment)}
        if trace.history is not None:
            texts[_TRAINING] = trace.history.to_json()
        for name, value in texts.items():
            # Values without a JSON type (a path, a version object) are stored as text.
            text = file.create_dataset(name, data=_stored(json.dumps(value, default=str)))
            _describe(text, {"content": "JSON"})
        for name in ("evidence", "script"):
            file.create_dataset(name, data=_stored(getattr(trace, name)))
        file.create_dataset("clock/domains", data=_stored(trace.clock_domains))


def _describe(dataset: Any, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        is_number = isinstance(value, int | np.ndarray)
        dataset.attrs[name] = np.asarray(value, np.int64) if is_number else _stored(value)


def _stored(text: str | Sequence[str]) -> npt.NDArray[Any]:
    """A text, or several, as HDF5 strings of one length, with NUL characters and halves of surrogate pairs replaced.

    Strings of variable length lie in a heap without a checksum, on which the HDF5 library can hang when it is damaged.
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
    with _naming(path), _opened(path) as file:
        return _read(file, path.stat().st_size)


@contextmanager
def open_trace(path: Path) -> Iterator[Trace]:
    """As read_trace, but stamps, samples and losses stay in the file, so that any trace takes bounded memory.

    `stamps[:, first:stop]` reads those steps of all ranks, `stamps[:, first:stop, END]` one stamp of these, and they
    have no other operation. The trace is valid inside the `with` only.
    """
    with ExitStack() as stack:
        with _naming(path):
            file = stack.enter_context(_opened(path))
            raw = stack.enter_context(open_regular(path))
            trace = _read(file, path.stat().st_size, raw.fileno())
        yield trace


def visible_defect(path: Path) -> str:
    """The defect of a trace that its first bytes and its length show; empty where they show none.

    Reads the superblock only (HDF5 File Format Specification, II.A), for speed over many traces.
    """
    try:
        with open_regular(path) as file:
            begin, size_bytes = file.read(36), os.fstat(file.fileno()).st_size
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not begin.startswith(b"\x89HDF\r\n\x1a\n"):
        return "is empty" if size_bytes == 0 else "is no trace (not an HDF5 file)"
    version, offset_bytes = begin[8:10] if len(begin) > 9 else b"\0\0"
    if version not in (2, 3) or offset_bytes != 8:
        return ""  # rewritten by another tool: the read below decides
    end_bytes = int.from_bytes(begin[28:36], "little")
    return f"is cut off ({size_bytes} of {end_bytes} bytes)" if size_bytes < end_bytes else ""


def _opened(path: Path) -> Any:
    import h5py

    if path.is_dir():
        raise TraceError("is a folder, not a trace")
    with open_regular(path) as raw:
        if os.fstat(raw.fileno()).st_size == 0:
            raise TraceError("the file is empty")
        return h5py.File(
            f"/proc/self/fd/{raw.fileno()}", "r", locking=False
        )  # the checked file, whatever its name is now


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raises every error of the file inside as a TraceError that names the file."""
    try:
        yield
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    # Raised by the file system, HDF5 and JSON on an absent, cut, overwritten or foreign file.
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise TraceError(f"{path}: {_unreadable_reason(error)}") from error


def _unreadable_reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, NotRegularError):
        return f"cannot be read ({error.strerror})"
    if "file signature not found" in text:
        return "not an HDF5 file"
    if "truncated file" in text:
        return f"the file is cut off ({text})"
    return f"damaged, or not a trace ({type(error).__name__}: {text})"


def _read(file: Any, size_bytes: int, descriptor: int | None = None) -> Trace:
    """The trace; with a `descriptor` of the file, arrays in _OF_STEPS stay in it."""
    schema, version = _decoded(file.attrs.get("schema")), file.attrs.get("schema_version")
    if schema != SCHEMA:
        raise TraceError(f"an HDF5 file, but not a trace of ours (its schema is {schema!r}, not {SCHEMA!r})")
    if int(version) > SCHEMA_VERSION:
        raise TraceError(f"written by a newer version (schema {version}; this one reads up to {SCHEMA_VERSION})")
    described = _json(file, "run", dict, size_bytes)
    run, extra = run_of(described)
    injected, meetings, read = file.get(_INJECTED), file.get(_MEETINGS), file.get(_INPUT)
    stays = _OF_STEPS if descriptor is not None else ()

    def array(name: str, where: str) -> Any:
        return (
            Rows(_possible(file, where, size_bytes), descriptor) if name in stays else _array(file, where, size_bytes)
        )

    stored = {**_ARRAYS, **{name: described for name, described in _UNIX.items() if described[0] in file}}
    arrays = {name: array(name, where) for name, (where, _) in stored.items()}
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
        meetings=None if meetings is None else with_waits(array(_MEETINGS, _MEETINGS)),
        meeting_names=[] if meetings is None else [_decoded(name) for name in meetings.attrs["names"]],
        meeting_roots=[] if meetings is None else _roots(meetings),
        input=None if read is None else array(_INPUT, _INPUT),
        input_names=[] if read is None else [_decoded(name) for name in read.attrs["names"]],
        telemetry=_telemetry(file, size_bytes),
        history=TrainingHistory.from_json(_json(file, _TRAINING, dict, size_bytes)) if _TRAINING in file else None,
        **arrays,
    )


def _roots(meetings: Any) -> list[int]:
    roots = meetings.attrs.get("roots")
    return [-1] * meetings.shape[2] if roots is None else np.asarray(roots).tolist()


def _telemetry(file: Any, size_bytes: int) -> Telemetry | None:
    if "telemetry" not in file:
        return None
    arrays = {name: _array(file, f"telemetry/{name}", size_bytes) for name in _TELEMETRY}
    series = [_decoded(name) for name in _array(file, "telemetry/series", size_bytes)]
    return Telemetry(series=series, **arrays)


def _dataset(file: Any, name: str) -> Any:
    import h5py

    dataset = file.get(name)
    if not isinstance(dataset, h5py.Dataset):
        raise TraceError(f"the dataset {name} is missing")
    return dataset


def _possible(file: Any, name: str, size_bytes: int) -> Any:
    """The dataset. A damaged header can claim any shape; memory is allocated only if the file can hold the data."""
    dataset = _dataset(file, name)
    if dataset.chunks is None and dataset.nbytes > size_bytes:
        raise TraceError(f"the dataset {name} claims {dataset.nbytes} bytes in a file of {size_bytes}")
    return dataset


def _array(file: Any, name: str, size_bytes: int) -> Any:
    return _possible(file, name, size_bytes)[()]


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
