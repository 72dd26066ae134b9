"""What a rank of a script states of itself in the trace, and says at its end.

Also whether ranks meet where no hook sees it: in shared memory, by torch's own record, by sleep that nothing explains.
"""

from __future__ import annotations

import json
import re
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc.model.groups import MESSAGE
from hpc.model.spec import RunSpec
from hpc.model.timestamps import ABSENT, GRADS_READY, REDUCED, STAMPS
from hpc.observe.device_times import CONTRADICTED
from hpc.observe.events import AWAKE, BUFFERS, GARBAGE, WRITTEN
from hpc.observe.remarks import TOKENS_HINT
from hpc.observe.stamps import ObservedStep
from hpc.run.script_groups import reduction_of, unseen_calls, unseen_in_graphs
from hpc.run.script_steps import (
    RankSteps,
    clock_contradiction,
    early_collectives,
    meets_unseen,
    outer_facts,
    pauses_of,
)
from hpc.system.text import grouped

_LINE = re.compile(r"(?P<begin>\w+)-(?P<end>\w+) ...s \w+ (?P<device>\S+) (?P<inode>\d+) *(?P<path>.*)")
_OF_LIBRARIES = re.compile(
    r"/dev/(?!shm/|zero\b)|anon_inode|nccl|vader_segment|sm_segment|ompi|open-?mpi|pmix|prte|mpich|ucx_shm|psm[23]_shm"
    r"|\.events$"
)
"""Paths of what drivers, MPI, NCCL and the hooks themselves map."""
_READ_BYTES = 1 << 20
MAX_LOOKS = 8
"""So often shared memory is looked at one look after another; then at each synchronisation of the clocks."""


@dataclass(kw_only=True)
class _Mapping:
    path: str
    content: tuple[Any, ...]
    changes: bool = False


@dataclass
class SharedMappings:
    """What processes of a script map as shared memory. Ranks that meet by it change its content meanwhile; of what is
    longer than two MiB the first and the last are looked at."""

    _of_process: dict[int, dict[str, _Mapping]] = field(default_factory=dict)
    looks: int = 0

    def look(self, folder: Path) -> None:
        """Reads those of the processes whose files of events are in the folder; one that has ended has what it had."""
        self.looks += 1
        for path in folder.glob("*.events"):
            process = int(path.name.partition(".")[0])
            with suppress(OSError):  # it has ended, or is another's
                self._read(process, self._of_process.setdefault(process, {}))

    def _read(self, process: int, known: dict[str, _Mapping]) -> None:
        pieces: dict[str, list[tuple[int, int]]] = {}
        paths: dict[str, str] = {}
        for line in Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines():
            its = _LINE.fullmatch(line)
            if its is None or _OF_LIBRARIES.search(its["path"]):
                continue
            key = f"{its['device']} {its['inode']}"
            paths[key] = its["path"]
            pieces.setdefault(key, []).append((int(its["begin"], 16), int(its["end"], 16)))
        for key, its_pieces in pieces.items():
            content = (*its_pieces, _checksum(process, its_pieces))
            before = known.setdefault(key, _Mapping(path=paths[key], content=content))
            before.changes |= content[-1] is None or (content[:-1] == before.content[:-1] and content != before.content)
            before.content = content

    def as_text(self, process: int, host: str) -> str:
        """How a rank tells others what its process maps, and whether that changes."""
        its = self._of_process.get(process, {})
        return json.dumps([host, {key: [each.path, each.changes] for key, each in its.items()}])


def _checksum(process: int, pieces: Iterable[tuple[int, int]]) -> int | None:
    """None where it cannot be read."""
    sum_ = 0
    try:
        with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
            for begin, end in pieces:
                for at in {begin, max(begin, end - _READ_BYTES)}:
                    memory.seek(at)
                    sum_ ^= zlib.crc32(memory.read(min(_READ_BYTES, end - at)), at & 0xFFFFFFFF)
    except (OSError, ValueError):
        return None
    return sum_


def shared_memory(texts: Sequence[str]) -> list[list[str]]:
    """From all ranks' `SharedMappings.as_text`, by rank: what it shares with others of its host whose content
    changes."""
    reports = [json.loads(text) for text in texts]
    of_hosts = grouped((host, number) for number, (host, _) in enumerate(reports))
    return [_shared(mine, [reports[other][1] for other in of_hosts[host] if other != number])
            for number, (host, mine) in enumerate(reports)]  # fmt: skip


