"""The images that a source of data names, whatever their kind."""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hpc.model.options import TFRECORD, DataSource
from hpc.system.text import first_of

# Images in class folders, as torchvision's ImageFolder lists them: every class a folder, sorted by name.

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Those that torchvision's ImageFolder takes for images."""


KINDS = {"train": "training images", "val": "held-out images"}
"""What the folders of a set hold."""


class NoImages(Exception):
    """There is no image set at the path; the text has what is there."""


@dataclass(frozen=True)
class ImageListing:
    """The images of a folder: `names` as CLASS/FILE, each with the number of its class in `labels`.

    `ignored` counts the files in class folders that have no suffix of an image.
    """

    group = "class"

    folder: Path
    classes: tuple[str, ...]
    names: tuple[str, ...]
    labels: tuple[int, ...]
    ignored: int

    def __len__(self) -> int:
        return len(self.names)

    @property
    def groups(self) -> int:
        return len(self.classes)

    @cached_property
    def sha256(self) -> str:
        """The checksum over all names; the files' contents are not in it."""
        digest = hashlib.sha256()
        for name in self.names:
            digest.update(os.fsencode(name) + b"\0")
        return digest.hexdigest()

    def facts(self) -> dict[str, Any]:
        return {
            "images": len(self),
            "classes": len(self.classes),
            "ignored_files": self.ignored,
            "listing_sha256": self.sha256,
        }

    def shown_name(self, number: int) -> str:
        """The name of an image in messages: as in `names`, with its folder where that is not the training images'."""
        return self.names[number] if self.folder.name == "train" else f"{self.folder.name}/{self.names[number]}"


@cache
def list_images(path: str, split: str = "train") -> ImageListing:
    """The images of PATH/train, or those of PATH/val, whose classes are numbered as in PATH/train.

    Raises NoImages where there are none or a class is not in PATH/train, OSError where a folder cannot be read.
    """
    folder = Path(path) / split
    if not folder.is_dir():
        raise NoImages(f"{folder} is no folder; class folders of {KINDS[split]} belong there ({split}/CLASS/*.jpg)")
    folders = tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()))
    if not folders:
        raise NoImages(f"{folder} has no class folder")
    classes = folders if split == "train" else list_images(path).classes
    if unknown := sorted({*folders} - {*classes}):
        raise NoImages(f"{folder} has class folders that {Path(path) / 'train'} has not: {first_of(unknown, 3)}")
    names: list[str] = []
    labels: list[int] = []
    ignored = 0
    for label, name in enumerate(classes):
        if name not in folders:
            continue
        files = _files(folder, name)
        images = [file for file in files if file.lower().endswith(SUFFIXES)]
        if not images:
            raise NoImages(f"the class folder {folder / name} has no image ({', '.join(SUFFIXES)})")
        ignored += len(files) - len(images)
        names += images
        labels += [label] * len(images)
    return ImageListing(folder, classes, tuple(names), tuple(labels), ignored)


def _files(folder: Path, name: str) -> list[str]:
    """All files below a class folder, CLASS/…/FILE, sorted. Raises OSError where a folder cannot be read."""

    def stop(error: OSError) -> None:
        raise error

    below = os.walk(folder / name, onerror=stop, followlinks=True)
    return sorted(os.path.relpath(os.path.join(parent, file), folder) for parent, _, files in below for file in files)  # noqa: PTH118 - a million names


# Images in TFRecord files: where each record is, and its bytes.

FOLDER = "tfrecord"
PREFIXES = {"train": ("train-",), "val": ("val-", "validation-")}
"""How the files of a split begin: as `rankwise data` names them, and as those of ImageNet are named."""
_HEADER, _FOOTER = 12, 4
"""Bytes around the data of a record: its length and that one's checksum before, the data's checksum behind."""


