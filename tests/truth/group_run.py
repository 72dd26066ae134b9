"""Known delays in scripts whose ranks meet in groups, and none, against what the trace and the ledger say of them.

`python -m tests.truth.group_run [--keep DIR]`; `--folder DIR` looks once more at what an earlier run kept, and
`--only WORDS` at trainings that have these in their names. Each script trains under `rankwise observe` on ranks of
this machine, and notes when it slept and when it called each collective and message, of which group. What a delay costs
is what a replay of these notes without its sleeps saves. A machine takes time of its own: a rank that is named beside
the sleeps counts as the machine's where its own work by the notes exceeds its peers' by so much.

Ends with 1 where more than one of 100 noted calls is not in the trace, in its group and within 1 ms; where kind,
rank, dimension and phase are right of fewer than 95 of 100 delays above the limit, or the cost of these is off by more
than 1 ms and 5 %; or where somebody is named in more than 3 of 100 windows without a delay whom no notes bear out.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpc.model.timestamps import ABSENT
from hpc.model.trace import Trace
from parse.graph.findings import StageImbalance, UnevenExperts
from parse.ledger.types import Ledger
from parse.ledger.verdict import CANNOT_TELL, PERSISTENT, Nobody, Straggler
from parse.rules import WORTH_NAMING
from tests.truth.delays import DelayCase, describe_all, findings_of
from tests.truth.group_cases import TRAININGS, GroupTraining
from tests.truth.group_marks import NotedRun
from tests.truth.programs import SCRIPTS, judge_trainings, run_windows, windows_of
from tests.truth.windows import ledger_of

LEAD, WINDOW = 10, 50
"""Steps of a case before those that are measured, and of these."""
VERDICTS = ("right", "below", "machine", "wrong", "cannot tell")
SAME_NS = 1_000_000
"""A recorded call and a noted one lie no further apart."""
ALLOWED_MS, ALLOWED = 1.0, 0.05
"""What a cost may differ from the notes' replay, whichever is larger."""
MOSTLY = 0.75
"""Notes bear out who is named where its own work exceeds its peers' by this part of what it is said to cost."""
RECORDED, RIGHT, INVENTED = 0.99, 0.95, 0.03


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The noted calls of measured steps, those of them that the trace has not, and examples of these in words."""

    noted: int = 0
    missing: int = 0
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupPoint:
    """A window of a run: `true` is what its sleeps cost a step by the notes, `cost` what the ledger says, ms; None
    where it does not name the rank. `beside` is by how much the rank's own work differs from its peers' otherwise,
    which is the machine's. `wrong` has what is wrong with what the ledger says."""

    case: DelayCase
    recorded: Recorded
    verdict: str
    text: str
    true: float = 0.0
    cost: float | None = None
    beside: float = 0.0
    wrong: tuple[str, ...] = ()
    limit: float | None = None

    @property
    def cost_is_off(self) -> bool:
        """By more than what is allowed and the machine's."""
        return self.cost is not None and abs(self.cost - self.true) > max(ALLOWED_MS, ALLOWED * self.true) + self.beside


def main() -> int:
    """Command line: 0 where trace and ledger are right often enough, 1 where not, 2 where runs cannot be made."""
    return judge_trainings(__doc__, TRAININGS, run_groups, points_of, report)


def run_groups(training: GroupTraining, folder: Path) -> None:
    """Runs a script under hpc.observe, one window for each of its cases. Raises TruthError if it does not end well."""
    script = [SCRIPTS / training.script, "--shape", training.shape, *training.arguments]
    run_windows(training, folder, lead=LEAD, window=WINDOW, options=["--batch-size", 8], script=script)


def points_of(training: GroupTraining, folder: Path, scratch: Path) -> Iterator[GroupPoint]:
    """Each window of a script's run, judged by its case. Raises TruthError where the steps are not the script's."""
    noted = NotedRun.of(folder / "truth", training.ranks)
    for case, first, window in windows_of(training, folder, lead=LEAD, window=WINDOW):
        its = noted.window(first, WINDOW)
        yield _point(training, case, ledger_of([window], scratch / str(first)), its, recorded_of(window, its))


