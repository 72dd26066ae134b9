"""A summary for people, as text or Markdown: returns strings, prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from hpc.outside import plain
from parse.compare import Column, Comparison, compare, outcomes
from parse.export import as_json, comma_separated, dlperf
from parse.layout import WIDTH, aligned, markdown_table, markdown_text, number, numbered, wrapped
from parse.ledger_table import ledger_markdown, ledger_text
from parse.nodes_table import nodes_alarms, nodes_markdown, nodes_text
from parse.placement import nested_in_words
from parse.result import Result, Run
from parse.summary import USUAL, Summary, asked_of, knowing, labels, of_logs, shared, varying

GAP = 3
"""Between backends."""
LOG_SPEEDS = {"wall_clock": "wall clock", "printed": "printed"}
"""A log's two speeds, side by side; the median is of those that count."""
OPTIONAL = ("average", "interval", "coverage", "CV", "step p50", "step p95", *LOG_SPEEDS.values())
"""Columns that are left out where no row has anything in them."""
NAMED = 3
"""As many points of a word are named."""
IN_THE_HEAD = {
    "oversubscribed": "case",
    "nodes_simulated": "case",
    "unfused": "backend",
    "synchronises": "backend",
    "built_otherwise": "backend",
}
"""Alarms that must be known before any number is read, each with what it is said of."""


def text(summary: Summary) -> str:
    """For a terminal: what holds for all, backends side by side, a row per point, what is wrong, a line each; the
    ledgers where asked for."""
    lines = wrapped(_head(summary))
    for comparison in compare(summary.results):
        lines += ["", *wrapped([_title(comparison, summary), *comparison.apart])]
        lines += _side_by_side(comparison)
    if summary.results:
        heads, rows = _cells(summary.results)
        legend, rows = numbered([name for name, _ in heads], rows)
        lines += ["", *legend, *aligned([*zip(*heads, strict=True), *rows])]
    nodes, below = nodes_text(summary), _below(summary)
    lines += ["", *nodes] if nodes else []
    lines += ["", *below] if below else []
    if summary.ledgers is not None:
        lines += ["", *ledger_text(summary)]
    return "\n".join(plain(line).rstrip() for line in lines).strip("\n") + "\n"


def markdown(summary: Summary) -> str:
    """The same as Markdown tables and lists."""
    parts = ["\n".join(f"* {markdown_text(line)}" for line in _head(summary))]
    for comparison in compare(summary.results):
        parts += [markdown_text(line) for line in (_title(comparison, summary), *comparison.apart)]
        parts += [markdown_table(*_markdown_cells(comparison))]
    if summary.results:
        heads, rows = _cells(summary.results)
        parts += [markdown_table([f"{name} ({unit})" if unit else name for name, unit in heads], rows)]
    parts += nodes_markdown(summary)
    parts += ["\n".join(f"* {markdown_text(line)}" for line in _below(summary))]
    if summary.ledgers is not None:
        parts += ledger_markdown(summary)
    return "\n\n".join(part for part in parts if part) + "\n"


FORMATS: Mapping[str, Callable[[Summary], str]] = {
    "table": text,
    "markdown": markdown,
    "csv": comma_separated,
    "json": as_json,
    "dlperf": dlperf,
}


def warnings(summary: Summary) -> list[str]:
    """All that the text says beside its table, for formats that have no place for it."""
    return [plain(line) for line in [*_judgement(summary), *_below(summary)]]


def _head(summary: Summary) -> list[str]:
    if not summary.results:
        return _judgement(summary)
    asked = {name: value for name, value in shared(summary.results).items() if USUAL.get(name) != value}
    if nested := nested_in_words(summary.results):
        asked.pop("placement", None)
    known: dict[tuple[str, ...], list[str]] = {(): []}
    for name in asked:
        known.setdefault(knowing(summary.results, name), []).append(name)
    lines = _judgement(summary)
    lines += [nested] if nested else []
    for of, names in known.items():
        env = [f"{name.removeprefix('env.')}={asked[name]}" for name in names if name.startswith("env.")]
        constant = [f"{name} {asked[name]}" for name in names if not name.startswith("env.")]
        whose = f"known of {', '.join(of)} only: " if of else ""
        lines += [f"{whose}{', '.join(constant)}"] if constant or not of else []
        lines += [f"{whose}environment set: {', '.join(env)}"] if env else []
    return lines


