"""Runs that read class folders by DALI: each image once per epoch over the ranks. Skipped where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from hpc.model.outcome import Outcome
from hpc.model.timestamps import ABSENT
from parse.ledger.input import reduce_input
from tests.mpi.attempts import Attempt, Ranks
from tests.mpi.test_input import epochs, numbered, read, run_on

if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
    pytest.skip("nvidia.dali is not installed", allow_module_level=True)


@pytest.mark.parametrize(("readers", "count", "workers"), [(2, 27, 2), pytest.param(3, 28, 0, marks=pytest.mark.all)])
def test_every_image_is_read_once_per_epoch_in_another_order(
    ranks: Ranks, tmp_path: Path, readers: int, count: int, workers: int
) -> None:
    share = -(-count // readers)
    steps = -(-share // 4)
    by_rank = read(ranks, numbered(tmp_path, count), readers=readers, steps=3 * steps, workers=workers, kind="dali")
    for of_rank in by_rank:
        sizes = [len(batch) for batch in of_rank["batches"]]
        assert sizes == ([4] * (steps - 1) + [share - 4 * (steps - 1)]) * 3
        assert all(label == number % 3 for batch in of_rank["batches"] for number, label in batch)
    for epoch in epochs(by_rank, steps):
        assert {*epoch} == {*range(count)}
        assert sum(epoch.values()) == share * readers and max(epoch.values()) <= 2
    orders = [[of_rank["batches"][at : at + steps] for of_rank in by_rank] for at in range(0, 3 * steps, steps)]
    assert orders[0] != orders[1] != orders[2], "the epochs have one order"
    facts = by_rank[0]["input"]
    assert (facts["kind"], facts["workers"]) == ("dali", max(1, workers)) and "DALI" in facts["decoder"]
    assert facts["repeated_samples_per_epoch"] == share * readers - count


@pytest.mark.all
def test_the_order_comes_from_the_seed(ranks: Ranks, tmp_path: Path) -> None:
    folder = numbered(tmp_path, 30)
    first, repeated, other = (read(ranks, folder, steps=6, seed=seed, kind="dali") for seed in (1, 1, 2))
    assert [each["batches"] for each in first] == [each["batches"] for each in repeated]
    assert [each["batches"] for each in first] != [each["batches"] for each in other]


@pytest.mark.parametrize(("readers", "count", "held_out"), [(1, 10, 9), (4, 13, 2)])
def test_a_whole_training_begins_epochs_and_evaluates_on_each_image_once(
    ranks: Ranks, tmp_path: Path, readers: int, count: int, held_out: int
) -> None:
    folder = numbered(tmp_path, count, held_out=held_out)
    by_rank = read(ranks, folder, readers=readers, epochs=2, workers=1, kind="dali")
    for epoch in epochs(by_rank, by_rank[0]["steps_per_epoch"]):
        assert {*epoch} == {*range(count)} and sum(epoch.values()) == -(-count // readers) * readers
    for at in range(2):
        evaluated = [pair for of_rank in by_rank for batch in of_rank["evaluations"][at] for pair in batch]
        assert sorted(evaluated) == [[number, number % 3] for number in range(1000, 1000 + held_out)]


def dali_run(ranks: Ranks, tmp_path: Path, folder: Path) -> Attempt:
    return Attempt(ranks, tmp_path, run_on(folder, data=f"dali:{folder}"), check=False)


@pytest.mark.all
def test_a_run_records_what_it_reads_and_not_what_dali_does_not_say(ranks: Ranks, tmp_path: Path) -> None:
    attempt = dali_run(ranks, tmp_path, numbered(tmp_path / "set", 17))
    assert attempt.done.returncode == 0, attempt.done.stderr
    trace = attempt.trace()
    # 12 steps of a rank: an epoch is four batches of two and one of one.
    assert trace.outcome is Outcome.OK and trace.samples.sum() == 2 * (9 + 9 + 4)
    assert (
        trace.input is not None and (trace.input[:, :, :2] != ABSENT).all() and (trace.input[:, :, 2:] == ABSENT).all()
    )
    assert reduce_input(trace) is None


def test_a_file_that_cannot_be_decoded_ends_the_run_by_its_name(ranks: Ranks, tmp_path: Path) -> None:
    folder = numbered(tmp_path / "set", 16)
    corrupt = folder / "train/class1/0004.png"
    corrupt.write_bytes(corrupt.read_bytes()[:40])
    attempt = dali_run(ranks, tmp_path, folder)
    assert attempt.done.returncode not in (0, 3), attempt.done.stderr
    notes = [note for note in attempt.notes() if note.outcome is Outcome.RANK_FAIL]
    assert any(str(corrupt) in note.message for note in notes), [note.message for note in notes]