def recorded_of(trace: Trace, noted: NotedRun) -> Recorded:
    """Which of a window's noted calls the trace has: with the same ranks, called at the same time. DDP's reduction,
    which no Python calls, and groups of one rank are left out."""
    if trace.meetings is None or trace.calls is None:
        calls = [call for its in noted.ranks for call in its.calls if call.name != "reduction"]
        return Recorded(noted=len(calls), missing=len(calls), examples=("the trace has no calls in groups",))
    total, examples = 0, []
    for rank, its in enumerate(noted.ranks):
        arrived: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for at, (_, group, *_) in enumerate(trace.calls.calls[rank].tolist()):
            if group >= 0:
                times = trace.meetings[rank, :, at, 0]
                arrived[trace.calls.groups[group].ranks] += times[times != ABSENT].tolist()
        for call in its.calls:
            if call.name == "reduction" or len(call.ranks) == 1:
                continue
            total += 1
            ranks = call.ranks[:2] if call.name == "message" else call.ranks
            times = np.asarray(arrived.get(ranks, ()), np.int64)
            if not len(times) or np.abs(times - call.called).min() > SAME_NS:
                examples.append(f"rank {rank}'s {call.name} of {ranks}")
    return Recorded(noted=total, missing=len(examples), examples=tuple(dict.fromkeys(examples)))


def _point(training: GroupTraining, case: DelayCase, ledger: Ledger, noted: NotedRun, recorded: Recorded) -> GroupPoint:
    verdict, text = ledger.verdict, describe_all(ledger)
    findings = findings_of(ledger)
    if not case.place:
        wrong = [f"names {each.ranks}" for each in findings if not bears_out(each, training, noted)]
        wrong += _uneven_by_chance(ledger, noted)
        unknown = "cannot tell" if verdict.kind == CANNOT_TELL else "right"
        kind = "wrong" if wrong else "machine" if findings else unknown
        limit = verdict.limit if isinstance(verdict, Nobody) else None
        return GroupPoint(case=case, recorded=recorded, verdict=kind, text=text, limit=limit, wrong=tuple(wrong))
    if case.place == "tokens" or (case.place == "stage" and training.peers_of(case.rank) == [case.rank]):
        return _of_role(training, case, ledger, noted, recorded)
    true = noted.costs(case.rank)
    named = next((each for each in findings if each.ranks == (case.rank,)), None)
    if named is None:
        limit = verdict.limit if isinstance(verdict, Nobody) else None
        below = limit is not None and true < limit
        kind = "below" if below else "cannot tell" if verdict.kind == CANNOT_TELL else "wrong"
        return GroupPoint(
            case=case, recorded=recorded, verdict=kind, text=text, true=true, limit=limit,
            wrong=(f"does not name rank {case.rank}",),
        )  # fmt: skip
    others = [each for each in findings if each is not named]
    wrong = [*_wrong(case, named, training, noted)]
    wrong += [f"names {each.ranks}" for each in others if not bears_out(each, training, noted)]
    return GroupPoint(
        case=case, recorded=recorded, verdict="wrong" if wrong else "machine" if others else "right", text=text,
        true=true, cost=named.costs, beside=abs(_excess(case.rank, training, noted) - noted.ranks[case.rank].slept_ms),
        wrong=tuple(wrong),
    )  # fmt: skip


def _of_role(
    training: GroupTraining, case: DelayCase, ledger: Ledger, noted: NotedRun, recorded: Recorded
) -> GroupPoint:
    """Ranks of a role without others that do the same are not late by their peers: their stage, or what their experts
    get, is more than the others'."""
    ranks, cost = _uneven_role(ledger, case.place)
    true_ranks = tuple(training.peers_of(case.rank))
    wrong = [] if ranks == true_ranks else [f"uneven are {ranks or 'none'}, not {true_ranks}"]
    wrong += [f"names {each.ranks}" for each in findings_of(ledger) if not bears_out(each, training, noted)]
    true = noted.costs_of_experts() if case.place == "tokens" else noted.costs_of_imbalance()
    is_small = cost is None and true < WORTH_NAMING * ledger.step.value
    return GroupPoint(
        case=case, recorded=recorded, verdict="below" if is_small else "wrong" if wrong else "right",
        text=f"{describe_all(ledger)}; {[finding.what for finding in ledger.findings]}", true=true, cost=cost,
        wrong=tuple(wrong),
    )  # fmt: skip


def _uneven_role(ledger: Ledger, place: str) -> tuple[tuple[int, ...], float | None]:
    """The ranks of the role that a ledger calls uneven, and its cost."""
    if place == "tokens":
        return next(((experts.ranks, experts.costs) for _, experts in ledger.findings_of(UnevenExperts)), ((), None))
    uneven = ledger.findings_of(StageImbalance)
    return next(((stages.stages[stages.slowest].ranks, stages.costs) for _, stages in uneven), ((), None))


