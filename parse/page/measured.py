"""What was measured: the settings of all points, the environment of all runs, and in what runs differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpc.system.text import first_of, inflect
from parse.page.types import Block, Paragraph, Section, Table
from parse.report.provenance import MACHINE, provenance
from parse.report.summary import USUAL, Summary, differences, labels, shared
from parse.result import Run

RUNS_NAMED = 4
"""Runs named beside a value that only some have."""
LONG_NAME = 30
"""Runs whose names are longer are counted by backend."""
HOSTS_NAMED = 16
IN_SUBTITLE = 3
"""Names of a kind in the line below the title."""
FRAMEWORKS = ("torch", "tensorflow", "paddle", "horovod", "mxnet", "oneflow")
"""Versions that stand there."""
ALL, NODES = "all", "nodes"


def measured_section(summary: Summary) -> Section:
    """Settings and environment once, what differs between runs in marked rows with the runs that have it."""
    blocks: list[Block] = []
    runs = [run for result in (*summary.results, *summary.diagnostics) for run in result.runs]
    if not runs:
        return Section(id="measured", title="What was measured", blocks=[Paragraph(text="No run is here.")])
    settings = {name: value for name, value in shared(summary.results).items() if USUAL.get(name) != value}
    rows = [[name, value] for name, value in settings.items()]
    marked = range(len(rows), len(rows) + len(differences(summary.results)))
    rows += [[name, ", ".join(values)] for name, values in differences(summary.results).items()]
    of = " of the points that state them" if any(result.requested.partly for result in summary.results) else ""
    if rows:
        blocks.append(
            Table(
                id="settings", caption=f"Settings{of}; marked: what differs between points", rows=rows, label_columns=2,
                heads=(("setting", ""), ("value", "")), marked=frozenset(marked),
            )
        )  # fmt: skip
    blocks += _environment_table(summary)
    return Section(id="measured", title="What was measured", blocks=blocks)


def subtitle(summary: Summary) -> str:
    """When, where and on what: `2026-05-14 (UTC), site mysite, nodes n1 and n2: NVIDIA H100, driver 570.1, torch 2.13`.

    What no run recorded is left out; empty where none recorded any of it.
    """
    runs = [run for result in summary.results for run in result.runs]
    facts = provenance(runs)
    hosts = sorted({host for run in runs if run.machine for host in run.machine.hosts or ()})
    sites = sorted({site for result in summary.results if (site := result.run.site)})
    when = [f"{facts['date']} (UTC)"] if facts["date"] else []
    where = [f"{inflect(len(sites), 'site')} {first_of(sites, IN_SUBTITLE)}"] if sites else []
    where += [f"{inflect(len(hosts), 'node')} {first_of(hosts, IN_SUBTITLE)}"] if hosts else []
    devices = [name for name in facts["device"] if name != "cpu"] or facts["cpu"] or facts["device"]
    what = [first_of(devices, IN_SUBTITLE)] if devices else []
    what += [f"driver {first_of(facts['driver'], IN_SUBTITLE)}"] if facts["driver"] else []
    versions = {**facts["header"], **facts["versions"]}
    frameworks = [name for name in FRAMEWORKS if name in versions]
    what += [f"{name} {first_of(versions[name], IN_SUBTITLE)}" for name in frameworks]
    measured = ", ".join([*when, *where])
    return ": ".join(filter(None, [measured, ", ".join(what)]))


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A fact of the environment with its values on the `runs` in words, `all` or their names.

    `differs`: other runs have other values, or the ranks of these have several.
    """

    name: str
    values: str
    runs: str
    differs: bool


def environment(summary: Summary) -> list[Fact]:
    """Each fact and each of its values, over the runs that recorded any; the device first."""
    names = labels(summary.results)
    named = [
        ((f"{name} run {run.requested.run.repeat or '?'}", run.requested.run.backend), run)
        for name, result in zip(names, summary.results, strict=True)
        for run in result.runs
        if run.machine
    ]
    facts: dict[str, dict[tuple[str, ...], list[tuple[str, str]]]] = {}
    for name, run in named:
        for fact, values in _facts(run).items():
            facts.setdefault(fact, {}).setdefault(values, []).append(name)
    rows = [
        Fact(
            name=fact,
            values=", ".join(values),
            runs=ALL if len(of) == len(named) else _runs_text(of),
            differs=len(by_value) > 1 or len(values) > 1,
        )
        for fact, by_value in facts.items()
        for values, of in by_value.items()
    ]
    on_hosts = [(name, run.machine.hosts) for name, run in named if run.machine and run.machine.hosts]
    if hosts := sorted({host for _, its_hosts in on_hosts for host in its_hosts}):
        runs = ALL if len(on_hosts) == len(named) else _runs_text([name for name, _ in on_hosts])
        rows.append(Fact(name=NODES, values=first_of(hosts, HOSTS_NAMED), runs=runs, differs=False))
    return rows


def _environment_table(summary: Summary) -> Iterator[Block]:
    """A row for each fact and each of its values; marked where not all runs have the same."""
    facts = environment(summary)
    if facts:
        yield Table(
            id="environment", caption="Environment; marked: what differs between runs or ranks", label_columns=3,
            heads=(("fact", ""), ("value", ""), ("runs", "")),
            rows=[[fact.name, fact.values, fact.runs] for fact in facts],
            marked=frozenset(at for at, fact in enumerate(facts) if fact.differs),
        )  # fmt: skip


def _runs_text(runs: Sequence[tuple[str, str]]) -> str:
    """The first of these runs, each a name and a backend; where names are long, how many of each backend."""
    names = [name for name, _ in runs]
    if max(map(len, names)) <= LONG_NAME:
        return first_of(names, RUNS_NAMED)
    return ", ".join(f"{count} of {backend}" for backend, count in Counter(backend for _, backend in runs).items())


def _facts(run: Run) -> dict[str, tuple[str, ...]]:
    """The facts of its machine, the device first."""
    machine = run.machine
    if machine is None:
        return {}
    names = [name for name in MACHINE.values() if name in machine.facts]
    names += [name for name in machine.facts if name not in names]
    return {name: machine.facts[name] for name in names}
