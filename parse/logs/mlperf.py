"""Moments and evaluations of a training, by AI-Rank's lines or by MLPerf's, whose benchmarks have targets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpc.system.regular_file import parse_json
from hpc.system.text import grouped
from parse.logs.engine.log_format import LogRecord
from parse.logs.formats.mllog import COCO, IMAGENET, OPEN_IMAGES, epochs_of_blocks

ROUNDS = {"0.5": 2018.0, "0.6": 2019.0, "0.7": 2020.0, "1.0": 2021.0, "2.0": 2022.0, "5.0": 2025.0}
"""The rounds that changed a target, each by the year of its runs: a log does not name its round."""
CRITEO = 4_195_197_692
SECONDS_OF_YEAR = 365.2425 * 86_400
FIRST_YEAR = 2017
"""Earlier times are those of a clock that does not count from 1970."""
LARGE_BATCH = 8192
"""The global batch size from which round 0.7 required less of BERT."""


@dataclass(frozen=True, kw_only=True)
class QualityTarget:
    """The quality to reach: at least `value`, or at most if `lower`; `second` is the minimum of a second metric.

    Both are in percent if `percent`. `source` says where the target is from.
    """

    value: float
    metric: str = "accuracy"
    second_metric: str = ""
    second: float | None = None
    percent: bool = True
    lower: bool = False
    source: str = ""

    @property
    def is_accuracy(self) -> bool:
        """Whether it is one accuracy in percent."""
        return self.percent and not self.lower and self.second is None

    def reached(self, value: float, second: float | None) -> bool:
        """Whether an evaluation is at the target."""
        if self.second is not None and (second is None or second < self.second):
            return False
        return value <= self.value if self.lower else value >= self.value

    def limits(self) -> str:
        """The target with what is a limit from above, and what from below beside it."""
        if not self.lower:
            return self.text()
        first = replace(self, second=None).text()
        return f"{first} at most" + (
            "" if self.second is None else f" and {self.second_metric} {self.second:g} at least"
        )

    def text(self, value: float | None = None, second: float | None = None, digits: str = "g") -> str:
        """Returns a quality with its metric and unit, the target's own if none is given."""
        unit = " %" if self.percent else ""
        name = "" if self.is_accuracy else f"{self.metric} "
        text = f"{name}{self.value if value is None else value:{digits}}{unit}"
        if self.second is None:
            return text
        other = self.second if value is None else second
        return f"{text} and {self.second_metric} {0 if other is None else other:{digits}}{unit}"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A benchmark: `targets` and `samples` of its data set by the round that introduced them.

    Its quality is printed as a fraction if `percent`. `max_epochs` is the maximum of epochs that are trained; larger
    numbers count samples if `counts_samples`, tokens if there are `tokens_per_sample`, else steps or parts of an epoch.
    Without `passes` no number is one of passes over the data set, which is larger than any training.
    """

    targets: Mapping[str, float]
    metric: str = "accuracy"
    percent: bool = True
    lower: bool = False
    second_metric: str = ""
    second: float | None = None
    samples: Mapping[str, int] | None = None
    max_epochs: float = 20_000
    counts_samples: bool = False
    tokens_per_sample: int = 0
    passes: bool = True

    def target(self, name: str, time_s: float | None, batch_size: int | None) -> QualityTarget:
        """Returns the target of the round in which a run at `time_s` (seconds since 1970) was made."""
        in_round = _round(self.targets, time_s)
        value, condition = self.targets[in_round], ""
        if (name, in_round) == ("bert", "0.7") and (batch_size or 0) >= LARGE_BATCH:
            value, condition = 70.6, f" and batches of {LARGE_BATCH} and more"
        since = f" since round {in_round}" if len(self.targets) > 1 else ""
        return self.with_value(value, f"MLPerf's of {name}{since}{condition}")

    def with_value(self, value: float, source: str) -> QualityTarget:
        """Returns a target of this benchmark's kind."""
        return QualityTarget(
            value=value,
            metric=self.metric,
            second_metric=self.second_metric,
            second=self.second,
            percent=self.percent,
            lower=self.lower,
            source=source,
        )

    def data_set(self, time_s: float | None) -> int | None:
        """Returns the samples of its data set; None if the rules leave them open."""
        return self.samples[_round(self.samples, time_s)] if self.samples else None


def _round(by_round: Mapping[str, object], time_s: float | None) -> str:
    """Returns the last round of an ascending mapping that had begun at that time; the last of all if it is no date."""
    year = 1970 + (time_s or 0) / SECONDS_OF_YEAR
    year = year if year >= FIRST_YEAR else math.inf
    return [name for name in by_round if ROUNDS[name] <= year or name == next(iter(by_round))][-1]


