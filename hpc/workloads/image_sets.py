"""The images that a source of data names, whatever their kind."""

from __future__ import annotations

import hashlib
import os
import random
import struct
import tarfile
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hpc.model.options import DALI, TFRECORD, WEBDATASET, DataSource
from hpc.system.import_guard import install_command
from hpc.system.regular_file import open_regular, read_text
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

    def images_by_group(self) -> dict[str, int]:
        """How many images each class has."""
        counts = Counter(self.labels)
        return {name: counts[label] for label, name in enumerate(self.classes)}


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


# Tar shards as the webdataset package writes them: listed sample by sample, and shared out among readers.

BLOCK = 512
"""Bytes; headers and contents of a tar begin at multiples of it."""
INDEX_VERSION = "v1.2"
"""First word of an index file of DALI's wds2idx."""


class Component(NamedTuple):
    """A file in a tar: its key and suffix, and where its content is, in bytes."""

    key: str
    suffix: str
    offset: int
    size: int


@dataclass(frozen=True)
class Shard:
    """A tar; sample i begins at byte `starts[i]`. `indexed` where this is from an index file beside it."""

    name: str
    size: int
    starts: array[int]
    indexed: bool


class Portion(NamedTuple):
    """Neighbouring samples of a shard: `length` of them from number `first` on."""

    shard: int
    first: int
    length: int


@dataclass(frozen=True)
class ShardListing:
    """All shards of a split, by name."""

    group = "file"

    folder: Path
    shards: tuple[Shard, ...]

    def __len__(self) -> int:
        return sum(self.counts)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The samples of each shard."""
        return tuple(len(shard.starts) for shard in self.shards)

    @cached_property
    def sha256(self) -> str:
        """The checksum over the shards' names, sizes and where their samples begin; contents are not in it."""
        digest = hashlib.sha256()
        for shard in self.shards:
            digest.update(os.fsencode(shard.name) + f"\0{shard.size}\0".encode() + shard.starts.tobytes())
        return digest.hexdigest()

    def images_by_group(self) -> dict[str, int]:
        """How many samples each shard has."""
        return {shard.name: len(shard.starts) for shard in self.shards}

    def shown_name(self, number: int) -> str:
        """The name of a sample in messages: its shard and its number there, from 0."""
        shard = bisect_right([*accumulate(self.counts)], number)
        return f"{self.shards[shard].name} sample {number - sum(self.counts[:shard])}"

    def facts(self) -> dict[str, Any]:
        """What is recorded of it."""
        return {
            "images": len(self),
            "shards": len(self.shards),
            "shards_with_index": sum(shard.indexed for shard in self.shards),
            "listing_sha256": self.sha256,
        }


@cache
def list_shards(path: str, split: str = "train") -> ShardListing:
    """The shards PATH/webdataset/SPLIT-*.tar, else PATH/SPLIT-*.tar.

    Raises NoImages where there are none or one is no whole tar, OSError where one cannot be read.
    """
    folders = (Path(path) / "webdataset", Path(path))
    for folder in folders:
        if files := sorted(folder.glob(f"{split}-*.tar")):
            return ShardListing(folder, tuple(map(_shard, files)))
    raise NoImages(f"{path} has no tar shard: neither webdataset/{split}-*.tar nor {split}-*.tar")


