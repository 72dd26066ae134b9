"""Tar shards as the webdataset package writes them: listed sample by sample, and shared out among readers."""

from __future__ import annotations

import hashlib
import os
import random
import tarfile
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from hpc.system.regular_file import open_regular, read_text
from hpc.workloads.image_folder import NoImages

BLOCK = 512
"""Bytes; headers and contents of a tar begin at multiples of it."""
INDEX_VERSION = "v1.2"
"""First word of an index file of DALI's wds2idx."""


class Component(NamedTuple):
    """A file in a tar: its key and suffix, and where its content lies, in bytes."""

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
