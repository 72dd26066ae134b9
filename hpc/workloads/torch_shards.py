"""Images in tar shards, read by the webdataset package within torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import version
from itertools import islice
from random import Random
from tarfile import TarError
from typing import Any

import torch
import webdataset as wds
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from webdataset.tariterators import group_by_keys, tar_file_expander

from hpc.model.options import DataSource, is_augmented, workers_of
from hpc.model.spec import RunSpec
from hpc.workloads import WORKLOADS
from hpc.workloads.image_batches import DECODER, BatchMaker, Encoded
from hpc.workloads.image_reader import Batch, ImageReader, input_facts, workers_to_start
from hpc.workloads.image_sets import (
    SUFFIXES,
    Portion,
    ShardListing,
    list_shards,
    portions_of_rank,
    portions_of_worker,
    portions_to_evaluate,
    shard_order,
)
from hpc.workloads.torch_images import as_it_is, normalised, on_device

SHUFFLED = 1000
"""Samples in the buffer of each worker from which the next one is drawn, as in the package's own examples."""
LABEL = "cls"


def shard_reader(run: RunSpec, source: DataSource, size: int, device: torch.device, rank: int) -> ImageReader:
    """The images of a rank, read by webdataset."""
    loaders = _ShardLoaders(run, source, size, device, rank)
    package = {"loader": f"webdataset {version('webdataset')}", "shuffled_samples_per_worker": SHUFFLED}
    prefetched = loaders.workers * loaders.ahead
    facts = input_facts(run, source, list_shards(source.path), DECODER, workers=loaders.workers, prefetched=prefetched)
    return ImageReader(run, source, facts | package, loaders)


class _ShardLoaders:
    """A DataLoader for training, and one for evaluation, each with workers of its own."""

    def __init__(self, run: RunSpec, source: DataSource, size: int, device: torch.device, rank: int) -> None:
        self._run, self._source, self._size, self._device, self._rank = run, source, size, device, rank
        self.workers = workers_to_start(run)
        self._listing = list_shards(source.path, "train")
        maker = BatchMaker(size, normalised, augmented=is_augmented(run))
        self._shards = _Shards(self._listing, partial(_to_train, self._listing, run, rank), maker, run, rank)
        self._training = self._loader(self._shards, self.workers)
        self._evaluation: DataLoader[Any] | None = None

    @property
    def ahead(self) -> int:
        """Batches that each worker is ahead."""
        return self._training.prefetch_factor or 0

    def epoch(self, epoch: int) -> Iterator[Batch]:
        self._shards.begin_epoch(epoch)
        return iter(self._training)

    def evaluation(self) -> Iterator[Batch]:
        if self._evaluation is None:
            listing, run, rank = list_shards(self._source.path, "val"), self._run, self._rank
            maker = BatchMaker(self._size, normalised, augmented=False)
            shards = _Shards(listing, partial(_to_evaluate, listing, run, rank), maker, run, rank, shuffled=False)
            self._evaluation = self._loader(shards, workers_of(run))
        return iter(self._evaluation)

    def on_device(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return on_device(batch, self._device)

    def _loader(self, shards: _Shards, workers: int) -> DataLoader[Any]:
        return DataLoader(
            shards,
            batch_size=None,  # batches are made whole, in the workers
            num_workers=workers,
            collate_fn=as_it_is,
            pin_memory=self._device.type == "cuda",
            persistent_workers=workers > 0,
        )


class _Shards(IterableDataset[Batch]):
    """A rank's batches of an epoch, each worker's own: its samples in tar order, drawn from a buffer in training."""

    def __init__(
        self,
        listing: ShardListing,
        portions: Callable[[int], list[Portion]],
        maker: BatchMaker,
        run: RunSpec,
        rank: int,
        *,
        shuffled: bool = True,
    ) -> None:
        self._listing, self._portions, self._maker, self._rank = listing, portions, maker, rank
        self._batch_size, self._seed, self._shuffled = run.rank_batch_size, run.seed, shuffled
        self._max_classes = WORKLOADS[run.workload].max_classes
        self._epoch = torch.zeros(1, dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # torch does not annotate it

    def begin_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch, also in workers that were started before."""
        self._epoch[0] = epoch

    def __iter__(self) -> Iterator[Batch]:
        epoch, info = int(self._epoch), get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        portions = portions_of_worker(
            self._portions(epoch), batch_size=self._batch_size, workers=workers, worker=worker
        )  # fmt: skip
        draw = Random(f"{self._seed} {epoch} {self._rank} {worker}")
        return iter(
            wds.DataPipeline(
                partial(_samples, self._listing, portions),
                wds.shuffle(SHUFFLED, rng=draw) if self._shuffled else None,
                partial(self._encoded, epoch),
                self._batches,
            )
        )

    def _encoded(self, epoch: int, samples: Iterable[dict[str, Any]]) -> Iterator[Encoded]:
        """The image and the class of each sample. Raises ValueError where one lacks either."""
        for sample in samples:
            name = f"{sample['__url__'].rpartition('/')[2]}/{sample['__key__']}"
            suffix = next((suffix for suffix in sample if f".{suffix}" in SUFFIXES), "")
            if not suffix or LABEL not in sample:
                keys = ", ".join(key for key in sample if not key.startswith("__"))
                raise ValueError(f"sample {name} in {self._listing.folder} has no image or no {LABEL}: {keys}")
            label = sample[LABEL].decode(errors="replace").strip()
            if not label.isdecimal() or int(label) >= self._max_classes:
                raise ValueError(
                    f"sample {name} in {self._listing.folder} is of class {label[:40]!r}; classes are numbers below "
                    f"{self._max_classes}"
                )
            yield Encoded(f"{name}.{suffix}", sample[suffix], int(label), f"{self._seed} {epoch} {name}")

    def _batches(self, samples: Iterator[Encoded]) -> Iterator[Batch]:
        while True:
            batch = self._maker.make(islice(samples, self._batch_size))
            if not len(batch.labels) and not batch.skipped:
                return
            yield batch._replace(labels=torch.from_numpy(batch.labels))


def _to_train(listing: ShardListing, run: RunSpec, rank: int, epoch: int) -> list[Portion]:
    order = shard_order(len(listing.shards), run.seed, epoch)
    return portions_of_rank(listing.counts, ranks=run.ranks, rank=rank, order=order)


def _to_evaluate(listing: ShardListing, run: RunSpec, rank: int, _: int) -> list[Portion]:
    return portions_to_evaluate(listing.counts, ranks=run.ranks, rank=rank)


def _samples(listing: ShardListing, portions: Iterable[Portion]) -> Iterator[dict[str, Any]]:
    """The samples of the portions, read from where the first of each begins.

    Raises ValueError, naming the shard, where one does not hold what was listed.
    """
    for number, first, count in portions:
        shard = listing.shards[number]
        path, read = listing.folder / shard.name, 0
        with path.open("rb") as file:
            file.seek(shard.starts[first])
            source = [{"url": str(path), "stream": file}]
            try:
                for sample in islice(group_by_keys(tar_file_expander(source)), count):
                    read += 1
                    yield sample
            except TarError as error:
                raise ValueError(f"the shard {path} is damaged or cut off: {error.args[0]}") from error
        if read < count:
            raise ValueError(f"the shard {path} ends after {first + read} samples; {len(shard.starts)} were listed")
