"""What the measured points cost, in words."""

from __future__ import annotations

from collections.abc import Iterator

from hpc.system.text import plural
from parse.report.summary import Summary, labels, names_of_points
from parse.runs.cost import EnergyCost, Spent, energy_cost, no_energy, node_hours_per_million, spent
from parse.runs.result import Result
from parse.text import TableData, TextBlock


def hours_text(hours: float) -> str:
    """`12.50`, of less than one hour three significant digits: `0.0123`."""
    return f"{hours:,.2f}" if hours >= 1 else f"{hours:.3g}"


def cost_line(summary: Summary) -> str:
    """What all attempts of the points and their diagnostic runs have taken; empty where no record says how long."""
    its = spent(summary.everything)
    return "" if not its.attempts else f"cost: {'; '.join(_parts(its))}"


CAPTION = "cost of a million samples or tokens at the median speed, energy of each in the measured steps"
NO_RIGHTS = "Permission denied"
RIGHTS = "since 2020 root alone reads it; how an administrator opens it is in docs/telemetry.md"


def cost_blocks(summary: Summary) -> list[TextBlock]:
    """A row for each point, where an energy is known."""
    rows = [
        (label, node_hours_per_million(result), energy_cost(result))
        for result, label in zip(summary.results, labels(summary.results), strict=True)
    ]
    if not any(energy for *_, energy in rows):
        return []
    heads = [("point", ""), ("node hours", "a million"), ("energy", "J each"), ("±", "J")]
    heads += [("GPUs", "J"), ("CPUs", "J")]
    cells = [
        [
            label,
            hours_text(hours) if hours else "-",
            *(_energy_cells(energy) if energy else ["-"] * 4),
        ]
        for label, hours, energy in rows
        if hours or energy
    ]
    shown = [at for at in range(len(heads)) if any(row[at] != "-" for row in cells)]
    table = TableData(
        caption=CAPTION, heads=[heads[at] for at in shown], rows=[[row[at] for at in shown] for row in cells],
        dispensable=("GPUs", "CPUs"),
    )  # fmt: skip
    return [table]


SMALL_SHARE = 0.01
"""A row of the whole time that is a smaller part of it at every point is in the column `rest`."""
WHOLE_TIME = "where the wall time of a job goes, over all attempts (means over runs)"


def time_tables(summary: Summary) -> list[TableData]:
    """The whole time of each point's runs, and the part of it that trained; empty where no record says how long."""
    names = names_of_points(summary)
    times = summary.times
    every = dict.fromkeys(name for time in times for name in time.rows)
    shown = [name for name in every if any(time.rows.get(name, 0.0) > SMALL_SHARE * time.wall_s for time in times)]
    rows = [
        [
            names[time.result.requested.point], seconds_text(time.wall_s),
            *(seconds_text(time.rows.get(name, 0.0)) for name in shown),
            seconds_text(sum(s for name, s in time.rows.items() if name not in shown)), f"{100 * time.goodput:.1f}",
        ]
        for time in times
    ]  # fmt: skip
    heads = [("point", ""), *((name, "s") for name in ("wall time", *shown, "rest")), ("goodput", "%")]
    return [TableData(caption=WHOLE_TIME, heads=heads, rows=rows)] if rows else []


def seconds_text(seconds: float) -> str:
    """Of less than a tenth of a second nothing is said: `0.0`."""
    return f"{seconds:,.1f}"


def _energy_cells(energy: EnergyCost) -> list[str]:
    figures = (energy.joules, energy.bound_j, energy.gpus_j, energy.cpus_j)
    return ["-" if value is None else f"{value:.3g}" for value in figures]


def energy_notes(result: Result) -> Iterator[str]:
    """What a point's energy has in it and what not, and why it has none where that can be helped."""
    energy = energy_cost(result)
    if energy is None:
        reason = no_energy(result)
        if NO_RIGHTS in reason:
            yield f"no energy: {reason}; {RIGHTS}"
        return
    sensor = "" if energy.sensor is None else f", the GPUs' sensor ± {energy.sensor * 100:g} % besides (NVML's manual)"
    rights = f"; {RIGHTS}" if any(NO_RIGHTS in name for name in energy.unmetered) else ""
    how = f"energy by counters, ± by their periods and readings{sensor}"
    yield f"{how}; not metered: {', '.join(energy.unmetered)}{rights}"


def _parts(its: Spent) -> Iterator[str]:
    yield f"{hours_text(its.node_hours)} node hours of {plural(its.attempts, 'attempt')}"
    if its.failed:
        share = f"{hours_text(its.failed_node_hours)} of them"
        yield f"{share} by {plural(its.failed, 'attempt')} that did not end ok"
    if its.metered:
        others = max(0, its.attempts + its.unrecorded - its.metered)
        without = f", the energy of {plural(others, 'other attempt')} is not known" if others else ""
        yield f"{its.kwh:.3g} kWh metered in {plural(its.metered, 'attempt')}{without}"
    if its.by_wall_clock:
        yield f"{plural(its.by_wall_clock, 'attempt')} by the wall clock alone: had it been set, nothing would show it"
    if its.unrecorded:
        yield f"{plural(its.unrecorded, 'attempt')} without a recorded duration not counted"
