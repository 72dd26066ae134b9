"""Writes and reads the HDF5 file of a trace; docs/formats.md describes the format for other readers."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.groups import CallTable, GroupsError, groups_of_json
from hpc.model.outcome import Outcome
from hpc.model.spec import RunSpec
from hpc.model.timestamps import ABSENT, MEETING_STAMPS, STAMPS
from hpc.model.trace import Telemetry, Trace, TraceCutOff, TraceError, run_of
from hpc.model.training import TrainingHistory
from hpc.system.atomic import sync_folder
from hpc.system.regular_file import TOO_MUCH, NotRegularError, open_regular, parse_json, too_much

# Datasets that stay in the file of a trace and are read by ranges of steps.


class Rows:
    """A dataset [rank, step, …] in the file, read by ranges of steps.

    HDF5 would read much more than a short range of each row; the rows are contiguous, so they are read directly.
    """

    def __init__(self, dataset: Any, descriptor: int | None) -> None:
        assert descriptor is not None
        self.shape, self.dtype, self.ndim = dataset.shape, dataset.dtype, len(dataset.shape)
        self._descriptor, self._offset = descriptor, dataset.id.get_offset()
        self._step_bytes = self.dtype.itemsize * prod(self.shape[2:])

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        first, stop, _ = key[1].indices(self.shape[1])
        column = key[2:]
        if key[0] != slice(None) or key[1].step not in (None, 1) or not all(isinstance(at, int) for at in column):
            raise IndexError("what stays in the file is read as [:, first:stop] or [:, first:stop, column]")
        steps = max(0, stop - first)
        if not column:
            out = np.empty((self.shape[0], steps, *self.shape[2:]), self.dtype)
            for rank, row in enumerate(out if out.size else ()):
                self._read(rank, first, row)
            return out
        out, row = np.empty((self.shape[0], steps), self.dtype), np.empty((steps, *self.shape[2:]), self.dtype)
        for rank in range(self.shape[0] if row.size else 0):  # the row stays in the core's cache
            self._read(rank, first, row)
            out[rank] = row[(slice(None), *column)]
        return out

    def _read(self, rank: int, first: int, row: Any) -> None:
        """Reads what a rank recorded from a step on."""
        at = self._offset + (rank * self.shape[1] + first) * self._step_bytes
        if os.preadv(self._descriptor, [row], at) != row.nbytes:
            raise TraceCutOff(f"the file is cut off inside what rank {rank} recorded")


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
"""As _ARRAYS; both or neither."""
_OF_STEPS = ("stamps", "samples", "losses", "meetings", "input", "host_bound_ns")
_MEETINGS, _CALLS, _GROUPS, _TRAINING = "meetings", "meeting_calls", "meeting_groups", "training"
_NS = {"unit": "ns", "absent": ABSENT}
_OPTIONAL: Mapping[str, tuple[Mapping[str, Any], tuple[str, str]]] = {
    "injected_ns": ({**_NS, "axes": "rank, step, phase"}, ("phases", "injected_phases")),
    "input": ({**_NS, "axes": "rank, step, figure"}, ("names", "input_names")),
    "host_bound_ns": ({**_NS, "axes": "rank, step, phase"}, ("phases", "host_bound_phases")),
}
"""Arrays that not every trace has, under their names in a Trace: the attributes, and what names the entries of the last
axis, as attribute and in a Trace."""
_TELEMETRY: Mapping[str, Mapping[str, Any]] = {
    "ranks": {"unit": "1", "axes": "node"},
    "local_ns": {"unit": "ns", "axes": "node, sample", "absent": ABSENT},
    "values": {"axes": "node, sample, series", "absent": "NaN"},
}
_MAX_TEXT_BYTES, _MAX_FACTS_BYTES, _MAX_ATTRIBUTE_BYTES = 1 << 24, 1 << 16, 1 << 22
"""Of one text of a trace, and on top of it for each rank; of one attribute."""
_CLOCK_POINTS = 100_000
"""Comparisons of the clocks beside those around blocks: a script's come ever more rarely, so many in eight years."""
_MAX_REASON = 300


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

    A trace of the ranks' own replaces one that was recovered of their copies, which standard error mentions. Raises
    TraceUnwritable where it cannot be written, TraceError where another exists: that is never overwritten.
    """
    beside = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.part")
    try:
        _require_free(path, trace)
        try:
            with _Flushed(beside, "w+") as raw:
                _write(raw, trace)
            if replaced := _require_free(path, trace):  # once more: writing takes time
                print(f"rankwise: {path}: {replaced}, is replaced by the whole one", file=sys.stderr)
            beside.replace(path)
            try:
                sync_folder(path.parent)
            except OSError:
                path.unlink(missing_ok=True)  # a power cut could still remove it
                raise
        finally:
            with suppress(OSError):  # the error above has the details
                beside.unlink(missing_ok=True)
    except OSError as error:
        raise TraceUnwritable(path, error) from error


def _require_free(path: Path, trace: Trace) -> str:
    """What the trace replaces there, empty if nothing. Raises TraceError where it must not be replaced."""
    if not path.exists():
        return ""
    with suppress(TraceError):
        present = read_trace(path)
        if present.recovered and not trace.recovered:
            return f"a trace that was recovered of {int(present.steps_completed.max())} steps"
    raise TraceError(f"{path}: is there already; a trace is never overwritten")


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
    aligned = {"alignment_threshold": 1, "alignment_interval": 8}  # numbers can be mapped in place
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
        for name, (attributes, (label, of_trace)) in _OPTIONAL.items():
            if (values := getattr(trace, name)) is not None:
                _describe(file.create_dataset(name, data=values), {**attributes, label: getattr(trace, of_trace)})
        if trace.meetings is not None:
            attributes = {**_NS, "axes": f"rank, step, meeting, ({', '.join(MEETING_STAMPS)})"}
            if trace.calls is None:
                attributes |= {"names": trace.meeting_names, "roots": np.array(trace.meeting_roots, np.int64)}
            _describe(file.create_dataset(_MEETINGS, data=trace.meetings), attributes)
        if trace.calls is not None:
            attributes = {"axes": "rank, meeting, (name, group, root, number)", "names": trace.calls.names}
            _describe(file.create_dataset(_CALLS, data=trace.calls.calls), attributes)
        if trace.telemetry is not None:
            for name, attributes in _TELEMETRY.items():
                _describe(file.create_dataset(f"telemetry/{name}", data=getattr(trace.telemetry, name)), attributes)
            file.create_dataset("telemetry/series", data=_stored(trace.telemetry.series))
        described = {**trace.run_extra, **asdict(trace.run), "run_id": trace.run_id, "point_id": trace.point_id}
        texts = {"run": described, "ranks": list(trace.ranks), "environment": dict(trace.environment)}
        if trace.history is not None:
            texts[_TRAINING] = trace.history.to_json()
        if trace.calls is not None:
            texts[_GROUPS] = trace.calls.groups_as_json()
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

    Strings of variable length are in a heap without a checksum, on which the HDF5 library can hang when it is damaged.
    """
    import h5py

    texts = [text] if isinstance(text, str) else text
    stored = [each.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace") for each in texts]
    longest = max((len(each) for each in stored), default=0)
    values = np.array(stored, dtype=h5py.string_dtype("utf-8", max(1, longest)))
    return values.reshape(()) if isinstance(text, str) else values


def read_trace(path: Path) -> Trace:
    """The trace in a file, opened without locking. Raises TraceError, naming the file, where it holds none."""
    with _naming(path), _regular(path) as raw, _hdf5(raw) as file:
        return _read(file, path.stat().st_size)


@contextmanager
def open_trace(path: Path) -> Iterator[Trace]:
    """As read_trace, but stamps, samples and losses stay in the file, so that any trace takes bounded memory.

    `stamps[:, first:stop]` reads those steps of all ranks, `stamps[:, first:stop, END]` one stamp of these, and they
    have no other operation. The trace is valid inside the `with` only. What its numbers make too large for the memory
    or for a type, inside the `with` too, is a TraceError that names the file.
    """
    with ExitStack() as stack:
        with _naming(path):
            raw = stack.enter_context(_regular(path))
            file = stack.enter_context(_hdf5(raw))
            trace = _read(file, path.stat().st_size, raw.fileno())
        try:
            yield trace
        except TOO_MUCH as error:
            raise TraceError(f"{path}: {too_much(error)}") from error


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


def _regular(path: Path) -> io.BufferedReader:
    if path.is_dir():
        raise TraceError("is a folder, not a trace")
    return open_regular(path)


def _hdf5(raw: io.BufferedReader) -> Any:
    """The HDF5 file in one that was checked and is open, whatever its name is now."""
    import h5py

    if os.fstat(raw.fileno()).st_size == 0:
        raise TraceError("the file is empty")
    return h5py.File(f"/proc/self/fd/{raw.fileno()}", "r", locking=False)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raises every error of the file inside as a TraceError that names the file."""
    try:
        yield
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    except TOO_MUCH as error:
        raise TraceError(f"{path}: {too_much(error)}") from error
    # Raised by the file system, HDF5 and JSON on an absent, cut, overwritten or foreign file.
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise TraceError(f"{path}: {_unreadable_reason(error)}") from error


def _unreadable_reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, (NotRegularError, PermissionError)):
        return f"cannot be read ({error.strerror})"
    if "file signature not found" in text:
        return "not an HDF5 file"
    if isinstance(error, UnicodeDecodeError):
        return "damaged: a text in it is no UTF-8"
    if "truncated file" in text:
        return f"the file is cut off ({text})"
    return f"damaged, or not a trace ({type(error).__name__}: {text[:_MAX_REASON]})"


def _read(file: Any, size_bytes: int, descriptor: int | None = None) -> Trace:
    """The trace; with a `descriptor` of the file, arrays in _OF_STEPS stay in it."""
    stored = _StoredTrace(file, size_bytes)
    schema = stored.attribute("schema")
    if schema != SCHEMA:
        raise TraceError(f"an HDF5 file, but not a trace of ours (its schema is {schema!r}, not {SCHEMA!r})")
    if (version := stored.number("schema_version")) != SCHEMA_VERSION:
        raise TraceError(f"a trace of schema {version}; this version reads schema {SCHEMA_VERSION}")
    described = stored.json("run", dict)
    run, extra = run_of(described)
    stored.limit_to(run)
    stays = _OF_STEPS if descriptor is not None else ()

    def array(name: str, where: str, axes: str) -> Any:
        return Rows(stored.dataset(where, axes), descriptor) if name in stays else stored.values(where, axes)

    present = {**_ARRAYS, **{name: described for name, described in _UNIX.items() if described[0] in stored}}
    arrays = {name: array(name, where, attributes["axes"]) for name, (where, attributes) in present.items()}
    for name, (attributes, (label, of_trace)) in _OPTIONAL.items():
        if name in stored:
            arrays[name] = array(name, name, attributes["axes"])
            arrays[of_trace] = stored.entries(label, name, str)
    has_meetings = _MEETINGS in stored
    is_alike = has_meetings and _CALLS not in stored  # all ranks call the same, in one group
    return Trace(
        run=run,
        run_extra=extra,
        run_id=str(described.get("run_id", "")),
        point_id=str(described.get("point_id", "")),
        attempt=stored.number("attempt"),
        outcome=Outcome(stored.attribute("outcome")),
        recovered=bool(stored.number("recovered")),
        evidence=stored.text("evidence"),
        script=stored.text("script"),
        ranks=stored.json("ranks", list),
        environment=stored.json("environment", dict),
        clock_domains=stored.texts("clock/domains", "rank"),
        meetings=array(_MEETINGS, _MEETINGS, "rank, step, meeting, moment") if has_meetings else None,
        meeting_names=stored.entries("names", _MEETINGS, str) if is_alike else [],
        meeting_roots=stored.entries("roots", _MEETINGS, int) if is_alike else [],
        calls=_calls(stored) if _CALLS in stored else None,
        telemetry=_telemetry(stored),
        history=TrainingHistory.from_json(stored.json(_TRAINING, dict)) if _TRAINING in stored else None,
        **arrays,
    )


def _calls(stored: _StoredTrace) -> CallTable:
    try:
        return CallTable(
            names=tuple(stored.entries("names", _CALLS, str)), groups=groups_of_json(stored.json(_GROUPS, list)),
            calls=stored.values(_CALLS, "rank, meeting, column"),
        )  # fmt: skip
    except GroupsError as error:
        raise TraceError(f"{_CALLS}: {error}") from error


def _telemetry(stored: _StoredTrace) -> Telemetry | None:
    if "telemetry" not in stored:
        return None
    arrays = {name: stored.values(f"telemetry/{name}", described["axes"]) for name, described in _TELEMETRY.items()}
    return Telemetry(series=stored.texts("telemetry/series", "series"), **arrays)


class _StoredTrace:
    """The objects of a trace's file. Each is checked by its header before any of its content is read.

    A file is data: what refers to other files (links, external storage, virtual datasets) is refused, and so is all
    that a trace is never made of and that takes memory or time out of proportion: filters, chunks, strings of variable
    length, references, shapes beyond the run's ranks and steps, more bytes than the file has. Raises TraceError.
    """

    def __init__(self, file: Any, size_bytes: int) -> None:
        from h5py import h5g

        self._root = h5g.open(file.id, b"/")
        self._objects: dict[str, Any] = {"": self._root}
        self._remaining_bytes = size_bytes
        self._lengths: Mapping[str, int] = {}
        self._max_text_bytes = _MAX_TEXT_BYTES

    def limit_to(self, run: RunSpec) -> None:
        """Refuses from here on what is longer than this run can have made it."""
        compared = _CLOCK_POINTS + 4 * run.steps  # the clocks, before and after each block at most
        self._lengths = {
            "rank": run.ranks, "node": run.ranks, "step": run.steps, "block": run.steps, "point": compared,
            "barrier": compared,
        }  # fmt: skip
        self._max_text_bytes = _MAX_TEXT_BYTES + run.ranks * _MAX_FACTS_BYTES

    def __contains__(self, name: str) -> bool:
        return self._object(name) is not None

    def dataset(self, name: str, axes: str) -> Any:
        """The dataset of numbers or texts. Its axes that are the run's have at most its lengths."""
        from h5py import Dataset

        return Dataset(self._header(name, axes), readonly=True)

    def values(self, name: str, axes: str) -> Any:
        """What is in such a dataset."""
        return self._content(self._header(name, axes))

    def _content(self, header: Any) -> Any:
        """As Dataset has it, which takes three times as long for few numbers."""
        from h5py import h5s

        values = np.empty(header.shape, header.dtype)
        if values.size:
            header.read(h5s.ALL, h5s.ALL, values)
        return values[()]

    def _header(self, name: str, axes: str = "") -> Any:
        from h5py import h5d

        header = self._object(name)
        if not isinstance(header, h5d.DatasetID):
            raise TraceError(f"the dataset {name} is missing")
        self._require_inside(header, name)
        shape, stored_type = header.shape, header.get_type()  # the shape of a virtual dataset is that of other files
        self._require_plain(stored_type, f"the dataset {name}")
        for length, axis in zip(shape, axes.split(", "), strict=False):
            if length > (limit := self._lengths.get(axis, length)):
                raise TraceError(
                    f"the dataset {name} claims {length} entries ({axis}) where the run has at most {limit}"
                )
        size_bytes = prod(map(int, shape)) * stored_type.get_size()
        if size_bytes > self._remaining_bytes or size_bytes > header.get_storage_size():
            raise TraceError(f"the dataset {name} claims {size_bytes} bytes, more than the file has for it")
        self._remaining_bytes -= size_bytes
        return header

    def text(self, name: str) -> str:
        """A text as stored."""
        header = self._header(name)
        if header.shape != () or header.dtype.kind != "S" or header.dtype.itemsize > self._max_text_bytes:
            raise TraceError(f"{name} is no text of at most {self._max_text_bytes} bytes")
        return bytes(self._content(header)).decode("utf-8")

    def texts(self, name: str, axes: str) -> list[str]:
        """Several texts as stored."""
        header = self._header(name, axes)
        if len(header.shape) != 1 or header.dtype.kind != "S":
            raise TraceError(f"{name} is no list of texts")
        return [text.decode("utf-8") for text in self._content(header).tolist()]

    def json(self, name: str, kind: type) -> Any:
        """The value of this kind in a text of JSON."""
        value = parse_json(self.text(name))
        if not isinstance(value, kind):
            raise TraceError(f"{name} holds no JSON {kind.__name__}")
        return value

    def attribute(self, name: str, of: str = "") -> Any:
        """An attribute of the file or of a dataset, as Python's numbers and texts; None where it is absent."""
        from h5py import h5a

        owner = self._object(of)
        if owner is None or not h5a.exists(owner, name.encode()):
            return None
        stored = h5a.open(owner, name.encode())
        self._require_plain(stored.get_type(), f"the attribute {name}")
        if stored.get_storage_size() > _MAX_ATTRIBUTE_BYTES:
            raise TraceError(f"the attribute {name} has more than {_MAX_ATTRIBUTE_BYTES} bytes")
        value = np.empty(stored.shape, stored.dtype)
        stored.read(value)
        return np.char.decode(value, "utf-8").tolist() if value.dtype.kind == "S" else value.tolist()

    def number(self, name: str) -> int:
        """An attribute of the file that is a whole number."""
        value = self.attribute(name)
        if not isinstance(value, int):
            raise TraceError(f"the attribute {name} is no whole number")
        return value

    def entries(self, name: str, of: str, kind: type) -> list[Any]:
        """An attribute of a dataset that is a list of these."""
        values = self.attribute(name, of)
        if not isinstance(values, list) or not all(isinstance(each, kind) for each in values):
            raise TraceError(f"the attribute {name} of {of} is no list of {kind.__name__}")
        return values

    def _object(self, name: str) -> Any:
        """The object below the root, reached by hard links alone; None where there is none."""
        if name not in self._objects:
            folder, _, last = name.rpartition("/")
            self._objects[name] = self._member(self._object(folder), last.encode(), name)
        return self._objects[name]

    def _member(self, group: Any, link: bytes, name: str) -> Any:
        from h5py import h5g, h5l, h5o

        if not isinstance(group, h5g.GroupID) or not group.links.exists(link):
            return None
        if group.links.get_info(link).type != h5l.TYPE_HARD:
            raise TraceError(f"{name} is a link to elsewhere (soft or external), which is not followed")
        return h5o.open(group, link)

    def _require_inside(self, dataset: Any, name: str) -> None:
        """Raises TraceError unless the content is in this file, unchunked."""
        from h5py import h5d

        plist = dataset.get_create_plist()
        layout = plist.get_layout()
        if layout == h5d.VIRTUAL or plist.get_external_count():
            kind = "a virtual dataset" if layout == h5d.VIRTUAL else "external storage"
            raise TraceError(f"the dataset {name} has its content in other files ({kind}), which are not read")
        if layout == h5d.CHUNKED or plist.get_nfilters():
            raise TraceError(
                f"the dataset {name} is chunked or compressed, as in no trace: h5repack -l CONTI -f NONE undoes that"
            )

    def _require_plain(self, stored_type: Any, name: str) -> None:
        """Raises TraceError unless it holds numbers or texts of fixed length."""
        from h5py import h5t

        kind = stored_type.get_class()
        is_text = kind == h5t.STRING and not stored_type.is_variable_str()
        if not is_text and not (kind in (h5t.INTEGER, h5t.FLOAT) and stored_type.get_size() <= 8):
            raise TraceError(f"{name} holds neither numbers nor texts of fixed length")
