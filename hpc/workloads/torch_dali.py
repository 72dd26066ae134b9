"""Images in class folders, read, decoded and augmented by NVIDIA DALI, as its ResNet-50 example does.

Decoding on GPUs (`mixed`) was never run by this project.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from nvidia.dali import __version__ as dali_version
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIClassificationIterator
from torch.utils.data import DistributedSampler

from hpc.model.options import DataSource, is_augmented, workers_of
from hpc.model.spec import RunSpec
from hpc.model.timestamps import ABSENT
from hpc.workloads.image_batches import Undecodable, decode
from hpc.workloads.image_reader import AREA, DEVIATION, MEAN, RATIO, Batch, ImageReader, evaluation_share, input_facts
from hpc.workloads.image_sets import ImageListing, list_images
from hpc.workloads.torch_images import on_device

AHEAD = 2
"""Batches that a pipeline is ahead, DALI's own default."""
NOT_RECORDED = (ABSENT,) * 5
"""DALI does not say when its threads began a batch, or how long they read and decoded."""
AUGMENTATIONS = {
    True: "random resized crop while decoding, mirrored by half, normalised (NVIDIA's DALI example of ResNet-50)",
    False: "off: the shorter side resized to 256/224 of the size, the middle of it, normalised, as in evaluation",
}


def dali_reader(run: RunSpec, source: DataSource, size: int, device: torch.device, rank: int) -> ImageReader:
    """The images of a rank, read by DALI: on its GPU, or on CPUs without one."""
    loaders = _DaliLoaders(run, source, size, device, rank)
    decoder = {
        "decoder": f"DALI {dali_version} ({loaders.decoding_device})",
        "resizing": "triangular, antialiased",
        "workers_are": "threads",
    }
    facts = input_facts(run, source, list_images(source.path), decoder, workers=loaders.threads, prefetched=AHEAD)
    return ImageReader(run, source, facts | {"augmentation": AUGMENTATIONS[is_augmented(run)]}, loaders)


class _DaliLoaders:
    """A pipeline for training, and one for evaluation, each with threads of its own.

    DALI reads the files that it is handed batch by batch, in the order of torch's DistributedSampler: its own shards
    have different numbers of samples, and with them of steps, where the images do not divide by the ranks; and it does
    not name a file that it cannot decode.
    """

    def __init__(self, run: RunSpec, source: DataSource, size: int, device: torch.device, rank: int) -> None:
        self._run, self._source, self._size, self._device, self._rank = run, source, size, device, rank
        self.threads = max(1, workers_of(run))
        self.decoding_device = "mixed" if device.type == "cuda" else "cpu"
        listing = list_images(source.path)
        self._sampler: DistributedSampler[Any] = DistributedSampler(
            listing,  # type: ignore[arg-type]  # its length is all that is used
            num_replicas=run.ranks,
            rank=rank,
            seed=run.seed,
        )
        self._training = _Epochs(listing, run.rank_batch_size)
        self._held_out: _Epochs | None = None

    def epoch(self, epoch: int) -> Iterator[Batch]:
        self._sampler.set_epoch(epoch)
        self._training.numbers = [*self._sampler]
        return self._batches(self._training, augmented=is_augmented(self._run))

    def evaluation(self) -> Iterator[Batch]:
        listing = list_images(self._source.path, "val")
        if self._held_out is None:
            self._held_out = _Epochs(listing, self._run.rank_batch_size)
            self._held_out.numbers = [*evaluation_share(len(listing), self._run, self._rank)]
        if not self._held_out.numbers:
            return iter(())
        return self._batches(self._held_out, augmented=False)

    def on_device(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return on_device(batch, self._device)

    def _batches(self, epochs: _Epochs, *, augmented: bool) -> Iterator[Batch]:
        """The batches of an epoch. Raises ValueError, with the files, where one cannot be decoded."""
        if epochs.iterator is None:
            epochs.iterator = self._iterator(epochs, augmented=augmented)
        else:
            epochs.iterator.reset()
        for numbers in epochs.batches():
            try:
                [outputs] = next(epochs.iterator)
            except RuntimeError as error:
                raise ValueError(f"DALI cannot decode {epochs.undecodable(numbers)}: {error}") from error
            yield Batch(outputs["data"], outputs["label"].flatten().long(), NOT_RECORDED, ())

    def _iterator(self, epochs: _Epochs, *, augmented: bool) -> Any:
        pipeline = _pipeline(
            epochs,
            self._size,
            augmented,
            self.decoding_device,
            batch_size=self._run.rank_batch_size,
            num_threads=self.threads,
            device_id=(self._device.index or 0) if self._device.type == "cuda" else None,
            seed=Random(f"{self._run.seed} {self._rank}").getrandbits(31),
            prefetch_queue_depth=AHEAD,
        )
        return DALIClassificationIterator(pipeline, last_batch_policy=LastBatchPolicy.PARTIAL)


class _Epochs:
    """The files of an epoch, `numbers` of the listing, in batches; each iteration of it is an epoch."""

    def __init__(self, listing: ImageListing, batch_size: int) -> None:
        self._listing, self._batch_size = listing, batch_size
        self.numbers: list[int] = []
        self.iterator: Any = None

    def batches(self) -> list[list[int]]:
        return [self.numbers[at : at + self._batch_size] for at in range(0, len(self.numbers), self._batch_size)]

    def __iter__(self) -> Iterator[tuple[list[npt.NDArray[np.uint8]], npt.NDArray[np.int32]]]:
        """The paths and labels of each batch, as DALI's external_source takes them."""
        for numbers in self.batches():
            paths = [np.frombuffer(os.fsencode(self._path(number)), np.uint8) for number in numbers]
            yield paths, np.array([[self._listing.labels[number]] for number in numbers], np.int32)

    def undecodable(self, numbers: Sequence[int]) -> str:
        """The files of a batch that Pillow cannot decode either; the whole batch where it decodes all."""
        named = []
        for path in map(self._path, numbers):
            try:
                decode(path.read_bytes())
            except (Undecodable, OSError) as error:
                named.append(f"{path} ({error})")
        return ", ".join(named) or f"one of {', '.join(str(self._path(number)) for number in numbers)}"

    def _path(self, number: int) -> Path:
        return self._listing.folder / self._listing.names[number]


@pipeline_def  # type: ignore[untyped-decorator]  # mypy is not shown DALI
def _pipeline(epochs: _Epochs, size: int, augmented: bool, decoding_device: str) -> Any:
    """The standard pipeline of NVIDIA's example; evaluation takes the middle of each image."""
    paths, label = fn.external_source(source=epochs, num_outputs=2, cycle="raise")
    return augmented_images(fn.io.file.read(paths), size, augmented, decoding_device), label


def augmented_images(encoded: Any, size: int, augmented: bool, decoding_device: str) -> Any:
    """Decodes, crops and normalises, within the definition of a pipeline: float32 [N, 3, H, W]."""
    mirror: Any = 0
    if augmented:
        images = fn.decoders.image_random_crop(
            encoded, device=decoding_device, output_type=types.RGB, random_area=AREA, random_aspect_ratio=RATIO
        )
        images = fn.resize(images, resize_x=size, resize_y=size, interp_type=types.INTERP_TRIANGULAR)
        mirror = fn.random.coin_flip(probability=0.5)
    else:
        images = fn.decoders.image(encoded, device=decoding_device, output_type=types.RGB)
        shorter = round(size * 256 / 224)
        images = fn.resize(images, resize_shorter=shorter, interp_type=types.INTERP_TRIANGULAR)
    return fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="CHW",
        crop=(size, size),
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in DEVIATION],
        mirror=mirror,
    )
