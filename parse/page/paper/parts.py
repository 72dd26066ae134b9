"""What a section has only where it is requested: tables with sentences below a heading of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpc.system.text import capitalized
from parse.extrapolation.outlook import Outlook
from parse.extrapolation.text import notes, table
from parse.page.forecast import FORECAST, Forecasts
from parse.page.scaling import as_sentence
from parse.page.types import Table


@dataclass(frozen=True, kw_only=True)
class Part:
    """A heading, tables, and paragraphs of sentences; no text in it is escaped."""

    title: str
    tables: Sequence[Table]
    paragraphs: Sequence[Sequence[str]]


def forecast_part(forecasts: Forecasts) -> Part:
    """A table for each setting, and what it rests on."""
    outlooks = [*forecasts.outlooks.values()]
    return Part(
        title="Forecast",
        tables=[_table(each, f"forecast-{at}" if at else "forecast") for at, each in enumerate(outlooks)],
        paragraphs=[sentences(each, forecasts, several=len(outlooks) > 1) for each in outlooks],
    )


def _table(each: Outlook, table_id: str) -> Table:
    caption = f"Sizes of {each.series.name}; the last column says what is {FORECAST}; in brackets the interval"
    return Table.of(table(each), table_id, caption)


def sentences(each: Outlook, forecasts: Forecasts, *, several: bool) -> list[str]:
    """What the figures of a setting rest on, and what cannot be told; of `several` with its name."""
    name = [f"{each.series.name}:"] if several else []
    return [*name, *(as_sentence(capitalized(text)) for text in notes(each, forecasts.request))]
