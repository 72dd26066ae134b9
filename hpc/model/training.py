"""A whole training: what each epoch and evaluation took, over all attempts of the run, and when the target was met."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hpc.model.run_fields import RunFields
from hpc.model.spec import RunSpec
from hpc.model.typed import TypeMismatchError, read_fields


class TrainingError(ValueError):
    """What describes a training is not as this version writes it; the text has what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Begun:
    """An attempt that trained: its number, when it began (Unix time, ns), how many epochs were done by then."""

    attempt: int
    unix_ns: int
    epochs: int


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch. Times are Unix time in ns, by rank 0's node; `evaluated_ns` is 0 where the epoch was not evaluated.

    `samples` were trained on over all ranks. Of the held-out images `evaluated` could be decoded, and the most probable
    class was the right one in `correct` of these. Trainings with equal `state_sha256`, of parameters, statistics and
    optimizer after the epoch, are equal to the last bit.
    """

    attempt: int
    learning_rate: float
    begin_ns: int
    trained_ns: int
    evaluated_ns: int = 0
    samples: int = 0
    evaluated: int = 0
    correct: int = 0
    state_sha256: str = ""

    @property
    def accuracy(self) -> float | None:
        """Top-1 accuracy in percent; None where the epoch was not evaluated."""
        return 100 * self.correct / self.evaluated if self.evaluated else None


@dataclass(frozen=True, kw_only=True)
class TrainingHistory:
    """The course of a whole training; epochs count from 1 in texts and by position here.

    `target` is in percent, 0 without one. `samples_per_epoch` and `evaluation_samples` are numbers of different images,
    `images_sha256` is the checksum of both listings. `stop_ns` is when training ended, 0 before.
    """

    planned_epochs: int
    target: float
    eval_every: int
    samples_per_epoch: int
    evaluation_samples: int
    images_sha256: str
    begun: Sequence[Begun] = ()
    epochs: Sequence[Epoch] = ()
    stop_ns: int = 0
    checkpoint_errors: Sequence[str] = ()

    @property
    def start_ns(self) -> int:
        """When the first attempt began to train, before it read its first image."""
        return self.begun[0].unix_ns

    @property
    def reached(self) -> int | None:
        """The number of epochs after which the accuracy was first at or above the target; None where it never was."""
        if not self.target:
            return None
        done = enumerate(self.epochs, start=1)
        return next((n for n, epoch in done if epoch.accuracy is not None and epoch.accuracy >= self.target), None)

    @property
    def is_over(self) -> bool:
        """Whether no further epoch is to be trained."""
        return self.reached is not None or len(self.epochs) >= self.planned_epochs

    def is_evaluated(self, number: int) -> bool:
        """Whether epoch `number`, from 1, is evaluated: every `eval_every`th, and the last one."""
        return number % self.eval_every == 0 or number == self.planned_epochs

    @property
    def best(self) -> float | None:
        """The highest accuracy in percent; None where nothing was evaluated."""
        return max((epoch.accuracy for epoch in self.epochs if epoch.accuracy is not None), default=None)

    @property
    def seconds(self) -> float:
        """Seconds from the first attempt's beginning to the end of training, everything in between included."""
        return (self.stop_ns - self.start_ns) / 1e9

    @property
    def time_to_train_s(self) -> float | None:
        """Seconds until the evaluation that reached the target, with everything in between (AI-Rank: Time2train)."""
        reached = self.reached
        return None if reached is None else (self.epochs[reached - 1].evaluated_ns - self.start_ns) / 1e9

    @property
    def throughput(self) -> float | None:
        """Samples per second over all of `seconds` (AI-Rank: avg_ips, without warm-up epochs)."""
        return sum(epoch.samples for epoch in self.epochs) / self.seconds if self.seconds > 0 else None

    def begin(self, attempt: int, unix_ns: int) -> Self:
        """With another attempt, which goes on from the epochs that are here."""
        begun = Begun(attempt=attempt, unix_ns=unix_ns, epochs=len(self.epochs))
        return replace(self, begun=(*self.begun, begun))

    def with_epoch(self, epoch: Epoch) -> Self:
        return replace(self, epochs=(*self.epochs, epoch))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Raises TrainingError where a field is missing, unknown, or of another type."""
        try:
            history = cls(**read_fields(cls, values))
        except TypeMismatchError as error:
            raise TrainingError(f"not the history of a training ({error})") from None
        if not history.begun:
            raise TrainingError("not the history of a training (no attempt began it)")
        if contradiction := _contradiction(history):
            raise TrainingError(f"not the history of a training ({contradiction})")
        return history


def _contradiction(history: TrainingHistory) -> str:
    """What its fields contradict one another in, times aside, which a node's clock decides; empty where nothing."""
    if history.eval_every < 1:
        return f"eval_every is {history.eval_every}"
    attempts, done = [each.attempt for each in history.begun], [each.epochs for each in history.begun]
    if attempts != sorted({*attempts}):
        return f"its attempts are {attempts[:9]}"
    if done != sorted(done) or done[0] < 0 or done[-1] > len(history.epochs):
        return f"its attempts began behind {done[:9]} of {len(history.epochs)} epochs"
    if any(not 0 <= each.correct <= each.evaluated or each.samples < 0 for each in history.epochs):
        return "an epoch has more images right than evaluated, or fewer than none"
    return ""


