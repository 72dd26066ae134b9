"""Images in TFRecord files: where each record lies, and its bytes."""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.workloads.image_folder import KINDS, NoImages

FOLDER = "tfrecord"
PREFIXES = {"train": ("train-",), "val": ("val-", "validation-")}
"""How the files of a split begin: as `python -m hpc.data` names them, and as those of ImageNet are named."""
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

    @cached_property
    def sha256(self) -> str:
        """The checksum over names and lengths; the records' contents are not in it."""
        names = b"".join(os.fsencode(name) + b"\0" for name in self.files)
        return hashlib.sha256(names + self.places.astype("<i8").tobytes()).hexdigest()

    def facts(self) -> dict[str, Any]:
        return {"images": len(self), "files": len(self.files), "listing_sha256": self.sha256}

    def images_by_group(self) -> dict[str, int]:
        """How many records each file has."""
        counts = np.bincount(self.places[:, 0], minlength=len(self.files)).tolist()
        return dict(zip(self.files, counts, strict=True))

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
