"""Runs that read images from tar shards: each once per epoch over the ranks, and what becomes of damaged shards."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hpc.backends import missing_modules
from hpc.model.options import INPUT_FIGURES
from hpc.model.outcome import Outcome
from hpc.workloads.image_sets import index_text, read_headers
from tests.mpi.attempts import Attempt, Ranks
from tests.mpi.test_input import ByRank, epochs, read_all, request, run_on

SHARD = 7
CORRUPT = b"no image"

pytest.importorskip("webdataset")


@pytest.fixture(autouse=True)
def torch_is_there() -> None:
    if missing := missing_modules("torch-ddp"):
        pytest.skip("; ".join(missing))


def sharded(
    folder: Path, count: int, *, held_out: int = 0, indexed: bool = False, contents: Mapping[int, bytes] | None = None
) -> Path:
    """Images of one colour each, which is their number, in shards of seven; the held-out ones count from 1000."""
    for split, first, number_of_images in (("train", 0, count), ("val", 1000, held_out)):
        for at in range(0, number_of_images, SHARD):
            path = folder / "webdataset" / f"{split}-{at // SHARD:06d}.tar"
            path.parent.mkdir(parents=True, exist_ok=True)
            with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
                for number in range(first + at, first + min(at + SHARD, number_of_images)):
                    png = io.BytesIO()
                    Image.new("RGB", (12, 10), (number % 256, number // 256, 0)).save(png, "PNG")
                    image = (contents or {}).get(number, png.getvalue())
                    for suffix, content in (("png", image), ("cls", str(number % 3).encode())):
                        member = tarfile.TarInfo(f"{number:04d}.{suffix}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
            if indexed:
                path.with_suffix(".idx").write_text(index_text([*read_headers(path)]))
    return folder


ORDERS = {"1 by 10": (1, 10, 2, False), "2 by 27": (2, 27, 3, True), "3 by 30": (3, 30, 0, False),
          "4 by 33": (4, 33, 2, False), "4 by 9": (4, 9, 5, True)}  # fmt: skip
"""Three epochs: readers, images, workers, and whether the shards have an index."""
WHOLE = {"whole, 1 by 10": (1, 10), "whole, 4 by 13": (4, 13)}
"""Whole trainings: readers, and images."""
_readings: dict[str, ByRank] = {}


def steps_of(readers: int, count: int) -> int:
    """Batches of four in an epoch of a reader."""
    return ceil(ceil(count / readers) / 4)


@pytest.fixture
def readings(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ByRank]:
    """What readers got of every set of shards here. One start makes all."""
    if not _readings:
        make = tmp_path_factory.mktemp
        thirty = sharded(make("thirty"), 30)
        requests = {
            **{
                name: request(
                    sharded(make("order"), count, indexed=indexed), readers=readers, workers=workers,
                    steps=3 * steps_of(readers, count), kind="webdataset",
                )
                for name, (readers, count, workers, indexed) in ORDERS.items()
            },
            **{
                name: request(thirty, steps=3, seed=seed, kind="webdataset")
                for name, seed in (("seed 1", 1), ("seed 1 again", 1), ("seed 2", 2))
            },
            "figures": request(thirty, steps=6, kind="webdataset"),
            **{
                name: request(
                    sharded(make("whole"), count, held_out=9, contents={1004: CORRUPT}), readers=readers, epochs=2,
                    workers=1, kind="webdataset",
                )
                for name, (readers, count) in WHOLE.items()
            },
        }  # fmt: skip
        _readings.update(read_all(ranks, requests))
    return _readings


@pytest.mark.parametrize("name", ORDERS)
def test_every_image_is_read_once_per_epoch_in_another_order(readings: dict[str, ByRank], name: str) -> None:
    readers, count, _, indexed = ORDERS[name]
    by_rank, share, steps = readings[name], -(-count // readers), steps_of(readers, count)
    for of_rank in by_rank:
        assert [len(batch) for batch in of_rank["batches"][:steps]] == [4] * (steps - 1) + [share - 4 * (steps - 1)]
        assert all(label == number % 3 for batch in of_rank["batches"] for number, label in batch)
    for epoch in epochs(by_rank, steps):
        assert {*epoch} == {*range(count)} and sum(epoch.values()) == share * readers
    orders = [[of_rank["batches"][at : at + steps] for of_rank in by_rank] for at in range(0, 3 * steps, steps)]
    assert orders[0] != orders[1] or orders[1] != orders[2], "the epochs have one order"
    facts = by_rank[0]["input"]
    assert facts["kind"] == "webdataset" and facts["loader"].startswith("webdataset 1.")
    assert (facts["images"], facts["shards"]) == (count, -(-count // SHARD))
    assert facts["shards_with_index"] == (facts["shards"] if indexed else 0)
    assert (facts["samples_per_epoch"], facts["repeated_samples_per_epoch"], facts["skips"]) == (
        share, share * readers - count, 0,
    )  # fmt: skip


def test_the_order_comes_from_the_seed(readings: dict[str, ByRank]) -> None:
    first, repeated, other = (readings[name] for name in ("seed 1", "seed 1 again", "seed 2"))
    assert [each["batches"] for each in first] == [each["batches"] for each in repeated]
    assert [each["batches"] for each in first] != [each["batches"] for each in other]


def test_figures_of_a_batch_are_in_order(readings: dict[str, ByRank]) -> None:
    for of_rank in readings["figures"]:
        figures = np.array(of_rank["figures"]).reshape(-1, len(INPUT_FIGURES))[:6]
        requested, received, begun, done, reading, decoding, processor = figures.T
        assert (begun < done).all() and (done <= received).all() and (requested <= received).all()
        assert (reading + decoding == done - begun).all() and (reading > 0).all() and (processor > 0).all()


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_training_begins_epochs_and_evaluates_on_each_image_once(
    readings: dict[str, ByRank], name: str
) -> None:
    (readers, count), by_rank = WHOLE[name], readings[name]
    steps = by_rank[0]["steps_per_epoch"]
    for epoch in epochs(by_rank, steps):
        assert {*epoch} == {*range(count)} and sum(epoch.values()) == -(-count // readers) * readers
    for at in range(2):
        evaluated = [pair for of_rank in by_rank for batch in of_rank["evaluations"][at] for pair in batch]
        assert sorted(evaluated) == [[number, number % 3] for number in range(1000, 1009) if number != 1004]
    inputs = [of_rank["input"] for of_rank in by_rank]
    assert sum(each["skips"] for each in inputs) == 2
    assert [name for each in inputs for name in each["skipped"]] == ["val-000000.tar/1004.png"]
    assert {each["evaluation_images"] for each in inputs} == {9}


def test_a_run_skips_what_it_cannot_decode_and_names_it(ranks: Ranks, tmp_path: Path) -> None:
    folder = sharded(tmp_path / "set", 16, contents={4: CORRUPT})
    attempt = Attempt(ranks, tmp_path, run_on(folder, data=f"webdataset:{folder}"))
    assert attempt.done.returncode == 0, attempt.done.stderr
    trace = attempt.trace()
    # 12 steps of 2 on 2 ranks are three epochs of 16 images, one of which is corrupt.
    assert trace.outcome is Outcome.OK and trace.samples.sum() == 3 * 15
    assert trace.evidence.startswith("3 images in batches could not be decoded, skipped: train-000000.tar/0004.png (")
    inputs = [report.input for report in trace.reports]
    assert sum(each["skips"] for each in inputs) == 3
    assert trace.input is not None and list(trace.input_names) == [*INPUT_FIGURES]


def refused(ranks: Ranks, folder: Path) -> Attempt:
    return Attempt(ranks, folder.parent, run_on(folder, data=f"webdataset:{folder}"), check=False)


def test_a_shard_that_is_cut_off_ends_as_invalid(ranks: Ranks, tmp_path: Path) -> None:
    folder = sharded(tmp_path / "set", 16)
    cut = folder / "webdataset/train-000001.tar"
    cut.write_bytes(cut.read_bytes()[:1800])
    attempt = refused(ranks, folder)
    assert attempt.done.returncode == 3, attempt.done.stderr
    assert {note.outcome for note in attempt.notes()} == {Outcome.INVALID}
    assert all(str(cut) in note.message and "cut off" in note.message for note in attempt.notes())


@pytest.mark.all
def test_no_shards_end_as_invalid(ranks: Ranks, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    attempt = refused(ranks, folder)
    assert attempt.done.returncode == 3, attempt.done.stderr
    assert all("has no tar shard" in note.message and str(folder) in note.message for note in attempt.notes())


@pytest.mark.all
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"0005.cls", b"0005.txt", "sample train-000000.tar/0005 in {folder} has no image or no cls: png, txt"),
        (b"0005.png", b"1005.png", "sample train-000000.tar/1005 in {folder} has no image or no cls: png"),
    ],
)
def test_a_sample_without_its_class_ends_the_run_by_its_name(
    ranks: Ranks, tmp_path: Path, old: bytes, new: bytes, reason: str
) -> None:
    folder = sharded(tmp_path / "set", 16)
    rename(folder / "webdataset/train-000000.tar", old.decode(), new.decode())
    attempt = refused(ranks, folder)
    assert attempt.done.returncode not in (0, 3), attempt.done.stderr
    notes = [note for note in attempt.notes() if note.outcome is Outcome.RANK_FAIL]
    assert any(reason.format(folder=folder / "webdataset") in note.message for note in notes), notes


@pytest.mark.all
@pytest.mark.parametrize("damage", [b"\0" * 512, b"\xff" * 512], ids=["end of a tar", "no header"])
def test_a_shard_that_is_damaged_behind_its_index_ends_the_run_by_its_name(
    ranks: Ranks, tmp_path: Path, damage: bytes
) -> None:
    folder = sharded(tmp_path / "set", 16, indexed=True)
    shard = folder / "webdataset/train-000000.tar"
    with tarfile.open(shard) as tar:
        at = tar.getmember("0003.png").offset
    content = shard.read_bytes()
    shard.write_bytes(content[:at] + damage + content[at + 512 :])
    attempt = refused(ranks, folder)
    assert attempt.done.returncode not in (0, 3), attempt.done.stderr
    notes = [note for note in attempt.notes() if note.outcome is Outcome.RANK_FAIL]
    assert any(f"the shard {shard} " in note.message for note in notes), notes


def rename(path: Path, old: str, new: str) -> None:
    """Renames a member of a tar."""
    with tarfile.open(path) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for member, content in members:
            member.name = new if member.name == old else member.name
            tar.addfile(member, io.BytesIO(content))
