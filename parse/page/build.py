"""From a summary to the page: all sections in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from parse.page.ledger import ledger_section
from parse.page.measured import measured_section, subtitle
from parse.page.outcomes import left_out_section, outcomes_section
from parse.page.points import points_section
from parse.page.published import published_section
from parse.page.scaling import scaling_section, warnings_section
from parse.page.types import Page
from parse.page.verdict import headline, verdict
from parse.report.conclusion import setting_names
from parse.report.summary import Summary
from parse.result import Result, by_setting


def build_page(
    summary: Summary, source: str, progress: Callable[[Sequence[Result]], Iterable[Result]] | None = None
) -> Page:
    """The page of a summary with its ledgers; `source` says what it was made of. Reads the traces once more."""
    point = headline(summary)
    sections = [
        scaling_section(summary, point),
        warnings_section(summary),
        ledger_section(summary),
        points_section(summary, point, progress),
        published_section(summary),
        measured_section(summary),
        outcomes_section(summary),
        left_out_section(summary),
    ]
    return Page(
        title=title(summary),
        subtitle=subtitle(summary),
        source=source,
        command="python -m parse.report",
        verdict=verdict(summary),
        sections=[section for section in sections if section is not None],
    )


def title(summary: Summary) -> str:
    """`Scaling of torch-ddp resnet50`; of several settings their number."""
    settings = by_setting(summary.results)
    if not settings:
        return "Scaling: nothing was measured"
    names = list(dict.fromkeys(setting_names([setting[0] for setting in settings.values()])))
    return f"Scaling of {names[0]}" if len(names) == 1 else f"Scaling of {len(settings)} settings"
