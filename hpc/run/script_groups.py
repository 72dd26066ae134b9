"""The calls of a script whose ranks call in groups, send messages, or do not all call the same: which are one meeting.

A call is known in its step by its name, the rank that sends, its group, and how many of these the step has before it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from hpc.model.groups import MESSAGE, Call, RankGroup, calls_of_json
from hpc.model.timestamps import GRADS_READY, STAMPS
from hpc.observe.events import FROM_ANY, NAMES, UNCLEAR
from hpc.observe.stamps import BUFFER_CALL, FUNCTIONAL, NOT_REDUCED, CollectiveCall, ObservedStep, wrapper_of
from hpc.recovery.journal import name_ranks
from hpc.run.script_steps import ALL_TO_ALL, MAX_PATTERNS, Patterns, RankSteps, StepCollectives, kinds_of
from hpc.system.text import grouped, plural

_Known = tuple[Call, int]
"""A call of a step: how many equal ones the step has before it."""


def are_grouped(steps: Iterable[Sequence[Call]], ranks: int) -> bool:
    """Whether a rank calls in groups of some ranks, or exchanges messages, in any of these steps."""
    return any(
        call.group is not None and (len(call.group.ranks) < ranks or call.name == MESSAGE)
        for calls in steps
        for call in calls
    )


def reduces_by_calls(recorded: RankSteps, warmup_steps: int, ranks: int) -> bool:
    """Whether the ledger of a script needs all calls of each rank: they are in groups, bring tokens to experts, or
    reduce in another way than by DDP, FSDP2 or all-reduces of all gradients between all ranks."""
    steps = [kinds_of(step) for step in recorded.steps[warmup_steps:]]
    wrapper = wrapper_of(recorded.facts)
    in_group = wrapper is not None and wrapper["ranks"] is not None
    unreduced = recorded.observed.absent.get(STAMPS[GRADS_READY]) == NOT_REDUCED
    exchanges = any(ALL_TO_ALL in call.name for calls in steps for call in calls)
    return in_group or are_grouped(steps, ranks) or exchanges or (unreduced and any(steps))


def reduction_of(facts: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """As a fact of the backend: whether DDP reduces, between which ranks; or recorded calls do."""
    wrapper = wrapper_of(facts)
    if wrapper is None:
        return {"by": "calls"}
    its = wrapper["ranks"]
    return {"by": "wrapper", "ranks": [*range(ranks)] if its is None else its, "dimension": wrapper["dimension"]}


def without_groups(steps: Sequence[Sequence[Call]]) -> list[tuple[Call, ...]]:
    """The same calls, of a script all of whose groups are of all ranks."""
    return [tuple(replace(call, group=None) for call in calls) for calls in steps]


def grouped_collectives(
    steps: Sequence[Sequence[Call]], measured: Collection[int], other_order: Collection[int] = ()
) -> StepCollectives:
    """From the calls of a rank's steps: a list of calls in which each step's are in their order.

    `other_order` are steps in which a rank has them in an order that does not fit the list, and of which nothing is
    recorded.
    """
    known = [tuple(_numbered(calls)) for calls in steps]
    order, unfit = _ordered([known[number] for number in sorted(measured) if number not in {*other_order}])
    places = {its: place for place, its in enumerate(order)}
    columns: list[tuple[int | None, ...]] = []
    unmatched: list[int] = []
    for number, its in enumerate(known):
        fits = number not in other_order and its not in unfit
        columns.append(tuple(places.get(call) if fits else None for call in its))
        if not fits and number in measured:
            unmatched.append(number)
    return StepCollectives(
        kinds=tuple(call for call, _ in order), columns=columns,
        unmatched={"calls in another order than in most": unmatched} if unmatched else {},
    )  # fmt: skip


def _numbered(calls: Sequence[Call]) -> list[_Known]:
    before: Counter[Call] = Counter()
    numbered = []
    for call in calls:
        numbered.append((call, before[call]))
        before[call] += 1
    return numbered


def _ordered(steps: Sequence[tuple[_Known, ...]]) -> tuple[list[_Known], Set[tuple[_Known, ...]]]:
    """A list that has the calls of most of these steps in their order; the steps that have them in another."""
    order: list[_Known] = []
    unfit: set[tuple[_Known, ...]] = set()
    for number, (its, _) in enumerate(Counter(steps).most_common()):
        places = {call: place for place, call in enumerate(order)}
        had = [places[call] for call in its if call in places]
        if had != sorted(had) or number >= MAX_PATTERNS:
            unfit.add(its)
            continue
        merged: list[_Known] = []
        taken = 0
        for call in its:
            if call in places:
                merged += order[taken : places[call] + 1]
                taken = places[call] + 1
            else:
                merged.append(call)
        order = merged + order[taken:]
    return order, unfit


def unseen_in_graphs(facts: Mapping[str, Any], record: Mapping[str, Any], steps: Sequence[ObservedStep]) -> list[str]:
    """In words, the collectives of a step that compiled graphs call, where no hook is: those of torch's own `record`
    beyond what hooks saw. Nothing is known of them where DDP's buckets are in that record, too."""
    if not facts.get("compiled") or facts.get("ddp") or not steps:
        return []
    if not record.get("kinds"):
        return ["collectives of compiled graphs, of which torch kept no record"]
    seen = sum(call.name != MESSAGE for step in steps for call in step.collectives) / len(steps)
    unseen = sum(kind["per_step"] for kind in record["kinds"]) - seen
    return [f"{unseen:.3g} collectives a step in compiled graphs"] if unseen >= 0.5 else []


