"""Known delays in unchanged training scripts, and none, against what the ledger says of them.

`python -m tests.truth.script_run [--keep DIR]`; `--folder DIR` looks once more at what an earlier run kept. Each script
trains under `rankwise observe` on ranks of this machine, and writes down how long it slept, when each step came
how far, and when it called each collective. A machine takes time of its own: what a ledger says beside the sleeps
counts as the machine's where the script's own marks bear it out. Ends with 1 where kind, rank and phase are right of
fewer than 95 of 100 delays, a term is off by marks and sleeps in more than 5 of 100 of these, a term of a rank is off
by the marks in more than 5 of 100 windows, or somebody is named in more than 3 of 100 windows without a delay whom no
marks bear out.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from parse.ledger.types import Ledger
from parse.ledger.verdict import CANNOT_TELL, NONE
from tests.truth.delays import DelayCase, Judged, findings_of, judge
from tests.truth.exact import TERMS, Ms
from tests.truth.programs import SCRIPTS, TruthError, judge_trainings, run_windows, windows_of
from tests.truth.script_cases import TRAININGS, Training
from tests.truth.script_marks import ALLOWED, ALLOWED_MS, Noted, is_off
from tests.truth.windows import ledger_of

LEAD, WINDOW = 10, 100
"""Steps of a case before those that are measured, and of these."""
VERDICTS = ("right", "machine", "wrong", "cannot tell")
RIGHT, TERMS_RIGHT, INVENTED = 0.95, 0.95, 0.03


@dataclass(frozen=True, kw_only=True, eq=False)
class Point:
    """A window of a run. `of_ledger` and `of_marks` are the mean terms by the ledger and by the script's marks,
    [rank, 5] ms a step. `term` is the part of the straggler's delay that its phase has, less the recorded sleep,
    `by_marks` the same less that by the marks, ms a step; None where it is not named rightly."""

    case: DelayCase
    training: Training
    judged: Judged
    verdict: str
    of_ledger: Ms
    of_marks: Ms
    term: float | None = None
    by_marks: float | None = None

    @property
    def off(self) -> bool:
        """Whether the term of its phase is not that of the sleeps."""
        return self.term is not None and is_off(self.term, self.judged.effect)

    @property
    def wrong_term(self) -> bool:
        """Whether it is not that of the script's marks either."""
        return self.by_marks is not None and self.off and is_off(self.by_marks, self.judged.effect)

    @property
    def has_wrong_terms(self) -> bool:
        """Whether a term of a rank is not that of the marks."""
        pairs = zip((self.of_ledger - self.of_marks).flat, self.of_marks.flat, strict=True)
        return any(is_off(error, true) for error, true in pairs)


def main() -> int:
    """Command line: 0 where the ledger is right often enough, 1 where not, 2 where the runs could not be made."""
    return judge_trainings(__doc__, TRAININGS, run_script, points_of, report)


def run_script(training: Training, folder: Path) -> None:
    """Runs a script under hpc.observe, one window for each of its cases. Raises TruthError if it does not end well."""
    nodes = ["--simulate-nodes", 2] if training.ranks > 2 else []
    script = [SCRIPTS / "delayed.py", *training.arguments]
    run_windows(training, folder, lead=LEAD, window=WINDOW, options=nodes, script=script)


def points_of(training: Training, folder: Path, scratch: Path) -> Iterator[Point]:
    """Each window of a script's run, judged by its case. Raises TruthError where the steps are not the script's."""
    noted = Noted.of(folder / "truth", training.ranks, training.root)
    for case, first, window in windows_of(training, folder, lead=LEAD, window=WINDOW):
        yield _point(training, case, ledger_of([window], scratch / str(first)), noted.window(first, WINDOW, LEAD))


def _point(training: Training, case: DelayCase, ledger: Ledger, noted: Noted) -> Point:
    names = tuple(term.name for term in ledger.terms)
    if names != TERMS:
        raise TruthError(f"{training.name}: the ledger has the terms {', '.join(names)}; the script's has {TERMS}")
    true = noted.slept_more(case.place, case.rank) if case.place else 0.0
    judged = judge(case, ledger, true)
    point = Point(
        case=case, training=training, judged=judged, verdict="right",
        of_ledger=np.array([place.terms for place in ledger.ranks]), of_marks=noted.truth.per_rank,
    )  # fmt: skip
    kind = ledger.verdict.kind
    if case.place and (kind is CANNOT_TELL or (kind is NONE and judged.below)):
        return replace(point, verdict="cannot tell")
    if judged.wrong:
        others = [each for each in findings_of(ledger) if not case.place or each.ranks != (case.rank,)]
        is_so = judged.only_more and all(noted.bears_out(each) for each in others)
        point = replace(point, verdict="machine" if is_so else "wrong")
    if not case.place or point.verdict == "wrong":
        return point
    named = next(each for each in findings_of(ledger) if each.ranks == (case.rank,))
    term = named.cause[case.phase]
    return replace(point, term=term - true, by_marks=term - noted.later_by(case.phase, case.rank, named))


