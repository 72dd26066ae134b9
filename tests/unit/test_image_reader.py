"""The reader of images: epochs, what is recorded, and what a whole training reads when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc.model.options import INPUT_FIGURES, data_source, is_augmented, samples_per_epoch, steps_per_epoch
from hpc.model.timestamps import ABSENT
from hpc.workloads.image_reader import Batch, ImageReader, evaluation_share, input_facts
from hpc.workloads.image_sets import list_images
from tests.unit.traces import make_run

FIGURES = (1, 2, 3, 4, 5)


class Loaders:
    """Two batches an epoch, whose images are epoch and number; `calls` are the epochs begun."""

    def __init__(self, **skipped: tuple[tuple[str, str], ...]) -> None:
        self.calls: list[Any] = []
        self._skipped = skipped

    def epoch(self, epoch: int) -> Iterator[Batch]:
        self.calls.append(epoch)
        return iter([self._batch("training", [(epoch, number)]) for number in range(2)])

    def evaluation(self) -> Iterator[Batch]:
        self.calls.append("evaluation")
        return iter([Batch([], [], FIGURES, (("val/x", "broken"),)), self._batch("evaluation", ["held out"])])

    def _batch(self, kind: str, images: list[Any]) -> Batch:
        if skipped := self._skipped.get(kind, ()):
            return Batch([], [], FIGURES, skipped)
        return Batch(images, [7] * len(images), FIGURES, ())

    def on_device(self, batch: Batch) -> tuple[Any, Any]:
        return batch.images, batch.labels


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train/a/1.png", "train/a/2.png", "train/b/3.png", "val/b/4.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def reader_of(folder: Path, loaders: Loaders, **changes: Any) -> ImageReader:
    run = make_run(backend="torch-ddp", workload="resnet50", batch_size=2, data=f"imagefolder:{folder}", **changes)
    source = data_source(run.data)
    assert source is not None
    facts = input_facts(run, source, list_images(str(folder)), {"decoder": "none"}, workers=1, prefetched=2)
    return ImageReader(run, source, facts, loaders)


def test_a_benchmark_reads_at_once_and_goes_on_from_epoch_to_epoch(folder: Path) -> None:
    loaders = Loaders()
    reader = reader_of(folder, loaders)
    assert loaders.calls == [0]
    assert [reader.batch(step)[0] for step in range(5)] == [[(0, 0)], [(0, 1)], [(1, 0)], [(1, 1)], [(2, 0)]]


def test_a_whole_training_reads_nothing_before_its_first_epoch(folder: Path) -> None:
    loaders = Loaders()
    reader = reader_of(folder, loaders, epochs=3)
    assert (reader.steps_per_epoch, reader.evaluation_images) == (2, 1)
    assert loaders.calls == []
    with pytest.raises(RuntimeError, match="no epoch has begun"):
        reader.batch(0)
    reader.begin_epoch(4)
    assert [reader.batch(step)[0] for step in range(2)] == [[(4, 0)], [(4, 1)]]
    with pytest.raises(RuntimeError, match="epoch 4 has no batch after 2 steps"):
        reader.batch(2)
    reader.begin_epoch(5)
    assert reader.batch(2)[0] == [(5, 0)]
    reader.begin_epoch(6)  # in the midst of one
    assert reader.batch(3)[0] == [(6, 0)]


def test_a_cached_batch_is_that_of_every_step(folder: Path) -> None:
    loaders = Loaders()
    reader = reader_of(folder, loaders, epochs=2, data_cache="device")
    assert loaders.calls == []
    for epoch in (0, 1):
        reader.begin_epoch(epoch)
        assert [reader.batch(step)[0] for step in range(3)] == [[(0, 0)]] * 3
    assert loaders.calls == [0]


def test_only_the_steps_of_the_run_are_recorded(folder: Path) -> None:
    reader = reader_of(folder, Loaders())
    steps = len(reader.record.figures) // len(INPUT_FIGURES)
    assert ABSENT in reader.record.figures
    for step in range(steps + 3):
        reader.batch(step)
    assert len(reader.record.figures) == steps * len(INPUT_FIGURES) and ABSENT not in reader.record.figures


def test_evaluation_yields_what_can_be_decoded_and_counts_the_rest(folder: Path) -> None:
    reader = reader_of(folder, Loaders(), epochs=1)
    assert [*reader.evaluation()] == [(["held out"], [7])]
    assert reader.record.as_json()["skipped"] == {"val/x": "broken"}
    assert [*reader.evaluation()] and reader.record.as_json()["skips"] == 2


def test_a_training_batch_without_any_image_is_an_error_that_names_files(folder: Path) -> None:
    reader = reader_of(folder, Loaders(training=(("a/1.png", "broken"),)), epochs=1)
    reader.begin_epoch(0)
    with pytest.raises(ValueError, match=r"no image of a batch of 1 can be decoded: .*a/1\.png.*broken"):
        reader.batch(0)
    assert reader.record.as_json()["skips"] == 1


def test_facts_have_the_evaluation_where_there_is_one(folder: Path) -> None:
    facts = reader_of(folder, Loaders(), epochs=1).record.facts
    assert facts["evaluation_images"] == 1
    assert facts["evaluation_listing_sha256"] == list_images(str(folder), "val").sha256
    assert facts["augmentation"].startswith("random resized crop")
    without = reader_of(folder, Loaders(), options={"augmentation": "off"}).record.facts
    assert "evaluation_images" not in without and without["augmentation"].startswith("off:")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_ranks_share_an_epoch_and_what_is_held_out(ranks: int) -> None:
    run = make_run(nodes=ranks, batch_size=4)
    for images in (ranks, 20, 21, 29):
        assert samples_per_epoch(run, images) * ranks - images in range(ranks)
        assert 0 < samples_per_epoch(run, images) - 4 * (steps_per_epoch(run, images) - 1) <= 4
        shares = [evaluation_share(images, run, rank) for rank in range(ranks)]
        assert sorted(number for share in shares for number in share) == [*range(images)]


def test_augmentation_is_an_option_of_the_data() -> None:
    assert is_augmented(make_run(data="imagefolder:/x", workload="resnet50"))
    assert not is_augmented(make_run(data="imagefolder:/x", workload="resnet50", options={"augmentation": "off"}))
