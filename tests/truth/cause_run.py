"""Causes of delay in a training, built in one by one, against what a summary's JSON says of them.

`python -m tests.truth.cause_run [--keep DIR]`; `--folder DIR` looks once more at what an earlier run kept. Two runs of
2 × 2 ranks of this machine for each case. The truth is what the script's ranks noted: its steps are replayed without
what held them up. Ends with 1 where a delay is denied (nobody is named, and a limit says that it would have been),
where fewer than 95 of 100 causes above the limit are right in rank, phase, kind, size and cause, or where somebody whom
the marks do not bear out is named in more than 3 of 100 cases.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from hpc.model.trace_file import read_trace
from parse.ledger.causes import Cause
from parse.say.evidence import EVIDENCE
from tests.mpi.conftest import RANKS_ENV
from tests.truth.cause_marks import Noted, fixed_part_ms, noted_of, noted_of_delays
from tests.truth.causes import CAUSES, PAUSES, CauseCase, Late
from tests.truth.programs import SCRIPTS, TruthError, call, command, ledgers_in, named, observe

RUNS, RANKS, STEPS, WARMUP = 2, 4, 130, 20
RIGHT, INVENTED = 0.95, 0.03
ALLOWED_MS, ALLOWED = 0.5, 0.05
"""What a size may differ from that of the marks, whichever is larger."""
PERIOD_OPEN = 0.1
"""By so much of it a period may be off."""
BORNE_OUT = 0.5
"""Who is named without a cause must cost this part of what is said by the marks: a busy machine makes ranks late."""
CGROUPS = Path("/sys/fs/cgroup")
QUOTA_US, PERIOD_US = 4000, 20000
VERDICTS = ("right", "part", "missed", "DENIED", "below the limit")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What is said of a cause, or of a case without one: `wrong`, each thing that is not so; the truth `costs`, ms a
    step; `invented` are those who are named beside it and whom no marks bear out."""

    case: str
    verdict: str
    wrong: tuple[str, ...] = ()
    costs: float | None = None
    limit: float | None = None
    invented: tuple[str, ...] = ()


def main() -> int:
    """Command line: 0 where the ledger is right often enough, 1 where not, 2 where the runs could not be made."""
    return command(__doc__, judge_all)


def judge_all(options: argparse.Namespace, folder: Path, scratch: Path) -> bool:
    """Runs the chosen cases, or looks at what is there; whether too much is wrong."""
    judged: list[Judged] = []
    for case in named(CAUSES, options.only):
        its = folder / re.sub(r"\W+", "-", case.name)
        if (options.folder is None and not run_case(case, its)) or not its.exists():
            continue
        judged += judge_case(case, its)
    return report(judged)


def run_case(case: CauseCase, folder: Path) -> bool:
    """Makes the runs of a case; False, with a line, where this machine cannot. Raises TruthError if one fails."""
    if case.quota and not _cgroup_parent():
        print(f"{case.name}: skipped: no cgroup with a CPU quota can be made under {CGROUPS}")
        return False
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    load, begin = os.getloadavg()[0], perf_counter()
    if case.compute_ms or case.scales:
        call(_sweep(case, folder), folder, {**os.environ, **RANKS_ENV})
    else:
        cgroup = _make_cgroup() if case.quota else None
        options = ["--warmup", WARMUP, "--cpus-per-rank", 1, "--simulate-nodes", 2]
        script = [*_script(case, folder), *(("--cgroup", cgroup) if cgroup else ())]
        try:
            for _ in range(RUNS):
                observe(RANKS, folder, options, script)
        finally:
            if cgroup is not None:
                cgroup.rmdir()
    print(f"{case.name}: {perf_counter() - begin:.0f} s; load {load:.1f} to {os.getloadavg()[0]:.1f}", flush=True)
    return True


def _sweep(case: CauseCase, folder: Path) -> list[str]:
    argv = [
        sys.executable, "-m", "hpc.sweep", "--cluster", "local", "--nodes", case.nodes, "--cpus-per-rank", "1",
        "--steps", str(STEPS), "--warmup", str(WARMUP), "--repeats", str(RUNS), "--out", str(folder),
    ]  # fmt: skip
    if case.compute_ms:
        argv += ["--ranks-per-node", "2", "--no-baseline", "--backend", "mpi", "--workload", "delay"]
        return [*argv, "--option", f"compute_ms={case.compute_ms}"]
    script, *its = _script(case, folder)
    return [*argv, "--ranks-per-node", "1", "--scaling", "strong", "--batch-size", "32", "--script", script, "--", *its]


def _script(case: CauseCase, folder: Path) -> list[str]:
    return [
        str(SCRIPTS / "causes.py"),
        "--marks",
        str(folder / "marks"),
        "--steps",
        str(STEPS),
        *case.arguments.split(),
    ]


