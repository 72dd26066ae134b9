"""The fields of a run that a trace, a plan, a log or a document states."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os.path import normpath
from typing import Any

from hpc.model.spec import SAMPLES, SCRIPT, SCRIPT_STEPS, RunSpec, diagnostic_of, without_by_nodes, without_folder

UNKNOWN_CASE = "?"
"""The case of a log whose devices nobody states."""


@dataclass(frozen=True, kw_only=True)
class RunFields:
    """The known fields of a RunSpec, by their names there; None for unknown ones.

    `unit` is what its speeds count per second, `samples` or `tokens`; points of different units share no number.
    A trace or a plan states all. Without `nodes` only the number of `devices` is known, of some logs not even that.
    `repeat` counts from 1; `is_numbered` is False if no name states it.
    """

    backend: str
    devices: int | None
    unit: str = SAMPLES
    repeat: int = 1
    is_numbered: bool = True
    nodes: int | None = None
    ranks_per_node: int | None = None
    gpus_per_node: int | None = None
    cpus_per_rank: int | None = None
    workload: str | None = None
    batch_size: int | None = None
    precision: str | None = None
    scaling: str | None = None
    warmup_steps: int | None = None
    measured_steps: int | None = None
    seed: int | None = None
    site: str | None = None
    data: str | None = None
    timing: str | None = None
    block_steps: int | None = None
    reduction: str | None = None
    telemetry: str | None = None
    placement: str | None = None
    search: str | None = None
    data_cache: str | None = None
    epochs: int | None = None
    target_accuracy: float | None = None
    eval_every: int | None = None
    container: str = ""
    code_digest: str = ""
    arguments: Sequence[str] = ()
    tokens_per_sample: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    job_options: Mapping[str, str] = field(default_factory=dict)
    by_nodes: Sequence[str] = ()

    @classmethod
    def of(cls, spec: RunSpec) -> RunFields:
        """All fields of a run."""
        known = {name: getattr(spec, name) for name in _SPEC_FIELDS}
        if spec.is_script:  # which decides by itself what is not stated
            steps = None if spec.steps == SCRIPT_STEPS else spec.measured_steps
            known |= {"batch_size": spec.batch_size or None, "measured_steps": steps}
            known["workload"] = normpath(spec.workload)  # one script, whatever led to it
        return cls(devices=spec.devices, unit=spec.unit, **known)

    @property
    def is_partial(self) -> bool:
        """Whether fields are unknown, as of a log: what it lacks was perhaps requested all the same."""
        return self.backend != SCRIPT and any(getattr(self, name) is None for name in _SPEC_FIELDS)

    @property
    def case(self) -> str:
        """Nodes and devices of each, `2n8g`; only the devices, `16g`, where the number of nodes is unknown; `?` where
        the number of devices is, `4n?g` where only the number of nodes is known."""
        if self.devices is None:
            return f"{self.nodes}n{UNKNOWN_CASE}g" if self.nodes else UNKNOWN_CASE
        return f"{self.nodes}n{self.devices // self.nodes}g" if self.nodes else f"{self.devices}g"

    @property
    def diagnostic(self) -> str:
        """As that of a RunSpec; empty where it is unknown."""
        return diagnostic_of(self)

    @property
    def ranks(self) -> int | None:
        """The number of MPI processes."""
        return self.nodes * self.ranks_per_node if self.nodes and self.ranks_per_node else None

    @property
    def local_batch_size(self) -> int | None:
        """Samples per device and step."""
        if self.batch_size and self.devices and self.scaling == "strong":
            return self.batch_size // self.devices
        return self.batch_size

    @property
    def global_batch_size(self) -> int | None:
        """Samples per step over all devices."""
        return self.local_batch_size * self.devices if self.local_batch_size and self.devices else None

    @property
    def on_one_rank(self) -> dict[str, Any]:
        """The fields that are others on one rank of one node, where the number of nodes is always known; none of
        unknown devices."""
        if self.devices is None:
            return {"nodes": None}
        return {
            "nodes": 1,
            "devices": 1,
            "ranks_per_node": None if self.ranks_per_node is None else 1,
            "gpus_per_node": 1 if self.gpus_per_node is None else min(1, self.gpus_per_node),
            **without_by_nodes(self),
        }

    @property
    def workload_name(self) -> str:
        """The workload, of a person's own file its name alone; empty where it is not known."""
        return without_folder(self.workload or "")

    def partial_id(self, extra: Mapping[str, Any]) -> str:
        """An id like a RunSpec's, of the known fields alone."""
        size = self.batch_size and f"b{self.batch_size}"
        parts = [part for part in (self.case, self.backend, self.workload, size, self.precision) if part]
        digest = hashlib.sha256(self.key(extra, repeat=1).encode()).hexdigest()[:10]
        return f"{'_'.join(parts)}_{digest}_r{self.repeat}"

    def key(self, extra: Mapping[str, Any], **instead: Any) -> str:
        """Equal for equal known fields, `extra` included; those of `instead` take the place of its own."""
        fields = vars(self) | instead
        known = {name: value for name in _SPEC_FIELDS if (value := fields[name]) not in (None, ())}
        if not fields["job_options"]:  # as ids of releases that had none
            del known["job_options"]
        if self.unit != SAMPLES:
            known["unit"] = self.unit
        if fields["nodes"] is None:
            known["devices"] = fields["devices"]
        return json.dumps([known, extra], sort_keys=True)


_SPEC_FIELDS = tuple(spec_field.name for spec_field in dataclasses.fields(RunSpec))