# All that a training needs to go on elsewhere, in no framework's own form.


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """All that a training needs to go on: arrays by name, and values that JSON holds."""

    arrays: Mapping[str, npt.NDArray[np.generic]]
    values: Mapping[str, Any] = field(default_factory=dict)

    def sha256(self) -> str:
        """The checksum over names and contents of all arrays."""
        digest = hashlib.sha256()
        for name, array in self.arrays.items():
            digest.update(f"{name} {array.dtype} {array.shape}\0".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def check_shapes(stored: Mapping[str, npt.NDArray[np.generic]], here: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ValueError where a stored model has not the names and shapes of the one that is here."""
    if missing := sorted({*here} ^ {*stored}):
        raise ValueError(f"it is of another model: only one of the two has {', '.join(missing[:3])}")
    for name, shape in here.items():
        if tuple(stored[name].shape) != shape:
            raise ValueError(
                f"it is of another model: {name} is {list(stored[name].shape)} there and {list(shape)} here"
            )


# The log of a whole training, from its history: AI-Rank's marks and MLPerf's `:::MLLOG` lines.

INFORMATION = "system_information.json"
FIELDS = (
    "accelerator_memory_capacity", "accelerator_name", "accelerators_per_node", "host_memory_capacity",
    "host_processor_core_count", "host_processor_name", "host_processors_per_node", "host_storage_capacity",
    "host_storage_type", "number_of_nodes", "operating_system", "software_stack", "submitter", "hardware_name",
    "hardware_type",
)  # fmt: skip
"""Fields of AI-Rank's description of the machine."""
_MARK = "AI-Rank-log"
_BENCHMARKS = {"resnet50": "resnet"}
"""MLPerf's names for workloads."""


def log_lines(run: RunSpec | RunFields, history: TrainingHistory) -> Iterator[str]:
    """The whole log of a training that has ended."""
    yield from begin_lines(run, history)
    for number in range(1, len(history.epochs) + 1):
        yield from epoch_lines(history, number)
    yield from end_lines(history)


def begin_lines(run: RunSpec | RunFields, history: TrainingHistory) -> Iterator[str]:
    """What a training states before its first epoch. `submission_org` and the like are for its user to change."""
    at = history.start_ns
    settings = {
        "cache_clear": True, "submission_benchmark": _BENCHMARKS.get(run.workload or "", run.workload),
        "submission_org": "unknown", "submission_division": "open", "submission_status": "research",
        "submission_platform": run.site, "init_start": None, "seed": run.seed,
        "global_batch_size": run.global_batch_size, "gradient_accumulation_steps": 1, "opt_name": "sgd",
        "train_samples": history.samples_per_epoch, "eval_samples": history.evaluation_samples, "init_stop": None,
    }  # fmt: skip
    for key, value in settings.items():
        yield _mllog(at, key, value)
    yield f"{_MARK} {_time(at)} load_data, checksum:{history.images_sha256}"
    yield f"{_MARK} {_time(at)} test_begin"
    yield _mllog(at, "run_start", None)


def epoch_lines(history: TrainingHistory, number: int) -> Iterator[str]:
    """An epoch, from 1, and its evaluation if it had one."""
    epoch = history.epochs[number - 1]
    where = {"first_epoch_num": number, "epoch_count": 1, "epoch_num": number}
    yield _mllog(epoch.begin_ns, "block_start", None, **where)
    yield _mllog(epoch.begin_ns, "epoch_start", None, epoch_num=number)
    yield _mllog(epoch.trained_ns, "epoch_stop", None, epoch_num=number)
    yield _mllog(epoch.trained_ns, "block_stop", None, **where)
    if epoch.accuracy is None:
        return
    accuracy = epoch.accuracy / 100
    yield _mllog(epoch.trained_ns, "eval_start", None, epoch_num=number)
    yield _mllog(epoch.evaluated_ns, "eval_accuracy", accuracy, epoch_num=number)
    yield _mllog(epoch.evaluated_ns, "eval_stop", None, epoch_num=number)
    yield f"{_MARK} {_time(epoch.evaluated_ns)} eval_accuracy:{accuracy:.9f}, total_epoch_cnt:{number}"
    if number == history.reached:
        seconds = (epoch.evaluated_ns - history.start_ns) / 1e9
        yield f"{_MARK} {_time(epoch.evaluated_ns)} target_quality_time:{seconds:.3f}sec"


def end_lines(history: TrainingHistory) -> Iterator[str]:
    """The end of a training. `status` is aborted where the target was not reached."""
    at = history.stop_ns
    status = "success" if history.reached is not None or not history.target else "aborted"
    yield _mllog(at, "run_stop", None, status=status)
    yield f"{_MARK} {_time(at)} test_finish"
    yield f"{_MARK} {_time(at)} total_use_time:{history.seconds:.3f}sec"
    if (throughput := history.throughput) is not None:
        yield f"{_MARK} {_time(at)} avg_ips:{throughput:.3f}images/sec"


def _time(unix_ns: int) -> str:
    return f"{unix_ns / 1e9:.3f}"


def _mllog(unix_ns: int, key: str, value: Any, **metadata: Any) -> str:
    kind = "POINT_IN_TIME"
    for suffix, interval in (("_start", "INTERVAL_START"), ("_stop", "INTERVAL_END")):
        if key.endswith(suffix):
            kind = interval
    event = {
        "namespace": "", "time_ms": unix_ns // 1_000_000, "event_type": kind, "key": key, "value": value,
        "metadata": {"file": "hpc/model/training.py", "lineno": 0, **metadata},
    }  # fmt: skip
    return f":::MLLOG {json.dumps(event)}"
