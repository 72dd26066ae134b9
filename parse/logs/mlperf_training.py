"""What a training by MLPerf's lines has done in which time: the work by its evaluations, the time by its blocks.

`samples_count` of blocks is not taken: programs print steps there, or 0 (block_stop of 5.0's llama2_70b_lora). The
numbers of evaluations are, as `parse.logs.mlperf` counts them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hpc.system.text import plural
from parse.logs.engine.log_format import LogRecord
from parse.logs.formats.mllog import BY_EPOCHS, RATES, SAME_DATA, EpochBlock, blocks, epochs
from parse.logs.mlperf import Clock, Evaluation, finite
from parse.logs.sizes import whole_number

SAME_EVENT_S = 0.5
"""The last evaluation may be stamped so much later than the end that it leads to."""
WHOLE = 0.01
"""A number of ranks is whole within this share: the last batch of an epoch may be filled or left out."""
CLAIMS = ("tracked_stats", *RATES)
"""Keys of lines that state a rate; the first that a log has counts."""
POSITIONS = ("epoch_num", "first_epoch_num", "samples_count", "step_num")
AS_STATED = "as the log says"
BEGINS, ENDS = ("block_start", "epoch_start"), ("block_stop", "epoch_stop")
MAX_SAMPLES = 1e18
FEWEST, UNEVEN = 3, 3
"""Of so many rates between evaluations the highest is less than so many times the median: of 450 public logs 444."""
CUT_OFF = 0.8
"""A last block of less than this share of the usual time is none."""
SUCCESS = ("success", "true")
AHEAD = 0.05
"""A block has just begun where less than this share of the last one's time has passed."""


@dataclass(frozen=True, kw_only=True)
class TrainedWork:
    """So many samples, in the seconds of training without evaluations, in so many stretches. `work` are the samples in
    words, with their source; `epochs` is 0 where the log counts samples. `doubt` is why its seconds are not all.
    `with_evaluations`: no line says when evaluations begin, and their time is in the seconds."""

    samples: float
    seconds: float
    stretches: int
    work: str
    epochs: float = 0
    doubt: str = ""
    with_evaluations: bool = False

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


@dataclass(frozen=True)
class _Moment:
    """What a training had done at a time: its seconds and stretches until the evaluation that is stamped so."""

    time_s: float
    seconds: float
    stretches: int


def trained(records: Iterable[LogRecord], facts: Mapping[str, str], clock: Clock) -> TrainedWork | str:
    """What the training has done, or the reason why it is not known.

    Where epochs are passes through the data set, and bracketed, all of them; else what there is until the last
    evaluation, whose number says how much that is.
    """
    lines = sorted(
        (record for record in records if record.kind == "mllog" and record.time_s is not None),
        key=lambda record: record.time_s or 0.0,
    )
    by_epochs = _by_epochs(lines, facts, clock) if facts.get("model") in BY_EPOCHS else None
    done = by_epochs or _by_evaluations(lines, facts, clock)
    if isinstance(done, str) or not (doubt := _uneven(clock, _moments(lines, clock.metric))):
        return done
    return replace(done, doubt=doubt)


def _uneven(clock: Clock, moments: Sequence[_Moment]) -> str:
    """The reason to doubt the seconds: from some evaluation to the next it trains many times as fast as usually."""
    end_s = clock.finish.time_s + SAME_EVENT_S if clock.finish else math.inf
    in_time = [item for item in clock.evaluations if item.time_s is not None and item.time_s <= end_s]
    places = [(item, _at(item.time_s, moments)) for item in in_time]
    rates = []
    for (before, begin), (after, end) in pairwise(places):
        done = (after.samples or after.epochs or 0) - (before.samples or before.epochs or 0)
        seconds = end.seconds - begin.seconds if begin and end else 0.0
        if done > 0 and seconds > 0:
            rates.append(done / seconds)
    if len(rates) < FEWEST or max(rates) <= UNEVEN * statistics.median(rates):
        return ""
    times = max(rates) / statistics.median(rates)
    return (
        f"between two evaluations it trains {times:.3g} times as fast as usually, by its blocks: it trains on while it "
        "evaluates, or after its blocks end, and this speed is too high"
    )


