"""The results of all tools as one page of Markdown."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from benchmarks.straggler.cases import CASES, computing
from benchmarks.straggler.run import TOOLS, Result, read_result
from benchmarks.straggler.score import Score, Truth, score

EITHER = (*CASES, *map(computing, CASES))


def page(out: Path) -> str:
    """Of the folder that `run` and `price` have written."""
    results = {
        tool: {case.name: read_result(path) for case in EITHER if (path := out / tool / f"{case.name}.json").exists()}
        for tool in TOOLS
    }
    results = {tool: its for tool, its in results.items() if its}
    if not results:
        raise SystemExit(f"{out} has no results: python -m benchmarks.straggler run --tool …")
    newest = max(path.stat().st_mtime for tool in results for path in (out / tool).glob("*.json"))
    lines = [
        "# Tools that look for stragglers: results",
        "",
        f"{datetime.fromtimestamp(newest, UTC):%Y-%m-%d}, {_machine()}{_load(results)}. Written by"
        " `python -m benchmarks.straggler page`. What is counted, and how answers were formed: [README.md](README.md).",
        "",
        *_totals(results),
        "",
        *_prices(out, results),
        "",
        *_answers(results),
        "",
        *_versions(results),
    ]
    return "\n".join(lines) + "\n"


def _machine() -> str:
    cpus = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    }
    return f"{', '.join(sorted(cpus)) or platform.machine()}, {os.cpu_count()} cores"


def _load(results: dict[str, dict[str, Result]]) -> str:
    """How busy the machine was."""
    loads = [each.load for its in results.values() for each in its.values() if each.load is not None]
    return f", load average {min(loads):.0f} to {max(loads):.0f}" if loads else ""


def scored(results: dict[str, Result]) -> dict[str, Score]:
    """By case, those whose training came to its end."""
    return {name: score(its.truth, its.answer) for name, its in results.items() if its.truth is not None}


def _totals(results: dict[str, dict[str, Result]]) -> list[str]:
    lines = [
        "| tool | delays right | missed | denied | phase | ms | controls right | accused | cannot tell | failed |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for also, cases in (("", CASES), (", work that computes", EITHER[len(CASES) :])):
        for tool, by_case in results.items():
            if its := {case.name: by_case[case.name] for case in cases if case.name in by_case}:
                lines.append(f"| {tool}{also} | {' | '.join(_counts(its))} |")
    return lines


def _counts(its: dict[str, Result]) -> list[str]:
    """The cells of a tool's row."""
    scores = [*scored(its).values()]
    delayed, controls = [each for each in scores if not each.control], [each for each in scores if each.control]

    def of(which: list[Score], name: str) -> str:
        return f"{sum(getattr(each, name) for each in which)} of {len(which)}"

    def both(name: str) -> str:
        pairs = [getattr(each, name) for each in scores]
        return f"{sum(right for right, _ in pairs)} of {sum(count for _, count in pairs)}"

    gives_phases = any(each["phase"] for result in its.values() for each in result.answer["findings"])
    phases = both("phases") if gives_phases else "-"
    return [
        of(delayed, "right"), of(delayed, "missed"), of(delayed, "denied"), phases, both("ms"),
        of(controls, "right"), of(scores, "accused"), of(scores, "cannot_tell"), str(len(its) - len(scores)),
    ]  # fmt: skip


def _prices(out: Path, results: dict[str, dict[str, Result]]) -> list[str]:
    lines = [
        "Price: pairs of `equal-ddp-2` over 200 steps, without and with the tool, the first by turns: median [least,"
        " largest] of how a pair differs. CPU is user and system time, a rank's that of its process; the whole is all"
        " processes from start to end, without making the answer. `baseline` times steps only: what differs by chance.",
        "",
        "| tool | pairs | step, % longer | CPU of a rank, ms a step more | CPU of the whole, s more |",
        "|---|---|---|---|---|",
    ]
    for tool in results:
        path = out / tool / "price.jsonl"
        pairs = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        step = [100 * (after[1] / before[1] - 1) for before, after in pairs]
        rank, whole = ([after[at] - before[at] for before, after in pairs] for at in (2, 0))
        lines.append(f"| {tool} | {len(pairs)} | {_range(step)} | {_range(rank)} | {_range(whole)} |")
    return lines


def _range(values: list[float]) -> str:
    """The median, the least and the largest."""
    return f"{median(values):.2f} [{min(values):.2f}, {max(values):.2f}]" if values else "-"


def _answers(results: dict[str, dict[str, Result]]) -> list[str]:
    lines = [
        "Each training: the truth in the first tool's run, and each tool's answer: ranks, phase, ms a step.",
        "",
        f"| training | truth | {' | '.join(results)} |",
        "|---|---|" + "---|" * len(results),
    ]
    for case in EITHER:
        its = [by_case.get(case.name) for by_case in results.values()]
        truth = next((each.truth for each in its if each and each.truth), None)
        if any(its):
            lines.append(f"| {case.name} | {_truth(truth)} | {' | '.join(map(_cell, its))} |")
    return lines


def _truth(truth: Truth | None) -> str:
    if truth is None or not truth.causes:
        return "none"
    form = "{} {} {:.1f}" if truth.scored_ms else "{} {}"
    return "; ".join(form.format(cause.rank, cause.phase, cause.ms) for cause in truth.causes)


def _cell(result: Result | None) -> str:
    if result is None:
        return "-"
    if result.truth is None:
        return "failed"
    cells = [result.answer["verdict"]] if result.answer["verdict"] != "named" else []
    for each in result.answer["findings"]:
        ms = each["ms_per_step"]
        words = [",".join(map(str, each["who"])), each["phase"] or "?", "?" if ms is None else f"{ms:.1f}"]
        cells.append(" ".join(words))
    return f"{'✓' if score(result.truth, result.answer).right else '✗'} {'; '.join(cells)}"


def _versions(results: dict[str, dict[str, Result]]) -> list[str]:
    lines = ["Versions:", ""]
    for tool, its in results.items():
        names = sorted({f"{each.answer['tool']} {each.answer['version']}" for each in its.values()})
        lines.append(f"* {tool}: {', '.join(names)}")
    return lines
