"""The input loop that each library's own documentation shows, over the same files as ours.

Each decodes by the decoder of ours, crops as it does and resizes by the same filter, so that what is compared is the
loading around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.workloads.image_batches import augment, decode
from hpc.workloads.image_reader import AREA, DEVIATION, MEAN, RATIO
from hpc.workloads.image_sets import list_images

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


def dali(path: str, size: int, batch_size: int, workers: int) -> Epoch:
    """As NVIDIA's ResNet-50 example: DALI's own reader of class folders, its epochs and its shuffling."""
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator

    from hpc.workloads.torch_dali import augmented_images

    @pipeline_def(batch_size=batch_size, num_threads=workers, device_id=None, seed=0)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        encoded, labels = fn.readers.file(
            file_root=str(Path(path) / "train"), random_shuffle=True, pad_last_batch=True, name="Reader"
        )
        return augmented_images(encoded, size, True, "cpu"), labels

    iterator = DALIClassificationIterator(
        pipeline(), reader_name="Reader", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True
    )
    return lambda: ((outputs["data"], outputs["label"]) for (outputs,) in iterator)


def tensorflow_folder(path: str, size: int, batch_size: int, workers: int) -> Epoch:
    """As TensorFlow's guide to tf.data and its ResNet: all operations within the graph of tf.data."""
    import tensorflow as tf

    listing = list_images(path)
    names = [str(listing.folder / name) for name in listing.names]
    mean, deviation = (tf.constant(values) * 255 for values in (MEAN, DEVIATION))

    def load(name: Any, label: Any) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(name), channels=3)
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image), tf.zeros([1, 0, 4]), min_object_covered=0.0, aspect_ratio_range=RATIO, area_range=AREA,
            max_attempts=10, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        image = tf.image.resize(tf.slice(image, begin, extent), (size, size))
        return (tf.image.random_flip_left_right(image) - mean) / deviation, label

    options = tf.data.Options()
    options.threading.private_threadpool_size = workers
    data = tf.data.Dataset.from_tensor_slices((names, list(listing.labels))).shuffle(len(names))
    data = data.map(load, num_parallel_calls=workers).batch(batch_size).prefetch(2).with_options(options)
    return lambda: iter(data)


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
