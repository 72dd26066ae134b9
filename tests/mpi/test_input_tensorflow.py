"""Files under TensorFlow: TFRecord files, what its own decoder makes of odd images, whole runs."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hpc.backends import missing_modules
from hpc.model.options import INPUT_FIGURES
from hpc.model.outcome import Outcome
from hpc.model.timestamps import ABSENT
from parse.ledger.input import reduce_input
from tests.mpi.attempts import HERE, Attempt
from tests.mpi.conftest import Ranks
from tests.mpi.test_input import ByRank, epochs, numbered, read_all, request, run_on

pytestmark = pytest.mark.skipif(bool(missing_modules("tensorflow-multiworker")), reason="no TensorFlow here")


def as_records(ranks: Ranks, folder: Path) -> Path:
    """The set as TFRecord files of five images."""
    ranks(1, HERE / "records.py", str(folder))
    return folder


WHOLE = {"1 by 10": (1, 10), "2 by 11": (2, 11), "4 by 13": (4, 13)}
"""Whole trainings on TFRecord files: readers, and images."""
_readings: dict[str, ByRank] = {}


@pytest.fixture
def readings(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ByRank]:
    """What readers got of every set of images here. One start makes all."""
    if not _readings:
        make = tmp_path_factory.mktemp
        whole = {name: numbered(make("whole"), count, held_out=9) for name, (_, count) in WHOLE.items()}
        for folder in whole.values():
            (folder / "train/class1/0004.png").write_bytes(b"no image")
        requests = {
            **{
                name: request(at, readers=WHOLE[name][0], epochs=2, framework="tensorflow", kind="tfrecord")
                for name, at in whole.items()
            },
            "figures": request(numbered(make("thirty"), 30), workers=3, framework="tensorflow"),
            "odd": request(odd_images(make("odd")), readers=1, framework="tensorflow", augmentation="off"),
        }
        _readings.update(read_all(ranks, requests))
    return _readings


def odd_images(root: Path) -> Path:
    """Images that are no plain RGB, one that is cut and one of an unknown format."""
    folder = root / "train" / "a"
    folder.mkdir(parents=True)
    images = {
        "cmyk.jpg": Image.new("RGB", (32, 32), (200, 40, 20)).convert("CMYK"),
        "deep.png": Image.fromarray(np.full((9, 9), 0x12FF, np.uint16)),
        "grey.jpg": Image.new("L", (16, 16), 99),
        "palette.png": Image.new("RGB", (8, 8), (0, 51, 255)).convert("P"),
    }
    for name, image in images.items():
        image.save(folder / name)
    noise = np.random.default_rng(1).integers(256, size=(64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "whole.jpg")
    (folder / "cut.jpg").write_bytes((folder / "whole.jpg").read_bytes()[:-900])
    (folder / "whole.jpg").unlink()
    Image.new("RGB", (8, 8)).save(folder / "unknown.tiff")
    return root


@pytest.mark.parametrize("name", WHOLE)
def test_each_record_is_read_once_per_epoch_and_evaluated_once(readings: dict[str, ByRank], name: str) -> None:
    (readers, count), by_rank = WHOLE[name], readings[name]
    steps = by_rank[0]["steps_per_epoch"]
    assert {of_rank["steps_per_epoch"] for of_rank in by_rank} == {ceil(ceil(count / readers) / 4)}
    for epoch in epochs(by_rank, steps):
        assert {*epoch} == {*range(count)} - {4}
    skips = sum(of_rank["input"]["skips"] for of_rank in by_rank)
    assert sum(map(sum, (epoch.values() for epoch in epochs(by_rank, steps)))) + skips == (
        2 * ceil(count / readers) * readers
    )
    assert by_rank[0]["batches"][:steps] != by_rank[0]["batches"][steps:], "the epochs have one order"
    assert all(label == number % 3 for of_rank in by_rank for batch in of_rank["batches"] for number, label in batch)
    for at in range(2):
        evaluated = [pair for of_rank in by_rank for batch in of_rank["evaluations"][at] for pair in batch]
        assert sorted(evaluated) == [[number, number % 3] for number in range(1000, 1009)]
    facts = by_rank[0]["input"]
    assert (facts["images"], facts["files"], facts["evaluation_images"]) == (count, ceil(count / 5), 9)
    skipped = {name: reason for of_rank in by_rank for name, reason in of_rank["input"]["skipped"].items()}
    assert len(skipped) == 1 and all(name.startswith("train-0000") and " record " in name for name in skipped)


def test_figures_of_a_batch_that_threads_share_are_in_order(readings: dict[str, ByRank]) -> None:
    for of_rank in readings["figures"]:
        figures = np.array(of_rank["figures"]).reshape(-1, len(INPUT_FIGURES))[:3]
        requested, received, begun, done, reading, decoding, processor = figures.T
        assert (begun < done).all() and (done <= received).all() and (requested <= received).all()
        assert (reading > 0).all() and (decoding > 0).all() and (processor > 0).all()


def test_tensorflows_decoder_makes_rgb_of_odd_images_and_names_broken_ones(readings: dict[str, ByRank]) -> None:
    (of_rank,) = readings["odd"]
    numbers = sorted(number for batch in of_rank["batches"] for number, _ in batch)
    colours = sorted((number % 256, number // 256) for number in numbers)
    assert np.abs(np.array(colours) - [(0, 51), (0x12, 0x12), (99, 99), (200, 40)]).max() <= 2
    skipped = of_rank["input"]["skipped"]
    assert {*skipped} == {"a/cut.jpg", "a/unknown.tiff"} and of_rank["input"]["skips"] == 2
    assert "JPEG" in skipped["a/cut.jpg"] and "Unknown image file format" in skipped["a/unknown.tiff"]
    assert "function_node" not in skipped["a/cut.jpg"] and "[Op" not in skipped["a/cut.jpg"]


def perceptron(folder: Path, backend: str, kind: str, **changes: Any) -> Any:
    if missing := missing_modules(backend):
        pytest.skip("; ".join(missing))
    usual = {"backend": backend, "workload": "mlp", "data": f"{kind}:{folder}", "options": {"image_size": "8"}}
    return run_on(folder, **{**usual, **changes})


@pytest.mark.parametrize(
    ("backend", "kind", "timing"),
    [
        pytest.param("tensorflow-multiworker", "imagefolder", "step", marks=pytest.mark.all),
        ("tensorflow-horovod", "tfrecord", "phases"),
    ],
)
def test_a_run_trains_on_files(ranks: Ranks, tmp_path: Path, backend: str, kind: str, timing: str) -> None:
    folder = numbered(tmp_path / "set", 15)
    (folder / "train/class1/0004.png").write_bytes(b"no image")
    run = perceptron(as_records(ranks, folder) if kind == "tfrecord" else folder, backend, kind, timing=timing)
    attempt = Attempt(ranks, tmp_path, run)
    assert attempt.done.returncode == 0, attempt.done.stderr
    trace = attempt.trace()
    # 12 steps of 2 on 2 ranks are three epochs of 16 samples, one of which is a repeated one, at least one corrupt.
    skips = sum(report.input["skips"] for report in trace.reports)
    assert trace.outcome is Outcome.OK and trace.samples.sum() + skips == 3 * 16 and skips in range(3, 7)
    assert "could not be decoded, skipped: " in trace.evidence
    assert trace.input is not None and (trace.input != ABSENT).all()
    assert (reading := reduce_input(trace)) is not None and reading.threads and reading.workers == 1


@pytest.mark.all
def test_a_label_beyond_the_classes_ends_the_run(ranks: Ranks, tmp_path: Path) -> None:
    folder = as_records(ranks, numbered(tmp_path / "set", 16, classes=11))
    attempt = Attempt(ranks, tmp_path, perceptron(folder, "tensorflow-multiworker", "tfrecord"), check=False)
    assert attempt.done.returncode == 1, attempt.done.stderr
    assert any("has the label 11; labels are from 1 to 10" in note.message for note in attempt.notes())
