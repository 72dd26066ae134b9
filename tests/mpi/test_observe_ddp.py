"""What hooks record of DDP: whether a backward reduces, against its communication hook, which counts; its buffers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpc.observe import events as e
from hpc.observe.steps import collectives_of
from tests.mpi.observed import run

pytest.importorskip("torch")


def test_ddp_reduces_in_the_backwards_before_which_it_was_armed(tmp_path: Path) -> None:
    ended = run(tmp_path, "reductions.py")
    assert ended.statuses == [0], ended.errors
    assert "observe:" not in ended.errors[0]
    (recorded,) = ended.recorded
    seen, armed = [], 0
    for event in recorded.events:
        if event.kind == e.ARMED:
            armed += 1
        elif event.kind == e.BACKWARD_IN:
            seen.append(armed)
            armed = 0
    lines = [line.split() for line in ended.output[0].splitlines()]
    names = [name for name, _ in lines]
    reduces = [reduced == "True" for _, reduced in lines]
    assert list(zip(names, [count > 0 for count in seen], strict=True)) == list(zip(names, reduces, strict=True))
    cases = dict(zip(names, reduces, strict=True))
    # These a look at DDP's flags at the backward would get wrong: it has decided in an earlier forward.
    assert not cases["forward-alone-in-no-sync"]
    assert cases["backward-alone-in-no-sync"] and cases["evaluation-between"]
    assert cases["forward-without-backward-before"]
    counts = dict(zip(names, seen, strict=True))
    assert (counts["several-forwards"], counts["two-models"], counts["one-of-two-models"]) == (2, 2, 1)


class Group:
    """As a process group, of so many ranks."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def size(self) -> int:
        return self.ranks


class Unreferenced(tuple[int, ...]):
    """One that takes no weak references."""

    __slots__ = ()

    def size(self) -> int:
        return self[0]


def test_buffers_are_named_by_their_group_though_another_had_its_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed as dist

    from hpc.observe.collectives import _make_buffers
    from hpc.observe.observer import Observer

    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    o = Observer(str(tmp_path), lambda: None)
    o.recorder.note(1, e.FETCH_IN)
    calls: list[tuple[int, int]] = []
    broadcast = _make_buffers(o)(lambda group, tensors, size, root: calls.append((group.size(), root)))
    identities = set()
    for ranks, root in [(4, 0), (2, 0), (4, 0), (4, 1), (2, 1)]:
        group = Group(ranks)
        identities.add(id(group))
        broadcast(group, [], 1, root)
        broadcast(group, [], 1, root)
        broadcast(Unreferenced([ranks]), [], 1, root)
        del group
    assert len(identities) < 5, "no identity was used again: this test shows nothing"
    assert not o.off
    recorded = e.read_events(o.recorder.path)
    named = [(collective.name, collective.root) for collective in collectives_of(recorded)]
    partial = ("broadcast of buffers in a group of 2", e.UNCLEAR)
    assert named == [("broadcast of buffers", root) if ranks == 4 else partial for ranks, root in calls]
    assert all(
        collective.ends_ns >= collective.waits_ns >= collective.arrives_ns > 0
        for collective in collectives_of(recorded)
    )


def test_who_waits_at_once_waits_from_the_call_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    from hpc.observe.collectives import _make_collective, _make_wait
    from hpc.observe.observer import Observer

    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    o, works = Observer(str(tmp_path), lambda: None), dict[int, int]()
    reduce = _make_collective(o, "all-reduce", works)(lambda group, *values: [time.sleep(0.001)])
    wait = _make_wait(o, works)(lambda work: None)
    at_once, later = dist.AllreduceOptions(), dist.AllreduceOptions()
    at_once.asyncOp = False
    for options in (at_once, later, None):
        wait(reduce(Group(4), [], options))
    assert not o.off and not works
    seen = collectives_of(e.read_events(o.recorder.path))
    assert [call.waits_ns == call.arrives_ns for call in seen] == [True, False, False]
    assert [call.name for call in seen] == ["all-reduce"] * 3
    assert all(call.ends_ns > call.waits_ns for call in seen)
