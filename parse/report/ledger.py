"""Ledgers for people, as text or Markdown: the terms, a sentence per point, nodes and ranks. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import mean

from parse.ledger.types import Ledger, Place
from parse.report.costs import time_tables
from parse.report.notices import runs_ok
from parse.report.summary import Summary, named_ledgers, requested_values, varying
from parse.say.notes import notes, what_if_notes
from parse.say.numbers import Figures, host_of, numbers, share
from parse.say.paragraph import sentence, text_of
from parse.say.reasons import ledger_problems, merged_text, verdict_text
from parse.stats import Mean
from parse.term_kinds import COMMUNICATION, COMPUTE, TERMS, WAIT, parts_of
from parse.text import (
    LONG,
    Page,
    TableData,
    markdown_list,
    markdown_text,
    number,
    wrapped,
)

PLACES = 8
"""As many nodes, and ranks, of a point are shown; JSON has all."""
HOST_BOUND = "of it host-bound"
"""The head of the part of compute in which the host of a device sets the pace; there only where it is known."""
DIMENSIONS = "wait and communication by the groups in which ranks meet: means over ranks, steps and ok runs"
INDENT = 4
"""Indentation of the tables below a point's name."""
NOTHING = "no ledger: no run here has a trace and ended ok"


def ledger_text(summary: Summary, page: Page) -> list[str]:
    """For a terminal: the terms of every point, what is wrong with them, what is lost where and why; if verbose the
    rest by point, too."""
    named = named_ledgers(summary)
    if not named:
        return [NOTHING]
    under = wrapped(about_terms(named), page.width)
    terms = term_table(summary, named, brief=not page.verbose)
    lines = [*wrapped([terms.caption], page.width), ""] if page.verbose else []
    lines += _stacked(terms).lines(page)
    lines += ["", *under] if under else []
    for table in dimension_tables(named):
        lines += ["", *wrapped([table.caption], page.width), "", *table.lines(page)]
    lines.append("")
    if not page.verbose:
        losing = [each for each in named if each[1].loss is not None] or named
        return lines + wrapped((text for each in losing for text in _brief(*each)), page.width)
    lines += wrapped((sentence(ledger, name) for name, ledger in named), page.width)
    for name, ledger in named:
        below = wrapped(notes(ledger), page.width, "  ")
        for table in place_tables(ledger):
            below += [*wrapped([table.caption], page.width, "  "), *_stacked(table).lines(page, INDENT)]
        lines += ["", *wrapped([f"{name}:"], page.width), *below] if below else []
    for table in time_tables(summary):
        lines += ["", *wrapped([table.caption], page.width), "", *table.lines(page)]
    return lines


def _brief(name: str, ledger: Ledger) -> Iterator[str]:
    """The paragraph of a point, its further findings but the lesser ones, and what changes would be worth, if that was
    requested."""
    yield sentence(ledger, name, terms=False)
    yield from (f"{name}: {text}" for text in (*text_of(ledger).further, *what_if_notes(ledger)))


def _stacked(table: TableData) -> TableData:
    """The head of several terms in one, and of a part of one, stands in several lines."""
    in_lines = {HOST_BOUND: HOST_BOUND.replace(" host", "\nhost")}
    return replace(table, heads=[(in_lines.get(name, name.replace("+", "\n+")), unit) for name, unit in table.heads])


def ledger_markdown(summary: Summary) -> list[str]:
    named = named_ledgers(summary)
    if not named:
        return [NOTHING]
    terms = term_table(summary, named)
    parts = [
        part for table in (terms, *dimension_tables(named)) for part in (markdown_text(table.caption), table.markdown())
    ]
    parts += [markdown_list([*about_terms(named), *(sentence(ledger, name) for name, ledger in named)])]
    for name, ledger in named:
        notes_list = markdown_list(notes(ledger))
        parts += [markdown_text(f"{name}:"), notes_list] if notes_list else []
        for table in place_tables(ledger):
            parts += [markdown_text(f"{name}, {table.caption}"), table.markdown()]
    return parts + [part for table in time_tables(summary) for part in (markdown_text(table.caption), table.markdown())]


def about_terms(named: Sequence[tuple[str, Ledger]]) -> Iterator[str]:
    """Errors of the measurement, and why several terms are one."""
    merged: dict[str, list[str]] = {}
    for name, ledger in named:
        yield from (f"{name}: error of the measurement: {problem}" for problem in ledger_problems(ledger))
        if ledger.merged:
            terms = " and ".join(term.name for term in ledger.terms if "+" in term.name)
            reason = merged_text(ledger.merged)
            merged.setdefault(f"{terms}: {reason}" if terms else reason, []).append(name)
    yield from (f"{', '.join(of)}: {reason}" for reason, of in merged.items())


