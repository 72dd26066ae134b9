"""ResNet-50 v1.5 and the tiny perceptron in Paddle, and the images that they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import paddle
from paddle import nn
from paddle.io import DataLoader, Dataset, DistributedBatchSampler

from hpc.model.options import DataSource, data_source, is_augmented, workers_of
from hpc.model.spec import RunSpec
from hpc.workloads import mlp, resnet50
from hpc.workloads.image_batches import DECODER, ImageBatches, ImageKey
from hpc.workloads.image_reader import (
    DEVIATION,
    MEAN,
    Batch,
    ImageReader,
    evaluation_share,
    input_facts,
    workers_to_start,
)
from hpc.workloads.image_sets import list_images
from hpc.workloads.synthetic import Synthetic

if TYPE_CHECKING:
    from hpc.workloads.image_reader import ImageReader


PREFETCHED = 2
"""Batches that each worker is ahead: Paddle's own default."""
_SEEDS = 2**32
"""Paddle's sampler shuffles by a number of 32 bits."""


def image_reader(run: RunSpec, source: DataSource, size: int, device: Any, rank: int) -> ImageReader:
    """The images of a rank, read by DataLoader."""
    loaders = _PaddleLoaders(run, source, size, device, rank)
    prefetched = loaders.workers * PREFETCHED
    facts = input_facts(run, source, list_images(source.path), DECODER, workers=loaders.workers, prefetched=prefetched)
    return ImageReader(run, source, facts, loaders)


class _PaddleLoaders:
    """A DataLoader for training, and one for evaluation, each with workers of its own.

    DistributedBatchSampler repeats up to ranks − 1 samples so that all ranks have equally many, and the last batch of
    an epoch has what is left.
    """

    def __init__(self, run: RunSpec, source: DataSource, size: int, device: Any, rank: int) -> None:
        self._run, self._source, self._size, self._device, self._rank = run, source, size, device, rank
        self.workers = workers_to_start(run)
        images = self._images("train", augmented=is_augmented(run))
        self._sampler = _EpochSampler(images, run, rank)
        self._training = self._loader(images, self._sampler, self.workers)
        self._evaluation: Any = None

    def epoch(self, epoch: int) -> Iterator[Batch]:
        self._sampler.begin(epoch)
        return map(_batch, self._training)

    def evaluation(self) -> Iterator[Batch]:
        images = self._images("val", augmented=False)
        numbers = evaluation_share(len(images), self._run, self._rank)
        if not numbers:
            return iter(())
        if self._evaluation is None:
            of_step, keys = self._run.rank_batch_size, [(0, number) for number in numbers]
            batches = [[keys[at : at + of_step]] for at in range(0, len(keys), of_step)]
            self._evaluation = self._loader(images, batches, workers_of(self._run))
        return map(_batch, self._evaluation)

    def on_device(self, batch: Batch) -> tuple[Any, Any]:
        return batch.images, batch.labels

    def _images(self, split: str, *, augmented: bool) -> _ImageFolder:
        listing = list_images(self._source.path, split)
        return _ImageFolder(ImageBatches(listing, self._size, self._run.seed, _normalised, augmented=augmented))

    def _loader(self, images: _ImageFolder, batches: Any, workers: int) -> Any:
        return DataLoader(
            images,
            batch_sampler=batches,
            places=[self._device],
            num_workers=workers,
            collate_fn=_only,
            prefetch_factor=PREFETCHED,
            persistent_workers=workers > 0,
        )


class _ImageFolder(Dataset):  # type: ignore[misc]  # mypy does not follow Paddle
    """Whole batches for DataLoader: what it takes for a sample is a batch."""

    def __init__(self, batches: ImageBatches) -> None:
        super().__init__()
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, keys: list[ImageKey]) -> Batch:
        return self._batches.load(keys)


class _EpochSampler(DistributedBatchSampler):  # type: ignore[misc]  # as above
    """A DistributedBatchSampler that shuffles by seed and epoch, and gives the epoch along with each sample."""

    def __init__(self, images: _ImageFolder, run: RunSpec, rank: int) -> None:
        super().__init__(images, run.rank_batch_size, num_replicas=run.ranks, rank=rank, shuffle=True)
        self._seed, self._epoch = run.seed, 0

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        self.set_epoch(int(np.random.default_rng((self._seed, epoch)).integers(_SEEDS)))  # its only seed

    def __iter__(self) -> Iterator[list[list[ImageKey]]]:
        epoch = self._epoch
        return ([[(epoch, number) for number in numbers]] for numbers in super().__iter__())


def _only(batches: list[Batch]) -> list[Any]:
    """In the place of DataLoader's own joining of samples, as lists and arrays, which alone it hands on.

    It cannot hand on an array without elements: a batch without images gets zeros.
    """
    (batch,) = batches
    images, labels = (batch.images, batch.labels) if len(batch.labels) else (np.zeros(1), np.zeros(1))
    return [images, labels, list(batch.figures), [list(pair) for pair in batch.skipped], len(batch.labels)]


def _batch(fields: Sequence[Any]) -> Batch:
    """The batch that `_only` handed on."""
    images, labels, figures, skipped, count = fields
    return Batch(images, labels, figures, skipped) if count else Batch((), (), figures, skipped)


