"""Sleeps of known length per phase, rank and step, each with its measured time, to compare the ledger with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from hpc.model.options import OptionValue
from hpc.model.spec import RunSpec
from hpc.model.timestamps import ABSENT
from hpc.workloads import workload_options
from hpc.workloads.delays import check_ranks, parse_delays

PHASES = ("data", "compute", "transfer", "update")
"""The phases of the options `<phase>_ms`."""


def sleeps_of(run: RunSpec) -> dict[str, OptionValue]:
    """The run's options by name; without a reduction its sleep, `transfer_ms`, is 0."""
    options = dict(workload_options(run))
    return options if run.reduction == "on" else {**options, "transfer_ms": "0"}


class Sleeper:
    """Sleeps the requested time in each phase and records the measured time: `injected_ns` int64 [step, phase].

    Scattered ones are drawn from `seed`.
    """

    @classmethod
    def of(cls, run: RunSpec, rank: int) -> Sleeper:
        """Of this rank of the run; its repeats have other draws."""
        return cls(sleeps_of(run), rank, run.ranks, run.steps, seed=f"{run.seed} {run.repeat}")

    def __init__(
        self,
        options: Mapping[str, OptionValue],
        rank: int,
        ranks: int,
        steps: int,
        sleep: Callable[[float], None] = time.sleep,
        seed: str = "",
    ) -> None:
        phases_delays = [parse_delays(str(options[f"{phase}_ms"])) for phase in PHASES]
        for phase, delays in zip(PHASES, phases_delays, strict=True):
            check_ranks(f"{phase}_ms", delays, ranks)
        self.injected_ns: npt.NDArray[np.int64] = np.full((steps, len(PHASES)), ABSENT, np.int64)
        self._sleeps_s = [
            [
                sum(delay.at(rank, step, ranks, f"{seed} {phase} {part}") for part, delay in enumerate(delays)) / 1e3
                for phase, delays in enumerate(phases_delays)
            ]
            for step in range(steps)
        ]
        self._sleep = sleep

    def sleep(self, phase: str, step: int, share: float = 1.0) -> None:
        """Sleeps this share of the requested time of this phase and step."""
        column = PHASES.index(phase)
        begin_ns = time.perf_counter_ns()
        if seconds := self._sleeps_s[step][column] * share:
            self._sleep(seconds)
        so_far_ns = max(0, int(self.injected_ns[step, column]))
        self.injected_ns[step, column] = so_far_ns + time.perf_counter_ns() - begin_ns


class DelayWorkload:
    """For numpy backends: a straight line fitted to a few samples; each phase begins with its sleep, or half of it."""

    def __init__(self, run: RunSpec, device: object, rank: int) -> None:
        self._sleeper = Sleeper.of(run, rank)
        self.injected_ns = self._sleeper.injected_ns
        random = np.random.default_rng((run.seed, rank))
        self._inputs = random.standard_normal((run.rank_batch_size, 8)).astype(np.float32)
        self._targets = self._inputs.sum(axis=1)
        self.parameters = [np.zeros(8, np.float32)]
        self._step = 0

    def batch(self, step: int) -> npt.NDArray[np.float32]:
        self._step = step
        self._sleeper.sleep("data", step)
        return self._inputs

    def forward(self, batch: npt.NDArray[np.float32]) -> float:
        self._sleeper.sleep("compute", self._step, share=0.5)
        self._errors = batch @ self.parameters[0] - self._targets
        return float(np.mean(self._errors**2))

    def backward(self) -> list[npt.NDArray[np.float32]]:
        self._sleeper.sleep("compute", self._step, share=0.5)
        return [2 * self._inputs.T @ self._errors / np.float32(len(self._errors))]

    def receive(self, gradients: list[npt.NDArray[np.float32]]) -> None:
        self._sleeper.sleep("transfer", self._step)
        self._gradients = gradients

    def update(self) -> None:
        self._sleeper.sleep("update", self._step)
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            np.subtract(parameter, np.float32(0.01) * gradient, out=parameter)

    def samples(self, batch: npt.NDArray[np.float32]) -> int:
        return len(batch)
