"""What `rankwise.load` returns: points, runs, ledgers, findings, steps, each also a table for pandas, polars, pyarrow.

Names, numbers and units are those of the summary (docs/formats.md): speeds in `unit`, shares 0 to 1, times of a step in
ms; None is a number that does not exist. `json` of a record has all that the summary has of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Generic, TypeVar, overload

from rankwise.inside import call

T = TypeVar("T")
Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A repeat of a point. `throughput` is in the unit of its point, `trace` the path of its file."""

    run_id: str
    repeat: int
    outcome: str
    throughput: float | None
    hosts: tuple[str, ...]
    trace: str | None
    json: Json = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Point:
    """All runs that are equal but for the repeat. `median_speed` is over the ok runs, in `unit`, with `interval` and
    what that covers; `speedup` is against `base`; `step_time_ms` are percentiles by name, `alarms` what is wrong
    with it."""

    point_id: str
    case: str
    folder: str | None
    nodes: int | None
    devices: int | None
    backend: str
    workload: str | None
    precision: str | None
    scaling: str | None
    batch_size_per_device: int | None
    global_batch_size: int | None
    runs_ok: int
    unit: str
    median_speed: float | None
    interval: tuple[float, float] | None
    interval_coverage: float | None
    cv: float | None
    speedup: float | None
    no_speedup: str
    scaling_efficiency: float | None
    base: str | None
    step_time_ms: Mapping[str, float]
    alarms: tuple[str, ...]
    runs: tuple[Run, ...] = field(repr=False)
    json: Json = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean with its interval, ms per step."""

    value: float
    low: float | None
    high: float | None
    coverage: float | None


@dataclass(frozen=True, kw_only=True)
class Term:
    """A part of a step, or several joined by `+`: its mean, that of the base, the loss, and its share of the whole
    loss."""

    name: str
    mean: Mean
    baseline: float | None
    loss: Mean | None
    share: float | None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What makes a step longer, by `costs` ms: `sentences` say what, why, and what to do."""

    point_id: str
    case: str
    kind: str
    costs: float | None
    sentences: tuple[str, ...]
    json: Json = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of a rank: its stamps in ns since the first begin of the run, on the clock of all ranks."""

    rank: int
    step: int
    measured: bool
    begin_ns: int | None
    batch_ready_ns: int | None
    forward_end_ns: int | None
    grads_ready_ns: int | None
    reduced_ns: int | None
    end_ns: int | None
    samples: int
    loss: float | None


class Records(Generic[T]):
    """Records of a kind in their order, and their table: `pandas.DataFrame.from_arrow`, `polars.DataFrame`,
    `pyarrow.table` and others take it as it is."""

    def __init__(self, columns: Mapping[str, Any], record: Callable[[int], T]) -> None:
        self._columns, self._record = columns, record

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the table's columns."""
        return (*self._columns,)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        numbers = range(len(self))[at]
        return self._record(numbers) if isinstance(numbers, int) else [*map(self._record, numbers)]

    def __iter__(self) -> Iterator[T]:
        return map(self._record, range(len(self)))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """A capsule with the table, in the types that it has."""
        return call("arrow.stream", self._columns)

    def __repr__(self) -> str:
        return f"<{len(self)} records of {len(self._columns)} columns>"

    def _repr_html_(self) -> str:
        return str(call("frames.columns_html", self._columns))


@dataclass(frozen=True, kw_only=True, eq=False)
class Ledger:
    """Where the time of a point's step goes, ms: `terms` add up to `step`, `loss` is against `base`. Its table has a
    row for each term, and for the step."""

    point_id: str
    case: str
    base: str | None
    sentence: str
    step: Mean
    loss: Mean | None
    terms: tuple[Term, ...]
    findings: tuple[Finding, ...]
    json: Json = field(repr=False)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """A capsule with the table."""
        return call("arrow.stream", call("frames.table_columns", "terms", [self.json]))

    def _repr_html_(self) -> str:
        return str(call("frames.columns_html", call("frames.table_columns", "terms", [self.json])))


