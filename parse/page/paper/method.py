"""How the numbers came to be, in sentences of what is recorded; what is not recorded is not written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc.system.text import first_of, plural
from parse.attempt import COMMIT
from parse.page.measured import ALL, NODES, Fact, environment
from parse.report.provenance import provenance
from parse.report.summary import USUAL, Summary, labels, shared
from parse.result import Result
from parse.text import cut

SPEED = (
    "A speed is the {unit} of the measured steps divided by their wall-clock time, from the latest end over all ranks "
    "of the step before to the latest end of the last step"
)
NAMED = 4
"""Points, windows or values named, at most."""
MAX_FACTS = 40
VALUE_WIDTH = 80
"""Cells of a value, at most."""
NODES_WIDTH = 160
IN_PROTOCOL = ("warmup_steps", "measured_steps", "block_steps", "scaling", "unit")
"""Settings that other sentences have."""
NAMES = {COMMIT: "commit of Rankwise", "cpu": "CPU"}


def method(summary: Summary) -> list[str]:
    """The sentences; empty where nothing has a speed."""
    measured = [result for result in summary.results if result.median_speed is not None]
    if not measured:
        return []
    return [
        *_protocol(summary, measured),
        *_speeds(measured),
        *_intervals(measured),
        *_speedups(measured),
        *_utilisation(measured),
        *_settings(summary),
        *_environment(summary),
    ]


def _traced(result: Result) -> bool:
    return any(run.trace for run in result.ok)


def _protocol(summary: Summary, measured: Sequence[Result]) -> Iterator[str]:
    """Warm-up and measured steps of the runs that were traced, by point where they differ."""
    names = {id(result): name for result, name in zip(summary.results, labels(summary.results), strict=True)}
    protocols: dict[str, list[str]] = {}
    for result in measured:
        run = result.run
        if _traced(result) and run.warmup_steps is not None and run.measured_steps is not None:
            blocks = f" in blocks of {run.block_steps}" if run.block_steps else ""
            text = (
                f"{plural(run.warmup_steps, 'warm-up step')} and {plural(run.measured_steps, 'measured step')}{blocks}"
            )
            protocols.setdefault(text, []).append(names[id(result)])
    if len(protocols) == 1:
        yield f"Each run is a launch of its own with {next(iter(protocols))}."
    elif protocols:
        of_each = "; ".join(f"{text} ({_first(points)})" for text, points in protocols.items())
        yield f"Each run is a launch of its own; the numbers of steps differ: {of_each}."
    counts = sorted({len(result.ok) for result in measured if result.ok})
    if counts:
        runs = plural(counts[0], "run") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} runs"
        yield f"A point is the median over its {runs} that ended ok."


def _speeds(measured: Sequence[Result]) -> Iterator[str]:
    traced = [result for result in measured if _traced(result)]
    if traced:
        units = " or ".join(sorted({result.run.unit for result in traced}))
        paused = any(run.measured and run.measured.pauses_s for result in traced for run in result.ok)
        yield SPEED.format(unit=units) + ("; pauses between blocks are left out." if paused else ".")
    logs = [run.log for result in measured if not result.published for run in result.ok if run.log]
    if logs:
        windows = _first(list(dict.fromkeys(log.window for log in logs)))
        formats = _first(sorted({log.log_format for log in logs}))
        yield f"The speeds of {plural(len(logs), 'run')} are read from logs ({formats}; {windows})."
    printed = [result for result in measured if result.published]
    if printed:
        documents = _first(list(dict.fromkeys(r.published.document.name for r in printed if r.published)))
        yield f"The speeds of {plural(len(printed), 'point')} are those that documents print ({documents})."


def _intervals(measured: Sequence[Result]) -> Iterator[str]:
    """The coverage that the intervals really have, by the number of runs."""
    coverages = {len(result.ok): result.interval.coverage for result in measured if result.interval}
    if coverages:
        of_each = ", ".join(
            f"{coverage * 100:.4g} % with {plural(runs, 'run')}" for runs, coverage in sorted(coverages.items())
        )
        yield (
            "Intervals are the exact order-statistic intervals of the median, which assume no distribution; their "
            f"coverage is {of_each}."
        )
    single = sum(result.interval is None for result in measured if result.ok)
    if single:
        yield f"{plural(single, 'point')} with one run {'has' if single == 1 else 'have'} no interval."


def _speedups(measured: Sequence[Result]) -> Iterator[str]:
    scaled = [result for result in measured if result.speedup is not None]
    if not scaled:
        return
    bases = {result.base.case: result.base for result in scaled if result.base}
    of_base, devices = f"that of {' or '.join(bases)}", "devices"
    if any(base.devices > 1 for base in bases.values()):
        how = "chosen" if all(base.chosen for base in bases.values()) else "the smallest case"
        several = " of each setting" if len(bases) > 1 else ""
        of_base, devices = f"{of_base}, {how}{several}", "the ratio of the devices"
    yield (
        f"Speedup is the median divided by {of_base}, with all else equal; efficiency is speedup divided by {devices}."
    )
    sizes = {"weak": "the same batch size on each device", "strong": "the same batch size over all devices"}
    ways = {result.run.scaling for result in scaled if result.run.scaling}
    for way in sorted(ways & {*sizes}):
        only = " (where the table says so)" if len(ways) > 1 else ""
        yield f"Scaling is {way}{only}: {sizes[way]}."


def _utilisation(measured: Sequence[Result]) -> Iterator[str]:
    """The formula of the MFU, and its peaks; each stands in a remark, too."""
    peaks = {
        f"{its.peak_tflops:g} TFLOPS ({its.source})"
        for result in measured
        if result.mfu is not None
        for run in result.ok
        if run.measured and (its := run.measured.utilisation).peak_tflops
    }
    if peaks:
        yield (
            "MFU is tokens/s times the model FLOPs of a token (6 N + 12 L H Q T, Chowdhery et al. 2022, appendix B) "
            f"over the dense peak of the devices, {first_of(sorted(peaks), MAX_FACTS)} each."
        )


def _settings(summary: Summary) -> Iterator[str]:
    """What all points have in common; what differs has a column of its own."""
    alike = {name: value for name, value in shared(summary.results).items() if USUAL.get(name) != value}
    pairs = [f"{cut(name, VALUE_WIDTH)}={cut(value, VALUE_WIDTH)}" for name, value in alike.items()
             if name not in IN_PROTOCOL]  # fmt: skip
    if pairs:
        yield f"Settings of all points: {first_of(pairs, MAX_FACTS)}."


def _environment(summary: Summary) -> Iterator[str]:
    """The days, what all runs have in common, and each fact that differs or that only some runs have."""
    if date := provenance([run for result in summary.results for run in result.runs])["date"]:
        yield f"Measured on {date} (UTC)."
    facts = environment(summary)
    for fact in facts:
        if fact.name == NODES:
            of = "" if fact.runs == ALL else f" of {cut(fact.runs, VALUE_WIDTH)}"
            yield f"The nodes{of} were {cut(fact.values, NODES_WIDTH)}."
    facts = [fact for fact in facts if fact.name != NODES]
    alike = [fact for fact in facts if fact.runs == ALL and not fact.differs]
    if alike:
        yield f"Recorded of all runs: {first_of([_pair(fact) for fact in alike], MAX_FACTS, '; ')}."
    some = [_of_runs(fact) for fact in facts if fact.runs != ALL and not fact.differs]
    if some:
        yield f"Recorded of some runs only: {first_of(some, MAX_FACTS, '; ')}."
    apart = [_of_runs(fact) for fact in facts if fact.differs]
    if apart:
        yield f"Not the same everywhere: {first_of(apart, MAX_FACTS, '; ')}."


def _of_runs(fact: Fact) -> str:
    """The fact with its runs; ranks of one run may have several values, too."""
    return f"{_pair(fact)} ({'all runs' if fact.runs == ALL else cut(fact.runs, VALUE_WIDTH)})"


def _pair(fact: Fact) -> str:
    return f"{cut(NAMES.get(fact.name, fact.name), VALUE_WIDTH)}: {cut(fact.values, VALUE_WIDTH)}"


def _first(texts: Sequence[str]) -> str:
    return first_of([cut(text, VALUE_WIDTH) for text in texts], NAMED)
