"""`find-max NAME`: the largest value of a setting that fits into the memory, by doubling and bisection.

Every try is a run of its own in fresh processes. `oom` is an answer; any end but this and `ok` ends the search.
"""

from __future__ import annotations

import dataclasses
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc.backends.refusals import options_of
from hpc.model.options import Option, did_you_mean
from hpc.model.outcome import Outcome
from hpc.model.spec import BATCH_SIZE, RunSpec, SpecError
from launch.sweep.prepare import Prepared, Say, TargetError, with_jobs
from launch.sweep.request import Request, SweepOptions
from launch.sweep.run_status import run_statuses
from launch.sweep.spec import SMALL_STEPS, SweepSpec
from launch.sweep.submit import Batches

RESOLUTION = 0.01
"""A search ends where the largest value that fits and the smallest that does not are within this share of one another,
or neighbours."""
MAX_BATCH_SIZE = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The largest value that fits so far, and the smallest that does not; None: none yet."""

    fits: int | None = None
    too_large: int | None = None

    def next(self, first: int, minimum: int, maximum: int) -> int | None:
        """The value to try now, beginning with `first`; None where the search is over."""
        fits, too_large = self.fits, self.too_large
        if fits is None and too_large is None:
            return first
        if fits is None:
            assert too_large is not None
            return max(minimum, too_large // 2) if too_large > minimum else None
        if too_large is None:
            return min(maximum, 2 * fits) if fits < maximum else None
        return None if too_large - fits <= max(1, int(RESOLUTION * fits)) else (fits + too_large) // 2


class Search:
    """The search for one point: its run, and what its tries have shown."""

    def __init__(self, name: str, point: RunSpec) -> None:
        self.name, self.point = name, point
        self.bounds = Bounds()
        self.problem = ""
        """Why a try was no answer."""
        if name == BATCH_SIZE:
            self._first, self._minimum, self._maximum = point.batch_size, 1, MAX_BATCH_SIZE
            return
        option = _option(name, point)
        first = point.options.get(name, str(option.default))
        self._first, self._minimum, self._maximum = int(first), int(option.minimum), int(option.maximum)

    def next_try(self) -> tuple[int, RunSpec] | None:
        """The value to try now and its run; None where the search is over."""
        value = None if self.problem else self.bounds.next(self._first, self._minimum, self._maximum)
        if value is None:
            return None
        if self.name == BATCH_SIZE:
            return value, dataclasses.replace(self.point, batch_size=value, search=self.name)
        options = {**self.point.options, self.name: str(value)}
        return value, dataclasses.replace(self.point, options=options, search=self.name)

    def answer(self, value: int, outcome: Outcome | None, evidence: str) -> None:
        if outcome is Outcome.OK:
            self.bounds = dataclasses.replace(self.bounds, fits=value)
        elif outcome is Outcome.OOM:
            self.bounds = dataclasses.replace(self.bounds, too_large=value)
        else:
            ended = "never ran" if outcome is None else f"ended as {outcome}"
            because = f" ({evidence})" if evidence else ""
            self.problem = f"{self.name}={value} {ended}, which does not say whether it fits{because}"

    @property
    def result(self) -> str:
        """The result in a sentence."""
        fits, too_large = self.bounds.fits, self.bounds.too_large
        if self.problem:
            known = "" if fits is None else f"; {fits} fits"
            return f"{self.problem}{known}"
        if fits is None:
            return f"no value of {self.name} fits, not even {too_large}"
        if too_large is None:
            return f"{self.name}={fits} fits, the largest value that it takes"
        return f"the largest value of {self.name} that fits is {fits}; {too_large} does not"


def as_tries(request: Request) -> Request:
    """The request with one short run of every point. Raises SpecError where it makes no search."""
    tried = tuple(_as_tries(request.sought, sweep, request.options) for sweep in request.sweeps)
    return dataclasses.replace(request, sweeps=tried)


def search(prepared: Prepared, say: Say) -> Batches:
    """Searches for every point of the sweep, all of them side by side. The exit status: 0 if every search has a
    result."""
    options = prepared.request.options
    searches = [Search(prepared.request.sought, point) for point in prepared.plan.runs]
    _refuse_without_limit(prepared)
    while tries := [(each, *due) for each in searches if (due := each.next_try()) is not None]:
        status = yield with_jobs(prepared, [run for _, _, run in tries])
        if options.dry_run:
            say("note: these are the first tries; the others depend on how they end")
            return status
        _read_answers(tries, prepared.folders.traces, say)
    for each in searches:
        say(f"{each.point.case} {each.point.backend} {each.point.workload}: {each.result}")
    return 1 if any(each.problem or each.bounds.fits is None for each in searches) else 0


def _read_answers(tries: Sequence[tuple[Search, int, RunSpec]], traces: Path, say: Say) -> None:
    for (search, value, run), ended in zip(
        tries, run_statuses([run.run_id for _, _, run in tries], traces), strict=True
    ):
        record = ended.record
        outcome = record.outcome if record else None
        search.answer(value, outcome, "; ".join(record.evidence) if record else "")
        say(f"{run.case} {search.name}={value}: {outcome or 'never ran'}")


def _as_tries(name: str, spec: SweepSpec, options: SweepOptions) -> SweepSpec:
    """The sweep with one short run of every point. Raises SpecError where the request makes no search."""
    requested = {
        "--no-sync": spec.no_sync, "--collectives": spec.collectives, "--detach": options.detach,
        "--repeats": spec.repeats not in (None, 1),
    }  # fmt: skip
    if wrong := [flag for flag, is_requested in requested.items() if is_requested]:
        raise SpecError(f"a try of find-max is one run that is waited for: leave out {', '.join(wrong)}")
    if name == BATCH_SIZE and spec.scaling != ("weak",):
        raise SpecError("batch-size is sought with weak scaling alone, where it is that of a device")
    values = spec.batch_size or () if name == BATCH_SIZE else spec.option.get(name, ())
    if len(values) > 1:
        raise SpecError(f"{name} has {len(values)} values: find-max begins with one")
    steps, warmup = spec.steps, spec.warmup
    if steps is None and warmup is None:
        steps, warmup = SMALL_STEPS
    return dataclasses.replace(spec, repeats=1, no_baseline=True, steps=steps, warmup=warmup)


def _option(name: str, run: RunSpec) -> Option:
    """The option that is sought. Raises SpecError where it is not there, or no whole number."""
    known = options_of(run.backend, run.workload)
    whole = [each for each, option in known.items() if type(option.default) is int]
    if name not in whole:
        raise SpecError(
            f"{name} is no whole number of backend {run.backend} and workload {run.workload}: find-max takes "
            f"{', '.join([BATCH_SIZE, *whole])}{did_you_mean(name, [BATCH_SIZE, *whole])}"
        )
    return known[name]


def _refuse_without_limit(prepared: Prepared) -> None:
    """Raises TargetError where a try that is too large would take the memory of this whole machine."""
    if prepared.site is not None or any(run.gpus_per_node for run in prepared.plan.runs):
        return
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        raise TargetError(
            "a search on the CPUs of this machine would fill its memory until the kernel ends processes, also those "
            "of others: limit the memory of a process first, for example by `ulimit -v 8000000` (KiB)"
        )
