"""Runs that read images from files: which samples each rank gets, and what becomes of bad ones."""

from __future__ import annotations

import json
from collections import Counter
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hpc.backends import missing_modules
from hpc.model.options import INPUT_FIGURES
from hpc.model.outcome import Outcome
from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN
from parse.ledger.input import reduce_input
from parse.runs.attempt import measure
from tests.mpi.attempts import HERE, Attempt, Ranks, spec
from tests.mpi.conftest import Ranks as StartedRanks
from tests.mpi.conftest import further

READER = HERE / "image_reader.py"
CORRUPT = f"val/class{1004 % 3}/1004.png"


def numbered(folder: Path, count: int, classes: int = 3, held_out: int = 0) -> Path:
    """Images of one colour each, which is their number; the held-out ones count from 1000."""
    numbers = {"train": range(count), "val": range(1000, 1000 + held_out)}
    for split, number in ((split, number) for split, of_split in numbers.items() for number in of_split):
        path = folder / split / f"class{number % classes}" / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 10), (number % 256, number // 256, 0)).save(path)
    return folder


Request = dict[str, Any]
ByRank = list[dict[str, Any]]


def request(
    folder: Path, *, steps: int = 0, workers: int = 2, seed: int = 0, framework: str = "torch", readers: int = 3,
    epochs: int = 0, kind: str = "imagefolder", **options: str,
) -> Request:  # fmt: skip
    """What so many readers are to read of a folder in so many steps; 0: in an epoch."""
    return {
        "framework": framework, "data": f"{kind}:{folder}", "seed": seed, "steps": steps, "ranks": readers,
        "epochs": epochs, "options": {"workers": str(workers), **options},
    }  # fmt: skip


def read_all(ranks: StartedRanks, requests: dict[str, Request]) -> dict[str, ByRank]:
    """What each of the readers got, by the name of the request. One process makes all; they are of one framework."""
    done = ranks(1, READER, json.dumps([*requests.values()]))
    return dict(zip(requests, map(json.loads, done.stdout.splitlines()[-len(requests) :]), strict=True))


def read(ranks: StartedRanks, folder: Path, **how: Any) -> ByRank:
    return read_all(ranks, {"only": request(folder, **how)})["only"]


def epochs(by_rank: list[dict[str, Any]], steps: int) -> list[Counter[int]]:
    """How often each image was read in each epoch, which takes so many steps."""
    total = len(by_rank[0]["batches"]) // steps
    return [
        Counter(
            number for of_rank in by_rank for batch in of_rank["batches"][at * steps : (at + 1) * steps]
            for number, _ in batch
        )
        for at in range(total)
    ]  # fmt: skip


BACKENDS = {"torch": "torch-ddp", "paddle": "paddle-fleet", "tensorflow": "tensorflow-multiworker"}


WHOLE = {"1 by 10": (1, 10), "2 by 11": (2, 11), "4 by 13": (4, 13)}
"""Whole trainings: readers, and images."""
_readings: dict[str, dict[str, ByRank]] = {}


def readings(ranks: StartedRanks, make: pytest.TempPathFactory, framework: str) -> dict[str, ByRank]:
    """What readers of a framework got of every set of images here. One start makes all."""
    if missing := missing_modules(BACKENDS[framework]):
        pytest.skip("; ".join(missing))
    if framework not in _readings:
        thirty, few = numbered(make.mktemp("thirty"), 30), numbered(make.mktemp("few"), 12, held_out=2)
        next((few / "val").rglob("1000.png")).write_bytes(b"no image")
        whole = {name: numbered(make.mktemp("whole"), count, held_out=9) for name, (_, count) in WHOLE.items()}
        for folder in whole.values():
            (folder / CORRUPT).write_bytes(b"no image")
        requests = {
            **{f"{workers} workers": request(thirty, steps=6, workers=workers) for workers in (0, 2)},
            "28 images": request(numbered(make.mktemp("more"), 28), steps=3),
            **{
                f"seed {seed}, {workers} workers": request(thirty, steps=3, seed=seed, workers=workers)
                for seed, workers in ((1, 1), (1, 3), (2, 1))
            },
            **{name: request(at, readers=WHOLE[name][0], epochs=2, workers=1) for name, at in whole.items()},
            "few held out": request(few, epochs=1, workers=1),
        }
        _readings[framework] = read_all(
            ranks, {name: {**request, "framework": framework} for name, request in requests.items()}
        )
    return _readings[framework]


@pytest.fixture(params=["torch", "tensorflow", *further("paddle")])
def by_request(
    request: pytest.FixtureRequest, ranks: StartedRanks, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, ByRank]:
    return readings(ranks, tmp_path_factory, request.param)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_image_is_read_once_per_epoch_in_another_order(by_request: dict[str, ByRank], workers: int) -> None:
    # 3 ranks × (4 + 4 + 2) images
    by_rank = by_request[f"{workers} workers"]
    assert [len(batch) for batch in by_rank[0]["batches"]] == [4, 4, 2] * 2
    assert epochs(by_rank, 3) == [Counter(range(30))] * 2
    first, second = ([of_rank["batches"][at] for of_rank in by_rank] for at in (0, 3))
    assert first != second, "the epochs have one order"
    for of_rank in by_rank:
        assert all(label == number % 3 for batch in of_rank["batches"] for number, label in batch)
    facts = by_rank[0]["input"]
    assert (facts["samples_per_epoch"], facts["repeated_samples_per_epoch"], facts["last_batch_samples"]) == (10, 0, 2)
    assert (facts["workers"], facts["skips"]) == (workers, 0)


def test_what_does_not_divide_by_the_ranks_is_repeated_and_named(by_request: dict[str, ByRank]) -> None:
    by_rank = by_request["28 images"]
    (epoch,) = epochs(by_rank, 3)
    assert set(epoch) == {*range(28)} and sum(epoch.values()) == 30 and max(epoch.values()) == 2
    assert by_rank[0]["input"]["repeated_samples_per_epoch"] == 2


def test_the_order_comes_from_the_seed(by_request: dict[str, ByRank]) -> None:
    first, repeated, other = (
        by_request[f"seed {seed}, {workers} workers"] for seed, workers in ((1, 1), (1, 3), (2, 1))
    )
    assert [each["batches"] for each in first] == [each["batches"] for each in repeated]
    assert [each["batches"] for each in first] != [each["batches"] for each in other]


def test_figures_of_a_batch_are_in_order(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> None:
    for of_rank in readings(ranks, tmp_path_factory, "torch")["2 workers"]:
        figures = np.array(of_rank["figures"]).reshape(-1, len(INPUT_FIGURES))[:6]
        requested, received, begun, done, reading, decoding, processor = figures.T
        assert (begun < done).all() and (done <= received).all() and (requested <= received).all()
        assert (reading + decoding == done - begun).all() and (reading > 0).all() and (processor > 0).all()


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_training_reads_each_image_once_per_epoch_and_evaluates_on_each_once(
    by_request: dict[str, ByRank], name: str
) -> None:
    (readers, count), by_rank = WHOLE[name], by_request[name]
    steps = by_rank[0]["steps_per_epoch"]
    assert {of_rank["steps_per_epoch"] for of_rank in by_rank} == {ceil(ceil(count / readers) / 4)}
    for epoch in epochs(by_rank, steps):
        assert {*epoch} == {*range(count)} and sum(epoch.values()) == ceil(count / readers) * readers
    assert by_rank[0]["batches"][:steps] != by_rank[0]["batches"][steps:], "the epochs have one order"
    for at in range(2):
        shares = [[pair for batch in of_rank["evaluations"][at] for pair in batch] for of_rank in by_rank]
        assert sorted(pair for share in shares for pair in share) == [
            [number, number % 3] for number in range(1000, 1009) if number != 1004
        ]
        assert max(map(len, shares)) - min(map(len, shares)) <= 2
    inputs = [of_rank["input"] for of_rank in by_rank]
    assert sum(each["skips"] for each in inputs) == 2
    assert [name for each in inputs for name in each["skipped"]] == [CORRUPT]
    assert {each["evaluation_images"] for each in inputs} == {9}


def test_ranks_without_held_out_images_evaluate_nothing(by_request: dict[str, ByRank]) -> None:
    by_rank = by_request["few held out"]
    assert [of_rank["evaluations"] for of_rank in by_rank] == [[[]], [[[[1001, 1001 % 3]]]], [[]]]
    assert [of_rank["input"]["skips"] for of_rank in by_rank] == [1, 0, 0]


def run_on(folder: Path, **changes: Any) -> Any:
    options = {"image_size": "8", "workers": "1", **changes.pop("options", {})}
    usual = {"backend": "torch-ddp", "workload": "mlp", "batch_size": 2, "data": f"imagefolder:{folder}"}
    return spec(**{**usual, "options": options, **changes})


@pytest.mark.parametrize("backend", ["torch-ddp", *further("paddle-fleet", "tensorflow-horovod")])
def test_a_run_skips_what_it_cannot_decode_and_names_it(ranks: Ranks, tmp_path: Path, backend: str) -> None:
    if missing := missing_modules(backend):
        pytest.skip("; ".join(missing))
    folder = numbered(tmp_path / "set", 16)
    corrupt = folder / "train/class1/0004.png"
    corrupt.write_bytes(corrupt.read_bytes()[:40])
    attempt = Attempt(ranks, tmp_path, run_on(folder, backend=backend))
    assert attempt.done.returncode == 0, attempt.done.stderr
    trace = attempt.trace()
    # 12 steps of 2 on 2 ranks are three epochs of 16 images, one of which is corrupt.
    assert trace.outcome is Outcome.OK and trace.samples.sum() == 3 * 15
    assert trace.evidence.startswith("3 images in batches could not be decoded, skipped: class1/0004.png (")
    inputs = [report.input for report in trace.reports]
    assert sum(each["skips"] for each in inputs) == 3
    assert {name for each in inputs for name in each["skipped"]} == {"class1/0004.png"}
    assert measure(trace).samples == trace.samples[:, trace.blocks[0, 0] : trace.blocks[0, 1]].sum()
    assert trace.input is not None and list(trace.input_names) == [*INPUT_FIGURES]
    waited_ns = trace.input[:, :, 1] - trace.input[:, :, 0]
    data_ns = trace.stamps[:, :, BATCH_READY] - trace.stamps[:, :, BEGIN]
    assert (waited_ns <= data_ns).all() and (waited_ns > 0).all()


def test_a_cached_run_reads_one_batch(ranks: Ranks, tmp_path: Path) -> None:
    attempt = Attempt(ranks, tmp_path, run_on(numbered(tmp_path / "set", 9), data_cache="device"))
    assert attempt.done.returncode == 0, attempt.done.stderr
    trace = attempt.trace()
    assert (trace.samples == 2).all(), "the last batch of an epoch has one image"
    assert trace.input is not None and (trace.input == ABSENT).all()
    assert [(each["cache"], each["workers"]) for each in (report.input for report in trace.reports)] == [
        ("device", 0)
    ] * 2
    assert reduce_input(trace) is None


def test_a_set_that_is_not_enough_ends_as_invalid(ranks: Ranks, tmp_path: Path) -> None:
    attempt = Attempt(ranks, tmp_path, run_on(numbered(tmp_path / "set", 3)), check=False)
    assert attempt.done.returncode == 3, attempt.done.stderr
    assert {note.outcome for note in attempt.notes()} == {Outcome.INVALID}
    reason = f"{tmp_path / 'set'} has 3 training images; a step takes 4"
    assert all(reason in note.message for note in attempt.notes())
