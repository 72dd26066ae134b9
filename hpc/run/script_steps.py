"""What the hooks recorded in the processes of a script, as steps of its rank with the collectives of all ranks."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from hpc.measure.meetings import Meetings
from hpc.model.groups import Call, calls_as_json, calls_of_json
from hpc.model.spec import RunSpec
from hpc.model.timestamps import (
    ABSENT,
    BATCH_READY,
    BEGIN,
    DEVICE_PHASES,
    END,
    GRADS_READY,
    MEETING_STAMPS,
    REDUCED,
    STAMPS,
)  # fmt: skip
from hpc.observe import flight_record
from hpc.observe.device_times import CONTRADICTED
from hpc.observe.events import EVALUATE_OUT, UNCLEAR, EventFileError, HookEvent, read_events, read_facts, steps_counted
from hpc.observe.joined_steps import outer_steps
from hpc.observe.remarks import BY_RAY, OTHER_FRAMEWORKS, why_not_torch, why_several, why_unmeasurable
from hpc.observe.stamps import NO_REDUCTION, CollectiveCall, ObservedStep, ObservedSteps, Pause, why_no_device
from hpc.observe.steps import steps_of
from hpc.recovery.journal import Journal
from hpc.run.script_process import spawned_ranks

_WIDTH = len(STAMPS)


@dataclass(frozen=True, kw_only=True)
class RankSteps:
    """The steps of a rank's script, what the hooks state of it, and the places at which it had evaluated a batch.

    `unmeasurable` is the reason why none of its steps will be seen, as soon as that shows;
    `apart` as of ProcessEvents."""

    observed: ObservedSteps
    facts: Mapping[str, Any] = field(default_factory=dict)
    evaluated: Sequence[int] = ()
    unmeasurable: str = ""
    apart: Mapping[int, Sequence[HookEvent]] = field(default_factory=dict)

    @property
    def steps(self) -> Sequence[ObservedStep]:
        return self.observed.steps


def count_steps(folder: Path) -> int:
    """The steps that the script has made so far, by the count of its hooks; where it starts its ranks itself, those
    that all of them have made."""
    counts = [_counted(path) for path in folder.glob("*.events")]
    if sum(map(bool, counts)) > 1 and (ranks := spawned_ranks(folder)):
        return min(map(_counted, ranks))
    return max(counts, default=0)


class ScriptStepCount:
    """How many steps a running script has made, as its trace will count them.

    Hooks count updates, of which optimizers that take turns make several in a step: where their count comes to
    `limit`, the steps themselves are counted. 0 is no limit.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._updates_per_step, self._reached = 1, False

    def now(self) -> int:
        """The steps so far."""
        updates = count_steps(self._folder)
        steps = updates // self._updates_per_step
        if self._limit and steps >= self._limit and not self._reached:
            recorded = len(read_steps(self._folder).steps)
            if 0 < recorded < self._limit:
                self._updates_per_step = max(self._updates_per_step, round(updates / recorded))
                return recorded
            self._reached = True
        return steps


def read_steps(folder: Path, *, by_calls: bool = False, first: int = 0) -> RankSteps:
    """The steps that the script has made so far. Without any, `observed.reason` is why nothing is measured.

    `by_calls` as of hpc.observe.stamps.inner_stamps; `first` as of hpc.observe.events.read_events.
    """
    recorded = _read_steps(folder, by_calls=by_calls, first=first)
    if recorded.steps:
        return recorded
    return replace(recorded, observed=replace(recorded.observed, reason=f"{recorded.observed.reason}{_by_ray(folder)}"))


def _by_ray(folder: Path) -> str:
    return f"; {BY_RAY}" if any(folder.glob("*.ray")) else ""


def others_unseen(folder: Path, facts: Mapping[str, Any]) -> str:
    """Why the only rank of a run cannot be measured: it trains with others; empty where it does not."""
    size = facts.get("size", 1) if facts.get("joined") else 1
    return f"its process group has {size} ranks, and hooks saw one{_by_ray(folder)}" if size > 1 else ""


def _read_steps(folder: Path, *, by_calls: bool, first: int) -> RankSteps:
    paths = sorted(folder.glob("*.events"), key=_counted, reverse=True)
    if not paths:
        others = [name for name in OTHER_FRAMEWORKS if any(folder.glob(f"*.{name}"))]
        return _without_steps(why_not_torch(others), known=bool(others))
    training = [path for path in paths if _counted(path)]
    if len(training) > 1:
        joined = any(_joined_a_group(path) for path in training)
        return _without_steps(why_several(len(training), joined=joined), known=not joined)
    try:
        recorded = read_events(paths[0], first)
    except (EventFileError, OSError) as error:
        return _without_steps(str(error))
    evaluated = [place for place, event in enumerate(recorded.events) if event.kind == EVALUATE_OUT]
    observed = steps_of(recorded, by_calls=by_calls)
    unmeasurable = "" if observed.steps else why_unmeasurable(recorded)
    return RankSteps(
        observed=observed, facts=recorded.facts, evaluated=evaluated, unmeasurable=unmeasurable, apart=recorded.apart,
    )  # fmt: skip