def _uneven_by_chance(ledger: Ledger, noted: NotedRun) -> Iterator[str]:
    """Stages or experts that a ledger calls uneven, and no notes bear out: their ranks work no longer than the mean."""
    working = np.array([its.own_ms() for its in noted.ranks])
    for place in ("stage", "tokens"):
        ranks, cost = _uneven_role(ledger, place)
        more = float(working[[*ranks]].mean() - working.mean()) if ranks else 0.0
        if cost is not None and cost > ALLOWED_MS and more < MOSTLY * cost:
            yield f"{place} of ranks {ranks} costs {cost:.2f} ms, and they work {more:.2f} ms longer than the mean"


def _wrong(case: DelayCase, verdict: Straggler, training: GroupTraining, noted: NotedRun) -> Iterator[str]:
    if verdict.kind != PERSISTENT:
        yield f"{verdict.kind}, not {PERSISTENT}"
    first = max(verdict.cause, key=verdict.cause.__getitem__)
    if first != case.phase:
        yield f"phase {first}, not {case.phase}"
    dimensions = {training.dimension_of(ranks) for ranks in noted.meets_next(case.rank)}
    if verdict.chain and verdict.chain[0].dimension not in dimensions:
        yield f"dimension {verdict.chain[0].dimension}, not {' or '.join(sorted(dimensions))}"


def bears_out(verdict: Straggler, training: GroupTraining, noted: NotedRun) -> bool:
    """Whether the notes have the rank that a verdict names work by so much longer than its peers, to a quarter."""
    (rank, *others) = verdict.ranks
    return not others and _excess(rank, training, noted) >= MOSTLY * verdict.costs


def _excess(rank: int, training: GroupTraining, noted: NotedRun) -> float:
    """By how much a rank works longer than the median of its peers, ms a step; 0 without any."""
    working = [its.own_ms() for its in noted.ranks]
    peers = [working[other] for other in training.peers_of(rank) if other != rank]
    return working[rank] - float(np.median(peers)) if peers else 0.0


def report(points: Sequence[GroupPoint]) -> bool:
    """Prints a line for each place and training, and what is wrong; whether too much is."""
    print(f"\n{'':34} {'calls':>7} {'missing':>7} " + "".join(f" {its:>11}" for its in VERDICTS) + "  cost of it, true")
    by_name: dict[str, list[GroupPoint]] = defaultdict(list)
    for point in points:
        by_name[point.case.name].append(point)
    for name, its in by_name.items():
        counts = "".join(f" {sum(point.verdict == verdict for point in its):11}" for verdict in VERDICTS)
        noted, missing = sum(each.recorded.noted for each in its), sum(each.recorded.missing for each in its)
        costs = ", ".join(f"{point.cost:.1f}/{point.true:.1f}" for point in its if point.cost is not None)
        print(f"{name:34} {noted:7} {missing:7} {counts}  {costs}")
        for point in its:
            if point.verdict in ("wrong", "cannot tell") or point.cost_is_off:
                print(f"    {point.case.window}: {'; '.join(point.wrong)} [{point.true:.2f}] {point.text}")
        for example in dict.fromkeys(example for point in its for example in point.recorded.examples[:4]):
            print(f"    not recorded: {example}")
    return any([_report_recorded(points), _report_late(points), _report_equal(points)])


def _report_recorded(points: Sequence[GroupPoint]) -> bool:
    noted, missing = sum(point.recorded.noted for point in points), sum(point.recorded.missing for point in points)
    print(f"\n{missing} of {noted} noted calls are not in the traces, in their group and within {SAME_NS / 1e6:.0f} ms")
    return noted - missing < RECORDED * noted


def _report_late(points: Sequence[GroupPoint]) -> bool:
    late = [point for point in points if point.case.place and point.verdict != "below"]
    right = [point for point in late if point.verdict in ("right", "machine")]
    off = sum(point.cost_is_off for point in right)
    print(
        f"kind, rank, dimension and phase: right in {len(right)} of {len(late)} above the limit; the cost of {off} of "
        f"these is off by more than {ALLOWED_MS} ms and {ALLOWED:.0%}"
    )
    return len(right) < RIGHT * len(late) or len(right) - off < RIGHT * len(right)


def _report_equal(points: Sequence[GroupPoint]) -> bool:
    equal = [point for point in points if not point.case.place]
    wrong, machine = (sum(point.verdict == verdict for point in equal) for verdict in ("wrong", "machine"))
    print(
        f"nothing: somebody is named in {wrong + machine} of {len(equal)}, in {machine} of these as the notes bear out"
    )
    return wrong > INVENTED * len(equal)


if __name__ == "__main__":
    sys.exit(main())
