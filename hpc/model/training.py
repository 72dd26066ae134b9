"""A whole training: what each epoch and evaluation took, over all attempts of the run, and when the target was met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any, Self


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
    def spent(self) -> TimeSpent:
        """Where `seconds` went; the parts add up to them."""
        training = sum(epoch.trained_ns - epoch.begin_ns for epoch in self.epochs) / 1e9
        evaluation = sum(max(0, epoch.evaluated_ns - epoch.trained_ns) for epoch in self.epochs) / 1e9
        away = sum((later.unix_ns - self._last_ns(before, later)) / 1e9 for before, later in pairwise(self.begun))
        rest = self.seconds - training - evaluation - away
        return TimeSpent(training_s=training, evaluation_s=evaluation, between_attempts_s=away, rest_s=rest)

    def _last_ns(self, before: Begun, later: Begun) -> int:
        """The last moment before an attempt that counts for something: of its epochs, or of the attempt before it."""
        done = self.epochs[: later.epochs]
        moments: list[int] = [done[-1].trained_ns, done[-1].evaluated_ns] if done else []
        return max(before.unix_ns, *moments) if moments else before.unix_ns

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
            lists = {
                "begun": tuple(Begun(**each) for each in values["begun"]),
                "epochs": tuple(Epoch(**each) for each in values["epochs"]),
                "checkpoint_errors": tuple(values["checkpoint_errors"]),
            }
            history = cls(**{**values, **lists})
        except (KeyError, TypeError) as error:
            raise TrainingError(f"not the history of a training ({error})") from None
        if wrong := _wrong_types(history):
            raise TrainingError(f"not the history of a training ({'; '.join(wrong)})")
        if not history.begun:
            raise TrainingError("not the history of a training (no attempt began it)")
        return history


@dataclass(frozen=True, kw_only=True)
class TimeSpent:
    """The parts of a training's time, in seconds; they add up to it.

    `between_attempts_s` is from the last epoch that was done before an attempt until it began to train: work that was
    lost with the attempt before, waiting for a job, and the start. `rest_s` is what lies between epochs: checkpoints.
    """

    training_s: float
    evaluation_s: float
    between_attempts_s: float
    rest_s: float


def _wrong_types(history: TrainingHistory) -> list[str]:
    kinds: dict[str, Any] = {"int": int, "float": int | float, "str": str}
    wrong = []
    parts: list[TrainingHistory | Begun | Epoch] = [history, *history.begun, *history.epochs]
    for part in parts:
        for each in fields(part):
            kind = kinds.get(str(each.type))
            value = getattr(part, each.name)
            if kind is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                wrong.append(f"{each.name} is {str(value)[:40]!r}")
    return wrong
