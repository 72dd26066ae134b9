"""The training data that a run requests: `synthetic`, or a kind of files and their path, `imagefolder:PATH`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from hpc.model.options import WHOLE, Option, OptionValue, did_you_mean, read_options
from hpc.model.spec import SYNTHETIC, UNKNOWN_DATA, RunSpec, SpecError

IMAGE_FOLDER, TFRECORD, WEBDATASET, DALI, TEXT = KINDS = ("imagefolder", "tfrecord", "webdataset", "dali", "text")
"""The kinds of files that some workload reads: images but for the last, whose path is one file."""
MAX_WORKERS = 1024
INPUT_FIGURES = ("requested", "received", "begun", "done", "reading", "decoding", "processor")
"""What is recorded of each batch that is read, int64 ns: when the step requested it and had it, when a worker began it
and when it was done, on the rank's own clock; how long workers read its files, decoded them, and had a processor
meanwhile. A batch is one worker's, but in TensorFlow, where all of a rank share it."""

LOADER_FIGURES = ("loader",)
"""What is recorded of each step of a script: how much of its data its loaders took, ns."""


def _check_workers(text: str) -> None:
    if text != "auto" and not (WHOLE.fullmatch(text) and 0 <= int(text) <= MAX_WORKERS):
        raise ValueError(f"{text[:40]!r} is neither auto nor a number of workers up to {MAX_WORKERS}")


OPTIONS: Mapping[str, Option] = {
    "workers": Option(
        default="auto",
        help="processes of each rank that read and decode (TensorFlow: threads); auto: as many as it has cores; 0: "
        "the rank itself",
        check=_check_workers,
    ),
    "augmentation": Option(
        default="imagenet",
        choices=("imagenet", "off"),
        help="imagenet: random crops, a half mirrored; off: the middle of each image, as in evaluation",
    ),
}
"""The options of runs that read images."""


@dataclass(frozen=True)
class DataSource:
    """Files of a kind at a path."""

    kind: str
    path: str


def data_source(data: str) -> DataSource | None:
    """The files that a run reads, None where it reads none. Raises SpecError where the text is no request for data."""
    if data in (SYNTHETIC, UNKNOWN_DATA):
        return None
    kind, _, path = data.partition(":")
    if kind not in KINDS:
        valid = ", ".join((SYNTHETIC, *(f"{name}:PATH" for name in KINDS)))
        raise SpecError(f"data {data!r} is not one of {valid}{did_you_mean(kind, (SYNTHETIC, *KINDS))}")
    if not path:
        raise SpecError(f"data {data!r} names no path: {kind}:PATH")
    return DataSource(kind, path)


def workers_of(run: RunSpec) -> int:
    """The number of processes that read for each rank of the run."""
    workers = _options(run)["workers"]
    return run.cpus_per_rank if workers == "auto" else int(workers)


def is_augmented(run: RunSpec) -> bool:
    """Whether training images are cropped and mirrored at random."""
    return _options(run)["augmentation"] == "imagenet"


def samples_per_epoch(run: RunSpec, images: int) -> int:
    """Samples of a rank in an epoch of so many images, the same on all ranks: up to ranks − 1 are repeated."""
    return ceil(images / run.ranks)


def steps_per_epoch(run: RunSpec, images: int) -> int:
    """Optimizer steps of a rank in an epoch of so many images; the last batch has what is left."""
    return ceil(samples_per_epoch(run, images) / run.rank_batch_size)


def _options(run: RunSpec) -> dict[str, OptionValue]:
    return read_options(OPTIONS, {name: text for name, text in run.options.items() if name in OPTIONS})
