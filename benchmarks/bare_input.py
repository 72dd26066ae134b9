"""The input loop that each library's own documentation shows, over the same files as ours.

Each decodes by Pillow and crops as ours does, so that what is compared is the loading around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.workloads.crops import DEVIATION, MEAN
from hpc.workloads.image_folder import list_images
from hpc.workloads.images import augment, decode

Epoch = Callable[[], Iterator[Any]]
"""An epoch's batches of images and labels, each time that it is called."""


def _cropped(content: bytes, size: int) -> npt.NDArray[np.uint8]:
    return augment(decode(content), size, Random())


def torch_folder(path: str, size: int, batch_size: int, workers: int) -> Epoch:
    """As pytorch/examples trains ImageNet: a map-style dataset, ToTensor and Normalize for each image."""
    from torch.utils.data import DataLoader, Dataset

    to_tensor = _to_tensor()
    listing = list_images(path)

    class Images(Dataset[Any]):
        def __len__(self) -> int:
            return len(listing)

        def __getitem__(self, number: int) -> Any:
            content = (listing.folder / listing.names[number]).read_bytes()
            return to_tensor(_cropped(content, size)), listing.labels[number]

    loader = DataLoader(
        Images(), batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: iter(loader)


def webdataset(path: str, size: int, batch_size: int, workers: int) -> Epoch:
    """As webdataset's README trains ImageNet: shards and samples shuffled, batches made in the worker."""
    import webdataset as wds

    to_tensor = _to_tensor()
    shards = sorted(map(str, (Path(path) / "webdataset").glob("train-*.tar")))
    dataset = (
        wds.WebDataset(shards, shardshuffle=100)
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map_tuple(lambda content: to_tensor(_cropped(content, size)), int)
        .batched(batch_size)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    return lambda: iter(loader)


def paddle_folder(path: str, size: int, batch_size: int, workers: int) -> Epoch:
    """As Paddle's guide to custom datasets: a map-style dataset, Normalize for each image."""
    import paddle

    listing = list_images(path)
    mean, deviation = (np.array(values, np.float32).reshape(3, 1, 1) * 255 for values in (MEAN, DEVIATION))

    class Images(paddle.io.Dataset):  # type: ignore[misc]  # mypy is not shown Paddle
        def __len__(self) -> int:
            return len(listing)

        def __getitem__(self, number: int) -> Any:
            content = (listing.folder / listing.names[number]).read_bytes()
            image = _cropped(content, size).transpose(2, 0, 1).astype(np.float32)
            return (image - mean) / deviation, np.int64(listing.labels[number])

    loader = paddle.io.DataLoader(
        Images(), batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: iter(loader)


def _to_tensor() -> Callable[[npt.NDArray[np.uint8]], Any]:
    """torchvision's ToTensor and Normalize, whose wheels do not import beside torch's CPU build."""
    import torch

    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, DEVIATION))

    def convert(image: npt.NDArray[np.uint8]) -> torch.Tensor:
        tensor = torch.from_numpy(image).permute(2, 0, 1).contiguous().float().div(255)
        return tensor.sub_(mean).div_(deviation)

    return convert
