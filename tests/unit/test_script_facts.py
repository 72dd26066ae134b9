"""Whether ranks of a script also meet where no hook sees it: from facts made by hand, and memory of this process."""

from __future__ import annotations

import mmap
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc.model.timestamps import ABSENT
from hpc.observe.events import AWAKE, HookEvent
from hpc.observe.stamps import CollectiveCall, ObservedStep, ObservedSteps, Pause
from hpc.run.script_facts import SharedMappings, asleep_ms, shared_memory, unseen_collectives, unseen_facts
from hpc.run.script_steps import RankSteps

MS = 1_000_000


def step(number: int, *calls: CollectiveCall, **changes: Any) -> ObservedStep:
    """From `number` × 10 ms on, 10 ms long; reduces in its ms 6 to 8."""
    begin = (1 + number) * 10 * MS
    stamps = (begin, begin + MS, begin + 2 * MS, begin + 6 * MS, begin + 8 * MS, begin + 10 * MS)
    usual: dict[str, Any] = {
        "stamps": stamps, "absent": {}, "samples": 1, "fetches": 1, "fetch_ns": MS, "backwards": 1, "updates": (1,),
        "skipped": False, "new_epoch": False, "collectives": calls, "called_ns": (begin, begin + 10 * MS),
    }  # fmt: skip
    return ObservedStep(**{**usual, **changes})


def call(name: str, size: int, waited_ns: int = 0) -> CollectiveCall:
    return CollectiveCall(name=name, root=-1, arrives_ns=1, waits_ns=1, ends_ns=1 + waited_ns, bytes=size)


def recorded(steps: list[ObservedStep], awake_ms: float, **facts: Any) -> RankSteps:
    """The thread is awake so long in each step."""
    looks = [HookEvent(its.called_ns[0], AWAKE, 0, round(at * awake_ms * 1000)) for at, its in enumerate(steps)]
    return RankSteps(observed=ObservedSteps(steps=tuple(steps), remarks=()), facts=facts, apart={AWAKE: looks})


def test_sleep_is_unexplained_beyond_loaders_the_reduction_collectives_and_pauses() -> None:
    plain = [step(number) for number in range(11)]
    assert asleep_ms(recorded(plain, 7), 0, 11) == 0  # 1 ms of its loader, 2 of the reduction
    assert asleep_ms(recorded(plain, 2), 0, 11) == pytest.approx(5)
    waiting = [step(number, call("all-reduce", 8, 4 * MS)) for number in range(11)]
    assert asleep_ms(recorded(waiting, 2), 0, 11) == pytest.approx(1)
    paused = [replace(each, pause=Pause(kind="evaluation", begin_ns=0, end_ns=5 * MS)) for each in plain]
    assert asleep_ms(recorded(paused, 2), 0, 11) == 0
    assert asleep_ms(RankSteps(observed=ObservedSteps(steps=tuple(plain), remarks=())), 0, 11) is None


def kind(name: str, size: int, per_step: float = 1.0) -> dict[str, Any]:
    return {"name": name, "bytes": size, "per_step": per_step, "group": "default_pg"}


def test_what_torch_recorded_beyond_hooks_and_buckets_is_unseen() -> None:
    ddp = {"ddp": True, "ddp_bytes": 1000}
    unseen = "1 all-reduce a step of compiled graphs or C++ (by torch's own record)"
    buckets = [kind("all-reduce", 600), kind("all-reduce", 400)]
    steps = [step(0), step(1)]
    assert unseen_collectives(ddp, {"kinds": buckets}, steps) == []
    assert unseen_collectives(ddp, {"kinds": [*buckets, kind("all-reduce", 64)]}, steps) == [unseen]
    hooked = [step(0, call("functional all-reduce", 64)), step(1, call("functional all-reduce", 64))]
    assert unseen_collectives(ddp, {"kinds": [*buckets, kind("all-reduce", 64)]}, hooked) == []
    buffers = [step(0, call("broadcast of buffers", 0))]
    assert unseen_collectives(ddp, {"kinds": [*buckets, kind("broadcast", 8, 3)]}, buffers) == []
    gathers = [step(0, call("all-gather", 8))]
    assert unseen_collectives({}, {"kinds": [kind("allgather-into-tensor", 8)]}, gathers) == []
    assert len(unseen_collectives({}, {"kinds": [kind("all-gather", 8, 3)]}, gathers)) == 1
    assert unseen_collectives(ddp, {}, steps) == unseen_collectives(ddp, {"kinds": []}, []) == []


def test_memory_counts_where_two_ranks_of_a_host_map_it_and_it_changes(tmp_path: Path) -> None:
    paths = [tmp_path / "changes", tmp_path / "stays"]
    maps = []
    for path in paths:
        path.write_bytes(bytes(8192))
        with path.open("r+b") as file:
            maps.append(mmap.mmap(file.fileno(), 8192))
    folder = tmp_path / "events"
    folder.mkdir()
    (folder / f"{os.getpid()}.1.events").touch()
    (folder / "999999999.1.events").touch()  # has ended
    mine = SharedMappings()
    mine.look(folder)
    maps[0][8000] = 1
    mine.look(folder)
    text, other = mine.as_text(os.getpid(), "n0"), mine.as_text(os.getpid(), "n1")
    assert f"shared memory ({paths[0]})" in shared_memory([text, text])[0]
    assert not any(str(paths[1]) in each for each in shared_memory([text, text])[0])
    assert shared_memory([text, other]) == [[], []] and shared_memory([text]) == [[]]
    assert shared_memory([mine.as_text(1, "n0"), text]) == [[], []]


def test_facts_have_all_ways_and_nothing_where_there_is_none() -> None:
    steps = [step(number, stamps=(0, ABSENT, ABSENT, ABSENT, ABSENT, 1)) for number in range(4)]
    rank = recorded(steps, 9, unseen_ways=["mpi4py"], rpc=True)
    facts = unseen_facts(rank, {}, [(0, 2), (2, 4)], ["shared memory (/dev/zero)"])
    assert facts["unseen_ways"] == ["mpi4py", "torch.distributed.rpc", "shared memory (/dev/zero)"]
    assert facts["asleep_ms"] == 0
    assert unseen_facts(RankSteps(observed=rank.observed), {}, [(0, 4)], []) == {}