def term_table(summary: Summary, named: Sequence[tuple[str, Ledger]], *, brief: bool = False) -> TableData:
    """The terms of every point: their means, and where there is a base, loss, interval, share, and the straggler; if
    `brief` speeds in place of the last three, of which sentences have what matters."""
    ledgers = [ledger for _, ledger in named]
    bases = dict.fromkeys(ledger.result.base_case for ledger in ledgers if ledger.loss is not None)
    lost = f"; what is lost against {' or '.join(bases)}" if bases else ""
    differ = varying(summary.results)
    columns = term_columns(ledgers)
    write = Figures(ledgers)
    shown = _with_host_bound(columns, any(ledger.host_bound is not None for ledger in ledgers))
    speeds = [("median", ledgers[0].result.unit)] if brief else []
    if brief and any(ledger.result.scaling_efficiency is not None for ledger in ledgers):
        speeds.append(("efficiency", "%"))
    heads = [*((name, "") for name in ("case", *differ)), ("runs", ""), ("", ""), *speeds]
    heads += [*((name, "ms") for name in ("step", *shown)), *([] if brief else [("straggler", "")])]
    rows = []
    for ledger in ledgers:
        requested, result = requested_values(ledger.result), ledger.result
        runs = runs_ok(result) if brief else str(len(ledger.runs))
        first = [*(requested.get(name, "-") for name in ("case", *differ)), runs]
        figures = [number(result.median_speed), number(result.scaling_efficiency, 100, decimals=1)][: len(speeds)]
        for place, (what, cells) in enumerate(_lines(ledger, shown, write, len(bases) > 1, brief)):
            begin, its = ([""] * len(first), [""] * len(figures)) if place else (first, figures)
            last = [] if brief else ["" if place else _straggler_cell(ledger)]
            rows.append([*begin, what, *its, *cells, *last])
    return TableData(
        caption=f"where the time of a step goes: means over ranks, steps and ok runs{lost}",
        heads=heads, rows=rows, label_columns=len(differ) + 1, keys=len(differ) + 3,
        settings=range(1, len(differ) + 1) if len(differ) > 1 else (),
    )  # fmt: skip


def _straggler_cell(ledger: Ledger) -> str:
    if len(ledger.ranks) < 2:
        return "-"
    text = verdict_text(ledger.verdict)
    return text if len(text) <= LONG else ledger.verdict.kind


def _lines(
    ledger: Ledger, columns: Sequence[str], write: Figures, several: bool, brief: bool
) -> Iterator[tuple[str, list[str]]]:
    """The lines of a point, each with its name: a cell for the step and for every column. `several` bases are named."""
    terms = {term.name: term for term in ledger.terms}
    ordered = [terms.get(name) for name in columns]
    means: list[Mean | None] = [ledger.step, *(term.mean if term else None for term in ordered)]
    cells = [write.bare(mean.value) if mean else "" for mean in means]
    if HOST_BOUND in columns and ledger.host_bound is not None and COMPUTE.name in terms:
        paced = ledger.host_bound.mean
        cells[1 + columns.index(HOST_BOUND)] = _range(paced.compute, paced.most_of_compute, write)
    yield "mean", cells
    sign = "" if ledger.loss is None else "+"
    if ledger.loss is not None:
        means = [ledger.loss, *(term.loss if term else None for term in ordered)]
        yield (
            f"loss against {ledger.result.base_case}" if several else "loss",
            [write.bare(mean.value, "+") if mean else "" for mean in means],
        )
    if brief:
        return
    if (ledger.loss or ledger.step).runs is None:
        yield "95 %", [(write.margin(mean) or "-") if mean else "" for mean in means]
    else:
        for end, what in enumerate(("least run", "most")):
            yield what, [write.bare(mean.runs[end], sign) if mean and mean.runs else "" for mean in means]
    if any(term.share is not None for term in ledger.terms):
        yield "share", ["100 %", *((share(term).strip(" ()") or "-") if term else "" for term in ordered)]


def _with_host_bound(columns: Sequence[str], known: bool) -> list[str]:
    """These terms, and behind compute what of it is host-bound, where that is `known` and compute is one of them."""
    return [each for name in columns for each in (name, *((HOST_BOUND,) if known and name == COMPUTE.name else ()))]


def term_columns(ledgers: Sequence[Ledger]) -> list[str]:
    """The terms that there are, in the order of a step; several in one come after the first of them."""
    names = dict.fromkeys(term.name for ledger in ledgers for term in ledger.terms)
    return sorted(names, key=lambda name: (TERMS.index(parts_of(name)[0]), "+" in name))


def dimension_tables(named: Sequence[tuple[str, Ledger]]) -> Iterator[TableData]:
    """What of wait and communication is in the groups of each dimension, of points whose ranks have groups; no table
    where there are none."""
    grouped_ones = [(name, ledger) for name, ledger in named if ledger.dimensions]
    if not grouped_ones:
        return
    write = Figures([ledger for _, ledger in grouped_ones])
    rows = []
    for name, ledger in grouped_ones:
        for place, part in enumerate(ledger.dimensions):
            share_of_step = (part.wait.value + part.communication.value) / ledger.step.value
            cells = [
                each
                for mean in (part.wait, part.communication)
                for each in (write.bare(mean.value), write.interval(mean) or "-")
            ]
            rows.append(
                ["" if place else name, dimension_text(part.dimension), *cells, number(share_of_step, 100, decimals=1)]
            )
    heads = (
        ("point", ""), ("groups", ""), (WAIT.name, "ms"), ("interval", "ms"), (COMMUNICATION.name, "ms"),
        ("interval", "ms"), ("both", "% of step"),
    )  # fmt: skip
    yield TableData(caption=DIMENSIONS, heads=heads, rows=rows, label_columns=2, keys=2)


