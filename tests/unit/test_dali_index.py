"""DALI's index files of an image set: what lies at each offset is what the line says."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from hpc.data import image_set
from hpc.data.__main__ import main
from hpc.data.image_set import index_records


def test_every_line_of_a_shards_index_points_at_the_contents_of_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_set, "find_spec", lambda name: None)
    monkeypatch.setattr(image_set, "SHARD_IMAGES", 8)
    folder = tmp_path / "set"
    assert main(["make", "--out", str(folder), "--images", "20", "--classes", "3", "--size", "64"]) == 0
    images = {path.stem: (path.parent.name, path.read_bytes()) for path in (folder / "train").rglob("*.jpg")}
    named = []
    for index in sorted((folder / "webdataset").glob("train-*.idx")):
        first, *lines = index.read_text().splitlines()
        assert first == f"v1.2 {len(lines)}"
        content = index.with_suffix(".tar").read_bytes()
        for line in lines:
            jpg, at, size, name, cls, label_at, label_size, label_name = line.split(" ")
            key = name.removesuffix(".jpg")
            assert (jpg, cls, label_name) == ("jpg", "cls", f"{key}.cls")
            class_name, image = images[key]
            assert content[int(at) : int(at) + int(size)] == image
            assert int(content[int(label_at) : int(label_at) + int(label_size)]) == int(class_name[:3])
            named.append(key)
    assert sorted(named) == sorted(images) and len(named) == 20
    assert json.loads((folder / "manifest.json").read_text())["images"] == 20


def records(*contents: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(each)) + b"crc1" + each + b"crc2" for each in contents)


def test_the_index_of_records_has_the_offset_and_size_of_each_with_its_frame(tmp_path: Path) -> None:
    file, index = tmp_path / "train-00000-of-00001", tmp_path / "index"
    file.write_bytes(records(b"a" * 10, b"", b"b" * 3))
    index_records(file, index)
    assert index.read_text() == "0 26\n26 16\n42 19\n"


@pytest.mark.parametrize("length", [3, 25, 30])
def test_records_that_are_cut_off_are_refused(tmp_path: Path, length: int) -> None:
    file = tmp_path / "train-00000-of-00001"
    file.write_bytes(records(b"a" * 10, b"b" * 3)[:length])
    with pytest.raises(ValueError, match="train-00000-of-00001 is cut off"):
        index_records(file, tmp_path / "index")
