"""What is known of the steps of a process: each with its time stamps, and the reasons for those that are absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpc.model.timestamps import ABSENT
from hpc.observe.device_times import Contradiction
from hpc.observe.stamps import CollectiveCall, HostSpans


@dataclass(frozen=True, kw_only=True)
class Pause:
    """What else than training is between two steps: from the end of one to the beginning of the next."""

    kind: str  # "evaluation", "checkpoint", "another loader", joined by " and "; ROLLOUT
    begin_ns: int
    end_ns: int
    waited_ns: int = 0
    """The part of it in which the process waited for the results of collectives."""


@dataclass(frozen=True, kw_only=True)
class ObservedStep:
    """One optimizer step, from where the script requests its batch to where it requests the next."""

    stamps: tuple[int, ...]
    """As hpc.model.timestamps.STAMPS, ns of CLOCK_MONOTONIC; ABSENT where it was not seen."""
    absent: Mapping[str, str]
    """For each stamp that is ABSENT, by its name: the reason."""
    samples: int | None
    """None where the script reads by no loader that hooks can see, or reads what has no length."""
    fetches: int
    fetch_ns: int
    """All of its fetches together."""
    loader_ns: int = ABSENT
    """What its loaders took between `begin` and `batch_ready`; ABSENT where no loader was seen."""
    later_ns: int = ABSENT
    """What they took behind that, until `grads_ready` or, where that is absent, the update; ABSENT as `loader_ns`."""
    backwards: int
    updates: tuple[int, ...]
    """The optimizers that were stepped, by number, in order."""
    skipped: bool
    """A gradient scaler skipped the update."""
    new_epoch: bool
    """The loader was exhausted, or restarted, before it: its first fetch includes the start of an iterator."""
    collectives: tuple[CollectiveCall, ...] = ()
    pause: Pause | None = None
    """What is before it: a step of the measurement must not span it."""
    phase: Pause | None = None
    """What it begins with, as one of few steps does through all of the run: a part of it."""
    bound_ns: int = 0
    """The error bound of its times: 0 on the host's clock, whose times they are."""
    called_ns: tuple[int, int] = (0, 0)
    """Its begin and end by the host's clock, of what the host queued for it: on a device earlier than `stamps`."""
    host_bound_ns: tuple[int, ...] = ()
    """On a device, how long the host set the pace, by hpc.observe.stamps.PHASES; empty where that is not known."""
    host_spans: HostSpans | None = None
    """On a device, what the host took; None where that is not known."""
    syncs: int = 0
    """How often the script waited for the device, as far as that is seen."""


@dataclass(frozen=True, kw_only=True)
class ObservedSteps:
    """The steps of a process in order; sentences on what was seen and what was not; without steps, the reason."""

    steps: tuple[ObservedStep, ...]
    remarks: tuple[str, ...]
    reason: str = ""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Stamps that more than half of the later steps lack, by name, with the most frequent reason."""
    last_steps: Mapping[str, int] = field(default_factory=dict)
    """By remark on steps that lack a stamp: the last of these."""
    contradiction: Contradiction | None = None
    """Of a device's clock with the host's."""
    marked: bool = False
    """The script, or its trainer, says where steps end."""

    def early_remarks(self, warmup_steps: int) -> tuple[str, ...]:
        """The remarks that concern no step behind the warm-up."""
        return tuple(remark for remark in self.remarks if self.last_steps.get(remark, warmup_steps) < warmup_steps)


ROLLOUT = "rollout"
"""Forwards without gradients that recur as a phase: the script makes the data of its next steps."""
NO_TIMES = "no times of the device"
"""The pause before a step, and before the next, of which the device's times are not all known."""