def _joined_a_group(path: Path) -> bool:
    try:
        return bool(read_facts(path).get("joined"))
    except (EventFileError, OSError):
        return False


def _without_steps(reason: str, *, known: bool = False) -> RankSteps:
    """`known`: the script will not make any."""
    return RankSteps(observed=ObservedSteps(steps=(), remarks=(), reason=reason), unmeasurable=reason if known else "")


def trained_in(folder: Path) -> Path | None:
    """The file of events of the process that has made most steps."""
    return max(folder.glob("*.events"), key=_counted, default=None)


def collective_record(folder: Path, steps: Sequence[ObservedStep]) -> dict[str, Any]:
    """What torch's own record has of the collectives of a step, or the reason why there is none; empty where the script
    has called none."""
    path = trained_in(folder)
    try:
        record = None if path is None else flight_record.read(path)
    except (flight_record.CollectiveRecordError, OSError) as error:
        return {"reason": str(error)}
    if record is None:
        return {}
    return flight_record.by_step(record, (flight_record.StepSpan(*step.called_ns, *step.backward_ns) for step in steps))


def _counted(path: Path) -> int:
    try:
        return steps_counted(path)
    except OSError:  # it is being made
        return 0


def write_steps(
    journal: Journal, steps: Sequence[ObservedStep], run: RunSpec, *, counts: bool = True, first: int = 0
) -> int:
    """Stores the steps in the journal, from the number `first` on and as far as it reaches; returns how many it has
    now. Further ones, of an earlier look, are none.

    The samples of a step of which it was not seen how many it takes are as stated; the run may count them in tokens.
    Not `counts`: none, as those of a rank that may read the same batch as others.
    """
    stated, tokens = run.rank_batch_size, run.tokens_per_sample or 1
    count = min(first + len(steps), len(journal.samples))
    for number, step in zip(range(first, count), steps, strict=False):
        journal.stamps[number * _WIDTH : (number + 1) * _WIDTH] = array("q", step.stamps)
        samples = stated if step.samples is None else step.samples
        journal.samples[number] = tokens * samples if counts else 0
    for number in range(count, len(journal.samples)):
        if journal.samples[number] == ABSENT:
            break
        journal.samples[number] = ABSENT
    return count


def pauses_of(steps: Sequence[ObservedStep], which: str = "pause") -> list[dict[str, Any]]:
    """The pauses (or each `phase`) as facts of the rank: before which step, of what kind, how long, how much of it was
    waiting for other ranks."""
    pauses: list[Pause | None] = [getattr(step, which) for step in steps]
    return [
        {
            "step": number, "kind": pause.kind, "seconds": (pause.end_ns - pause.begin_ns) / 1e9,
            "waited_s": pause.waited_ns / 1e9,
        }
        for number, pause in enumerate(pauses) if pause is not None
    ]  # fmt: skip


def waits_at_pauses(steps: Sequence[ObservedStep], paused: Iterable[int]) -> list[dict[str, Any]]:
    """As facts of the rank: how long it waited in collectives while others paused before these steps, but it did not.

    Counted from the reduction of the step before to its own next gradients.
    """
    facts = []
    for number in sorted(paused):
        if 0 < number < len(steps) and steps[number].pause is steps[number].phase is None:
            since, until = steps[number - 1].stamps[REDUCED], steps[number].stamps[GRADS_READY]
            calls = [*steps[number - 1].collectives, *steps[number].collectives]
            waited_ns = sum(call.waited_ns for call in calls if ABSENT != since <= call.waits_ns <= until)
            facts.append({"step": number, "waited_s": waited_ns / 1e9})
    return facts


def outer_facts(steps: Sequence[ObservedStep]) -> dict[str, Any]:
    """As a fact of the rank, `outer_steps`: in which steps outer optimizers are stepped (DiLoCo); empty without any."""
    outer = outer_steps(steps)
    return {} if outer is None else {"outer_steps": asdict(outer)}


ALL_TO_ALL = "all-to-all"
"""In the names of collectives that bring tokens to experts, and back."""


def exchanged_bytes(steps: Sequence[ObservedStep]) -> list[float]:
    """As a fact of the rank: the bytes of each all-to-all of a step, in the order of their calls: means over the steps
    with as many as most have. Of torch's own calls the output's, of functional ones the input's. Empty without any."""
    by_step = [[call.bytes for call in step.collectives if ALL_TO_ALL in call.name] for step in steps]
    usual = Counter(map(len, by_step)).most_common(1)[0][0] if by_step else 0
    its = [each for each in by_step if len(each) == usual]
    return [sum(column) / len(its) for column in zip(*its, strict=True)]


