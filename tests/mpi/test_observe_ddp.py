"""What hooks record of DDP: whether a backward reduces, against its communication hook, which counts; its buffers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpc.model.timestamps import ABSENT, GRADS_READY
from hpc.observe import events as e
from hpc.observe import flight_record
from tests.mpi.observed import collectives_of, run

if TYPE_CHECKING:
    from hpc.observe.observer import Observer

dist: Any = pytest.importorskip("torch.distributed")


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
    lines = [line.split() for line in ended.output[0].splitlines() if "[Gloo]" not in line]  # which torch 2.9 prints
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


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        ("power-sgd", 3), ("unseen", 0),
        *(pytest.param(kind, 1, marks=pytest.mark.all) for kind in ("all-reduce", "bf16", "blocking")),
    ],
)  # fmt: skip
def test_a_communication_hook_arrives_with_its_first_collective(tmp_path: Path, kind: str, calls: int) -> None:
    """What a rank's hook takes before is no communication; where it calls no collective, none is seen to be late."""
    ended = run(tmp_path, "comm_hooks.py", kind, ranks=2)
    assert ended.statuses == [0, 0], ended.errors
    for observed, output in zip(ended.observed, ended.output, strict=True):
        noted = json.loads(output.splitlines()[-1])
        for step, its in [*zip(observed.steps, noted, strict=True)][4:]:
            arrives_ns = step.stamps[GRADS_READY]
            assert len(its["calls_ns"]) == calls
            if calls:
                called_ns, back_ns = its["calls_ns"][0]
                assert its["slept_ns"] <= called_ns <= arrives_ns <= back_ns
            else:
                assert ABSENT < arrives_ns < its["slept_ns"]


def test_torchs_own_record_has_collectives_of_compiled_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for facts, recorded in record_of(tmp_path, monkeypatch, "graph_collectives.py"):
        assert not collectives_of(recorded)  # no hook is called there
        kinds = [(kind["name"], kind["group"], kind["bytes"], kind["per_step"]) for kind in facts["kinds"]]
        assert kinds == [("all-reduce", "default_pg", size, 1.0) for size in (4 * 16 * 4, 4 * 4)]
        # It averages behind the backward.
        assert {kind["phase"] for kind in facts["kinds"]} == {"update"} and all(
            kind["after_ms"] > 0 for kind in facts["kinds"]
        )
        assert facts["after_steps"] == 11  # it ends by itself, and writes once more: its last step is followed by none


def record_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> list[tuple[dict[str, Any], e.ProcessEvents]]:
    """What each of two ranks has of the record, which is written after step 8 of a warm-up of 13, and its events."""
    monkeypatch.setenv(flight_record.WARMUP_VARIABLE, "13")
    for name in flight_record.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    ended = run(folder, script, ranks=2)
    assert ended.statuses == [0, 0], ended.errors
    results = []
    for observed, recorded, rank in zip(ended.observed, ended.recorded, range(2), strict=True):
        (path,) = (folder / f"events{rank}").glob("*.events")
        record = flight_record.read(path)
        assert record is not None
        steps = [flight_record.StepSpan(*step.called_ns, *step.backward_ns) for step in observed.steps]
        results.append((flight_record.by_step(record, steps), recorded))
    return results


@pytest.fixture
def o(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Observer:
    """An observer of a process in a world of four."""
    from hpc.observe.observer import Observer

    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    return Observer(str(tmp_path), lambda: None)


def test_a_record_that_cannot_be_written_leaves_the_hooks_and_the_reason(
    o: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(events: Path, steps: int) -> None:
        raise OSError("no room")

    monkeypatch.setattr(flight_record, "write", fail)
    o.write_record()
    assert not o.off
    assert e.read_events(o.recorder.path).facts["collective_record"] == "not written: OSError: no room"


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


def test_buffers_are_named_by_their_group_though_another_had_its_identity(o: Observer) -> None:
    from hpc.observe.collectives import Calls

    o.recorder.note(1, e.FETCH_IN)
    calls: list[tuple[int, int]] = []
    broadcast = Calls(o).of_buffers()(lambda group, tensors, size, root: calls.append((group.size(), root)))
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


def test_who_waits_at_once_waits_from_the_call_on(o: Observer) -> None:
    from hpc.observe.collectives import Calls

    calls = Calls(o)

    def all_reduce(group: Group, *values: object) -> list[None]:
        time.sleep(0.001)
        return [None]

    reduce = calls.of_collective("all-reduce")(all_reduce)
    wait = calls.wait(lambda work: None)
    at_once, later = dist.AllreduceOptions(), dist.AllreduceOptions()
    at_once.asyncOp = False
    for options in (at_once, later, None):
        wait(reduce(Group(4), [], options))
    assert not o.off and not calls.going
    seen = collectives_of(e.read_events(o.recorder.path))
    assert [call.waits_ns == call.arrives_ns for call in seen] == [True, False, False]
    assert [call.name for call in seen] == ["all-reduce"] * 3
    assert all(call.ends_ns > call.waits_ns for call in seen)


def test_a_batch_of_messages_is_waited_for_as_a_whole(o: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpc.observe.collectives import Calls

    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1, 2, 3])
    calls, group = Calls(o), Group(4)
    begin = calls.begin_batch(lambda group, device: None)
    send = calls.of_message(sends=True)(lambda group, *values: ["of no use"])
    receive = calls.of_message(sends=False)(lambda group, *values: ["of no use"])
    wait = calls.wait(lambda work: None)
    for end in (calls.end_batch(lambda group, device: ["whole"]), calls.end_batch(lambda group, device: None)):
        begin(group, "cuda")
        send(group, [], 2, 0)
        receive(group, [], 0, 0)
        work = end(group, "cuda")
        if work is not None:
            wait(work)
    assert not o.off and not calls.going
    seen = collectives_of(e.read_events(o.recorder.path))
    pairs = [call.group.ranks for call in seen if call.group is not None]
    assert pairs == [(1, 2), (0, 1)] * 2 and [call.root for call in seen] == [1, 0] * 2
    assert all(call.ends_ns >= call.waits_ns >= call.arrives_ns > 0 for call in seen)
    assert [call.waits_ns > call.arrives_ns for call in seen] == [True, True, False, False]
