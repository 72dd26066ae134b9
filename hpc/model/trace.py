"""The trace: everything that an attempt measured, without derived values. hpc.model.trace_file writes and reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from hpc.model.clock_model import ClockError, ClockModel
from hpc.model.groups import CallTable
from hpc.model.outcome import Outcome
from hpc.model.spec import DRAWN, SIMULATED, RunSpec, SpecError
from hpc.model.timestamps import ABSENT, MEETING_STAMPS, STAMPS
from hpc.model.training import TrainingHistory
from hpc.model.typed import TypeMismatchError, read_fields

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# RankReport: the facts that a rank reports of itself, a table per rank in `/ranks` of a trace.

SHARED = ("software", "variables", "backend", "preflight")
"""Tables of a report of which a trace stores what all ranks share once, in its environment."""


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """One rank: its place, its machine, its software, its device; None is absent.

    `stamp_bound_ns` is how far a device's time stamps may be off the host's clock. `telemetry` and `copies` describe
    the helper of the node, `input` how the rank reads its data from files, `journal` the folder of the time stamps,
    `start` and `nccl` what preflight read, `problems` what is missing from the trace, and why. `moments` are those of
    its start and its end, by its own clock: `process_ns` its process began, `met_ns` it had met the other ranks (a
    script: was started), `imported_ns` its framework was imported, `built_ns` it began to train, `ended_ns` it stopped.
    `extra` holds all other keys, also those of other versions.
    """

    rank: int | None = None
    local_rank: int | None = None
    node_rank: int | None = None
    hostname: str | None = None
    nodes_simulated: bool | None = None
    boot_id: str | None = None
    cpu_model: str | None = None
    cpus: int | None = None
    affinity: Sequence[int] | None = None
    nvidia_driver: str | None = None
    amdgpu_driver: str | None = None
    device: Mapping[str, Any] | None = None
    software: Mapping[str, Any] | None = None
    variables: Mapping[str, Any] | None = None
    backend: Mapping[str, Any] | None = None
    stamp_bound_ns: float | None = None
    journal: Mapping[str, Any] | None = None
    preflight: Mapping[str, Any] | None = None
    start: Mapping[str, Any] | None = None
    nccl: Mapping[str, Any] | None = None
    moments: Mapping[str, Any] | None = None
    telemetry: Mapping[str, Any] | None = None
    copies: Mapping[str, Any] | None = None
    input: Mapping[str, Any] | None = None
    problems: Mapping[str, str] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def script(self) -> Mapping[str, Any]:
        """What the hooks in a script report of it; empty where that is no table."""
        script = self.extra.get("script")
        return script if isinstance(script, Mapping) else {}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], shared: Mapping[str, Any] | None = None) -> RankReport:
        """The report of a table in `/ranks`. `shared` has the tables of facts that all ranks share.

        A value of another type is stored in `extra`, and its field is None.
        """
        tables = {name: _table(shared, name) for name in SHARED if name in shared} if shared else {}
        joined = {name: _joined(table, _table(values, name)) for name, table in tables.items() if table}
        known: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for name, value in {**values, **joined}.items():
            is_known = name in _TYPES and isinstance(value, _TYPES[name])
            (known if is_known else extra)[name] = value
        return cls(**known, extra=extra)

    def as_json(self) -> dict[str, Any]:
        """The table as stored."""
        known = {name: getattr(self, name) for name in _TYPES}
        return {**self.extra, **{name: value for name, value in known.items() if value is not None}}

    @property
    def gpu_uuids(self) -> tuple[str | None, ...]:
        """The UUIDs of the GPUs that this rank drives; None for one whose framework does not report it.

        They are those of its backend's `devices` if it names several, else that of its device.
        """
        devices = [device for device in self.backend_fact("devices") or [self.device] if isinstance(device, Mapping)]
        return tuple(device.get("uuid") for device in devices if device.get("kind") == "gpu")

    def backend_fact(self, name: str) -> Any:
        """A fact of the backend, None if absent."""
        return (self.backend or {}).get(name)


_HINTS = {name: get_args(hint)[0] for name, hint in get_type_hints(RankReport).items() if name != "extra"}
_TYPES = {
    name: (int, float)
    if hint is float
    else list
    if hint == Sequence[int]
    else (dict, Mapping)
    if get_origin(hint) is Mapping
    else get_origin(hint) or hint
    for name, hint in _HINTS.items()
}
"""For each field, `T | None`, the type that a stored value must have; dict is looked at first, which is fast."""


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name)
    return table if isinstance(table, dict) or (table is not None and isinstance(table, Mapping)) else {}


def _joined(shared: Mapping[str, Any], its: Mapping[str, Any]) -> Mapping[str, Any]:
    """Both tables; without a copy where one is empty."""
    return {**shared, **its} if shared and its else its or shared


Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


class TraceError(ValueError):
    """A trace cannot be written or read, or contradicts itself; the text names the file."""


class TraceCutOff(TraceError):
    """The file ends, or changed, inside what a rank recorded."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Telemetry:
    """The readings of a helper beside the ranks of each node, about once a second: clocks, power, load, counters.

    `ranks` [node] names the rank of each node by whose clock `local_ns` [node, sample] was taken; ABSENT after a node's
    last sample. `values` [node, sample, series]; NaN where a node has no such figure or could not read it then. A name
    in `series` ends with its unit (`gpu0.sm_clock_mhz`, `net.eth0.received_bytes`). Raises TraceError on wrong shapes
    and types.
    """

    ranks: Int64
    local_ns: Int64
    values: Float64
    series: Sequence[str]

    def __post_init__(self) -> None:
        nodes, samples = len(self.ranks), self.local_ns.shape[-1] if self.local_ns.ndim else 0
        if self.local_ns.shape != (nodes, samples) or self.values.shape != (nodes, samples, len(self.series)):
            raise TraceError(
                f"telemetry of {nodes} nodes and {len(self.series)} series has shapes {list(self.local_ns.shape)} and "
                f"{list(self.values.shape)}"
            )
        types = [array.dtype for array in (self.ranks, self.local_ns, self.values)]
        if types != [np.int64, np.int64, np.float64]:
            raise TraceError(f"telemetry is {', '.join(map(str, types))}; it must be int64, int64, float64")


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """One attempt of a run. Times are nanoseconds; a stamp or an injected delay that is absent holds `ABSENT`.

    Where all ranks call the same collectives in one group, `meeting_names` and `meeting_roots` say which; else `calls`
    does, of each rank. `run_id` and `point_id` are those of the plan. `run_extra` holds the settings of a later
    version's plan that this version lacks. Step indices count warm-up steps too. `history` is that of a whole training,
    over all attempts.
    Raises TraceError on wrong shapes.
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
    unix_offset_ns: Int64 | None = None  # [rank, point]; Unix time = the rank's own clock + offset
    unix_bound_ns: Int64 | None = None  # [rank, point]
    injected_ns: Int64 | None = None  # [rank, step, phase]
    injected_phases: Sequence[str] = ()
    meetings: Int64 | None = None  # [rank, step, meeting, 3] as MEETING_STAMPS, of the rank's own clock
    meeting_names: Sequence[str] = ()
    meeting_roots: Sequence[int] = ()
    calls: CallTable | None = None
    input: Int64 | None = None  # [rank, step, figure]: of the batch that the step trained on
    input_names: Sequence[str] = ()
    host_bound_ns: Int64 | None = None  # [rank, step, phase]: of a device, how long its host set the pace
    host_bound_phases: Sequence[str] = ()
    telemetry: Telemetry | None = None
    history: TrainingHistory | None = None
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
        if not ((self.steps_completed >= 0) & (self.steps_completed <= steps)).all():
            raise TraceError(f"steps_completed goes beyond 0 to {steps}")
        self._expect("blocks", np.int64, None, 2)
        self._expect("clock_local_ns", np.int64, ranks, None)
        self._expect("clock_offset_ns", np.float64, *self.clock_local_ns.shape)
        self._expect("clock_bound_ns", np.float64, *self.clock_local_ns.shape)
        self._expect("barrier_exits_ns", np.int64, ranks, None)
        if self.unix_offset_ns is not None or self.unix_bound_ns is not None:
            self._expect("unix_offset_ns", np.int64, *self.clock_local_ns.shape)
            self._expect("unix_bound_ns", np.int64, *self.clock_local_ns.shape)
        if self.meetings is not None:
            width = len(self.meeting_names) if self.calls is None else self.calls.calls.shape[1]
            self._expect("meetings", np.int64, ranks, steps, width, len(MEETING_STAMPS))
            if self.calls is not None and len(self.calls.calls) != ranks:
                raise TraceError(f"calls are of {len(self.calls.calls)} of {ranks} ranks")
            if len(self.meeting_roots) != len(self.meeting_names):
                raise TraceError(f"{len(self.meeting_names)} meetings have {len(self.meeting_roots)} roots")
        for name, *lengths in (
            ("injected_ns", len(self.injected_phases)), ("input", len(self.input_names)),
            ("host_bound_ns", len(self.host_bound_phases)),
        ):  # fmt: skip
            if getattr(self, name) is not None:
                self._expect(name, np.int64, ranks, steps, *lengths)
        for name in ("ranks", "clock_domains"):
            if len(getattr(self, name)) != ranks:
                raise TraceError(f"{name} has {len(getattr(self, name))} entries for {ranks} ranks")
        if not all(isinstance(facts, Mapping) for facts in self.ranks):
            raise TraceError("ranks has entries that are no tables of facts")
        if self.telemetry is not None and not all(0 <= rank < ranks for rank in self.telemetry.ranks):
            raise TraceError(
                f"telemetry is of ranks {str(self.telemetry.ranks.tolist())[:200]}, of which there are {ranks}"
            )
        if any(not 0 < first < stop <= steps for first, stop in self.blocks):
            raise TraceError(
                f"blocks {str(self.blocks.tolist())[:200]} are not inside the {steps} steps after the first"
            )
        if (self.blocks[1:, 0] < self.blocks[:-1, 1]).any():
            raise TraceError(
                f"blocks {str(self.blocks.tolist())[:200]} overlap or are out of order: a step would count twice"
            )

    def _expect(self, name: str, dtype: type, *lengths: int | None) -> None:
        """Raises TraceError unless the array has that type and those lengths; None is any length."""
        array = getattr(self, name)
        if array is None:
            raise TraceError(f"{name} is missing beside what belongs to it")
        shape = [
            length if expected is None else expected for expected, length in zip(lengths, array.shape, strict=False)
        ]
        if shape != list(array.shape) or len(shape) != len(lengths) or array.dtype != dtype:
            expected = ", ".join("any" if length is None else str(length) for length in lengths)
            raise TraceError(f"{name} is {array.dtype} {list(array.shape)}; it must be {np.dtype(dtype)} [{expected}]")

    def to_global(self, stamp: int) -> Int64:
        """One of the six stamps on the global clock, int64 [rank, step] ns. Raises TraceError without such a clock."""
        local_ns = self.stamps[:, :, stamp]
        return local_ns if self._shares_clock() else self._clock_model.to_global(local_ns)

    def global_stamps(self, first: int, stop: int) -> Int64:
        """All six stamps of steps `first` to `stop` − 1 on the global clock, int64 [rank, step, 6] ns; absent stays so.

        Raises TraceError without such a clock.
        """
        return self.stamps_globally(self.stamps[:, first:stop])

    def stamps_globally(self, local_ns: Int64, which: Iterable[range] = (range(len(STAMPS)),)) -> Int64:
        """Stamps of the ranks' own clocks [rank, step, 6] on the global clock: `which` of them, the others are absent.

        Those of one name and step are adjacent in memory. Raises as to_global.
        """
        by_name = np.full(local_ns.shape[::-1], ABSENT)
        for stamps in which:
            these = by_name[stamps.start : stamps.stop]
            these[:] = local_ns[:, :, stamps.start : stamps.stop].T
            if not self._shares_clock():
                by_rank = these.reshape(-1, len(local_ns)).T
                self._clock_model.to_global(by_rank, by_rank)
        return by_name.T

    def globally(self, local_ns: Int64) -> Int64:
        """Moments of the ranks' own clocks, int64 [rank, …] ns, on the global clock; raises as to_global."""
        if self._shares_clock():
            return local_ns
        flat = np.ascontiguousarray(local_ns).reshape(len(local_ns), -1)
        return self._clock_model.to_global(flat, np.empty_like(flat)).reshape(local_ns.shape)

    def rank_globally(self, rank: int, local_ns: Int64) -> tuple[Int64, Float64]:
        """Moments of one rank's own clock [n] on the global clock, and their error bounds, ns; raises as to_global."""
        if self._shares_clock():
            return local_ns, np.zeros(len(local_ns))
        model = self._clock_model
        here = slice(rank, rank + 1)
        clock = ClockModel(model.local_ns[here], model.offset_ns[here], model.bound_ns[here])
        return clock.to_global(local_ns[None])[0], clock.bounds_ns(local_ns[None])[0]

    def bounds_ns(self, stamp: int, steps: Int64) -> Float64:
        """The bounds of these steps' stamp on the global clock, [rank, index in `steps`] ns; raises as to_global."""
        return self.bounds_of(self.stamps[:, steps, stamp])

    def bounds_of(self, local_ns: Int64) -> Float64:
        """The error bounds of stamps of the ranks' own clocks [rank, n] on the global clock, ns; NaN where absent.

        The sum of the clocks' bounds and the bound of stamps that a device took, `stamp_bound_ns` of a rank's facts.
        Raises as to_global.
        """
        if self._shares_clock():
            return np.where(local_ns == ABSENT, np.nan, self._device_bound_ns)
        bound_ns = self._clock_model.bounds_ns(local_ns)
        bound_ns += self._device_bound_ns
        return bound_ns

    @cached_property
    def reports(self) -> tuple[RankReport, ...]:
        """The report of each rank, including the shared facts that the trace stores once."""
        return tuple(RankReport.from_json(facts, self.environment) for facts in self.ranks)

    @cached_property
    def _device_bound_ns(self) -> Float64:
        return np.array([[report.stamp_bound_ns or 0.0] for report in self.reports])

    @cached_property
    def _clock_model(self) -> ClockModel:
        try:
            return ClockModel(self.clock_local_ns, self.clock_offset_ns, self.clock_bound_ns)
        except ClockError as error:
            raise TraceError(f"{self.run_id}: {error}") from error

    def _shares_clock(self) -> bool:
        """Whether all ranks read the same clock and never compared it; raises TraceError where they should have."""
        if self.clock_local_ns.shape[1]:
            return False
        if len(set(self.clock_domains)) > 1:
            raise TraceError(f"{self.run_id}: the ranks' clocks were never synchronised")
        return True


def run_of(described: Mapping[str, Any]) -> tuple[RunSpec, dict[str, Any]]:
    """The run that a trace or a plan describes, and its fields that this version lacks.

    Missing fields take their defaults. Raises TraceError where one without a default is missing, a value is impossible,
    or nobody made the run.
    """
    if described.get("backend") == SIMULATED:
        raise TraceError(DRAWN)
    known = {each.name for each in fields(RunSpec)}
    extra = {k: v for k, v in described.items() if k not in known and k not in ("run_id", "point_id")}
    try:
        return RunSpec(**read_fields(RunSpec, described, later=True)), extra
    except TypeMismatchError as error:
        raise TraceError(f"the description of the run: {error}") from None
    except SpecError as error:
        raise TraceError(f"the description of the run is impossible: {error}") from None