def _normalised(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """uint8 [N, H, W, 3] to float32 [N, 3, H, W]."""
    normalised = np.empty((len(images), 3, *images.shape[1:3]), np.float32)
    for channel, (mean, deviation) in enumerate(zip(MEAN, DEVIATION, strict=True)):
        np.multiply(images[..., channel], np.float32(1 / (255 * deviation)), out=normalised[:, channel])
        normalised[:, channel] -= np.float32(mean / deviation)
    return normalised


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> Any:
    return nn.Conv2D(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias_attr=False)


def _norm(width: int) -> Any:
    """Paddle's momentum is the share of the old statistics; its running variance is the biased one, torch's is not."""
    return nn.BatchNorm2D(width, momentum=1 - resnet50.BN_MOMENTUM, epsilon=resnet50.BN_EPSILON)


class Bottleneck(nn.Layer):  # type: ignore[misc]  # mypy does not follow Paddle
    """1×1, 3×3 (with the stride), 1×1, and the way around them."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * resnet50.EXPANSION
        self.conv1 = _convolution(inputs, width, 1)
        self.bn1 = _norm(width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = _norm(width)
        self.conv3 = _convolution(width, outputs, 1)
        self.bn3 = _norm(outputs)
        self.relu = nn.ReLU()
        self.downsample: Any = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(_convolution(inputs, outputs, 1, stride), _norm(outputs))

    def forward(self, x: Any) -> Any:
        """[N, inputs, H, W] to [N, 4 × width, H / stride, W / stride]."""
        around = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + around)


class ResNet50(nn.Layer):  # type: ignore[misc]  # as above
    """25,557,032 trainable parameters; their names are torchvision's, but for the running statistics of batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = _convolution(3, 64, 7, 2)
        self.bn1 = _norm(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2D(3, stride=2, padding=1)
        inputs = 64
        for number, (width, blocks, stride) in enumerate(resnet50.STAGES, start=1):
            self.add_sublayer(f"layer{number}", _stage(inputs, width, blocks, stride))
            inputs = width * resnet50.EXPANSION
        self.avgpool = nn.AdaptiveAvgPool2D(1)
        self.fc = nn.Linear(resnet50.FEATURES, resnet50.CLASSES)

    def forward(self, x: Any) -> Any:
        """Images [N, 3, H, W] to logits [N, 1000]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, len(resnet50.STAGES) + 1):
            x = getattr(self, f"layer{number}")(x)
        return self.fc(paddle.flatten(self.avgpool(x), 1))


def _stage(inputs: int, width: int, blocks: int, stride: int) -> Any:
    rest = (Bottleneck(width * resnet50.EXPANSION, width, stride=1) for _ in range(blocks - 1))
    return nn.Sequential(Bottleneck(inputs, width, stride), *rest)


def paddle_values(values: dict[str, resnet50.Array]) -> dict[str, resnet50.Array]:
    """Values by torchvision's names in torch's shapes, converted to Paddle's names and shapes."""
    names = {"running_mean": "_mean", "running_var": "_variance"}
    renamed = {}
    for name, value in values.items():
        module, _, kind = name.rpartition(".")
        # Paddle's linear layers keep their weights [inputs, outputs].
        renamed[f"{module}.{names.get(kind, kind)}"] = value.T.copy() if name == "fc.weight" else value
    return renamed


def _reader(run: RunSpec, size_of: Callable[[RunSpec], int], device: Any, rank: int) -> ImageReader | None:
    """The images of a rank from files; None for a run that reads none."""
    if (source := data_source(run.data)) is None:
        return None

    return image_reader(run, source, size_of(run), device, rank)


def _synthetic(samples: tuple[Any, Any], device: Any) -> Synthetic:
    return Synthetic(*(paddle.to_tensor(values, place=device) for values in samples))


class PaddleResNet50:
    """ResNet-50 trained by the recipe of the run, on synthetic images or on files."""

    def __init__(self, run: RunSpec, device: Any, rank: int) -> None:
        self._recipe = resnet50.recipe_of(run)
        self._learning_rate = self._recipe.learning_rate(run)
        self.model = ResNet50()
        self.model.set_state_dict({**self.model.state_dict(), **paddle_values(resnet50.initial_values(run))})
        self.reader = _reader(run, resnet50.image_size, device, rank)
        self.input = self.reader and self.reader.record
        data = self.reader or _synthetic(resnet50.synthetic_batch(run, rank), device)
        self.batch, self.samples = data.batch, data.samples

    def loss(self, model: Any, batch: tuple[Any, Any]) -> Any:
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels, label_smoothing=self._recipe.label_smoothing)

    def optimizer(self, **implementation: Any) -> Any:
        norms = [p for m in self.model.sublayers() if isinstance(m, nn.BatchNorm2D) for p in (m.weight, m.bias)]
        known = {id(p) for p in norms}
        others = [p for p in self.model.parameters() if not p.stop_gradient and id(p) not in known]
        groups = self._recipe.groups(norms, others)
        return paddle.optimizer.Momentum(
            self._learning_rate, self._recipe.momentum, parameters=groups, **implementation
        )


class PaddleMLP:
    """The perceptron, trained by SGD with momentum, on synthetic samples or on files."""

    def __init__(self, run: RunSpec, device: Any, rank: int) -> None:
        self.reader = _reader(run, mlp.image_size, device, rank)
        self.input = self.reader and self.reader.record
        layers: list[Any] = [nn.Flatten()] if self.reader else []
        for weight, bias in mlp.initial_values(run):
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.set_state_dict({"weight": weight.T.copy(), "bias": bias})  # Paddle has [inputs, outputs]
            layers += [layer, nn.ReLU()]
        self.model = nn.Sequential(*layers[:-1])
        data = self.reader or _synthetic(mlp.synthetic_batch(run, rank), device)
        self.batch, self.samples = data.batch, data.samples

    def loss(self, model: Any, batch: tuple[Any, Any]) -> Any:
        features, labels = batch
        return nn.functional.cross_entropy(model(features), labels)

    def optimizer(self, **implementation: Any) -> Any:
        parameters = self.model.parameters()
        return paddle.optimizer.Momentum(mlp.LEARNING_RATE, mlp.MOMENTUM, parameters=parameters, **implementation)
