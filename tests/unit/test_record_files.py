"""TFRecord files: where their records lie, and files that are not whole."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from hpc.model.options import DataSource
from hpc.workloads.image_sets import NoImages, list_records, list_source


def framed(*records: bytes) -> bytes:
    """Records as TensorFlow frames them, with checksums of zero, which are not looked at."""
    return b"".join(struct.pack("<QI", len(record), 0) + record + bytes(4) for record in records)


def put(folder: Path, **contents: bytes) -> Path:
    """Files by name, whose underscores stand for dashes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name.replace("_", "-")).write_bytes(content)
    return folder


def test_records_are_known_by_file_and_place(tmp_path: Path) -> None:
    put(tmp_path / "tfrecord", train_1=framed(b"c", b"", b"dddd"), train_0=framed(b"aaa", b"bb"), val_0=framed(b"v"))
    listing = list_records(str(tmp_path))
    assert [listing.read(number) for number in range(len(listing))] == [b"aaa", b"bb", b"c", b"", b"dddd"]
    assert (listing.files, listing.groups) == (("train-0", "train-1"), 2)
    assert [listing.shown_name(number) for number in (0, 1, 2, 4)] == [
        "train-0 record 0", "train-0 record 1", "train-1 record 0", "train-1 record 2",
    ]  # fmt: skip
    assert listing.facts() == {"images": 5, "files": 2, "listing_sha256": listing.sha256}
    assert [list_records(str(tmp_path), "val").read(0)] == [b"v"]


def test_the_files_may_lie_in_the_path_itself_and_be_called_validation(tmp_path: Path) -> None:
    put(tmp_path, train_0=framed(b"a"), validation_0=framed(b"v", b"w"), other=b"?")
    assert len(list_records(str(tmp_path))) == 1 and len(list_records(str(tmp_path), "val")) == 2
    assert list_source(DataSource("tfrecord", str(tmp_path)), "val").group == "file"


def test_the_checksum_changes_with_names_and_lengths(tmp_path: Path) -> None:
    sums = [
        list_records(str(put(tmp_path / str(number), **files))).sha256
        for number, files in enumerate((
            {"train_0": framed(b"aa", b"b")}, {"train_0": framed(b"xx", b"y")}, {"train_0": framed(b"a", b"bb")},
            {"train_1": framed(b"aa", b"b")},
        ))
    ]  # fmt: skip
    assert sums[0] == sums[1] and len({*sums}) == 3


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, r"has no TFRecord file of training images \(train-\*\)"),
        ({"train_0": b""}, r"the TFRecord files train-\* in .* have no record"),
        (
            {"train_0": framed(b"a", b"bbbb")[:-1]},
            "train-0 is not made of whole TFRecords: that at byte 17",
        ),
        ({"train_0": framed(b"a") + b"12345"}, "train-0 is not made of whole TFRecords: that at byte 17"),
        ({"train_0": b"\x1f\x8b" * 30}, "train-0 is not made of whole TFRecords: that at byte 0"),
    ],
    ids=["none", "empty", "cut", "cut header", "compressed"],
)
def test_what_holds_no_whole_records_is_refused(tmp_path: Path, files: dict[str, bytes], reason: str) -> None:
    with pytest.raises(NoImages, match=reason):
        list_records(str(put(tmp_path, **files)))


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoImages, match="nowhere is no folder; TFRecord files of held-out images belong there"):
        list_records(str(tmp_path / "nowhere"), "val")


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, train_0=framed(b"aaaa"))
    listing = list_records(str(tmp_path))
    put(tmp_path, train_0=b"short")
    with pytest.raises(OSError, match="has become shorter: train-0 record 0 is not whole"):
        listing.read(0)
