"""Where the time of a step goes: the terms as stacked bars, what is lost, what changes would be worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc.system.groups import grouped
from hpc.system.text import capitalized
from parse.ledger.figures import Figures
from parse.ledger.reasons import base_case
from parse.ledger.sentence import sentence
from parse.ledger.types import Ledger, Mean
from parse.page.figures import stacked
from parse.page.types import Block, Chart, Listing, Paragraph, Section, Table
from parse.report.ledger import NOTHING, about_terms, term_columns, term_table
from parse.report.ledger import title as title_of
from parse.report.summary import Summary, named_ledgers

MAX_BARS = 40
"""Points in one chart; the table has all."""
BAR_PX = 34


def ledger_section(summary: Summary) -> Section:
    """Charts, table and a sentence for each point; why there is none where no run has a trace."""
    section_id, title = "ledger", "Where the time of a step goes"
    named = named_ledgers(summary)
    if not named:
        return Section(id=section_id, title=title, blocks=[Paragraph(text=f"{capitalized(NOTHING)}.")])
    blocks: list[Block] = [*_charts(named)]
    terms = term_table(summary, named)
    heads = [(name or "of", unit) for name, unit in terms.heads]
    blocks.append(
        Table(
            id="terms", caption=capitalized(title_of(named)), heads=heads, rows=terms.rows,
            label_columns=terms.label_columns,
        )
    )  # fmt: skip
    if errors := list(about_terms(named)):
        blocks.append(Listing(title="About the terms", lines=errors, warnings=True))
    blocks.append(Listing(title="In words", lines=[sentence(ledger, name) for name, ledger in named]))
    blocks += _what_ifs(named)
    return Section(id=section_id, title=title, blocks=blocks)


def _charts(named: Sequence[tuple[str, Ledger]]) -> Iterator[Block]:
    shown = named[:MAX_BARS]
    if len(shown) < len(named):
        yield Paragraph(text=f"The charts have the first {len(shown)} of {len(named)} points; the table has all.")
    columns = term_columns([ledger for _, ledger in shown])
    names = [name for name, _ in shown]
    ledgers = [ledger for _, ledger in shown]
    write = Figures(ledgers)

    def text(mean: Mean | None) -> str:
        return f" ms {write.margin(mean)}" if mean is not None else ""

    if len(shown) < 2:
        return  # the table and the words have what a single bar says
    means = {name: [_term(ledger, name, "mean") for ledger in ledgers] for name in columns}
    height = 130 + BAR_PX * len(names)
    yield Chart(
        id="chart-terms", title="A step, by what it is spent on (ms)", height_px=height,
        text="; ".join(f"{name}: {_described(ledger, write, 'mean')}" for name, ledger in shown),
        figure=stacked(
            names, {name: [_value(mean) for mean in of] for name, of in means.items()},
            x_title="ms per step, mean over ranks and steps",
            shown={name: [text(mean) for mean in of] for name, of in means.items()},
        ),
    )  # fmt: skip
    losing: dict[str, list[tuple[str, Ledger]]] = grouped(
        (base_case(ledger), (name, ledger)) for name, ledger in shown if ledger.loss is not None
    )
    several = {base: of_base for base, of_base in losing.items() if len(of_base) > 1}
    for number, (base, of_base) in enumerate(several.items()):
        losses = {name: [_term(ledger, name, "loss") for _, ledger in of_base] for name in columns}
        yield Chart(
            id=f"chart-loss{f'-{number}' if number else ''}", height_px=130 + BAR_PX * len(of_base),
            title=f"What a step loses against {base} (ms)",
            text="; ".join(f"{name}: {_described(ledger, write, 'loss')}" for name, ledger in of_base),
            figure=stacked(
                [name for name, _ in of_base], {name: [_value(mean) for mean in of] for name, of in losses.items()},
                x_title=f"ms per step more than on {base}",
                shown={name: [text(mean) for mean in of] for name, of in losses.items()},
            ),
        )  # fmt: skip


def _term(ledger: Ledger, name: str, which: str) -> Mean | None:
    """The `mean` or the `loss` of the term of that name; None where the ledger has no such term."""
    return next((getattr(term, which) for term in ledger.terms if term.name == name), None)


def _value(mean: Mean | None) -> float | None:
    return None if mean is None else mean.value


def _described(ledger: Ledger, write: Figures, which: str) -> str:
    parts = [(term.name, getattr(term, which)) for term in ledger.terms]
    return ", ".join(f"{name} {write.ms(mean.value)}" for name, mean in parts if mean is not None)


def _what_ifs(named: Sequence[tuple[str, Ledger]]) -> Iterator[Table]:
    """What each change would be worth, where that was read: for the point of the verdict."""
    by_unit: dict[str, list[list[str]]] = {}
    for name, ledger in named:
        by_unit.setdefault(ledger.result.unit, []).extend(
            [name, str(what_if.change), f"{what_if.speed:.2f}", interval, f"{what_if.gain * 100:+.1f}"]
            for what_if in ledger.what_ifs or ()
            for interval in [f"[{what_if.interval.low:.2f}, {what_if.interval.high:.2f}]" if what_if.interval else "-"]
        )
    for number, (unit, rows) in enumerate((unit, rows) for unit, rows in by_unit.items() if rows):
        yield Table(
            id=f"what-if-{number}" if number else "what-if",
            caption="What changes would be worth: the recorded steps replayed without one cause each",
            heads=(("point", ""), ("change", ""), ("speed", unit), ("interval", unit), ("gain", "%")),
            rows=rows, label_columns=2,
        )  # fmt: skip
