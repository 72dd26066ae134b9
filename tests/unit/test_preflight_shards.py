"""The check of the images for tar shards and DALI: what is missing, or differs between nodes, is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hpc.model.findings import Finding, State
from hpc.preflight import facts
from hpc.preflight.facts import images_seen
from hpc.workloads.image_sets import list_shards
from tests.unit.preflight_facts import RUN, findings, seen
from tests.unit.test_tar_shards import put_shard


@pytest.fixture(autouse=True)
def webdataset_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "find_spec", lambda name: name)
    list_shards.cache_clear()


def put(folder: Path, **samples_by_shard: int) -> Path:
    for name, samples in samples_by_shard.items():
        put_shard(folder / f"{name.replace('_', '-')}.tar", samples)
    return folder


def judged(*folders: Path, kind: str = "webdataset", **changes: int) -> Finding:
    """The finding of four ranks on two nodes, the second of which sees the last of the folders."""
    runs = [dataclasses.replace(RUN, data=f"{kind}:{folder}", **changes) for folder in folders]
    of_ranks = {
        number: {"images": images_seen(runs[(number // 2) % len(runs)], first_of_node=number % 2 == 0)}
        for number in range(4)
    }
    return findings(seen(of_ranks, run=dataclasses.replace(RUN, data=f"{kind}:/data/set", **changes)))["images"]


def test_one_whole_set_is_ok(tmp_path: Path) -> None:
    result = judged(put(tmp_path, train_0=20, train_1=20))
    assert (result.state, result.text) == (State.OK, "40 images in 2 files, the same on all ranks")


def test_a_shard_that_only_one_node_sees_is_named(tmp_path: Path) -> None:
    result = judged(put(tmp_path / "a", train_0=20, train_1=20), put(tmp_path / "b", train_0=20))
    assert result.fatal and result.state is State.FAILED
    assert result.text.endswith("node1 finds 20 in 1 file, node0 40 in 2, file train-1.tar on node0 only")


def test_a_shard_of_another_length_is_named(tmp_path: Path) -> None:
    result = judged(put(tmp_path / "a", train_0=20, train_1=20), put(tmp_path / "b", train_0=20, train_1=19))
    assert result.fatal and result.text.endswith("different numbers of images in file train-1.tar")


def test_a_shard_that_is_cut_off_on_one_node_is_named_with_it(tmp_path: Path) -> None:
    other = put(tmp_path / "b", train_0=20, train_1=20)
    cut = other / "train-1.tar"
    cut.write_bytes(cut.read_bytes()[:5000])
    result = judged(put(tmp_path / "a", train_0=20, train_1=20), other)
    assert result.fatal and result.text.startswith("rank 2-3 on node1: ") and str(cut) in result.text


def test_no_shards_are_named_with_their_node(tmp_path: Path) -> None:
    result = judged(put(tmp_path / "a", train_0=40), tmp_path / "nowhere")
    assert result.fatal
    assert result.text.startswith(f"rank 2-3 on node1: {tmp_path}/nowhere has no tar shard")


def test_held_out_shards_are_needed_by_a_whole_training_only(tmp_path: Path) -> None:
    folder = put(tmp_path, train_0=192)
    assert judged(folder).state is State.OK
    result = judged(folder, epochs=1)
    assert result.fatal and "has no tar shard: neither webdataset/val-*.tar nor val-*.tar" in result.text
    list_shards.cache_clear()
    assert judged(put(folder, val_0=5), epochs=1).state is State.OK


@pytest.mark.parametrize(("kind", "package"), [("webdataset", "webdataset"), ("dali", "nvidia.dali")])
def test_a_node_without_the_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, package: str
) -> None:
    monkeypatch.setattr(facts, "find_spec", lambda name: name if name == "PIL" else None)
    result = judged(tmp_path, kind=kind)
    assert result.fatal and f"{package}, which reads {kind}, is not installed: pip install -e" in result.text