def unseen_calls(facts: Mapping[str, Any]) -> list[str]:
    """In words, the collectives before the gradients that may be there, on which this torch has no place for a hook."""
    lacking = facts.get("lacking_hooks", {})
    calls = {
        "broadcasts of DDP's buffers": BUFFER_CALL in lacking and facts.get("ddp"),
        "collectives of process groups": not lacking.keys().isdisjoint(NAMES),
        "functional collectives": FUNCTIONAL in lacking and facts.get("sharded"),
    }
    return [f"{name}, which no hook sees in this torch" for name, is_unseen in calls.items() if is_unseen]


# A script whose ranks form several worlds of torch, each with ranks from 0 on: replicas that train apart, say.


def place_in_world(facts: Mapping[str, Any], rank: int, ranks: int) -> str:
    """As a rank tells others which world of torch it is in, and as which of its ranks."""
    return json.dumps([facts.get("rank", rank), facts.get("size", ranks), facts.get("rendezvous", "")])


def worlds_of(places: Sequence[str]) -> list[tuple[int, ...]]:
    """By rank the ranks of the run in its world, in its order, from the `place_in_world` of all; empty: not known."""
    everyone = [tuple(json.loads(text)) for text in places]
    joined = {its[1:] for its in everyone if its[2]}
    if len(joined) == 1:  # one that does not train has no such fact
        everyone = [its if its[2] else (its[0], *next(iter(joined))) for its in everyone]
    worlds: dict[tuple[int, str], tuple[int, ...]] = {}
    for world, members in grouped((its[1:], (its[0], number)) for number, its in enumerate(everyone)).items():
        ranks = dict(members)
        known = len(members) <= world[0] and sorted(ranks) == [*range(world[0])]
        worlds[world] = tuple(ranks[each] for each in range(world[0])) if known else ()
    return [worlds[its[1:]] for its in everyone]


def in_run(recorded: RankSteps, world: Sequence[int], ranks: int) -> RankSteps:
    """The same with the ranks of the run instead of those of a world that has not all of them; calls in which a rank
    meets nobody are left out."""
    if [*world] == [*range(ranks)]:
        return recorded

    def moved(call: CollectiveCall) -> CollectiveCall:
        if not world:
            name = f"{call.name} in one of several worlds"
            return replace(call, name=name, root=UNCLEAR, group=None)
        its = call.group or RankGroup(ranks=tuple(range(len(world))), dimension=WORLD)
        group = replace(its, ranks=tuple(world[rank] for rank in its.ranks))
        return replace(call, root=world[call.root] if call.root >= 0 else call.root, group=group)

    def meets(call: CollectiveCall) -> bool:
        return len(world) != 1 and (call.group is None or len(call.group.ranks) > 1)

    steps = tuple(
        replace(step, collectives=tuple(moved(call) for call in step.collectives if meets(call)))
        for step in recorded.steps
    )
    wrappers = [
        {**group, "ranks": [world[rank] for rank in (group["ranks"] or range(len(world)))]} if world else group
        for group in recorded.facts.get("ddp_groups", ())
    ]
    facts = {**recorded.facts, "ddp_groups": wrappers}
    return replace(recorded, observed=replace(recorded.observed, steps=steps), facts=facts)


WORLD = "world"
"""The dimension of a world of torch that has not all ranks of the run."""


# Which ranks of a group did not come to a call that others of it made.


@dataclass(frozen=True, kw_only=True)
class Lacking:
    """A call that some ranks of its group made in these steps, and these ranks did not."""

    call: Call
    missing: tuple[int, ...]
    steps: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        group = self.call.group
        return {
            "name": self.call.name, "dimension": "" if group is None else group.dimension,
            "ranks": None if group is None else list(group.ranks), "missing": list(self.missing),
            "steps": len(self.steps), "first_step": self.steps[0],
        }  # fmt: skip

    def __str__(self) -> str:
        group = self.call.group
        of = "all ranks" if group is None else name_ranks(group.ranks)
        dimension = f" ({group.dimension})" if group is not None and group.dimension else ""
        return (
            f"{self.call.name} of {of}{dimension}: {name_ranks(self.missing)} did not come in "
            f"{plural(len(self.steps), 'step')}, first in step {self.steps[0]}"
        )


def lacking_calls(by_rank: Sequence[Patterns], measured: Collection[int]) -> list[Lacking]:
    """From all ranks' `patterns_of`: the calls to which not all of their group came, those of most steps first."""
    patterns = [[_numbered(calls_of_json(text) or []) for text in its] for its, _ in by_rank]
    everyone = tuple(range(len(by_rank)))
    steps_of: dict[tuple[int, ...], list[int]] = {}
    for step in sorted(measured):
        steps_of.setdefault(tuple(numbers[step] for _, numbers in by_rank), []).append(step)
    lacking: dict[tuple[Call, tuple[int, ...]], set[int]] = {}
    for numbers, steps in steps_of.items():
        came: dict[_Known, list[int]] = {}
        for rank, number in enumerate(numbers):
            for known in patterns[rank][number]:
                came.setdefault(known, []).append(rank)
        for (call, _), ranks in came.items():
            expected = everyone if call.group is None else call.group.ranks
            if len(ranks) < len(expected) and not call.name.endswith(FROM_ANY):
                missing = tuple(sorted({*expected} - {*ranks}))
                lacking.setdefault((call, missing), set()).update(steps)
    calls = [Lacking(call=call, missing=of, steps=tuple(sorted(its))) for (call, of), its in lacking.items()]
    return sorted(calls, key=lambda each: -len(each.steps))
