"""Ranks that a script starts itself: which they are, and how their parts come together."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc.measure.connections import ConnectionLost, Connections
from hpc.node_agent.agent import Recording
from hpc.observe.events import STEPS_CELL, Recorder
from hpc.run import script_process
from hpc.run.script_process import as_ranks, own_folder, spawned_ranks
from hpc.run.script_steps import count_steps

np = pytest.importorskip("numpy")
GROUP = {"joined": True, "size": 2, "rendezvous": "localhost:12355"}


def process(folder: Path, steps: int, **facts: object) -> Path:
    """The file of a process that has made so many steps."""
    recorder = Recorder(str(folder))
    recorder.cells[STEPS_CELL] = steps
    recorder.state(**facts)
    return recorder.path


def test_the_processes_of_one_group_are_ranks_in_their_order(tmp_path: Path) -> None:
    second = process(tmp_path, 7, rank=1, **GROUP)
    process(tmp_path, 0)  # the script itself, which waits for them
    first = process(tmp_path, 5, rank=0, **GROUP)
    assert spawned_ranks(tmp_path) == [first, second]
    assert count_steps(tmp_path) == 5


@pytest.mark.parametrize(
    "second",
    [
        {"rank": 1, **GROUP, "size": 3},  # one of them does not train
        {"rank": 0, **GROUP},
        {"rank": 1, **GROUP, "rendezvous": "localhost:1"},
        {"rank": 0, "joined": False, "size": 1, "rendezvous": ""},  # a fork
        {},
    ],
)
def test_other_processes_that_train_are_no_ranks(tmp_path: Path, second: dict[str, object]) -> None:
    process(tmp_path, 5, rank=0, **GROUP)
    process(tmp_path, 7, **second)
    assert spawned_ranks(tmp_path) == ()
    assert count_steps(tmp_path) == 7


def test_one_process_that_trains_is_the_rank_of_its_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its facts, which are long, are not read at every look at a script."""
    process(tmp_path, 5, rank=0, **GROUP)
    process(tmp_path, 0)
    monkeypatch.setattr(script_process, "read_facts", None)
    assert spawned_ranks(tmp_path) == ()
    assert count_steps(tmp_path) == 5


def test_each_rank_has_a_folder_with_all_that_its_process_wrote(tmp_path: Path) -> None:
    path = process(tmp_path, 5, rank=0, **GROUP)
    path.with_suffix(".collectives").write_text("its record")
    folder = own_folder(path, 0)
    assert sorted(each.suffix for each in folder.iterdir()) == [".collectives", ".events"]
    assert count_steps(folder) == 5 and not list(tmp_path.glob("*.*"))


def test_threads_are_ranks_that_are_connected() -> None:
    came: list[list[int]] = []

    def call(comm: Connections) -> None:
        everyone = np.zeros((3, 1 << 17)) if comm.rank == 0 else None
        comm.Gather(np.full(1 << 17, float(comm.rank)), everyone)
        assert everyone is None or everyone.mean(axis=1).tolist() == [0, 1, 2]
        came.append(comm.allgather(comm.rank))

    as_ranks(3, call)
    assert came == [[0, 1, 2]] * 3


def test_what_one_of_them_raises_ends_all_and_is_raised() -> None:
    lost: list[int] = []

    def call(comm: Connections) -> None:
        if comm.rank == 1:
            raise ValueError("no room")
        try:
            comm.Barrier()
        except ConnectionLost:
            lost.append(comm.rank)
            raise

    with pytest.raises(ValueError, match="no room"):
        as_ranks(3, call)
    assert sorted(lost) == [0, 2]


def test_of_a_nodes_telemetry_what_is_of_single_ranks_is_left_out() -> None:
    recording = Recording(
        local_ns=np.arange(2), values=np.array([[1.0, 2.0, 3.0]] * 2), series=("cpu.busy_s", "local_rank0.faults", "x"),
        facts={"threads": {"0": []}, "cores": {"0": [1]}, "beside": [], "place": "node"},
    )  # fmt: skip
    of_node = recording.of_node()
    assert of_node.series == ("cpu.busy_s", "x") and of_node.values.tolist() == [[1.0, 3.0]] * 2
    assert sorted(of_node.facts) == ["beside", "place"]
