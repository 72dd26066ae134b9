"""The verdict of a page: how it scales, what holds it back most, and whether the numbers can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc.system.text import capitalized, first_of, plural
from parse.ledger.figures import Figures, speed_text, without_text
from parse.ledger.sentence import beside_a_headline, core_wait_text, straggler_first
from parse.ledger.types import Change, Ledger, Mean
from parse.page.scaling import is_base, notice_text
from parse.page.types import Statement
from parse.report.conclusion import no_scaling_result, run_counts, scaling_lines, unscaled_text, without_speed
from parse.report.ledger import NOTHING
from parse.report.notices import Notice, before_the_numbers, below_the_table, merged
from parse.report.summary import Summary, labels
from parse.result import Result, by_setting, scaling_text
from parse.text import cut

WIDTH = 160
"""Names of settings are shortened as for a line of so many cells."""
SENTENCES = 4
"""Of what holds a point back, so many sentences; the section has them all."""
NAMED = 2
"""Points named in a warning there."""
WARNINGS, WARNING_WIDTH = 2, 120
"""Warnings shown in the verdict, and the cells of each: its card is as high as the others."""
SMALLER = 4
"""Smaller points whose speedup is shown beside that of the point of the verdict."""
GAINS = {
    Change.STRAGGLER: "without the straggler",
    Change.MEDIAN: "if every rank took as long as the median rank",
    Change.COMMUNICATION: "if communication were free",
    Change.INPUT: "if input were always ready",
}
WORTH_NAMING = 0.005
"""A change that gains less than this share is not named."""


def headline(summary: Summary) -> Result | None:
    """The point that the verdict is about: the largest one with a speedup, else with a speed; of several the first.

    Traces come before logs, and these before what a document only prints.
    """
    measured = [result for result in summary.results if result.median_speed is not None]

    def rank(result: Result) -> tuple[bool, bool, bool, int, int]:
        scaled, traced = result.speedup is not None and not is_base(result), any(run.trace for run in result.ok)
        return traced, bool(result.ok), scaled, result.run.devices, result.run.nodes or 1

    return max(measured, key=rank, default=None)


def verdict(summary: Summary) -> list[Statement]:
    """The statements, in the order of their questions; a page without a result has them, too."""
    notices = [*before_the_numbers(summary), *below_the_table(summary)]
    result = headline(summary)
    return [_scaling(summary, result), _loss(summary, result), _trust(summary, result, notices)]


def _scaling(summary: Summary, result: Result | None) -> Statement:
    question, link, link_text = "How does it scale?", "scaling", "Speed, speedup, efficiency"
    others = [as_sentence(line) for line in scaling_lines(summary.results, WIDTH, beside=result)]
    if result is None or result.median_speed is None:
        return Statement(
            question=question, figure="no speed", of="no run has one", sentences=others, link="outcomes",
            link_text="What became of the runs", doubt=True,
        )  # fmt: skip
    if result.speedup is None or is_base(result):
        return Statement(
            question=question, figure=speed_text(result.median_speed), of=f"{result.unit} on {_case(summary, result)}",
            sentences=[
                *_origin(result), f"{capitalized(unscaled_text(result))}.", *others,
            ],
            link=link, link_text=link_text, doubt=True,
        )  # fmt: skip
    speedup, efficiency = scaling_text(result)
    return Statement(
        question=question,
        figure=efficiency,
        of=f"of ideal on {_case(summary, result)}: {speedup}",
        sentences=[*_origin(result), *_beside(summary, result), *others],
        link=link,
        link_text=link_text,
        doubt=bool(result.oversubscribed or result.nodes_simulated),
    )


def _beside(summary: Summary, result: Result) -> Iterator[str]:
    """The speeds behind the speedup of the point, the speedups of smaller points of its setting, and what is wrong."""
    assert result.median_speed is not None and result.speedup is not None and result.base
    setting = next(each for each in by_setting(summary.results).values() if any(point is result for point in each))
    yield from (f"{capitalized(text)}." for text in no_scaling_result(result))
    base = next((each.median_speed for each in setting if each.requested.point == result.base.point), None)
    against = "" if base is None else f", on {result.base.case} {speed_text(base)}"
    yield f"{speed_text(result.median_speed)} {result.unit}{against}."
    smaller = [
        f"{each.requested.case} {each.speedup:.2f} ×"
        for each in sorted(setting, key=lambda each: -each.run.devices)
        if each.speedup is not None and result.base.devices < each.run.devices < result.run.devices
    ]
    if smaller:
        yield f"Speedup of smaller points: {first_of(smaller, SMALLER)}."
    yield from (f"{capitalized(text)}." for text in without_speed(setting, result))


def _origin(result: Result) -> list[str]:
    """Where its speed is from, if not from traces."""
    if result.published is not None:
        return [f"Not measured here: {result.published.document.name} prints it."]
    formats = sorted({run.log.log_format for run in result.ok if run.log})
    return [f"Read from logs of {' and '.join(formats)}."] if formats else []


def _case(summary: Summary, result: Result) -> str:
    """Its case; with its backend and workload where there are several settings."""
    several = len(by_setting(summary.results)) > 1
    return f"{result.requested.case}{f' ({result.run.backend} {result.run.workload_name})' if several else ''}"


def _loss(summary: Summary, result: Result | None) -> Statement:
    question, link, link_text = "What holds it back most?", "ledger", "Where the time of a step goes"
    ledgers = {ledger.result.requested.point: ledger for ledger in summary.ledgers or ()}
    ledger = ledgers.get(result.requested.point) if result else None
    if ledger is None:
        reason = f"{capitalized(NOTHING)}." if not ledgers or result is None else (
            f"No run of {_case(summary, result)} has a trace; the section has the ledgers of other points."
        )  # fmt: skip
        return Statement(
            question=question, figure="not known", of="only traces have the time stamps for it",
            sentences=[reason], link="outcomes", link_text="What became of the runs", doubt=True,
        )  # fmt: skip
    figure, of, doubt = _cause(ledger)
    return Statement(
        question=question,
        figure=figure,
        of=f"{of} ({ledger.result.requested.case})",
        sentences=[capitalized(text) for text in beside_a_headline(ledger)[:SENTENCES]],
        link=link,
        link_text=link_text,
        doubt=doubt,
    )


def _cause(ledger: Ledger) -> tuple[str, str, bool]:
    """The figure of the largest cause, what it is of and what would be without it, and whether none can be named."""
    loss = ledger.loss
    if loss is None:
        return _without_baseline(ledger)
    if loss.value <= 0 or ledger.loses_little:
        base = ledger.result.base_case
        little = f"worth naming is lost against {base}: less than 1 % of a step"
        return "nothing", f"is lost against {base}: a step takes no longer" if loss.value <= 0 else little, False
    if loss.low is not None and not loss.resolved:
        if ledger.core_wait is not None:
            return f"{ledger.core_wait.value:.0f} %", f"of the time {core_wait_text(ledger)}", False
        return "no cause", "can be named: what a step loses is within the scatter of the runs", True
    if straggler_first(ledger):
        share = min(1.0, ledger.straggler_loss / loss.value)
        return f"{share * 100:.0f} %", f"of the loss is the straggler{_without_straggler(ledger)}", False
    return _largest_term(ledger, loss)


def _largest_term(ledger: Ledger, loss: Mean) -> tuple[str, str, bool]:
    """The same of the term that loses most, where that is more than its scatter."""
    term, lost = max(((term, term.loss) for term in ledger.causes if term.loss), key=lambda pair: pair[1].value)
    if lost.low is not None and not lost.resolved:
        return "no cause", f"can be named: {term.name} loses most, within the scatter of the runs", True
    step = Figures([ledger]).ms(ledger.step.value - lost.value)
    share = min(1.0, lost.value / loss.value)
    return f"{share * 100:.0f} %", f"of the loss is {term.name}: without it a step would take {step}", False


def _without_baseline(ledger: Ledger) -> tuple[str, str, bool]:
    """Where there is nothing to compare with: the straggler, else the change that pays most, else the step."""
    if straggler_first(ledger):
        share = ledger.verdict.costs / ledger.step.value
        return f"{share * 100:.0f} %", f"of a step is the straggler{_without_straggler(ledger)}", False
    if ledger.core_wait is not None:
        return f"{ledger.core_wait.value:.0f} %", f"of the time {core_wait_text(ledger)}", False
    best = next((each for each in ledger.what_ifs or () if each.gain >= WORTH_NAMING), None)
    if best is None:
        return Figures([ledger]).ms(ledger.step.value), "a step; nothing is here to compare it with", True
    speeds = f"{speed_text(best.speed)} instead of {speed_text(best.speed / (1 + best.gain))} {ledger.result.unit}"
    return f"+{best.gain * 100:.1f} %", f"{GAINS[best.change]}: {speeds}", False


def _without_straggler(ledger: Ledger) -> str:
    without = ledger.without_straggler
    if without is None:
        return ""
    return f": without it {without_text(without, ledger.result.unit)}"


def _trust(summary: Summary, result: Result | None, notices: Sequence[Notice]) -> Statement:
    question = "Can the numbers be trusted?"
    warnings = [notice for notice in merged(notices) if notice.is_warning]
    first = [notice for notice in merged(before_the_numbers(summary)) if notice.is_warning]
    sentences = [*map(as_sentence, run_counts(summary.results)), *_interval(result)]
    shown = _about(result, summary, first or warnings)[:WARNINGS]
    sentences += [as_sentence(cut(notice_text(notice, NAMED), WARNING_WIDTH)) for notice in shown]
    if len(warnings) > len(shown):
        more = len(warnings) - len(shown)
        sentences.append(f"{plural(more, 'further warning')} below.")
    count = len(warnings)
    if not summary.results:
        return Statement(
            question=question, figure="nothing", of="is here to be judged", sentences=sentences or ["No run is here."],
            link="outcomes", link_text="What became of the runs", doubt=True,
        )  # fmt: skip
    return Statement(
        question=question,
        figure=plural(count, "warning") if count else "no warning",
        of="beside the numbers that they concern" if count else "all checks of the numbers passed",
        sentences=sentences,
        link="warnings" if count else "measured",
        link_text="All warnings" if count else "What was measured",
        doubt=bool(count),
    )


def _about(result: Result | None, summary: Summary, warnings: Sequence[Notice]) -> list[Notice]:
    """The warnings about the point of the verdict, then those about others."""
    names = zip(summary.results, labels(summary.results), strict=True)
    its_names = {name for each, name in names if each is result} | ({result.requested.case} if result else set())
    return sorted(warnings, key=lambda notice: not its_names & {*notice.labels})


def _interval(result: Result | None) -> list[str]:
    """How certain the speed of the point of the verdict is."""
    if result is None or not result.ok or not result.median_speed:
        return []
    runs = plural(len(result.ok), "run")
    if result.interval is None:
        return [f"The speed of {result.requested.case} is that of {runs}: its scatter is not known."]
    low, high = (end / result.median_speed - 1 for end in (result.interval.low, result.interval.high))
    return [
        f"The speed of {result.requested.case} is the median of {runs}; an interval such as [{100 * low:+.2f}, "
        f"{100 * high:+.2f}] % around it holds the true median in {100 * result.interval.coverage:.1f} % of "
        "measurements."
    ]


def as_sentence(text: str) -> str:
    """The text with a full stop at its end."""
    return text if text.endswith((".", "…")) else f"{text}."