def _cgroup_parent() -> Path | None:
    """Where a cgroup with a CPU quota can be made: cgroup v1's `cpu`, else v2; None where it cannot."""
    for parent, file in ((CGROUPS / "cpu", "cpu.cfs_quota_us"), (CGROUPS, "cpu.max")):
        candidate = parent / f"rankwise-candidate-{os.getpid()}"
        try:
            candidate.mkdir()
        except OSError:
            continue
        is_there = (candidate / file).exists()
        candidate.rmdir()
        if is_there:
            return parent
    return None


def _make_cgroup() -> Path:
    """A new cgroup that has a fifth of a core, and that before all others: nothing but the quota holds it back."""
    parent = _cgroup_parent()
    assert parent is not None
    cgroup = parent / f"rankwise-truth-{os.getpid()}"
    cgroup.mkdir()
    if (cgroup / "cpu.max").exists():
        (cgroup / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
        (cgroup / "cpu.weight").write_text("10000")
    else:
        (cgroup / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (cgroup / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        (cgroup / "cpu.shares").write_text("262144")
    return cgroup


def judge_case(case: CauseCase, folder: Path) -> Iterator[Judged]:
    """What the summary of a case's runs says of each of its causes. Raises TruthError where there is none."""
    ledger = max(ledgers_in(folder / "traces"), key=lambda its: len(its["ranks"]))
    runs = _noted(case, folder)
    its = [*judge(case, ledger, runs, fixed_part_ms(folder / "marks", WARMUP) if case.scales else None)]
    print(f"\n{case.name}: {ledger['sentence']}")
    for each in its:
        costs = "" if each.costs is None else f", {each.costs:.2f} ms a step by the marks"
        print(f"    {each.verdict}{costs}: {'; '.join((*each.wrong, *each.invented)) or '-'}")
    yield from its


def _noted(case: CauseCase, folder: Path) -> list[Noted]:
    if case.compute_ms:
        return [noted_of_delays(read_trace(path)) for path in sorted((folder / "traces").glob("*.h5"))]
    runs = noted_of(folder / "marks", RANKS, WARMUP)
    if len(runs) != RUNS:
        raise TruthError(f"{case.name}: {len(runs)} runs left marks, not {RUNS}")
    return runs


def judge(
    case: CauseCase, ledger: Mapping[str, Any], runs: Sequence[Noted], fixed_ms: float | None = None
) -> Iterator[Judged]:
    """What a ledger says of each cause of a case, or of none; `fixed_ms` is what does not shrink with the ranks."""
    text = _text(ledger)
    invented = tuple(_invented(ledger, case, runs))
    limit = ledger["verdict"].get("limit")
    wrong = [f"does not say {case.says}"] if case.says and not re.search(case.says, text) else []
    if case.says_not and case.says_not in text:
        wrong.append(f"says {case.says_not}")
    if case.scales:
        wrong += _wrong_fixed((ledger.get("split") or {}).get("fixed"), fixed_ms or 0.0)
    if not case.answers:
        yield Judged(case=case.name, verdict="part" if wrong else "right", wrong=tuple(wrong), invented=invented)
    for number, answer in enumerate(case.answers):
        others = [each for each in case.answers if each is not answer]
        costs = np.mean([run.costs(answer, others) for run in runs], axis=0)
        missing = [*_missing(answer, case, ledger, costs.tolist())]
        its = [*missing, *wrong] if number == 0 else missing
        verdict = "part" if its else "right"
        if missing[:1] == [NOT_NAMED]:
            verdict = "missed"
            if limit is not None:
                verdict = "DENIED" if costs.min() >= limit else "below the limit"
        yield Judged(
            case=case.name, verdict=verdict, wrong=tuple(its), costs=float(costs.mean()), limit=limit,
            invented=invented if number == 0 else (),
        )  # fmt: skip


NOT_NAMED = "not named"


def _text(ledger: Mapping[str, Any]) -> str:
    """The sentences without the advice that names causes that may be, where none is known."""
    sentences = [ledger["sentence"], *(text for finding in ledger["findings"] for text in finding["sentences"])]
    return " ".join(sentences).replace(EVIDENCE[Cause.QUEUED].advice, "")


def _of_kind(ledger: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    """The records of its findings of a kind."""
    return [finding["what"] for finding in ledger["findings"] if finding["kind"] == kind]


def _missing(answer: Late, case: CauseCase, ledger: Mapping[str, Any], costs: Sequence[float]) -> Iterator[str]:
    """What is not said of a cause, or otherwise than it is; NOT_NAMED alone where nothing is said of it."""
    if answer.phases[0] in PAUSES:
        yield from _missing_pause(answer, ledger, costs)
        return
    if answer.behind_pauses:
        its = [each for each in _of_kind(ledger, "first steps") if {*each["ranks"]} == {*answer.ranks}]
        yield from _wrong_costs(sum(each["costs"] for each in its), costs) if its else [NOT_NAMED]
        return
    answered = {rank for each in case.answers for rank in each.ranks}
    named = [each for each in _named(ledger) if {*answer.ranks} <= {*each["ranks"]} <= answered]
    if not named:
        in_doubt = any((its.get("doubt") or {}).get("rank") in answer.ranks for its in [ledger["verdict"]])
        yield "named in doubt only" if in_doubt else NOT_NAMED
        return
    verdict = min(named, key=lambda each: len(each["ranks"]))
    if sum(each["ranks"] == verdict["ranks"] for each in named) > 1:
        yield "named twice"
    if len(verdict["ranks"]) > len(answer.ranks):
        yield f"named with ranks {verdict['ranks']}"
    if answer.kinds and verdict["kind"] not in answer.kinds:
        yield f"{verdict['kind']}, not {' or '.join(answer.kinds)}"
    phase = max(verdict["cause"], key=verdict["cause"].__getitem__, default="-")
    if not {*phase.split("+")} & {*answer.phases}:
        yield f"phase {phase}, not {' or '.join(answer.phases)}"
    period = (verdict["shape"] or {}).get("period")
    if answer.period is not None and abs((period or 0) - answer.period) > PERIOD_OPEN * answer.period:
        yield f"period {period}, not {answer.period}"
    yield from _wrong_costs(verdict["costs"], costs)
    if answer.says and not re.search(answer.says, _text(ledger)):
        yield f"does not say {answer.says}"


def _missing_pause(answer: Late, ledger: Mapping[str, Any], costs: Sequence[float]) -> Iterator[str]:
    named = [each for each in _of_kind(ledger, "rank pauses") if {*each["ranks"]} == {*answer.ranks}]
    if not named:
        yield NOT_NAMED
        return
    if answer.phases[0] not in named[0]["kinds"]:
        yield f"a pause for {' and '.join(named[0]['kinds']) or '-'}, not {answer.phases[0]}"
    yield from _wrong_costs(sum(each["costs"] for each in named), costs)


def _wrong_fixed(known: Mapping[str, Any] | None, fixed_ms: float) -> list[str]:
    if known is None:
        return ["names no fixed part"]
    value = known["fixed"]["value"]
    return [] if abs(value - fixed_ms) <= _allowed(fixed_ms) else [f"fixed part {value:.2f} ms, not {fixed_ms:.2f}"]


def _wrong_costs(size: float, costs: Sequence[float]) -> Iterator[str]:
    """Nothing where it is one of these, or between them."""
    if not min(costs) - _allowed(min(costs)) <= size <= max(costs) + _allowed(max(costs)):
        yield f"costs {size:.2f} ms, not {' to '.join(f'{true:.2f}' for true in sorted({*costs}))}"


def _named(ledger: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return _of_kind(ledger, "straggler")


def _allowed(true: float) -> float:
    return max(ALLOWED_MS, ALLOWED * abs(true))


def _invented(ledger: Mapping[str, Any], case: CauseCase, runs: Sequence[Noted]) -> Iterator[str]:
    """Who is named without a cause, and whom the marks do not bear out; those of all ranks by turns are nobody."""
    answered = {rank for answer in case.answers for rank in answer.ranks}
    for its in _named(ledger):
        if {*its["ranks"]} <= answered or len(its["ranks"]) == RANKS:
            continue
        costs = float(np.mean([_borne_out(run, its["ranks"], case) for run in runs]))
        if costs < BORNE_OUT * its["costs"]:
            yield f"names ranks {its['ranks']}: {its['costs']:.2f} ms, by the marks {costs:.2f}"


def _borne_out(run: Noted, ranks: Sequence[int], case: CauseCase) -> float:
    """What these ranks cost by the marks when the causes are gone, beyond what as many others without a cause do: who
    is last by scatter alone costs something, too."""

    def costs(of: Sequence[int]) -> float:
        return run.costs(Late(ranks=tuple(of), phases=("",), always=True), case.answers)[1]

    its = costs(ranks)
    with_cause = {rank for answer in case.answers for rank in answer.ranks} | {*ranks}
    others = [rank for rank in range(RANKS) if rank not in with_cause]
    usual = [costs(each) for each in combinations(others, len(ranks))]
    return its - (float(np.median(usual)) if usual else 0.0)


def report(judged: Sequence[Judged]) -> bool:
    """Prints how often what was said; whether too much is wrong."""
    print()
    for each in judged:
        costs, limit = ("-" if ms is None else f"{ms:.2f}" for ms in (each.costs, each.limit))
        notes = "; ".join((*each.wrong, *each.invented))
        print(f"{each.case:50} {costs:>7} {limit:>6} {each.verdict:16} {notes}")
    causes = [each for each in judged if each.costs is not None]
    counts = Counter(each.verdict for each in judged)
    invented = sum(bool(each.invented) for each in judged)
    print("\n" + ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS) + f", {invented} invented")
    above = [each for each in causes if each.verdict != "below the limit"]
    right = sum(each.verdict == "right" for each in above)
    print(f"causes above the limit: {right} of {len(above)} right in rank, phase, kind, size and cause")
    return bool(counts["DENIED"]) or right < RIGHT * len(above) or invented > INVENTED * len(judged)


if __name__ == "__main__":
    sys.exit(main())