@dataclass(frozen=True)
class RecordListing:
    """The records of all files of a split: `places` [N, 3] has number of the file, offset and bytes of the data."""

    folder: Path
    files: tuple[str, ...]
    places: npt.NDArray[np.int64]

    group = "file"

    def __len__(self) -> int:
        return len(self.places)

    @property
    def groups(self) -> int:
        return len(self.files)

    @cached_property
    def sha256(self) -> str:
        """The checksum over names and lengths; the records' contents are not in it."""
        names = b"".join(os.fsencode(name) + b"\0" for name in self.files)
        return hashlib.sha256(names + self.places.astype("<i8").tobytes()).hexdigest()

    def facts(self) -> dict[str, Any]:
        return {"images": len(self), "files": len(self.files), "listing_sha256": self.sha256}

    def shown_name(self, number: int) -> str:
        """The name of a record in messages: its file and its number there, from 0."""
        file = int(self.places[number, 0])
        return f"{self.files[file]} record {number - int(np.searchsorted(self.places[:, 0], file))}"

    def read(self, number: int) -> bytes:
        """The data of a record. Raises OSError where the file cannot be read or has become shorter."""
        file, offset, length = self.places[number].tolist()
        path = self.folder / self.files[file]
        with path.open("rb", buffering=0) as opened:
            content = os.pread(opened.fileno(), length, offset)
        if len(content) < length:
            raise OSError(f"{path} has become shorter: {self.shown_name(number)} is not whole")
        return content


@cache
def list_records(path: str, split: str = "train") -> RecordListing:
    """The records of the files of a split in PATH/tfrecord, or in PATH where there is no such folder.

    Reads the header of every record. Raises NoImages where there are none or a file is not made of whole records,
    OSError where one cannot be read.
    """
    folder = Path(path) / FOLDER
    folder = folder if folder.is_dir() else Path(path)
    if not folder.is_dir():
        raise NoImages(f"{folder} is no folder; TFRecord files of {KINDS[split]} belong there ({_pattern(split)})")
    entries = (entry.name for entry in os.scandir(folder) if entry.is_file())
    files = tuple(sorted(name for name in entries if name.startswith(PREFIXES[split])))
    if not files:
        raise NoImages(f"{folder} has no TFRecord file of {KINDS[split]} ({_pattern(split)})")
    places = [_places(folder / name, number) for number, name in enumerate(files)]
    joined = np.concatenate(places)
    if not len(joined):
        raise NoImages(f"the TFRecord files {_pattern(split)} in {folder} have no record")
    return RecordListing(folder, files, joined)


def _places(path: Path, number: int) -> npt.NDArray[np.int64]:
    """File number, offset and length of each record of a file."""
    places, at = [], 0
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while at < size:
            header = os.pread(file.fileno(), _HEADER, at)
            length = struct.unpack("<Q", header[:8])[0] if len(header) == _HEADER else size
            if at + _HEADER + length + _FOOTER > size:
                raise NoImages(f"{path} is not made of whole TFRecords: that at byte {at} goes beyond its end")
            places.append((number, at + _HEADER, length))
            at += _HEADER + length + _FOOTER
    return np.array(places, np.int64).reshape(-1, 3)


def _pattern(split: str) -> str:
    return " or ".join(f"{prefix}*" for prefix in PREFIXES[split])


class SplitListing(Protocol):
    """The images of a split. `group` is what they are in: `groups` classes or files."""

    @property
    def group(self) -> str: ...

    @property
    def groups(self) -> int: ...

    @property
    def folder(self) -> Path: ...

    @property
    def sha256(self) -> str: ...

    def __len__(self) -> int: ...

    def facts(self) -> dict[str, Any]:
        """What is recorded of it."""

    def shown_name(self, number: int) -> str:
        """The name of an image in messages."""


def list_source(source: DataSource, split: str = "train") -> SplitListing:
    """The images of a split, `train` or `val`. Raises NoImages, OSError where something cannot be read."""
    if source.kind == TFRECORD:
        return list_records(source.path, split)
    return list_images(source.path, split)