def _shard(path: Path) -> Shard:
    index, size = path.with_suffix(".idx"), path.stat().st_size
    indexed = index.exists()
    components = read_index(index) if indexed else list(read_headers(path))
    if not components:
        raise NoImages(f"the shard {path} has no sample")
    by_start: list[tuple[str, int]] = []
    end = 0
    for component in components:
        if component.offset < end:
            raise NoImages(f"{index} is no index of {path}: its offsets do not rise; write it again")
        if not by_start or by_start[-1][0] != component.key:
            by_start.append((component.key, end))
        end = -(-(component.offset + component.size) // BLOCK) * BLOCK
    with open_regular(path) as file:
        file.seek(end)
        after = file.read(BLOCK)
    if len(after) < BLOCK:  # every tar ends with blocks of zeros
        raise NoImages(f"the shard {path} is cut off: {size} bytes, and its last file with the end of a tar needs more")
    if indexed and any(after):
        raise NoImages(f"{index} is no index of {path}, which goes on after the last sample in it; write it again")
    return Shard(path.name, size, array("q", (start for _, start in by_start)), indexed)


def read_headers(path: Path) -> Iterator[Component]:
    """The files of a tar that belong to samples, in their order. Raises NoImages where it is damaged."""
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                key, suffix = split_name(member.name)
                if member.isreg() and key:
                    yield Component(key, suffix, member.offset_data, member.size)
    except tarfile.TarError as error:
        raise NoImages(f"the shard {path} is damaged or cut off: {error}") from error


def split_name(name: str) -> tuple[str, str]:
    """Key and suffix, which begins at the first dot of the file's name; both empty for what is in no sample."""
    folder, slash, file = name.rpartition("/")
    stem, dot, suffix = file.partition(".")
    if not (stem and dot) or name.startswith("__"):
        return "", ""
    return folder + slash + stem, suffix.lower()


MAX_INDEX_BYTES = 1 << 30
"""Of the index of a shard: about ten million files."""


def read_index(path: Path) -> list[Component]:
    """The components in an index file of DALI's wds2idx, a sample to a line: suffix, offset, size, name of each.

    Raises NoImages where it is none.
    """
    lines = read_text(path, MAX_INDEX_BYTES).splitlines()
    try:
        version, count = lines[0].split()
        if version != INDEX_VERSION or int(count) != len(lines) - 1:
            raise ValueError(f"it begins {lines[0]!r} and has {len(lines) - 1} samples")
        return [component for line in lines[1:] for component in _components(line)]
    except (ValueError, IndexError) as error:
        raise NoImages(f"{path} is no index of {INDEX_VERSION} as DALI's wds2idx writes it ({error})") from error


def _components(line: str) -> Iterator[Component]:
    words = line.split(" ")
    if len(words) % 4:
        raise ValueError(f"a line has {len(words)} words: {line[:80]!r}")
    for suffix, offset, size, name in zip(*(words[at::4] for at in range(4)), strict=True):
        yield Component(name.removesuffix(f".{suffix}"), suffix.lower(), int(offset), int(size))


def index_text(components: Sequence[Component]) -> str:
    """The text of an index file, in the form of DALI's wds2idx."""
    by_sample: list[tuple[str, list[str]]] = []
    for key, suffix, offset, size in components:
        if not by_sample or by_sample[-1][0] != key:
            by_sample.append((key, []))
        by_sample[-1][1].append(f"{suffix} {offset} {size} {key}.{suffix}")
    lines = [f"{INDEX_VERSION} {len(by_sample)}", *(" ".join(each) for _, each in by_sample)]
    return "\n".join(lines) + "\n"


def samples_per_rank(samples: int, ranks: int) -> int:
    """The samples that each rank reads in an epoch: so many that all are read, and equally many on all ranks."""
    return -(-samples // ranks)


def portions_of_rank(counts: Sequence[int], *, ranks: int, rank: int, order: Sequence[int]) -> list[Portion]:
    """What a rank reads of shards with so many samples each, put one after the other in the given order.

    Every rank takes neighbouring samples, `samples_per_rank` of them; at the end of the last shard the last rank goes
    on with the first. So every sample is read once, but for the first few that are repeated where they do not divide by
    the ranks; a shard at a border is read by both sides, each its part.
    """
    share = samples_per_rank(sum(counts), ranks)
    portions = [Portion(shard, 0, counts[shard]) for shard in order]
    return cut([*portions, *portions], rank * share, share)


def portions_to_evaluate(counts: Sequence[int], *, ranks: int, rank: int) -> list[Portion]:
    """The rank's share of the held-out samples: neighbouring ones, each one rank's, one more on some ranks."""
    first, stop = (sum(counts) * each // ranks for each in (rank, rank + 1))
    return cut([Portion(shard, 0, count) for shard, count in enumerate(counts)], first, stop - first)


def cut(portions: Sequence[Portion], first: int, count: int) -> list[Portion]:
    """`count` samples of the portions, from number `first` on."""
    taken, at, stop = [], 0, first + count
    for shard, begin, length in portions:
        low, high = max(first, at), min(stop, at + length)
        if low < high:
            taken.append(Portion(shard, begin + low - at, high - low))
        at += length
    return taken


def portions_of_worker(portions: Sequence[Portion], *, batch_size: int, workers: int, worker: int) -> list[Portion]:
    """What a worker of the rank reads, so that batch b of the rank is made by worker b modulo workers.

    That is the order in which DataLoader takes batches from its workers; only the epoch's last batch is smaller.
    """
    samples = sum(portion.length for portion in portions)
    of_workers = [0] * workers
    for batch, at in enumerate(range(0, samples, batch_size)):
        of_workers[batch % workers] += min(batch_size, samples - at)
    return cut(portions, sum(of_workers[:worker]), of_workers[worker])


def shard_order(shards: int, seed: int, epoch: int) -> list[int]:
    """The shards of a training epoch in an order that comes from seed and epoch, the same on all ranks."""
    order = list(range(shards))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order


PACKAGES = {
    WEBDATASET: ("webdataset", install_command("data")),
    DALI: ("nvidia.dali", install_command("dali")),
}
"""By kind, the package that reads it besides the framework's own, and what installs it."""


class SplitListing(Protocol):
    """The images of a split. `group` is what they are counted by: class or file."""

    @property
    def group(self) -> str: ...

    @property
    def folder(self) -> Path: ...

    @property
    def sha256(self) -> str: ...

    def __len__(self) -> int: ...

    def facts(self) -> dict[str, Any]:
        """What is recorded of it."""

    def images_by_group(self) -> dict[str, int]: ...

    def shown_name(self, number: int) -> str:
        """The name of an image in messages."""


def list_source(source: DataSource, split: str = "train") -> SplitListing:
    """The images of a split, `train` or `val`. Raises NoImages, OSError where something cannot be read."""
    if source.kind == TFRECORD:
        return list_records(source.path, split)
    return list_shards(source.path, split) if source.kind == WEBDATASET else list_images(source.path, split)