@dataclass(frozen=True)
class Plot:
    """A chart, which a notebook shows; `svg` is its file."""

    svg: str = field(repr=False)

    def _repr_svg_(self) -> str:
        return self.svg


class Measurement:
    """What `load` has read. Ledgers read the traces once more, when they are first wanted."""

    def __init__(self, summary: Any, page: Json) -> None:
        self._summary = summary
        self.json: Json = page
        """The whole summary (docs/summary.schema.json), without ledgers."""
        self.remarks: tuple[str, ...] = (*page["remarks"], *page["refusals"])
        """What is odd about files that were read, and why others were not."""
        points = [_record(Point, result, runs=_runs(result)) for result in page["results"]]
        runs = [run for point in points for run in point.runs]
        self.points: Records[Point] = Records(
            call("frames.table_columns", "points", page["results"]), points.__getitem__
        )
        self.runs: Records[Run] = Records(call("frames.table_columns", "runs", page["results"]), runs.__getitem__)

    @cached_property
    def _ledgers(self) -> tuple[Any, list[Json]]:
        summary, ledgers = call("frames.add_ledgers", self._summary)
        return summary, ledgers

    def ledger(self, point: Point) -> Ledger:
        """The ledger of a point. Raises KeyError where no run of it has a trace and ended ok."""
        for of in self._ledgers[1]:
            if (of["point_id"], of["folder"]) == (point.point_id, point.folder):
                terms = tuple(_record(Term, term) for term in of["terms"])
                findings = tuple(
                    _record(Finding, each, point_id=point.point_id, case=point.case) for each in of["findings"]
                )
                return _record(Ledger, of, terms=terms, findings=findings)
        raise KeyError(f"{point.point_id}: no ledger, as no run of it has a trace and ended ok")

    @cached_property
    def findings(self) -> Records[Finding]:
        """Those of all points, of each what costs most first."""
        ledgers = self._ledgers[1]
        every = [
            _record(Finding, each, point_id=of["point_id"], case=of["case"])
            for of in ledgers
            for each in of["findings"]
        ]
        return Records(call("frames.table_columns", "findings", ledgers), every.__getitem__)

    def steps(self, run: Run) -> Records[Step]:
        """The steps of all ranks of a run. Raises ValueError where it has no trace, or one that cannot be read."""
        if run.trace is None:
            raise ValueError(f"{run.run_id}: it has no trace, and steps are only there")
        columns = call("frames.step_columns", run.trace)

        def step(at: int) -> Step:
            return Step(**{name: values[at : at + 1].tolist()[0] for name, values in columns.items()})

        return Records(columns, step)

    def plot(self, chart: str = "speed") -> Plot:
        """A chart of the page: speed, speedup or efficiency over devices, or the ledger of all points. Raises
        ValueError where there is none of that name, as of a single point."""
        return Plot(call("frames.chart_svg", self._ledgers[0], chart))

    def __repr__(self) -> str:
        return f"<Measurement: {len(self.points)} points, {len(self.runs)} runs>"

    def _repr_html_(self) -> str:
        return str(call("frames.summary_html", self._ledgers[0]))


def _runs(result: Json) -> tuple[Run, ...]:
    return tuple(_record(Run, run) for run in result["runs"])


def _record(kind: type[T], content: Json, **more: Any) -> T:
    """The record of this content: lists are tuples, alarms their texts."""
    values = {**content, **more, "json": content}
    values["alarms"] = tuple(alarm["text"] for alarm in content.get("alarms", ()))
    for name in ("mean", "step", "loss"):
        if isinstance(values.get(name), Mapping):
            values[name] = _record(Mean, values[name])
    made = {each.name: values[each.name] for each in fields(kind)}  # type: ignore[arg-type]  # all kinds are dataclasses
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in made.items()})
