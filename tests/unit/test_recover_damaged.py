"""What of a dead rank's files is damaged: nothing else is lost, and it is named."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc.model.outcome import Outcome
from hpc.model.timestamps import STAMPS
from hpc.model.trace_file import read_trace
from hpc.recovery.recover import main
from tests.unit.dead_ranks import RUN, STEM, leave, recovered


def test_of_a_copy_that_a_power_cut_tore_the_whole_steps_count(tmp_path: Path) -> None:
    row = len(STAMPS) * 8
    for rank in range(3):
        leave(tmp_path, rank, completed=5, points=1, whole=False)
    partial = tmp_path / f"{STEM}.partial"
    os.truncate(partial / "rank0.stamps", RUN.steps * row + 3 * 8 + 1)  # cut off in the samples
    with (partial / "rank1.stamps").open("r+b") as file:  # a row that never reached the disk
        file.seek(2 * row)
        file.write(bytes(row))
    (partial / "rank2.json").write_text("{")
    trace = recovered(tmp_path)
    assert trace.steps_completed.tolist() == [3, 2, 0]
    assert "nothing is left of rank 2" in trace.evidence
    aside = tmp_path / f"{STEM}.partial.damaged"
    assert f"{aside / 'rank2.stamps'}: its header rank2.json cannot be read" in trace.evidence
    assert (aside / "rank2.stamps").stat().st_size == RUN.steps * (row + 8)  # somebody may still make something of it


def spoiled_header(**changes: Any) -> Callable[[Path], None]:
    """What has that rank's header say something else; a value of None leaves it out."""

    def spoil(partial: Path) -> None:
        path = partial / "rank1.json"
        header = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in header.items() if value is not None}))

    return spoil


def clock(**changes: Any) -> Callable[[Path], None]:
    whole = {"domain": "a", "points": [[1, 2, 3]], "barrier_exits_ns": [], "unix_offsets_ns": [[1, 2]]}
    return spoiled_header(clock=whole | changes)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (spoiled_header(rank=2), "is of rank 2 with 7 steps"),
        (spoiled_header(rank="1"), "its header is of rank '1'"),
        (spoiled_header(steps=10**15), "rank 1 with 1000000000000000 steps is not of 3 with 7"),
        (spoiled_header(steps="7"), "is of rank 1 with '7' steps"),
        (spoiled_header(run=[]), "rank1.json: describes no run"),
        (spoiled_header(run=None), "rank1.json: describes no run"),
        (spoiled_header(byteorder="x"), "its header has the byte order 'x'"),
        (spoiled_header(run={}), "site, repeat are missing"),
        (spoiled_header(run=RUN.to_json() | {"seed": 8}), "rank1.json: describes another run than most"),
        (spoiled_header(attempt=2), "attempt 2"),
        (spoiled_header(clock=None), "its facts or its clock are damaged"),
        (clock(points=[[1, 2]]), "clock are damaged"),
        (clock(unix_offsets_ns=[]), "clock are damaged"),
        (clock(unix_offsets_ns=[[1]]), "clock are damaged"),
        (clock(points=[[1e300, 2, 3]]), "clock are damaged"),
        (spoiled_header(facts=[]), "its facts or its clock are damaged"),
        (spoiled_header(blown_up="x" * (1 << 24)), "its header rank1.json cannot be read (more than 16777216 bytes)"),
        (lambda partial: (partial / "rank1.json").write_text("[" * 100_000), "header rank1.json cannot be read"),
        (lambda partial: (partial / "rank1.json").write_bytes(bytes(500)), "header rank1.json cannot be read"),
        (lambda partial: os.truncate(partial / "rank1.stamps", 1 << 40), "bytes are more than 7 steps make"),
    ],
)
def test_one_damaged_journal_costs_no_other_and_is_kept(
    tmp_path: Path, spoil: Callable[[Path], None], says: str
) -> None:
    for rank in range(3):
        leave(tmp_path, rank, completed=3, points=1)
    spoil(tmp_path / f"{STEM}.partial")
    trace = recovered(tmp_path)
    assert trace.run == RUN and trace.steps_completed.tolist() == [3, 0, 3]
    assert says in trace.evidence
    assert (tmp_path / f"{STEM}.partial.damaged" / "rank1.stamps").exists()


@pytest.mark.parametrize("count", [0, -5, 2**40])
def test_samples_that_no_step_took_end_what_is_believed(tmp_path: Path, count: int) -> None:
    """Zeros where the samples were, behind what the rank had come to: its rows are absent there."""
    leave(tmp_path, 0, completed=3, points=1)
    with (tmp_path / f"{STEM}.partial" / "rank0.stamps").open("r+b") as file:
        file.seek(RUN.steps * len(STAMPS) * 8 + 3 * 8)
        file.write(array("q", [count] * 4).tobytes())
    assert recovered(tmp_path).steps_completed.tolist() == [3, 0, 0]


@pytest.mark.parametrize("name", ["rank1.json", "exit.json"])
def test_damaged_records_do_not_keep_stamps_from_being_recovered(tmp_path: Path, name: str) -> None:
    leave(tmp_path, 0, completed=3, points=1)
    (tmp_path / f"{STEM}.{name}").write_bytes(bytes(40))
    trace = recovered(tmp_path)
    assert trace.outcome is Outcome.RANK_FAIL and f"{STEM}.{name}: cannot be read" in trace.evidence
    assert [path.name for path in tmp_path.glob("*.partial*")] == []


def test_stacks_that_cannot_be_brought_together_stay(tmp_path: Path) -> None:
    leave(tmp_path, 0, completed=3, points=1)
    (tmp_path / f"{STEM}.partial" / "rank0.stacks").write_text("somewhere\n")
    (tmp_path / f"{STEM}.stacks.txt").mkdir()
    assert main([str(tmp_path)]) == 0
    assert "stacks cannot be brought together" in read_trace(tmp_path / f"{STEM}.h5").evidence
    assert (tmp_path / f"{STEM}.partial.damaged" / "rank0.stacks").exists()


def test_a_damaged_trace_is_not_overwritten_and_the_message_has_the_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(tmp_path, 0, completed=3, points=1)
    (tmp_path / f"{STEM}.h5").write_bytes(bytes(99))
    assert main([str(tmp_path)]) == 1
    assert "move it away, and recover again" in capsys.readouterr().err
    assert (tmp_path / f"{STEM}.h5").read_bytes() == bytes(99)
    assert (tmp_path / f"{STEM}.partial" / "rank0.stamps").exists()
