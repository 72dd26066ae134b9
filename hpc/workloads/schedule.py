"""The learning rates of whole trainings, epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hpc.model.options import WHOLE, Option, OptionValue

MAX_WARMUP_EPOCHS = 10_000


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A learning rate by epoch: warmed up linearly over the first `warmup_epochs`, then by cosine to 0, or cut to a
    tenth every `step_epochs` (0: by cosine)."""

    warmup_epochs: int
    step_epochs: int = 0

    def rate(self, peak: float, epoch: int, epochs: int) -> float:
        """The rate of an epoch, counted from 0, of so many.

        As NVIDIA's lr_cosine_policy and lr_linear_policy have it per epoch, and pytorch/examples' StepLR.
        """
        if epoch < self.warmup_epochs:
            return peak * (epoch + 1) / self.warmup_epochs
        if self.step_epochs:
            return peak * float(0.1 ** (epoch // self.step_epochs))
        share = (epoch - self.warmup_epochs) / max(1, epochs - self.warmup_epochs)
        return 0.5 * (1 + math.cos(math.pi * share)) * peak


def _check_rate(text: str) -> None:
    try:
        fits = text == "auto" or 0 < float(text) < math.inf
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{text[:40]!r} is neither auto nor a number above 0")


def _check_epochs(text: str) -> None:
    if text != "auto" and not (WHOLE.fullmatch(text) and int(text) <= MAX_WARMUP_EPOCHS):
        raise ValueError(f"{text[:40]!r} is neither auto nor a number of epochs up to {MAX_WARMUP_EPOCHS}")


OPTIONS: Mapping[str, Option] = {
    "learning_rate": Option(
        default="auto", help="peak of a whole training, for the global batch; auto: the recipe's", check=_check_rate
    ),
    "warmup_epochs": Option(
        default="auto", help="epochs in which a whole training reaches it; auto: the recipe's", check=_check_epochs
    ),
}
"""The options of workloads that train to a target."""


def epoch_rate(options: Mapping[str, OptionValue], schedule: Schedule, peak: float, epoch: int, epochs: int) -> float:
    """The rate of an epoch, counted from 0, with what the options request in place of peak and warm-up."""
    requested, warmup = options["learning_rate"], options["warmup_epochs"]
    if warmup != "auto":
        schedule = Schedule(warmup_epochs=int(warmup), step_epochs=schedule.step_epochs)
    return schedule.rate(peak if requested == "auto" else float(requested), epoch, epochs)