def _judgement(summary: Summary) -> list[str]:
    """What must be known before any number is read."""
    lines = []
    for flag, of in IN_THE_HEAD.items():
        said: dict[str, list[str]] = {}
        for result in summary.results:
            for alarm in result.alarms:
                if alarm.name == flag:
                    said.setdefault(alarm.text, []).append(asked_of(result)[of])
        lines += [f"{', '.join(dict.fromkeys(which))}: {line}" for line, which in said.items()]
    if summary.reduced:
        lines.append(f"sizes made small because the target has no GPU: {'; '.join(summary.reduced)}")
    return lines


def _below(summary: Summary) -> list[str]:
    """What is wrong, a line each: alarms, runs that did not end ok, absent speedups, remarks, files not read."""
    lines: list[str] = []
    without: dict[str, list[str]] = {}
    blank: dict[str, list[str]] = {}
    for result, label in zip(summary.results, labels(summary.results), strict=True):
        lines += [f"{label}: {alarm.text}" for alarm in result.alarms if alarm.name not in IN_THE_HEAD]
        if result.published and not result.ok:
            for run in result.runs:
                blank.setdefault(run.word, []).append(label)
        else:
            lines += [f"{label}: {line}" for line in _not_ok(result)]
        if result.no_speedup and result.median_speed is not None:
            without.setdefault(result.no_speedup, []).append(label)
    lines += [f"{word} in place of a figure: {_named(of)}" for word, of in blank.items()]
    lines += [f"{', '.join(labels)}: no speedup: {reason}" for reason, labels in without.items()]
    lines += nodes_alarms(summary)
    lines += _beside(summary.probes)
    return [*lines, *summary.remarks, *(f"not read: {refusal}" for refusal in summary.refusals)]


def _beside(probes: Sequence[Result]) -> Iterator[str]:
    """What was run to explain the points, and what of it did not end ok."""
    names: dict[str, str] = {}
    for kind in dict.fromkeys(probe.run.probe for probe in probes):
        there = [probe for probe in probes if probe.run.probe == kind]
        names |= {probe.asked.point: f"{kind} of {name}" for probe, name in zip(there, labels(there), strict=True)}
    if probes:
        yield f"beside the points: {', '.join(f'{names[probe.asked.point]} {_runs(probe)} ok' for probe in probes)}"
    for probe in probes:
        yield from (f"{names[probe.asked.point]}: {line}" for line in _not_ok(probe))


def _named(points: Sequence[str]) -> str:
    more = f" and {len(points) - NAMED} more" if len(points) > NAMED else ""
    return f"{', '.join(points[:NAMED])}{more}"


def _not_ok(result: Result) -> Iterator[str]:
    """The runs that did not end ok, by what became of them, with the evidence of the first; of logs alarms say it."""
    words: dict[str, list[Run]] = {}
    for run in result.runs:
        if not run.measured and not (run.attempt and run.attempt.log and run.attempt.problem):
            words.setdefault(run.word, []).append(run)
    for word, runs in words.items():
        repeats = ", ".join(str(run.asked.run.repeat) for run in runs)
        evidence = next((run.attempt.evidence for run in runs if run.attempt and run.attempt.evidence), "")
        yield f"run {repeats}: {word}{f' ({evidence})' if evidence else ''}"


