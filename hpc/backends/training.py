"""The shared part of the training loops of all frameworks."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import nan
from typing import Any

from hpc.backends import BACKENDS, InvalidRun, WorkloadError, options_of_run
from hpc.measure.meetings import Meetings, meetings_of
from hpc.model.options import OptionValue
from hpc.model.spec import RunSpec
from hpc.model.timestamps import INNER
from hpc.workloads import table_flops
from hpc.workloads.parts import FLOPS_BY

# The facts that a backend reports on a rank.

_JSON_NAMES = {"early_collectives": "meets_before_gradients"}


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """The device of a rank; a CPU has none of the other fields. `memory_bytes` is None where it is unknown.

    `capability` is the compute capability of an NVIDIA GPU, the architecture of an AMD one, which alone has
    `compute_units`: a partition has fewer than the whole card.
    """

    kind: str
    name: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    capability: str | None = None
    compute_units: int | None = None

    @classmethod
    def of_gpu(cls, properties: Any) -> DeviceFacts:
        """From the properties that torch and Paddle return."""
        return cls(
            kind="gpu",
            name=properties.name,
            uuid=str(properties.uuid) if hasattr(properties, "uuid") else None,
            memory_bytes=properties.total_memory,
            capability=f"{properties.major}.{properties.minor}",
        )

    @classmethod
    def of_amd_gpu(cls, properties: Any) -> DeviceFacts:
        """From the properties that torch returns on ROCm: with the architecture, and the UUID as ROCm writes it."""
        uuid = _amd_uuid(str(properties.uuid))
        units, architecture = properties.multi_processor_count, properties.gcnArchName
        return replace(cls.of_gpu(properties), uuid=uuid, capability=architecture, compute_units=units)

    def as_json(self) -> dict[str, Any]:
        if self.kind == "cpu":
            return {"kind": "cpu"}
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        optional = ("memory_bytes", "compute_units")
        return {name: value for name, value in facts.items() if name not in optional or value is not None}


CPU_DEVICE = DeviceFacts(kind="cpu")


def _amd_uuid(uuid: str) -> str | None:
    """`GPU-0325447e39149eba` for torch's 30333235-3434-3765-3339-313439656261: HIP's 16 bytes are the digits of the
    GPU's unique id. None for a GPU that has none, as in a virtual machine: all of these have the same bytes."""
    digits = re.fullmatch(rb"[0-9a-f]{16}", bytes.fromhex(uuid.replace("-", "")))
    return f"GPU-{digits[0].decode()}" if digits else None


@dataclass(frozen=True, kw_only=True)
class HorovodFacts:
    """The installed Horovod, what it was built against, and how it works in this process."""

    version: str
    built_against: Mapping[str, str]
    mpi_libraries: Sequence[str]
    controller: str
    operations: str


@dataclass(frozen=True, kw_only=True)
class BackendFacts:
    """How a backend runs on this rank. None: does not apply to this backend.

    `versions` has None for a library that the framework lacks; `options` are those in effect. `devices` lists all
    devices of a rank that drives several. `synchronises_every_step`: host and device wait for each other in every step.
    `fused` is False where timing takes the step apart. `gradient_bytes` are reduced per step. `flops_per_token` or
    `flops_per_sample` are the model's, forward and backward, had as `flops_by` says. `early_collectives` has the
    reasons why ranks wait for each other before their own gradients are complete, `unrecorded_collectives` those of
    them without time stamps. These lists and `collectives` are updated while the run goes on; earlier callers, also of
    `as_json`, hold the same lists.
    """

    versions: Mapping[str, str | None]
    device: DeviceFacts
    devices: Sequence[DeviceFacts] | None = None
    transport: str
    threads: int | str
    inter_op_threads: int | None = None
    options: Mapping[str, OptionValue]
    horovod: HorovodFacts | None = None
    tf32: bool | None = None
    cudnn_benchmark: bool | None = None
    parameters_per_bucket: Sequence[int] | None = None
    absent_stamps: Sequence[str] | None = None
    fused: bool | None = None
    synchronises_every_step: bool | None = None
    reduces: bool | None = None
    gradient_bytes: int | None = None
    flops_per_token: int | None = None
    flops_per_sample: int | None = None
    flops_by: str | None = None
    early_collectives: list[str] | None = None
    unrecorded_collectives: list[str] | None = None
    reduction: Mapping[str, Any] | None = None
    """What reduces, as docs/formats.md has it, where ranks meet in groups."""
    collectives: list[dict[str, Any]] | None = None

    def as_json(self) -> dict[str, Any]:
        """The facts as a trace has them, without those that are None; Horovod's are among the others."""
        facts = {_JSON_NAMES.get(field.name, field.name): getattr(self, field.name) for field in fields(self)}
        facts.update(versions=dict(self.versions), device=self.device.as_json())
        if self.devices is not None:
            facts["devices"] = [device.as_json() for device in self.devices]
        if (horovod := facts.pop("horovod")) is not None:
            facts["versions"]["horovod"] = horovod.version
            names = ("built_against", "mpi_libraries", "controller", "operations")
            facts.update({f"horovod_{name}": getattr(horovod, name) for name in names})
        return {name: value for name, value in facts.items() if value is not None}


