"""Options of backends and workloads, set by `--option NAME=VALUE`, and what `--data` names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf

from hpc.model.spec import SYNTHETIC, UNKNOWN_DATA, RunSpec, SpecError
from hpc.system.text import nearest

OptionValue = bool | int | float | str


class OptionError(ValueError):
    """An option is unknown or its value is not of its kind; the text lists what is valid."""


MAX_WHOLE = 2**31 - 1
"""The largest whole number of an option or a seed: a C int in every framework."""
WHOLE = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option. Its kind is that of `default`; `small` replaces the default where the target has no GPU.

    A number is between `minimum` and `maximum`, both included. `check` raises ValueError for a text that the option's
    user would refuse.
    """

    default: OptionValue
    help: str
    choices: tuple[str, ...] = ()
    small: str | None = None
    minimum: float = 0
    maximum: float = MAX_WHOLE
    check: Callable[[str], object] | None = None

    def read(self, name: str, text: str) -> OptionValue:
        """The value that a text denotes. Raises OptionError where it denotes none."""
        if self.choices and text not in self.choices:
            near = did_you_mean(text, self.choices)
            raise OptionError(f"option {name}: {text!r} is not one of {', '.join(self.choices)}{near}")
        if isinstance(self.default, bool):
            if text not in ("on", "off"):
                raise OptionError(f"option {name}: {text!r} is neither on nor off")
            return text == "on"
        try:
            value = text if isinstance(self.default, str) else self._number(text)
            if self.check is not None:
                self.check(text)
        except ValueError as error:
            raise OptionError(f"option {name}: {error}") from None
        return value

    def _number(self, text: str) -> int | float:
        whole = isinstance(self.default, int)
        if whole and not WHOLE.fullmatch(text):
            raise ValueError(f"{text!r} is not a whole number")
        try:
            number = int(text) if whole else float(text)
        except ValueError:  # of whole numbers: more digits than Python converts
            raise ValueError(f"{text[:40]!r} is not a {'whole ' if whole else ''}number") from None
        if not self.minimum <= number <= self.maximum:  # NaN is not
            raise ValueError(f"{text[:40]!r} is out of range: it must be from {self.minimum:g} to {self.maximum:.10g}")
        return number


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that names the known name nearest to `name`; empty where none is near."""
    near = nearest(name, known)
    return f". Did you mean {near}?" if near else ""


def read_options(table: Mapping[str, Option], requested: Mapping[str, str]) -> dict[str, OptionValue]:
    """Every option of the table with its requested value, else its default; raises OptionError on an unknown name."""
    if unknown := sorted(set(requested) - set(table)):
        known = ", ".join(sorted(table)) or "none"
        raise OptionError(f"unknown option {', '.join(unknown)}; known here: {known}{did_you_mean(unknown[0], table)}")
    return {
        name: option.read(name, requested[name]) if name in requested else option.default
        for name, option in table.items()
    }


# What a site promises of the network between two of its nodes, as written: `latency_us=5`.

PROMISES = {
    "bandwidth_gbit": "Gbit/s of a node each way",
    "latency_us": "one-way latency of a small message in µs",
}
"""By name: what the number is."""


class PromiseError(ValueError):
    """A promise is malformed; the text lists what is known."""


def read_promises(texts: Iterable[str]) -> dict[str, float]:
    """The promises in texts of the form NAME=NUMBER, by name. Raises PromiseError."""
    promises = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in PROMISES:
            known = "; ".join(f"{known}: {meaning}" for known, meaning in PROMISES.items())
            raise PromiseError(f"unknown {name!r}; known: {known}")
        try:
            promises[name] = float(value)
        except ValueError:
            raise PromiseError(f"{name} is {value!r}, not a number") from None
        if not 0 < promises[name] < inf:
            raise PromiseError(f"{name} is {value}; it must be above 0")
    return promises


IMAGE_FOLDER, TFRECORD, DALI = KINDS = ("imagefolder", "tfrecord", "dali")
"""The kinds of files of images that workloads read."""
MAX_WORKERS = 1024
INPUT_FIGURES = ("requested", "received", "begun", "done", "reading", "decoding", "processor")
"""What is recorded of each batch that is read, int64 ns: when the step requested it and had it, when a worker began it
and when it was done, on the rank's own clock; how long workers read its files, decoded them, and had a processor
meanwhile. A batch is one worker's, but in TensorFlow, where all of a rank share it."""

LOADER, LATER_FETCHES, AFTER_UPDATE = LOADER_FIGURES = ("loader", "later_fetches", "after_update")
"""What is recorded of each step of a script, ns: how much of the time before its forward its loaders took, what they
took behind it, until the rank's gradients are complete, and how long the step went on after its last update."""


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
