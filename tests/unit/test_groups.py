"""Which call of a rank meets which of others, in a table that a trace stores."""

from __future__ import annotations

import dataclasses

import h5py
import numpy as np
import pytest

from hpc.model.groups import (
    GROUP,
    MESSAGE,
    NO_CALL,
    NUMBER,
    Call,
    CallTable,
    GroupsError,
    RankGroup,
    calls_as_json,
    calls_of_json,
)
from hpc.model.trace import TraceError
from hpc.model.trace_file import read_trace
from tests.unit.traces import full_trace, put

PAIRS = [RankGroup(ranks=(0, 1), dimension="tp"), RankGroup(ranks=(2, 3), dimension="tp")]
ACROSS = [RankGroup(ranks=(0, 2), dimension="dp"), RankGroup(ranks=(1, 3), dimension="dp")]
FORTH = RankGroup(ranks=(1, 2), dimension="pp", tag=7)


def of_a_mesh() -> CallTable:
    """Ranks gather twice in pairs and reduce across them; rank 1 sends a message to rank 2."""
    by_rank = [
        [Call("all-gather", -1, PAIRS[rank // 2])] * 2 + [Call("all-reduce", -1, ACROSS[rank % 2])] for rank in range(4)
    ]
    by_rank[1].append(Call(MESSAGE, 1, FORTH))
    by_rank[2].insert(0, Call(MESSAGE, 1, FORTH))
    return CallTable.of(by_rank)


def test_calls_that_meet_are_equal_in_all_columns():
    table = of_a_mesh()
    assert table.names == ("all-gather", "all-reduce", "message") and len(table.groups) == 5
    assert table.calls[0, 3].tolist() == [NO_CALL] * 4
    assert table.calls[1, 3].tolist() == table.calls[2, 0].tolist() and table.calls[1, 3, NUMBER] == 0
    assert table.calls[0, :2, NUMBER].tolist() == [0, 1]
    assert table.calls[0, :3].tolist() == [*table.calls[1, :2].tolist(), table.calls[2, 3].tolist()]
    assert table.calls[0, 0, GROUP] != table.calls[2, 1, GROUP]


def test_ranks_tell_one_another_what_they_call():
    calls = [Call("barrier", -1), Call("all-gather", -1, PAIRS[0]), Call(MESSAGE, 1, FORTH)]
    assert calls_of_json(calls_as_json(calls)) == calls
    assert calls_of_json(calls_as_json(None)) is None and calls_of_json(calls_as_json([])) == []


def test_a_call_without_a_group_is_of_all_ranks():
    table = CallTable.of([[Call("barrier", -1)], []])
    assert table.groups == (RankGroup(ranks=(0, 1), dimension="all ranks"),)
    assert table.calls[1, 0].tolist() == [NO_CALL] * 4


def test_the_trace_stores_them_once(tmp_path):
    table, trace = of_a_mesh(), full_trace()
    assert trace.meetings is not None
    meetings = np.concatenate([trace.meetings, trace.meetings[:, :, :1]], axis=2)
    trace = dataclasses.replace(trace, meetings=meetings, meeting_names=(), meeting_roots=(), calls=table)
    path = put(tmp_path, trace)
    loaded = read_trace(path).calls
    assert loaded is not None and (loaded.names, loaded.groups) == (table.names, table.groups)
    assert (loaded.calls == table.calls).all()
    with h5py.File(path, "r+") as file:
        file["meeting_calls"][3, 0, GROUP] = 0
    with pytest.raises(TraceError, match=r"meeting_calls: rank 3 calls in a group of ranks \(0, 1\)"):
        read_trace(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda calls: calls[..., :3], "must be int64"),
        (lambda calls: np.where(np.arange(4)[:, None, None] == 0, calls[:, ::-1], calls), "behind none"),
        (lambda calls: np.where(calls == 1, 9, calls), "outside 0 to"),
        (lambda calls: np.minimum(calls, np.where(np.arange(4) == NUMBER, 0, 9)), "twice in a step"),
    ],
)
def test_what_cannot_be_is_refused(change, says):
    table = of_a_mesh()
    with pytest.raises(GroupsError, match=says):
        dataclasses.replace(table, calls=change(table.calls))


@pytest.mark.parametrize(("ranks", "root"), [((0, 1, 2), 0), ((0, 1), 1), ((0, 1), -1), ((0,), 0)])
def test_a_message_is_sent_by_the_first_of_two(ranks, root):
    with pytest.raises(GroupsError, match=rf"sent by rank {root} in a group of ranks"):
        CallTable.of([[Call(MESSAGE, root, RankGroup(ranks=ranks))], [], []])


def test_groups_have_each_rank_once_and_no_others():
    for ranks in ((0, 0), (0, 4)):
        with pytest.raises(GroupsError, match="rank twice"):
            CallTable(names=(), groups=(RankGroup(ranks=ranks),), calls=np.empty((4, 0, 4), np.int64))