WORKLOAD = ("model", "batch", "loss", "optimizer", "samples")
"""The contract of a workload of every framework but numpy (docs/workloads.md)."""


class TrainingBase(ABC):
    """The parts of a Backend that need no framework. `build` sets `_losses` and `_workload`."""

    _losses: Losses
    _workload: Any

    @abstractmethod
    def group_facts(self) -> BackendFacts:
        """The facts that do not depend on the model."""

    @abstractmethod
    def _reduced_bytes(self) -> int:
        """Bytes of gradients reduced per step, in the type in which they are reduced."""

    def _early_collectives(self) -> list[str]:
        """Reasons why ranks wait for each other before their own gradients are complete."""
        return []

    def _unrecorded_collectives(self) -> list[str]:
        """Those of `_early_collectives` whose time stamps are not among the run's meetings."""
        early, expected = self._early_collectives(), getattr(self._workload, "early_collectives", [])
        return early if self.meetings() is None else [reason for reason in early if reason not in expected]

    def _reduction(self) -> Mapping[str, Any] | None:
        """What reduces where ranks meet in groups; else None."""
        return None

    def meetings(self) -> Meetings | None:
        return None if self._step_only else meetings_of(self._workload)

    def _begin(self, run: RunSpec, rank: int) -> None:
        """Reads the run. Raises OptionError or InvalidRun where an option is not valid."""
        self._run, self._rank = run, rank
        self._reduces, self._step_only = run.reduction == "on", run.timing == "step"
        options = options_of_run(run)
        self._options = {name: options[name] for name in BACKENDS[run.backend].options}
        scale = self._options.get("loss_scale", "dynamic")
        self._scale = None if scale == "dynamic" else float(scale)

    def _training_facts(self, *, absent: Sequence[str] = (), **facts: Any) -> BackendFacts:
        """`group_facts` and the facts of a training; `absent` are the stamps that `--timing phases` lacks."""
        flops, flops_by = self._flops_per_sample()
        return replace(
            self.group_facts(),
            absent_stamps=list(INNER if self._step_only else absent),
            reduces=self._reduces,
            gradient_bytes=self._reduced_bytes() if self._reduces else 0,
            early_collectives=self._early_collectives(),
            unrecorded_collectives=self._unrecorded_collectives(),
            reduction=self._reduction(),
            flops_per_token=getattr(self._workload, "flops_per_token", None),
            flops_per_sample=flops,
            flops_by=flops_by,
            **facts,
        )

    def _flops_per_sample(self) -> tuple[int | None, str | None]:
        """The FLOPs of a training sample, and how they were had, or why there are none."""
        if (flops := table_flops(self._run)) is not None:
            return flops, FLOPS_BY
        return getattr(self._workload, "flops_per_sample", None), getattr(self._workload, "flops_by", None)

    def release(self) -> None:
        self._losses.release()

    def losses(self) -> list[float]:
        return self._losses.values()


class Losses:
    """The loss of every step of a rank, recorded without waiting for the device.

    A framework's scalar stays one while steps are measured and becomes a number afterwards: a number takes
    8 bytes, a tensor hundreds.
    """

    def __init__(self, steps: int) -> None:
        self._numbers = array("d", [nan]) * steps
        self._pending: dict[int, Any] = {}

    def record(self, step: int, loss: Any) -> None:
        """Stores the loss of a step, anything that `float` takes, without reading it; of a measured one only."""
        if step < len(self._numbers):
            self._pending[step] = loss

    def release(self) -> None:
        """Converts pending losses to numbers; waits for the device."""
        for step, loss in self._pending.items():
            self._numbers[step] = float(loss)
        self._pending = {}

    def values(self) -> list[float]:
        """The losses of all steps, NaN where there is none; waits for the device."""
        self.release()
        return self._numbers.tolist()


def synchronised_norms(run: RunSpec, layers: Iterable[object]) -> list[str]:
    """The reason for early collectives if a layer is batch norm over all ranks, by any framework's name for it."""
    kinds = {kind.__name__ for layer in layers for kind in type(layer).__mro__}
    synchronised = any("SyncBatchNorm" in name for name in kinds)
    return ["synchronised batch norm"] if synchronised and run.ranks > 1 else []


def check_no_sync(run: RunSpec, early_collectives: Sequence[str]) -> None:
    """Raises InvalidRun for a no-sync run whose ranks communicate although nothing is reduced."""
    if run.reduction == "off" and early_collectives:
        raise InvalidRun(
            "reduction was switched off, so that every rank is measured by itself, but the ranks still communicate "
            f"({'; '.join(early_collectives)}): this workload has no no-sync run"
        )


def check_workload(workload: Any, framework: str) -> None:
    """Raises WorkloadError where the workload lacks a part of the contract."""
    if missing := [name for name in WORKLOAD if not hasattr(workload, name)]:
        raise WorkloadError(
            f"{type(workload).__name__} has no {', '.join(missing)}; a {framework} workload has "
            f"{', '.join(WORKLOAD)} (docs/workloads.md)"
        )
