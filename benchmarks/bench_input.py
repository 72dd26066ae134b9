"""Every way of reading images against the bare library's own loop: `python -m benchmarks.bench_input [PIPELINE …]`.

2,000 JPEGs of about 90 kB, one rank with one worker on one core; whole epochs of both loops by turns in one
process, with the same decoder and the same augmentation. To be met: at least 0.95 of the bare loop's images per second,
so at most 1 / 0.95 of its time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import bare_input
from benchmarks.bare_input import Epoch
from benchmarks.memory import KEPT
from benchmarks.pairs import compare
from hpc.model.options import data_source
from hpc.model.spec import RunSpec
from hpc.workloads.image_sets import list_images

LIMIT = 1 / 0.95
IMAGES, SIZE, BATCH_SIZE, WORKERS = 2000, 224, 64, 1
BLOCKS = 18
PAUSE_S = 0.5
"""Before each block: what a loop has begun for its next epoch ends before the other is timed."""
IN_A_RANK = "--in-a-rank"


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A kind of files in a framework: the module whose `image_reader` reads it, the packages needed, the bare loop.

    A block of either loop has so many `epochs`. DALI's own loop has the first two batches of its next epoch decoded
    while nothing is timed, which is 2 % of three epochs in its favour.
    """

    framework: str
    kind: str
    reader: str
    packages: tuple[str, ...]
    bare: Callable[[str, int, int, int], Epoch]
    epochs: int = 1


PIPELINES: Mapping[str, Pipeline] = {
    "torch-imagefolder": Pipeline(
        framework="torch", kind="imagefolder", reader="hpc.workloads.torch_models", packages=("torch",),
        bare=bare_input.torch_folder,
    ),
    "torch-dali": Pipeline(
        framework="torch", kind="dali", reader="hpc.workloads.torch_models",
        packages=("torch", "nvidia", "nvidia.dali"), bare=bare_input.dali, epochs=3,
    ),
    "tensorflow-imagefolder": Pipeline(
        framework="tensorflow", kind="imagefolder", reader="hpc.workloads.tensorflow_models", packages=("tensorflow",),
        bare=bare_input.tensorflow_folder,
    ),
    "paddle-imagefolder": Pipeline(
        framework="paddle", kind="imagefolder", reader="hpc.workloads.paddle_images", packages=("paddle",),
        bare=bare_input.paddle_folder,
    ),
}  # fmt: skip


def main(names: list[str]) -> int:
    """Prints two lines per pipeline, or why there are none."""
    folder = Path(tempfile.gettempdir()) / f"rankwise-bench-{IMAGES}-images"
    if not folder.exists():
        make_images(folder)
    for name in names or PIPELINES:
        if missing := next((package for package in PIPELINES[name].packages if not _is_installed(package)), None):
            print(f"{name}: not measured: {missing} is not installed here")
            continue
        env = {**os.environ, **KEPT, "OMP_NUM_THREADS": "1"}
        argv = [sys.executable, "-m", "benchmarks.bench_input", IN_A_RANK, name, str(folder)]
        subprocess.run(argv, env=env, check=True)
    return 0


def make_images(folder: Path) -> None:
    """Writes JPEGs of 500 × 375 pixels in ten class folders: smooth noise, as long to decode as photographs."""
    draw = np.random.default_rng(0)
    for number in range(IMAGES):
        path = folder / "train" / str(number % 10) / f"{number:07d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(draw.integers(0, 256, (150, 200, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(path, "JPEG", quality=90)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the package that holds it is not
        return False


def in_a_rank(name: str, path: str) -> None:
    """Reads whole epochs by both loops on one core; every epoch has all images."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pipeline = PIPELINES[name]
    images = len(list_images(path))
    bare_epoch = pipeline.bare(path, SIZE, BATCH_SIZE, WORKERS)
    reader = _reader(pipeline, path)
    epochs = count()

    def ours() -> None:
        epoch = next(epochs)
        reader.begin_epoch(epoch)
        first = epoch * reader.steps_per_epoch
        read = sum(reader.samples(reader.batch(first + step)) for step in range(reader.steps_per_epoch))
        assert read == images, f"{read} images of {images}"

    def bare() -> None:
        read = sum(len(labels) for _, labels in bare_epoch())
        assert read == images, f"{read} images of {images}"

    comparison = compare(
        f"{name}, ours / the library's own loop", ours, bare, limit=LIMIT, blocks=BLOCKS // pipeline.epochs,
        calls=pipeline.epochs, between=partial(time.sleep, PAUSE_S),
    )  # fmt: skip
    print(comparison)
    print(
        f"{name}: {images / comparison.ours_s:.0f} images/s and core; the library's own loop "
        f"{images / comparison.reference_s:.0f}; {images} images to {SIZE} pixels, batches of {BATCH_SIZE}",
        flush=True,
    )


def _reader(pipeline: Pipeline, path: str) -> Any:
    run = RunSpec(
        nodes=1, ranks_per_node=1, gpus_per_node=0, cpus_per_rank=1, backend="torch-ddp", workload="resnet50",
        batch_size=BATCH_SIZE, precision="fp32", scaling="weak", warmup_steps=5, measured_steps=20, repeat=1, seed=0,
        site="here", data=f"{pipeline.kind}:{path}", epochs=1, options={"workers": str(WORKERS)},
    )  # fmt: skip
    source = data_source(run.data)
    assert source is not None
    read = import_module(pipeline.reader).image_reader
    return read(run, source, SIZE, _device(pipeline.framework), 0)


def _device(framework: str) -> Any:
    if framework == "torch":
        import torch

        return torch.device("cpu")
    if framework == "tensorflow":
        return "/CPU:0"
    import paddle

    return paddle.CPUPlace()


if __name__ == "__main__":
    if sys.argv[1:2] == [IN_A_RANK]:
        in_a_rank(*sys.argv[2:])
    else:
        raise SystemExit(main(sys.argv[1:]))