def _by_epochs(lines: Sequence[LogRecord], facts: Mapping[str, str], clock: Clock) -> TrainedWork | None:
    each, source = samples_of_epoch(facts, clock, None)
    of_blocks = [*_whole(blocks(lines) or epochs(lines))]
    count = sum(block.epochs for block in of_blocks)
    if not each or not count:
        return None
    return TrainedWork(
        samples=each * count,
        seconds=sum(block.seconds for block in of_blocks),
        stretches=len(of_blocks),
        work=f"{plural(count, 'epoch')} of {each} samples{'' if source == AS_STATED else f' ({source})'}",
        epochs=count,
    )


def _whole(of_blocks: Sequence[EpochBlock]) -> Iterator[EpochBlock]:
    """The blocks without a last one that the end of the run cut off: programs train on until an evaluation is done."""
    usual_s = statistics.median(block.seconds / block.epochs for block in of_blocks) if of_blocks else 0.0
    for at, block in enumerate(of_blocks):
        if at + 1 < len(of_blocks) or block.seconds / block.epochs > CUT_OFF * usual_s:
            yield block


def _by_evaluations(lines: Sequence[LogRecord], facts: Mapping[str, str], clock: Clock) -> TrainedWork | str:
    last = last_evaluation(clock.evaluations, clock.finish.time_s if clock.finish else None)
    if last is None:
        return "no evaluation is printed"
    if clock.counted_from is None:
        return "it goes on with a training that began before it"
    moments = _moments(lines, clock.metric)
    done = _made_afterwards(clock.evaluations, moments) or _work(last, facts, clock)
    if isinstance(done, str):
        return done
    (samples, work), moment = done, _at(last.time_s, moments)
    if not 0 < samples < MAX_SAMPLES:
        return f"its evaluations are numbered up to {samples:g}: no training has as many samples"
    if moment is None or not moment.seconds > 0:
        return "nothing says when its training begins and ends"
    several = len(clock.evaluations) > 1 and moment.stretches == 1
    return TrainedWork(
        samples=samples, seconds=moment.seconds, stretches=moment.stretches, work=work,
        with_evaluations=several and not any(line.values["key"] == "eval_start" for line in lines),
    )  # fmt: skip


def _work(last: Evaluation, facts: Mapping[str, str], clock: Clock) -> tuple[float, str] | str:
    """The samples until the last evaluation, and these in words; or the reason why they are not known."""
    if last.samples is not None:
        return last.samples, f"{last.samples:,.0f} samples, as its evaluations count them,"
    if clock.benchmark_name == "bert" and (count := _of_bert(facts, clock)):
        return (
            count,
            f"{count:,} samples (train_samples, as many as its {len(clock.evaluations)} evaluations by MLPerf's rules)",
        )
    if clock.no_epochs or not last.epochs:
        return clock.no_epochs or "no evaluation says how many epochs were trained"
    each, source = samples_of_epoch(facts, clock, last.epochs)
    return source if each is None else (last.epochs * each, f"{last.epochs:g} epochs of {each} samples ({source})")


def _of_bert(facts: Mapping[str, str], clock: Clock) -> int | None:
    """The samples of a BERT that numbers all its evaluations alike and prints its samples when it ends: these have to
    be as many evaluations as there are, each after so many samples as the rules of its batch size say."""
    total, batch = (
        whole_number(facts.get("samples_per_epoch"), max_digits=15),
        whole_number(facts.get("global_batch_size")),
    )
    if not clock.no_epochs.startswith("all its evaluations") or not total or not batch:
        return None
    each = 0.05 * (230.23 * batch + 3_000_000) // 25_000 * 25_000
    return total if abs(total / (each * len(clock.evaluations)) - 1) < WHOLE else None


def last_evaluation(evaluations: Sequence[Evaluation], finish_s: float | None) -> Evaluation | None:
    """The last evaluation that is not later than the end; of those that all are, the last."""
    until = math.inf if finish_s is None else finish_s + SAME_EVENT_S
    in_time = [item for item in evaluations if item.time_s is None or item.time_s <= until]
    return next(reversed(in_time or evaluations), None)


def run_s(records: Iterable[LogRecord]) -> float | None:
    """run_stop - run_start of a run that succeeded, MLPerf's time to train; None of another, or without both."""
    lines = [record for record in records if record.kind == "mllog"]
    begins, ends = (
        [record for record in lines if record.values["key"] == key and record.time_s is not None]
        for key in ("run_start", "run_stop")
    )
    if not begins or not ends or ends[-1].values.get("status", ends[-1].values.get("success")) not in SUCCESS:
        return None
    seconds = (ends[-1].time_s or 0.0) - (begins[0].time_s or 0.0)
    return seconds if seconds > 0 else None