def _shared(mine: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> list[str]:
    shared = {
        key: path
        for key, (path, changes) in mine.items()
        if any(key in its for its in others) and (changes or any(key in its and its[key][1] for its in others))
    }
    return [f"shared memory ({path.removesuffix(' (deleted)') or 'anonymous'})" for path in shared.values()]


# What torch's own record has beyond what hooks saw.

_KINDS = {
    "all-to-all": "all-to-all", "alltoall": "all-to-all", "scatter": "scatter", "gather": "gather",
    "broadcast": "broadcast", "barrier": "barrier", "reduce": "reduce",
}  # fmt: skip
"""By a word in a name, what is counted together: libraries, and torch's functions, name one collective differently."""


def _kind_of(name: str) -> str:
    return next((kind for part, kind in _KINDS.items() if part in name), "")


def unseen_collectives(facts: Mapping[str, Any], record: Mapping[str, Any], steps: Sequence[ObservedStep]) -> list[str]:
    """In words, the collectives of a step that torch's own record has and no hook saw: those of compiled graphs, or
    that C++ calls. DDP's buckets, by their bytes, are none of them."""
    calls = [call for step in steps for call in step.collectives if call.name != MESSAGE]
    counts: dict[str, float] = defaultdict(float)
    sizes: dict[str, list[tuple[int, float, str]]] = {}
    for kind in record.get("kinds", ()) if steps else ():
        counts[_kind_of(kind["name"])] += kind["per_step"]
        sizes.setdefault(_kind_of(kind["name"]), []).append((kind["bytes"] or 0, kind["per_step"], kind["name"]))
    for call in calls:
        counts[_kind_of(call.name)] -= 1 / len(steps)
    if any(call.name == BUFFERS for call in calls):  # one call, several broadcasts
        counts["broadcast"] = 0
    counts[""] = 0  # messages
    if facts.get("ddp"):
        hooked = sum(call.bytes for call in calls if _kind_of(call.name) == "reduce") / max(len(steps), 1)
        beyond = sum(size * often for size, often, _ in sizes.get("reduce", ())) - hooked - facts.get("ddp_bytes", 0)
        counts["reduce"] = 0
        for size, often, _ in sorted(sizes.get("reduce", ())):
            if beyond > 0.5 * size * often:
                counts["reduce"] += often
                beyond -= size * often
    names = {kind: its[0][2] for kind, its in sizes.items()}
    return [
        f"{count:.3g} {names[kind]} a step of compiled graphs or C++ (by torch's own record)"
        for kind, count in counts.items() if count >= 0.5
    ]  # fmt: skip


# Sleep that no hook explains.


def asleep_ms(recorded: RankSteps, first: int, stop: int) -> float | None:
    """How long the thread that trains slept in a step, ms, beyond all time in which it waits where hooks see for what:
    loaders, collectives, the reduction, pauses. A mean over these steps; None where that was not looked at."""
    steps = recorded.steps[first:stop]
    inside = [
        each for each in recorded.apart.get(AWAKE, ()) if steps[0].called_ns[0] <= each.ns <= steps[-1].called_ns[1]
    ]
    if len(inside) < 2:
        return None
    begin, end = inside[0], inside[-1]
    its = [step for step in steps if step.called_ns[0] < end.ns and begin.ns < step.called_ns[1]]
    explained = sum(map(_explained_ns, its))
    asleep = end.ns - begin.ns - (end.number - begin.number) * 1000 - explained
    whole = sum(begin.ns <= step.called_ns[0] and step.called_ns[1] <= end.ns for step in its)
    return max(0, asleep) / max(whole, 1) / 1e6


def _explained_ns(step: ObservedStep) -> int:
    grads, reduced = step.stamps[GRADS_READY], step.stamps[REDUCED]
    loaders = max(step.fetch_ns, max(step.loader_ns, 0) + max(step.later_ns, 0))
    reduction = 0 if ABSENT in (grads, reduced) else reduced - grads
    pause = 0 if step.pause is None else step.pause.end_ns - step.pause.begin_ns
    return loaders + reduction + pause + sum(call.waited_ns for call in step.collectives)


MAX_COLLECTED = 256
"""Of more steps in which garbage is collected, those where that takes longest are recorded one by one."""


def garbage(recorded: RankSteps, blocks: Sequence[Sequence[int]]) -> dict[str, Any]:
    """What Python's collections of garbage take of these steps: how many there are in how many steps, mean ms a step,
    and by step, ms. Empty without any."""
    numbers = [number for first, stop in blocks for number in range(first, stop)]
    begins, count, by_step = [recorded.steps[number].called_ns[0] for number in numbers], 0, Counter[int]()
    for event in recorded.apart.get(GARBAGE, ()):
        at = bisect_right(begins, event.ns) - 1
        if at >= 0 and event.ns <= recorded.steps[numbers[at]].called_ns[1]:
            count, by_step[numbers[at]] = count + 1, by_step[numbers[at]] + event.number
    if not count:
        return {}
    longest = sorted([number, ns / 1e6] for number, ns in by_step.most_common(MAX_COLLECTED))
    return {"count": count, "steps": len(numbers), "ms": by_step.total() / len(numbers) / 1e6, "by_step": longest}


def writes(recorded: RankSteps, blocks: Sequence[Sequence[int]]) -> list[list[int]]:
    """Of each checkpoint that was written while the script went on the first of these steps within, and the last, where
    there are any."""
    numbers = [number for first, stop in blocks for number in range(first, stop)]
    begins, ends = ([recorded.steps[number].called_ns[at] for number in numbers] for at in (0, 1))
    within = [
        (bisect_left(begins, event.ns - 1000 * event.number), bisect_right(ends, event.ns))
        for event in recorded.apart.get(WRITTEN, ())
    ]
    return [[numbers[first], numbers[stop - 1]] for first, stop in within if first < stop]


def unseen_facts(
    recorded: RankSteps, record: Mapping[str, Any], blocks: Sequence[Sequence[int]], memory: Sequence[str]
) -> dict[str, Any]:
    """As facts of the rank: by what it also meets others where no hook sees it, how long it sleeps in a step for no
    reason that hooks see, how long it collects garbage, and in which steps checkpoints are written."""
    steps = [step for first, stop in blocks for step in recorded.steps[first:stop]]
    ways = [
        *recorded.facts.get("unseen_ways", ()), *(["torch.distributed.rpc"] if recorded.facts.get("rpc") else []),
        *memory, *unseen_collectives(recorded.facts, record, steps),
    ]  # fmt: skip
    asleep, written = asleep_ms(recorded, blocks[0][0], blocks[-1][1]), writes(recorded, blocks)
    return {
        **({"unseen_ways": ways} if ways else {}), **({} if asleep is None else {"asleep_ms": asleep}),
        **({"garbage": collected} if (collected := garbage(recorded, blocks)) else {}),
        **({"writes": written} if written else {}),
    }  # fmt: skip


# What a rank of a script states of itself in the trace, and says at its end.


def script_facts(
    recorded: RankSteps, record: Mapping[str, Any], run: RunSpec, *, early: str, cpus_decided: bool
) -> dict[str, Any]:
    """Those of the script: `record` is torch's own of collectives, `early` says that a signal ended it, if one did."""
    observed = recorded.observed
    of_warmup = observed.early_remarks(run.warmup_steps)
    remarks = [
        text for text in observed.remarks if text not in of_warmup and not text.startswith((CONTRADICTED, TOKENS_HINT))
    ]
    return {
        "arguments": list(run.arguments), "absent": dict(observed.absent),
        "remarks": [*remarks, *filter(None, [early])],
        "warmup_remarks": list(of_warmup), "facts": dict(recorded.facts), "collective_record": record,
        "pauses": pauses_of(recorded.steps), "phases": pauses_of(recorded.steps, "phase"),
        **({"clock_contradiction": its} if (its := clock_contradiction(observed)) else {}),
        "cpus_decided": cpus_decided, **outer_facts(recorded.steps),
    }  # fmt: skip


def backend_facts(recorded: RankSteps, record: Mapping[str, Any], ranks: int, *, by_calls: bool) -> dict[str, Any]:
    """How the script reduces, as a backend states it; `by_calls`: its own calls do, and no wrapper."""
    facts, absent = recorded.facts, recorded.observed.absent
    window = recorded.steps[len(recorded.steps) // 2 :]
    unseen = unseen_calls(facts) + (unseen_in_graphs(facts, record, window) if by_calls else [])
    backend = {
        "absent_stamps": [name for name in STAMPS if name in absent],
        "reduces": facts.get("size", 1) > 1,
        "gradient_bytes": facts.get("gradient_bytes"),
        "meets_before_gradients": early_collectives(window) + unseen,
        "meetings_by_step": True,
        "reduction": reduction_of(facts, ranks) if by_calls else None,
        "compared_at_begin": meets_unseen(recorded) or None,
        # Where the moment of the gradients is known, so are the collectives before it.
        "unrecorded_collectives": unseen if recorded.steps and STAMPS[GRADS_READY] not in absent else None,
    }
    return {name: value for name, value in backend.items() if value is not None}


def said_remarks(recorded: RankSteps, run: RunSpec, early: str) -> list[str]:
    """The remarks that are printed, those of the warm-up as such."""
    of_warmup = recorded.observed.early_remarks(run.warmup_steps)
    remarks = [
        f"{remark}{', in the warm-up' if remark in of_warmup else ''}"
        for remark in recorded.observed.remarks
        if not (run.tokens_per_sample and remark.startswith(TOKENS_HINT))
    ]
    return [*remarks, *filter(None, [early])]