def _loss(value: float) -> Benchmark:
    return Benchmark(targets={"5.0": value}, metric="loss", percent=False, lower=True, max_epochs=0)


_DETECTION = Benchmark(
    targets={"0.5": 37.7}, metric="BBOX", second_metric="SEGM", second=33.9, samples={"0.5": COCO}
)  # fmt: skip
_GRAPHS = Benchmark(targets={"0.7": 72.0})
BENCHMARKS: Mapping[str, Benchmark] = {
    "resnet": Benchmark(targets={"0.5": 74.9, "0.6": 75.9}, samples={"0.5": IMAGENET}),
    "ssd": Benchmark(
        targets={"0.5": 21.2, "0.6": 23.0, "2.0": 34.0}, samples={"0.5": COCO, "2.0": OPEN_IMAGES}
    ),
    "retinanet": Benchmark(targets={"5.0": 34.0}, samples={"5.0": OPEN_IMAGES}),
    "maskrcnn": _DETECTION,
    "mask": _DETECTION,
    "gnmt": Benchmark(targets={"0.5": 21.8, "0.6": 24.0}),
    "transformer": Benchmark(targets={"0.5": 25.0}),
    "ncf": Benchmark(targets={"0.5": 63.5}),
    "minigo": Benchmark(targets={"0.5": 40.0, "0.6": 50.0}, max_epochs=0),
    "bert": Benchmark(targets={"0.7": 71.2, "1.0": 72.0}, max_epochs=100, counts_samples=True,
                      passes=False),
    "dlrm": Benchmark(targets={"0.7": 80.25}, samples={"0.7": CRITEO}, max_epochs=1),
    "dlrm_dcnv2": Benchmark(targets={"0.7": 80.275}, samples={"0.7": CRITEO}, max_epochs=1),
    "rnnt": Benchmark(targets={"1.0": 5.8}, metric="word error rate", lower=True),
    "unet3d": Benchmark(targets={"1.0": 90.8}, samples={"1.0": 168}, counts_samples=True),
    "gpt3": Benchmark(targets={"2.0": 2.69}, metric="log perplexity", percent=False, lower=True, max_epochs=0,
                      tokens_per_sample=2048),
    "stable_diffusion": Benchmark(
        targets={"2.0": 90.0}, metric="FID", percent=False, lower=True, second_metric="CLIP", second=0.15, max_epochs=0
    ),
    "gnn": _GRAPHS,
    "rgat": _GRAPHS,
    "llama2_70b_lora": _loss(0.925),
    "llama31_405b": _loss(5.6),
    "llama31_8b": _loss(3.3),
    "flux1": _loss(0.586),
    "gpt_oss_20b": _loss(3.34),
    "deepseekv3_671b": _loss(3.6),
    "qwen35_397b_grpo": Benchmark(targets={"5.0": 69.0}, max_epochs=0),
}  # fmt: skip
"""By the name in submission_benchmark."""


@dataclass(frozen=True)
class Moment:
    """A time in the log, and the line that it is taken from."""

    time_s: float
    what: str


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A quality after `epochs` epochs or `samples` samples; what the log does not print is None.

    `accuracy` is in percent, or as printed if the quality is none (a loss). `second` is the second metric of an
    evaluation that has two, in the same unit.
    """

    time_s: float | None
    accuracy: float
    epochs: float | None
    samples: float | None = None
    second: float | None = None


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The moments and evaluations of one kind of line.

    `source` is that kind: `marks` (AI-Rank's), `mllog`, `lines` (the log format's own evaluations), or empty without
    any evaluation. `counted_from` is the number of the first epoch, None if the log starts at a later one. `benchmark`
    and `own_target` are MLPerf's entry and the target as printed; `metric` is the key of the evaluations.
    `no_epochs` is the reason why the numbers of the evaluations are no epochs.
    """

    source: str
    begin: Moment | None = None
    finish: Moment | None = None
    evaluations: tuple[Evaluation, ...] = ()
    counted_from: int | None = 1
    benchmark_name: str = ""
    benchmark: Benchmark | None = None
    own_target: float | None = None
    metric: str = ""
    no_epochs: str = ""
    status: str = ""

    @property
    def aborted(self) -> bool:
        """Whether run_stop says that the run did not succeed."""
        return self.status not in ("", "success", "true")