def claims(records: Iterable[LogRecord], clock: Clock) -> tuple[float, ...]:
    """The rates that the log states in its tracked_stats, else in lines of their own, in samples/s: of a benchmark that
    counts tokens they are tokens/s."""
    each = (clock.benchmark and clock.benchmark.tokens_per_sample) or 1
    rates: dict[str, list[float]] = {key: [] for key in CLAIMS}
    for record in records:
        stated = rates.get(record.values["key"]) if record.kind == "mllog" else None
        if stated is not None and (rate := finite(record.values.get("rate"))) is not None:
            stated.append(rate / each)
    return tuple(next(filter(None, rates.values()), ()))


def stated_rate(of_claims: Sequence[float]) -> float | None:
    """The median of the stated rates."""
    return statistics.median(of_claims) if of_claims else None


def samples_of_epoch(facts: Mapping[str, str], clock: Clock, count: float | None) -> tuple[int | None, str]:
    """The samples of an epoch and their source: train_samples, compared with the data set that the benchmark's rules
    fix, as programs print one rank's, or steps, there; `count` are the epochs trained. Without them, the reason."""
    in_log = whole_number(facts.get("samples_per_epoch"), max_digits=15)
    known = clock.benchmark.data_set(clock.begin.time_s if clock.begin else None) if clock.benchmark else None
    if in_log and (known is None or abs(in_log / known - 1) <= SAME_DATA or _of_any_round(clock, in_log)):
        return in_log, AS_STATED
    if known is None:
        return None, "the samples of an epoch are not known"
    if in_log is None:
        return known, f"MLPerf's data set of {clock.benchmark_name}"
    return _of_other_number(facts, clock, count or 0, in_log, known)


def _of_any_round(clock: Clock, in_log: int) -> bool:
    """Whether they are a data set's of any round, where the log has no time by which its round is known."""
    of_rounds = (clock.benchmark and clock.benchmark.samples) or {}
    return clock.begin is None and any(abs(in_log / samples - 1) <= SAME_DATA for samples in of_rounds.values())


def _of_other_number(
    facts: Mapping[str, str], clock: Clock, count: float, in_log: int, known: int
) -> tuple[int | None, str]:
    """The samples of an epoch where train_samples are another number than the data set's."""
    doubt, is_share = doubtful(clock, in_log, known)
    if clock.benchmark and clock.benchmark.max_epochs <= 1:
        return _of_part(in_log, known, count, doubt)
    if facts.get("division") == "closed":
        return known, f"MLPerf's data set of {clock.benchmark_name}: {doubt}"
    if is_share:
        return None, f"{doubt}: one rank's share? (--samples-per-epoch)"
    return (in_log, f"as the log says, but {doubt}") if facts.get("division") == "open" else (None, doubt)


def doubtful(clock: Clock, in_log: int, known: int) -> tuple[str, bool]:
    """How train_samples differ from the data set, and whether they are a whole rank's share of it."""
    ranks = known / in_log
    is_share = ranks > 1.5 and abs(ranks / round(ranks) - 1) <= WHOLE
    how = f"fit 1/{round(ranks)} of" if is_share else "are not"
    name = clock.benchmark_name
    return f"train_samples {in_log:,} {how} the {known:,} samples of MLPerf's data set of {name}", is_share


def _of_part(in_log: int, known: int, count: float, doubt: str) -> tuple[int | None, str]:
    """Compares train_samples with the part of an epoch that is trained: programs print those of the whole run."""
    if abs(count * known / in_log - 1) <= SAME_DATA:
        return known, f"MLPerf's data set, of which train_samples {in_log:,} are those trained"
    return None, f"{doubt}, nor the {count * known:,.0f} that {count:g} epochs of it have (--samples-per-epoch)"


def _at(time_s: float | None, moments: Sequence[_Moment]) -> _Moment | None:
    """What had been done before the evaluation of that time; of one after the run, in all of it."""
    before = [moment for moment in moments if time_s is None or moment.time_s <= time_s]
    return before[-1] if before else None