def _cells(results: Sequence[Result]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Heads as (name, unit), and a row of texts per result."""
    differ = varying(results)
    heads = [("case", ""), ("nodes", ""), ("devices", ""), *((name, "") for name in differ)]
    heads += [("runs", "ok/asked"), ("median", "samples/s")]
    heads += [(name, "samples/s") for name in LOG_SPEEDS.values()]
    heads += [("average", "samples/s"), ("interval", "samples/s")]
    heads += [("coverage", "%"), ("CV", "%"), ("speedup", ""), ("efficiency", "%")]
    heads += [("step p50", "ms"), ("step p95", "ms")]
    rows = []
    for result in results:
        asked, interval = asked_of(result), result.interval
        row = [asked.get(name, "-") for name in ("case", "nodes", "devices")]
        row += [asked.get(name, "-") for name in differ]
        row += [
            _runs(result),
            number(result.median_speed),
            *(number(of_logs(result, name)) for name in LOG_SPEEDS),
            number(result.average_speed),
            f"[{interval.low:.2f}, {interval.high:.2f}]" if interval else "-",
            number(interval.coverage if interval else None, 100),
            number(result.cv, 100),
            number(result.speedup),
            number(result.scaling_efficiency, 100, decimals=1),
            number(result.step_time_ms.get(50)),
            number(result.step_time_ms.get(95)),
        ]
        rows.append(row)
    empty = {name for at, (name, _) in enumerate(heads) if name in OPTIONAL and all(row[at] == "-" for row in rows)}
    kept = [at for at, (name, _) in enumerate(heads) if name not in empty]
    return [heads[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _runs(result: Result) -> str:
    """How many ended ok, of how many; a figure that a document publishes without its runs has neither."""
    if result.published and not result.ok:
        return "-"
    return f"{len(result.ok)}/{'?' if result.asked_runs is None else result.asked_runs}"


def _title(comparison: Comparison, summary: Summary) -> str:
    """The work that is compared, and whatever else is not the same in all of the summary."""
    named = ["workload", "batch_size", "precision", *varying(summary.results)]
    return ", ".join(f"{name} {comparison.same[name]}" for name in dict.fromkeys(named) if name in comparison.same)


def _side_by_side(comparison: Comparison) -> list[str]:
    """Two columns for each backend; in blocks below one another where they are wider than a terminal."""
    width = max(len(plain(case)) for case in ("case", *comparison.cases))
    blocks: list[list[Column]] = [[]]
    taken = width
    for column in comparison.columns:
        needed = GAP + len(_pillar(column, comparison.cases, 0)[-1])
        if blocks[-1] and taken + needed > WIDTH:
            blocks.append([])
            taken = width
        blocks[-1].append(column)
        taken += needed
    lines = []
    for block in blocks:
        depth = max(len(column.words) for column in block)
        cases = [plain(case).ljust(width) for case in (*[""] * depth, "case", *comparison.cases)]
        pillars = [_pillar(column, comparison.cases, depth) for column in block]
        lines += ["", *((" " * GAP).join(row) for row in zip(cases, *pillars, strict=True))]
    return lines


def _pillar(column: Column, cases: Sequence[str], depth: int) -> list[str]:
    """Lines of equal width: the column's name in at least `depth` lines, units, and a line for each case."""
    pairs = [("samples/s", "speedup"), *(_cell(column, case) for case in cases)]
    widths = [max(map(len, side)) for side in zip(*pairs, strict=True)]
    lines = [*map(plain, column.words), *[""] * (depth - len(column.words))]
    lines += [f"{speed.rjust(widths[0])}  {speedup.rjust(widths[1])}" for speed, speedup in pairs]
    return [line.rjust(max(map(len, lines))) for line in lines]


def _cell(column: Column, case: str) -> tuple[str, str]:
    """Speed and speedup; the outcome where there is no speed, with a sign where runs ended in several ways."""
    if case not in column.points:
        return "", ""
    result = column.points[case]
    if result.median_speed is None:
        word, *others = outcomes(result)
        return f"{word}, …" if others else word, ""
    return number(result.median_speed), number(result.speedup)


def _markdown_cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The same as heads and rows."""
    heads = ["case", *(head for column in comparison.columns for head in (f"{column.name} (samples/s)", "speedup"))]
    return heads, [
        [case, *(cell for column in comparison.columns for cell in _cell(column, case))] for case in comparison.cases
    ]