def report(points: Sequence[Point]) -> bool:
    """Prints a line for each place and training, and what is wrong; whether too much is."""
    print(f"\n{'':32} {'points':>6}" + "".join(f" {verdict:>11}" for verdict in VERDICTS) + "  errors of the term, ms")
    groups: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        groups[point.case.name].append(point)
    for name, its in sorted(groups.items()):
        counts = [sum(point.verdict == verdict for point in its) for verdict in VERDICTS]
        print(f"{name:32} {len(its):6}" + "".join(f" {count:11}" for count in counts) + f"  {_errors(its)}")
        for point in its:
            if point.verdict != "right" or point.off:
                _show(point)
    late, equal = ([point for point in points if bool(point.case.place) is wanted] for wanted in (True, False))
    failed = [_report_late(late)] if late else []
    failed += [_report_equal(equal)] if equal else []
    return any([*failed, _report_terms(points)])


def _report_late(late: Sequence[Point]) -> bool:
    named = [point for point in late if point.term is not None]
    beside = sum(point.verdict == "machine" for point in named)
    off, wrong = sum(point.off for point in named), sum(point.wrong_term for point in named)
    print(
        f"\nkind, rank and phase: right in {len(named)} of {len(late)}; in {beside} of these somebody else is named, "
        "too, whom the script's marks bear out"
    )
    print(
        f"the term of the phase: off by more than {ALLOWED_MS} ms and {ALLOWED:.0%} in {off} of {len(named)} by the "
        f"sleeps, in {wrong} by the script's marks as well"
    )
    errors = {
        "term, by the sleeps": [point.term for point in named],
        "term, by the marks": [point.by_marks for point in named],
    }
    for what, its in errors.items():
        print(f"error of the {what}, ms: {_distribution([error for error in its if error is not None])}")
    return len(named) < RIGHT * len(late) or len(named) - wrong < TERMS_RIGHT * len(named)


def _report_equal(equal: Sequence[Point]) -> bool:
    machine, wrong = (sum(point.verdict == verdict for point in equal) for verdict in ("machine", "wrong"))
    limits = [point.judged.limit for point in equal if point.judged.limit is not None]
    print(
        f"nothing: somebody is named in {machine + wrong} of {len(equal)}, in {machine} of these as the script's marks "
        f"bear out; limits, ms: {_distribution(limits)}"
    )
    return wrong > INVENTED * len(equal)


def _report_terms(points: Sequence[Point]) -> bool:
    print("\nterms of all ranks, error by the script's marks, ms:")
    for at, name in enumerate(TERMS):
        errors = np.concatenate([point.of_ledger[:, at] - point.of_marks[:, at] for point in points])
        print(f"{name:>14}: {_distribution(errors)}")
    wrong = sum(point.has_wrong_terms for point in points)
    print(f"off by more than {ALLOWED_MS} ms and {ALLOWED:.0%} in {wrong} of {len(points)} windows")
    return len(points) - wrong < TERMS_RIGHT * len(points)


def _errors(points: Sequence[Point]) -> str:
    errors = [point.term for point in points if point.term is not None]
    return f"{np.median(errors):+.2f}, {max(errors, key=abs):+.2f}" if errors else ""


def _distribution(values: Iterable[float]) -> str:
    values = [*values]
    if not values:
        return "-"
    low, median, high = np.percentile(values, (5, 50, 95))
    return (
        f"median {median:+.3f}, 90 % from {low:+.3f} to {high:+.3f}, all from {min(values):+.3f} to {max(values):+.3f}"
    )


def _show(point: Point) -> None:
    reason = "; ".join(point.judged.wrong) or f"off by {point.term:+.2f} ms"
    limit = "" if point.judged.limit is None else f", limit {point.judged.limit:.2f}"
    print(f"    {point.case.window}: {reason} [{point.judged.effect:.2f}{limit}] {point.judged.verdict}")


if __name__ == "__main__":
    sys.exit(main())