def _made_afterwards(evaluations: Sequence[Evaluation], moments: Sequence[_Moment]) -> str:
    """The reason why evaluations do not show how much was trained: they are made one after another, in the run, of
    models that were stored."""
    until = moments[-1].time_s if moments else 0.0
    in_time = [item for item in evaluations if item.time_s is not None and item.time_s <= until]
    for before, after in pairwise(in_time):
        first, second = _at(before.time_s, moments), _at(after.time_s, moments)
        goes_on = (after.samples or 0) > (before.samples or 0) or (after.epochs or 0) > (before.epochs or 0)
        if first and second and goes_on and not second.seconds > first.seconds:
            return "its evaluations follow one another without training in between"
    return ""


def _moments(lines: Sequence[LogRecord], metric: str) -> list[_Moment]:
    """What had been done at each evaluation, and at the end of the run; `lines` are in the order of time.

    Training goes on from a block's begin, else from the run's, to the block's end or the next evaluation, and from the
    end of that one. Lines of one position are those of several ranks: the first counts.
    """
    keys = {record.values["key"] for record in lines}
    end = ENDS[0] if keys & {BEGINS[0], ENDS[0]} else ENDS[1]
    training: _Stretches | None = None
    seen: set[tuple[str, ...]] = set()
    moments: list[_Moment] = []
    for record in lines:
        key, time_s = record.values["key"], record.time_s
        place = (key, *(record.values.get(name, "") for name in POSITIONS))
        if key == metric:  # which may number all evaluations alike
            place = (*place, record.values.get("value", ""))
        if time_s is None or (any(place[1:]) and place in seen):
            continue
        seen.add(place)
        if training is None:
            training = _Stretches(since=time_s) if key == "run_start" else None
        elif key in BEGINS:
            training.begin(time_s)
        elif key == end:
            training.stop(time_s)
        elif key == "eval_start":
            training.evaluate(time_s)
        elif key == "eval_stop":
            training.go_on(time_s)
        elif key == metric:
            moments.append(training.moment(time_s))
        elif key == "run_stop":
            training.stop(time_s)
            return [*moments, training.moment(time_s)]
    return moments


@dataclass
class _Stretches:
    """The seconds trained, and since when training goes on."""

    since: float | None
    seconds: float = 0.0
    count: int = 0
    in_block: bool = False
    last_s: float = 0.0
    evaluated: tuple[float, int] | None = None
    interrupted: tuple[float, float, int] | None = None
    """Since when the block went on that an evaluation stopped, and what had been done before."""

    def begin(self, time_s: float) -> None:
        """A block begins: what came since the begin of the run, or the end of an evaluation, was no training."""
        if not self.in_block:
            self.since, self.in_block = time_s, True

    def go_on(self, time_s: float) -> None:
        """An evaluation ends: training goes on, as far as no block begins later."""
        self.evaluated = self.interrupted = None
        if self.since is None:
            self.since = time_s

    def stop(self, time_s: float) -> None:
        """Training stops, if it goes on; it went on through an evaluation that is not over where its block ends."""
        if self.interrupted:
            self.since, self.seconds, self.count = self.interrupted
            self.interrupted = None
        if self.since is not None and time_s > self.since:
            self.last_s = time_s - self.since
            self.seconds += self.last_s
            self.count += 1
        self.since, self.in_block = None, False

    def evaluate(self, time_s: float) -> None:
        """An evaluation starts: training stops, unless a block has just begun, which goes on meanwhile."""
        since, done = self.since, (self.seconds, self.count)
        going_s = 0.0 if since is None else time_s - since
        if not (self.in_block and self.last_s and going_s < AHEAD * self.last_s):
            is_in_block = self.in_block
            self.stop(time_s)
            self.interrupted = (since, *done) if is_in_block and since is not None else None
        if self.evaluated is None:
            self.evaluated = (self.seconds, self.count)

    def moment(self, time_s: float) -> _Moment:
        """What was done until the evaluation that is printed now: until it started, where that is known."""
        self.interrupted = None
        if self.evaluated:
            seconds, count = self.evaluated
            return _Moment(time_s, seconds, count)
        going_s = 0.0 if self.since is None else max(time_s - self.since, 0.0)
        return _Moment(time_s, self.seconds + going_s, self.count + (going_s > 0))
