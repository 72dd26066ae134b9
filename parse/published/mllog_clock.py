"""The clock of a log's MLPerf lines: beginning, end, and after how many epochs or samples each evaluation was made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpc.system.regular_file import parse_json
from hpc.system.text import grouped
from parse.logs.engine.log_format import LogRecord
from parse.published.clock import Clock, Evaluation, Moment, finite, in_percent, times_100
from parse.published.mlperf import BENCHMARKS, Benchmark

ACCURACY = "eval_accuracy"
LOWER = (
    "eval_error", "eval_loss", "validation_loss", "averaged_validation_loss", "eval_perplexity", "eval_wer",
)  # fmt: skip
"""Keys of evaluations by which less is better."""
TARGETS = ("quality_target", "eval_target", "target_accuracy", "target_quality", "target_loss")
KEYS = frozenset({
    ACCURACY, *LOWER, *TARGETS, "run_start", "run_stop", "block_start", "block_stop", "epoch_start", "eval_start",
    "submission_benchmark", "benchmark",
})  # fmt: skip
"""Keys of the lines that a training is read from."""
POSITIONS = ("samples_count", "step_num", "epoch_num", "epoch")
MAX_EPOCHS = 20_000
"""Larger numbers of an unknown benchmark are no epochs."""


@dataclass(frozen=True)
class _Printed:
    """An evaluation as printed, and the epochs begun before it."""

    evaluation: Evaluation
    begun: float


@dataclass
class _Begun:
    """The epochs that block_start, or without it epoch_start, say to have begun: the epochs of each by its number."""

    blocks: dict[float, float] = field(default_factory=dict)
    epochs: dict[float, float] = field(default_factory=dict)
    in_blocks: float = 0.0

    def add(self, record: LogRecord) -> None:
        """Counts a line; each rank may print the same one."""
        values = record.values
        first, epochs = finite(values.get("first_epoch_num")), finite(values.get("epoch_count"))
        if values["key"] == "block_start" and first is not None and epochs and first not in self.blocks:
            self.blocks[first] = epochs
            self.in_blocks += epochs
        elif values["key"] == "epoch_start" and (number := finite(values.get("epoch_num"))) is not None:
            self.epochs.setdefault(number, 1.0)

    @property
    def counts(self) -> Mapping[float, float]:
        """The blocks, else the epochs."""
        return self.blocks or self.epochs

    @property
    def total(self) -> float:
        """The epochs of all of them."""
        return self.in_blocks if self.blocks else float(len(self.epochs))


def mllog_clock(records: Sequence[LogRecord]) -> Clock:
    """Returns the clock of the records of kind `mllog`; its source is empty if they hold no evaluation."""
    by_key = grouped((record.values["key"], record) for record in records)
    name = _first(by_key, "submission_benchmark", "benchmark")
    benchmark = BENCHMARKS.get(name)
    metric = next((key for key in (ACCURACY, *LOWER) if key in by_key), ACCURACY)
    begun = _Begun()
    printed = _distinct(_evaluations(records, metric, benchmark, begun))
    begin, finish = _moment(by_key, "run_start", 0), _moment(by_key, "run_stop", -1)
    stops = [record.values for record in by_key.get("run_stop", ())]
    clock = Clock(
        source="mllog" if printed else "",
        begin=begin,
        finish=finish,
        benchmark_name=name,
        benchmark=benchmark,
        own_target=finite(_first(by_key, *TARGETS)),
        metric=metric,
        status=stops[-1].get("status", stops[-1].get("success", "")) if stops else "",
    )
    evaluations = _in_unit([item.evaluation for item in printed], benchmark, metric)
    return _with_progress(clock, evaluations, [item.begun for item in printed], begun.counts, _origin(by_key))


def _first(by_key: Mapping[str, Sequence[LogRecord]], *keys: str) -> str:
    return next((value for key in keys for record in by_key.get(key, ()) if (value := record.values.get("value"))), "")


def _moment(by_key: Mapping[str, Sequence[LogRecord]], key: str, index: int) -> Moment | None:
    times = [record.time_s for record in by_key.get(key, ()) if record.time_s is not None]
    return Moment(times[index], key) if times else None


def _origin(by_key: Mapping[str, Sequence[LogRecord]]) -> float:
    """Returns the samples_count of the first block."""
    return finite(next((record.values.get("samples_count") for record in by_key.get("block_start", ())), None)) or 0.0


def _evaluations(
    records: Iterable[LogRecord], metric: str, benchmark: Benchmark | None, begun: _Begun
) -> Iterator[_Printed]:
    """Yields each evaluation with the epochs begun when it started: training may go on during an evaluation."""
    started: float | None = None
    pairs: dict[str, dict[str, LogRecord]] = {}
    for record in records:
        key = record.values["key"]
        begun.add(record)
        if key == "eval_start" and started is None:
            started = begun.total
        if key != metric:
            continue
        quality = _quality(record, benchmark, pairs)
        if quality is not None:
            now = begun.total if started is None else started
            yield _Printed(_evaluation(record, *quality), now)
        started = None


def _quality(
    record: LogRecord, benchmark: Benchmark | None, pairs: dict[str, dict[str, LogRecord]]
) -> tuple[float, float | None] | None:
    """Returns the one or two metrics of a line; `pairs` collects those that have a line each."""
    text = record.values.get("value", "")
    if benchmark is None or benchmark.second is None:
        value = finite(text)
        return None if value is None else (value, None)
    names = (benchmark.metric, benchmark.second_metric)
    if (metric := record.values.get("metric")) in names:
        pair = pairs.setdefault(_position(record), {})
        pair[metric] = record
        printed = [finite(pair[name].values.get("value")) for name in names if name in pair]
    else:
        printed = [*_two_numbers(text, names)]
    if len(printed) != len(names) or None in printed:
        return None
    first, second = printed
    return (first, second) if first is not None else None


def _two_numbers(text: str, names: Sequence[str]) -> Iterator[float | None]:
    """Yields the numbers of `{"BBOX": 0.37, "SEGM": 0.34}`, of such an object in `accuracy`, or of a list of two."""
    try:
        value = parse_json(text)
    except ValueError:
        return
    if isinstance(value, dict) and isinstance(value.get("accuracy"), dict):
        value = value["accuracy"]
    items = [value.get(name) for name in names] if isinstance(value, dict) else value
    if isinstance(items, list) and len(items) == len(names):
        yield from (finite(str(item)) for item in items)


def _position(record: LogRecord) -> str:
    return next((record.values[key] for key in POSITIONS if key in record.values), "")


def _evaluation(record: LogRecord, accuracy: float, second: float | None) -> Evaluation:
    epochs = next((record.values[key] for key in ("epoch_num", "epoch") if key in record.values), None)
    samples = finite(record.values.get("samples_count"))
    return Evaluation(
        time_s=record.time_s, accuracy=accuracy, second=second, samples=samples,
        epochs=finite(epochs) if samples is None else None,
    )  # fmt: skip


def _distinct(printed: Iterable[_Printed]) -> list[_Printed]:
    """Every rank may print an evaluation. Those made after the run may come in any order."""
    distinct: dict[object, _Printed] = {}
    for item in printed:
        evaluation = item.evaluation
        distinct.setdefault((evaluation.accuracy, evaluation.second, evaluation.epochs, evaluation.samples), item)
    if all(item.evaluation.samples is not None for item in distinct.values()):
        return sorted(distinct.values(), key=lambda item: item.evaluation.samples or 0)
    return list(distinct.values())


def _in_unit(evaluations: list[Evaluation], benchmark: Benchmark | None, metric: str) -> list[Evaluation]:
    """Returns accuracies and error rates in percent, losses as printed."""
    if benchmark is None:
        return in_percent(evaluations) if metric == ACCURACY else evaluations
    if not benchmark.percent:
        return evaluations
    return times_100(evaluations) if benchmark.lower else in_percent(evaluations)


def _with_progress(
    clock: Clock, evaluations: list[Evaluation], begun: list[float], counts: Mapping[float, float], origin: float
) -> Clock:
    """Adds the evaluations, their epochs or samples counted from the beginning of the training."""
    if any(evaluation.samples is not None for evaluation in evaluations):
        first = next(item.samples for item in evaluations if item.samples is not None)
        # The first block_start may print the samples of its end.
        before = origin if 0 < origin < first else 0.0
        counted = [
            item if item.samples is None else replace(item, samples=item.samples - before) for item in evaluations
        ]
        return replace(clock, evaluations=tuple(counted), counted_from=None if before else 1,
                       no_epochs="its evaluations count samples, not epochs")  # fmt: skip
    numbers = [evaluation.epochs for evaluation in evaluations]
    printed = [number for number in numbers if number is not None]
    benchmark = clock.benchmark
    if benchmark and benchmark.counts_samples and max(printed, default=0) > benchmark.max_epochs:
        by_samples = [replace(item, epochs=None, samples=item.epochs) for item in evaluations]
        return replace(clock, evaluations=tuple(by_samples), no_epochs="its evaluations count samples, not epochs")
    shift, reason = _shift(numbers, begun, counts)
    done = [
        None if number is None else (0.0 if counts and not before else number + shift)
        for number, before in zip(numbers, begun, strict=True)
    ]
    max_epochs = MAX_EPOCHS if benchmark is None else benchmark.max_epochs
    reason = reason or _no_epochs(clock, [number for number in done if number is not None], max_epochs)
    counted = [replace(item, epochs=None if reason else number) for item, number in zip(evaluations, done, strict=True)]
    return replace(clock, evaluations=tuple(counted), no_epochs=reason,
                   counted_from=None if _goes_on(numbers, counts) else 1)  # fmt: skip


def _shift(numbers: Sequence[float | None], begun: Sequence[float], counts: Mapping[float, float]) -> tuple[int, str]:
    """Returns what is to be added to the numbers of evaluations, or the reason why they are no epochs.

    The first evaluation after training began decides it: an evaluation is made after all epochs that had begun, or, if
    training goes on meanwhile, after some of the blocks.
    """
    pairs = ((number, before) for number, before in zip(numbers, begun, strict=True) if number is not None)
    if not counts:
        return (1 if 0 in numbers else 0), ""
    number, before = next(((number, before) for number, before in pairs if before), (None, 0.0))
    if number is None:
        return 0, ""
    first = min(counts)
    shifts = (0, 1) if first == 0 else (0, -1)
    sums, total = [before], 0.0
    for epochs in counts.values():
        total += epochs
        sums.append(total)
    for ended in sums:
        for shift in shifts:
            if ended - 1 < number + shift <= ended + 1e-6 and number + shift > 0:
                return shift, ""
    return 0, f"its first evaluation is numbered {number:g} after {before:g} epochs had begun: these are no epochs"


def _no_epochs(clock: Clock, done: Sequence[float], max_epochs: float) -> str:
    """Returns the reason why the numbers of evaluations are no epochs; empty if they may be."""
    if done and max(done) > max_epochs * 1.05:
        limit = f"in {clock.benchmark_name} they are no passes over the data set" if clock.benchmark else "too many"
        return f"its evaluations are numbered up to {max(done):g}: {limit}"
    if len(done) > 1 and done[0] == done[-1]:
        return f"all its evaluations are numbered {done[0]:g}"
    return ""


def _goes_on(numbers: Sequence[float | None], counts: Mapping[float, float]) -> bool:
    """Whether the first block is a later one than the training's first."""
    first, epochs = next(iter(counts.items()), (0.0, 0.0))
    number = next((number for number in numbers if number is not None), None)
    return first > 1 and number in (first + epochs - 1, first + epochs)
