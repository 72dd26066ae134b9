"""The check of the images: every defect of an image set is named with path and node, and ends the run."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

from hpc.model.findings import CheckFinding, State
from hpc.model.options import DataSource
from hpc.preflight import facts
from hpc.preflight.facts import images_seen
from hpc.preflight.types import ImagesSeen
from hpc.workloads import image_sets
from hpc.workloads.image_sets import list_images
from tests.unit.preflight_facts import RUN, findings, seen


def run_on(path: Path | str):
    return dataclasses.replace(RUN, data=f"imagefolder:{path}")


def put(folder: Path, split: str = "train", **images_by_class: int) -> Path:
    for name, count in images_by_class.items():
        (folder / split / name).mkdir(parents=True)
        for number in range(count):
            (folder / split / name / f"{number}.jpg").touch()
    list_images.cache_clear()
    return folder


def judged(*folders: Path, **changes: int) -> CheckFinding:
    """The finding of four ranks on two nodes, the second of which sees the last of the folders."""
    of_ranks = {
        number: {"images": images_seen(dataclasses.replace(run_on(folders[(number // 2) % len(folders)]), **changes))}
        for number in range(4)
    }
    return findings(seen(of_ranks, run=dataclasses.replace(run_on("/data/set"), **changes)))["images"]


def whole(folder: Path, **held_out_by_class: int) -> Path:
    """A set of 192 training images: 12 steps of four ranks, which is all that the run measures."""
    put(folder, cat=100, dog=92)
    return put(folder, "val", **held_out_by_class)


def test_one_whole_set_is_ok(tmp_path):
    result = judged(put(tmp_path, cat=20, dog=20))
    assert (result.state, result.text) == (State.OK, "40 images in 2 classes, the same on all ranks")


def test_a_run_on_synthetic_data_reads_nothing():
    run = dataclasses.replace(RUN, data="synthetic")
    assert images_seen(run) is None
    assert "images" not in findings(seen(run=run))


def test_a_node_that_finds_other_images_is_named(tmp_path):
    result = judged(put(tmp_path / "a", cat=20, dog=20), put(tmp_path / "b", cat=20, dog=20, zebra=1))
    assert result.fatal and result.state is State.FAILED
    assert result.text == (
        "not all ranks find the same images in /data/set: node1 finds 41 in 3 classes, node0 40 in 2"
    )
    result = judged(tmp_path / "a", put(tmp_path / "c", cat=20, zebra=20))
    assert result.fatal and result.text.endswith("node1 finds 40 in 2 classes, node0 40 in 2")


def test_a_path_without_images_is_named_with_its_node(tmp_path):
    result = judged(put(tmp_path / "a", cat=40), tmp_path / "nowhere")
    assert result.fatal and result.text == (
        f"rank 2-3 on node1: {tmp_path}/nowhere/train is no folder; class folders of training images belong there "
        "(train/CLASS/*.jpg)"
    )


def test_fewer_images_than_a_step_takes_are_refused(tmp_path):
    result = judged(put(tmp_path / "few", cat=3))  # fewer than the four ranks
    assert result.fatal and "3 training images; a step takes 16, 4 for each of 4 devices" in result.text
    assert "--batch-size" in result.fix
    assert judged(put(tmp_path / "enough", cat=16)).state is State.OK


def test_more_classes_than_the_workload_has_are_refused(tmp_path):
    result = judged(put(tmp_path, **{f"c{number}": 1 for number in range(1001)}))
    assert result.fatal and "1001 classes; resnet50 has 1000 at most" in result.text


def test_a_node_without_pillow_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(facts, "find_spec", lambda name: None)
    assert "Pillow" in judged(put(tmp_path, cat=40)).text


def test_a_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    def denied(source: DataSource, split: str) -> None:
        raise PermissionError(13, "Permission denied", f"{source.path}/{split}")

    monkeypatch.setattr(image_sets, "list_source", denied)
    assert images_seen(run_on("/data")) == ImagesSeen(problem="/data/train cannot be read (Permission denied)")


# --- a whole training ---


def test_the_held_out_images_of_a_whole_training_are_compared(tmp_path):
    result = judged(whole(tmp_path / "a", cat=3, dog=2), epochs=2)
    assert (result.state, result.text) == (
        State.OK, "192 images in 2 classes, 5 to evaluate on, the same on all ranks",
    )  # fmt: skip
    result = judged(tmp_path / "a", whole(tmp_path / "b", cat=3), epochs=2)
    assert result.fatal and result.text == (
        "not all ranks find the same held-out images in /data/set: node1 finds 3 in 2 classes, node0 5 in 2"
    )
    assert judged(tmp_path / "a", tmp_path / "b").state is State.OK, "nothing is evaluated without epochs"


def test_a_set_without_held_out_images_is_refused_for_a_whole_training(tmp_path):
    folder = put(tmp_path, cat=192)
    assert judged(folder).state is State.OK
    result = judged(folder, epochs=1)
    assert result.fatal and "rank 0-1 on node0" in result.text
    assert f"{folder}/val is no folder; class folders of held-out images belong there (val/CLASS/*.jpg)" in result.text


def test_a_held_out_class_that_is_not_trained_is_refused(tmp_path):
    result = judged(whole(tmp_path, cat=1, zebra=2), epochs=1)
    assert result.fatal and f"{tmp_path}/val has class folders that {tmp_path}/train has not: zebra" in result.text


def test_measured_steps_that_go_beyond_an_epoch_are_refused(tmp_path):
    folder = whole(tmp_path, cat=1)
    assert judged(folder, epochs=1).state is State.OK
    result = judged(folder, epochs=1, measured_steps=7)
    assert result.fatal and result.text == (
        "the measured steps must be in one epoch: with the warm-up the run has 13 steps, and an epoch of the 192 "
        "images in /data/set has 12, 16 a step"
    )
    assert result.fix == "take --steps 12 or fewer, a smaller --batch-size, or more images"
    assert judged(folder, measured_steps=7).state is State.OK


def test_a_node_that_finds_fewer_files_of_records_is_named(tmp_path):
    for name, files in (("a", 2), ("b", 1)):
        for number in range(files):
            path = tmp_path / name / "tfrecord" / f"train-{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((struct.pack("<Q", 1) + b"crc1x" + b"crc2") * 20)
    runs = [dataclasses.replace(RUN, data=f"tfrecord:{tmp_path / name}") for name in ("a", "b")]
    of_ranks = {number: {"images": images_seen(runs[number // 2])} for number in range(4)}
    result = findings(seen(of_ranks, run=dataclasses.replace(RUN, data="tfrecord:/data/set")))["images"]
    assert result.fatal and result.state is State.FAILED
    assert result.text.endswith("node1 finds 20 in 1 file, node0 40 in 2")


def test_a_node_without_dali_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(facts, "find_spec", lambda name: name if name == "PIL" else None)
    problem = images_seen(dataclasses.replace(RUN, data=f"dali:{tmp_path}")).problem
    assert problem.startswith("nvidia.dali, which reads dali, is not installed: pip install -e")