def host_bound(steps: Sequence[ObservedStep]) -> dict[str, Any] | None:
    """As a fact of the rank: how long the host paced its device in these steps, by phase, mean ms; None without one.

    Beside it what hpc.observe.stamps.HostSpans has, where that is known.
    """
    known = [step for step in steps if step.host_bound_ns]
    if not known:
        return None
    spans = [step.host_spans for step in known if step.host_spans is not None]
    return {
        "ms": _mean_ms([step.host_bound_ns for step in known]),
        "step_ms": sum(step.stamps[END] - step.stamps[BEGIN] for step in known) / len(known) / 1e6,
        "compute_ms": sum(step.stamps[GRADS_READY] - step.stamps[BATCH_READY] for step in known) / len(known) / 1e6,
        "syncs": sum(step.syncs for step in known) / len(known), "steps": len(known),
        **({} if not spans else {
            "idle_ms": _mean_ms([its.idle_ns for its in spans]), "host_ms": _mean_ms([its.host_ns for its in spans]),
            "ahead_ms": _mean_ms([its.ahead_ns for its in spans]),
        }),
    }  # fmt: skip


def clock_contradiction(observed: ObservedSteps) -> dict[str, Any] | None:
    """As a fact of the rank: how its device's clock contradicts the host's, and how many of its steps have no times
    therefore; None where it does not."""
    if observed.contradiction is None:
        return None
    lost = sum(any(reason.startswith(CONTRADICTED) for reason in step.absent.values()) for step in observed.steps)
    return {**asdict(observed.contradiction), "steps": lost, "of_steps": len(observed.steps)}


def host_bound_by_step(steps: Sequence[ObservedStep]) -> list[tuple[int, ...]] | None:
    """How long the host paced its device in each step, ns by phase, ABSENT where not known; None without one."""
    if not any(step.host_bound_ns for step in steps):
        return None
    return [step.host_bound_ns or (ABSENT,) * len(DEVICE_PHASES) for step in steps]


def _mean_ms(by_phase: Sequence[tuple[int, ...]]) -> dict[str, float]:
    means = (sum(column) / len(by_phase) / 1e6 for column in zip(*by_phase, strict=True))
    return dict(zip(DEVICE_PHASES, means, strict=True))


def usual_collectives(steps: Sequence[ObservedStep]) -> tuple[Call, ...]:
    """The collectives of most of these steps, in the order of their calls."""
    counts = Counter(kinds_of(step) for step in steps)
    return counts.most_common(1)[0][0] if counts else ()


def unlike_others(steps: Sequence[ObservedStep], blocks: Sequence[Sequence[int]], kinds: Sequence[Call]) -> list[int]:
    """The last steps of blocks with other collectives than `kinds`, and than any step within a block.

    Where a pause follows, or nothing, a step ends with its update: it lacks what others call between that and the next.
    """
    within = {kinds_of(steps[at]) for first, stop in blocks for at in range(first, stop - 1)}
    return [stop - 1 for _, stop in blocks if kinds_of(steps[stop - 1]) not in within | {tuple(kinds)}]


MAX_PATTERNS = 64
"""Of more different lists of collectives in the steps of a script the most frequent are recorded."""


@dataclass(frozen=True, kw_only=True)
class StepCollectives:
    """Which collectives the steps of all ranks have: `kinds` in their order, of which each step has some, or all;
    `columns` [step] has the places of a step's calls among them, None of a call that is not recorded.

    `unmatched` has, by the reason, steps of which it is not known who waits for whom in all of their collectives.
    """

    kinds: tuple[Call, ...]
    columns: Sequence[tuple[int | None, ...]]
    unmatched: Mapping[str, Sequence[int]]