def dimension_text(dimension: str) -> str:
    """The name of a dimension, or that it has none."""
    return dimension or "without a name"


def place_tables(ledger: Ledger) -> Iterator[TableData]:
    """Tables of nodes, where they have several ranks, of roles, and of ranks; the latter by the dimensions of their
    groups, too."""
    if 1 < len(ledger.nodes) < len(ledger.ranks):
        shown = worth_a_row(ledger, ledger.nodes)
        names = [[host_of(ledger, node.ranks[0]), numbers(node.ranks)] for node in shown]
        yield _table(ledger, "node", ("node", "ranks"), names, shown, len(ledger.nodes))
    if ledger.roles:
        names = [[role.name, numbers(role.ranks)] for role in ledger.roles]
        yield _table(ledger, "role", ("", "ranks"), names, ledger.roles, len(ledger.roles))
        if ledger.dimensions:
            yield _by_dimension(ledger, "role", ("", "ranks"), names, ledger.roles)
    if len(ledger.ranks) > 1:
        shown = worth_a_row(ledger, ledger.ranks)
        names = [[numbers(rank.ranks), host_of(ledger, rank.ranks[0]) or "-"] for rank in shown]
        yield _table(ledger, "rank", ("rank", "node"), names, shown, len(ledger.ranks))
        if ledger.dimensions:
            yield _by_dimension(ledger, "rank", ("rank", "node"), names, shown)


def _by_dimension(
    ledger: Ledger, by: str, keys: Sequence[str], names: Sequence[list[str]], shown: Sequence[Place]
) -> TableData:
    write = Figures([ledger])
    heads = [
        (kind, dimension_text(each.dimension)) for kind in (WAIT.name, COMMUNICATION.name) for each in ledger.dimensions
    ]
    rows = []
    for name, place in zip(names, shown, strict=True):
        parts = [[each.ranks[rank] for rank in place.ranks] for each in ledger.dimensions]
        ms = [mean(part.wait for part in its) for its in parts]
        ms += [mean(part.communication for part in its) for its in parts]
        rows.append([*name, *map(write.bare, ms)])
    return TableData(
        caption=f"by {by} and groups, ms:", heads=[*((key, "") for key in keys), *heads], rows=rows, label_columns=2,
        keys=2, settings=(),
    )  # fmt: skip


def _table(
    ledger: Ledger, by: str, keys: Sequence[str], names: Sequence[list[str]], shown: Sequence[Place], count: int
) -> TableData:
    """The table of these places, out of `count`."""
    write = Figures([ledger])
    of = f" ({len(shown)} of {count}: those that come last most, and the one that waits most)"
    columns = _with_host_bound([term.name for term in ledger.terms], ledger.host_bound is not None)
    heads = [*((name, "") for name in (*keys, *columns)), ("comes last", "% of steps")]
    rows = [
        [*name, *_place_cells(ledger, place, columns, write), number(place.last, 100, decimals=1)]
        for name, place in zip(names, shown, strict=True)
    ]
    caption = f"by {by}, ms{of if len(shown) < count else ''}:"
    return TableData(caption=caption, heads=heads, rows=rows, label_columns=2, keys=2, settings=())


ALIKE = 0.05
"""A part of compute that is at least as long as this share less than it is at most is one figure."""


def _range(least: float, longest: float, write: Figures) -> str:
    """`4.00`, or `0.00–16.00` where the two differ: a figure, as no letter is in it."""
    differ = write.bare(least) != write.bare(longest) and longest - least > ALIKE * longest
    return f"{write.bare(least)}–{write.bare(longest)}" if differ else write.bare(least)


def _place_cells(ledger: Ledger, place: Place, columns: Sequence[str], write: Figures) -> list[str]:
    cells = dict(zip((term.name for term in ledger.terms), map(write.bare, place.terms), strict=True))
    if ledger.host_bound is not None:
        paced = ledger.host_bound.compute_of(place.ranks)
        cells[HOST_BOUND] = "-" if paced is None else _range(*paced, write)
    return [cells[name] for name in columns]


def worth_a_row(ledger: Ledger, places: Sequence[Place]) -> list[Place]:
    """PLACES at most: those that the verdict names, those that come last most, and the one that waits most."""
    if len(places) <= PLACES:
        return list(places)
    named = {*ledger.verdict.ranks}
    chosen = sorted(places, key=lambda place: (not named & {*place.ranks}, -(place.last or 0.0)))[:PLACES]
    names = [term.name for term in ledger.terms]
    if WAIT.name in names:
        waits = max(places, key=lambda place: place.terms[names.index(WAIT.name)])
        chosen = chosen if waits in chosen else [*chosen[:-1], waits]
    return [place for place in places if place in chosen]
