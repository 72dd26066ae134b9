"""The facts that a backend reports on a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hpc.model.options import OptionValue

_JSON_NAMES = {"early_collectives": "meets_before_gradients"}


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """The device of a rank; a CPU has none of the other fields. `memory_bytes` is None where it is unknown."""

    kind: str
    name: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    capability: str | None = None

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

    def as_json(self) -> dict[str, Any]:
        if self.kind == "cpu":
            return {"kind": "cpu"}
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in facts.items() if name != "memory_bytes" or value is not None}


CPU_DEVICE = DeviceFacts(kind="cpu")


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
    `fused` is False where timing takes the step apart. `gradient_bytes` are reduced per step, `flops_per_token` are the
    model's, forward and backward. `early_collectives` has the reasons why ranks wait for each other before their own
    gradients are complete, `unrecorded_collectives` those of them without time stamps. These lists and `collectives`
    are updated while the run goes on; earlier callers, also of `as_json`, hold the same lists.
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
    early_collectives: list[str] | None = None
    unrecorded_collectives: list[str] | None = None
    collectives: list[dict[str, Any]] | None = None

    def as_json(self) -> dict[str, Any]:
        """The facts as a trace has them, without those that are None; Horovod's stand among the others."""
        facts = {_JSON_NAMES.get(field.name, field.name): getattr(self, field.name) for field in fields(self)}
        facts.update(versions=dict(self.versions), device=self.device.as_json())
        if self.devices is not None:
            facts["devices"] = [device.as_json() for device in self.devices]
        if (horovod := facts.pop("horovod")) is not None:
            facts["versions"]["horovod"] = horovod.version
            names = ("built_against", "mpi_libraries", "controller", "operations")
            facts.update({f"horovod_{name}": getattr(horovod, name) for name in names})
        return {name: value for name, value in facts.items() if value is not None}