def finite(text: str | None) -> float | None:
    """Returns the number that a text holds; None for another text, an infinity or NaN."""
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def in_percent(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """The rules of marks and MLPerf require fractions; any number above 1 shows that the log prints percent."""
    printed = list(evaluations)
    if any(max(evaluation.accuracy, evaluation.second or 0) > 1 for evaluation in printed):
        return printed
    return times_100(printed)


def times_100(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """Returns fractions as percent."""
    return [
        replace(
            evaluation,
            accuracy=round(evaluation.accuracy * 100, 10),
            second=None if evaluation.second is None else round(evaluation.second * 100, 10),
        )
        for evaluation in evaluations
    ]


# Moments and evaluations of MLPerf's lines, their epochs and samples.

ACCURACY = "eval_accuracy"
LOWER = (
    "eval_error", "eval_loss", "validation_loss", "averaged_validation_loss", "eval_perplexity", "eval_wer",
)  # fmt: skip
"""Keys of evaluations by which less is better."""
TARGETS = ("quality_target", "eval_target", "target_accuracy", "target_quality", "target_loss")
KEYS = frozenset({
    ACCURACY, *LOWER, *TARGETS, "run_start", "run_stop", "block_start", "block_stop", "epoch_start", "epoch_stop",
    "eval_start", "eval_stop",
    "submission_benchmark", "benchmark", "global_batch_size",
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
    """The epochs that block_start, or without it epoch_start, say to have begun: the epochs of each by its number.

    `of_blocks` are those of the blocks, where their block_start is printed several times.
    """

    of_blocks: Mapping[int, int | None]
    blocks: dict[float, float] = field(default_factory=dict)
    epochs: dict[float, float] = field(default_factory=dict)
    in_blocks: float = 0.0

    def add(self, record: LogRecord) -> None:
        """Counts a line; each rank may print the same one."""
        values = record.values
        first, epochs = finite(values.get("first_epoch_num")), finite(values.get("epoch_count"))
        if values["key"] == "block_start" and first is not None and epochs and first not in self.blocks:
            self.blocks[first] = self.of_blocks.get(int(first)) or epochs
            self.in_blocks += self.blocks[first]
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
    begun = _Begun(of_blocks=epochs_of_blocks(records))
    in_steps = benchmark is not None and not benchmark.max_epochs
    batch = finite(_first(by_key, "global_batch_size")) if in_steps else None
    printed = _distinct(_evaluations(records, metric, benchmark, begun, batch))
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
    origin = _origin(records, metric)
    return _with_progress(clock, evaluations, [item.begun for item in printed], begun.counts, origin)


def _first(by_key: Mapping[str, Sequence[LogRecord]], *keys: str) -> str:
    return next((value for key in keys for record in by_key.get(key, ()) if (value := record.values.get("value"))), "")


def _moment(by_key: Mapping[str, Sequence[LogRecord]], key: str, index: int) -> Moment | None:
    times = [record.time_s for record in by_key.get(key, ()) if record.time_s is not None]
    return Moment(times[index], key) if times else None


def _origin(records: Iterable[LogRecord], metric: str) -> float:
    """Returns the samples_count of the first block, where that is printed before an evaluation."""
    for record in records:
        if record.values["key"] in ("block_stop", metric):
            return 0.0
        if record.values["key"] == "block_start":
            return finite(record.values.get("samples_count")) or 0.0
    return 0.0


def _evaluations(
    records: Iterable[LogRecord], metric: str, benchmark: Benchmark | None, begun: _Begun, batch: float | None
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
            yield _Printed(_evaluation(record, *quality, batch), now)
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


def _evaluation(record: LogRecord, accuracy: float, second: float | None, batch: float | None) -> Evaluation:
    """Returns the evaluation; where it is numbered by steps of a `batch`, with the samples of these."""
    epochs = next((record.values[key] for key in ("epoch_num", "epoch") if key in record.values), None)
    samples = finite(record.values.get("samples_count"))
    if samples is None and batch and (steps := finite(record.values.get("step_num"))):
        samples = steps * batch
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
    if benchmark and benchmark.tokens_per_sample and printed and min(printed) > MAX_EPOCHS:
        by_tokens = [
            replace(item, epochs=None, samples=item.epochs and item.epochs / benchmark.tokens_per_sample)
            for item in evaluations
        ]
        reason = f"its evaluations count tokens, {benchmark.tokens_per_sample} a sample, not epochs"
        return replace(clock, evaluations=tuple(by_tokens), no_epochs=reason)
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
    if done and clock.benchmark and not clock.benchmark.passes:
        return f"its evaluations are numbered up to {max(done):g}: in {clock.benchmark_name} they are no passes"
    return ""


def _goes_on(numbers: Sequence[float | None], counts: Mapping[float, float]) -> bool:
    """Whether the first block is a later one than the training's first."""
    first, epochs = next(iter(counts.items()), (0.0, 0.0))
    number = next((number for number in numbers if number is not None), None)
    return first > 1 and number in (first + epochs - 1, first + epochs)