def step_collectives(
    steps: Sequence[Sequence[Call]], measured: Collection[int], differing: Collection[int] = ()
) -> StepCollectives:
    """From the collectives of a rank's steps; only those of the `measured` steps are looked for, in others as well.

    `differing` are steps in which ranks call different ones.

    A collective in which it is not known who waits for whom is recorded where most steps have it, so that no rank is
    accused of what they wait in it; one that only some steps have is not.
    """
    alike = [() if number in differing else tuple(kinds) for number, kinds in enumerate(steps)]
    counts = Counter(alike[number] for number in sorted(measured) if number not in differing)
    patterns = [kinds for kinds, _ in counts.most_common(MAX_PATTERNS)]
    usual = {*patterns[0]} if patterns else set()
    joined: tuple[Call, ...] = ()
    for kinds in patterns:
        joined = _joined(joined, tuple(kind for kind in kinds if kind.root != UNCLEAR or kind in usual))
    columns = {kinds: _places(kinds, joined) for kinds in patterns}
    unmatched: dict[str, list[int]] = {}
    for number in sorted(measured):
        kinds = alike[number]
        for name in dict.fromkeys(kind.name for kind in kinds if kind.root == UNCLEAR and kind not in usual):
            unmatched.setdefault(name, []).append(number)
        if number not in differing and kinds not in columns:
            unmatched.setdefault("collectives of too many different steps", []).append(number)
    if not_alike := sorted({*differing} & {*measured}):
        unmatched["collectives that differ between ranks"] = not_alike
    return StepCollectives(
        kinds=joined, columns=[columns.get(kinds, (None,) * len(kinds)) for kinds in alike], unmatched=unmatched
    )


def _joined(longer: tuple[Call, ...], other: tuple[Call, ...]) -> tuple[Call, ...]:
    """A short list that has both in their order."""
    joined: list[Call] = []
    for tag, begin, end, its_begin, its_end in SequenceMatcher(None, longer, other, autojunk=False).get_opcodes():
        joined += longer[begin:end]
        joined += () if tag == "equal" else other[its_begin:its_end]
    return tuple(joined)


def _places(kinds: Sequence[Call], joined: Sequence[Call]) -> tuple[int | None, ...]:
    """Where each of these is in the list that has them in their order; None for one that it lacks."""
    places: list[int | None] = []
    begin = 0
    for kind in kinds:
        place = joined.index(kind, begin) if kind in joined[begin:] else None
        places.append(place)
        begin = begin if place is None else place + 1
    return tuple(places)


Patterns = tuple[Sequence[str], Sequence[int]]
"""Different lists of calls as hpc.model.groups.calls_as_json has them, and by step the number of its own."""


def patterns_of(steps: Sequence[Sequence[Call]]) -> Patterns:
    """As a rank tells others what its steps call."""
    numbers: dict[tuple[Call, ...], int] = {}
    by_step = [numbers.setdefault(tuple(kinds), len(numbers)) for kinds in steps]
    return [*map(calls_as_json, numbers)], by_step


def differing_steps(steps: Sequence[Sequence[Call]], others: Patterns) -> list[int]:
    """The steps that have other collectives than those of another rank."""
    patterns = [tuple(calls_of_json(text) or ()) for text in others[0]]
    pairs = enumerate(zip(steps, others[1], strict=True))
    return [number for number, (kinds, its) in pairs if tuple(kinds) != patterns[its]]


def meetings_of(steps: Sequence[ObservedStep], collectives: StepCollectives) -> Meetings:
    """The collectives inside the steps; those that a step does not have are absent in it."""
    kinds, width = collectives.kinds, len(MEETING_STAMPS)
    stamps = array("q", [ABSENT]) * (len(steps) * len(kinds) * width)
    for number, (step, columns) in enumerate(zip(steps, collectives.columns, strict=True)):
        for column, call in zip(columns, step.collectives, strict=False):  # of steps that differ there are none
            if column is not None:
                first = (number * len(kinds) + column) * width
                stamps[first : first + width] = array("q", (call.arrives_ns, call.waits_ns, call.ends_ns))
    names, roots, groups = ([getattr(kind, part) for kind in kinds] for part in ("name", "root", "group"))
    return Meetings.recorded(names, roots, memoryview(stamps), groups)


def early_collectives(steps: Sequence[ObservedStep]) -> list[str]:
    """In words, the collectives that a rank calls before its own gradients are complete, as of most steps."""
    early: Counter[str] = Counter()
    for step in steps:
        complete_ns = step.stamps[GRADS_READY]
        early.update(call.name for call in step.collectives if complete_ns == ABSENT or call.arrives_ns < complete_ns)
    return [f"{count / len(steps):.3g} {name} a step" for name, count in sorted(early.items())]


def meets_unseen(recorded: RankSteps) -> bool:
    """Whether ranks meet in each step, and when their gradients are complete is not known of all: the script marks its
    steps, or DDP reduces in most."""
    reasons = [step.absent[STAMPS[GRADS_READY]] for step in recorded.steps if STAMPS[GRADS_READY] in step.absent]
    unreduced = sum(reason in (NO_REDUCTION, why_no_device(recorded.facts)) for reason in reasons)
    by_ddp = bool(recorded.facts.get("ddp")) and 2 * unreduced < len(recorded.steps)
    return bool(reasons) and (recorded.observed.marked or by_ddp)


def call_of(call: CollectiveCall) -> Call:
    return Call(call.name, call.root, call.group)


def kinds_of(step: ObservedStep) -> tuple[Call, ...]:
    return tuple(map(call_of, step.collectives))
