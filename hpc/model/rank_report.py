"""RankReport: the facts that a rank reports of itself, a table per rank in `/ranks` of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

SHARED = ("software", "variables", "backend", "preflight")
"""Tables of a report of which a trace stores what all ranks share once, in its environment."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """What a rank computes on, as its framework reports it: `kind` is cpu or gpu."""

    kind: str | None = None
    name: str | None = None
    uuid: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Device:
        """The device of a table; what is absent or of another type is None."""
        return cls(**_sorted_out(cls, values))

    def as_json(self) -> dict[str, Any]:
        """The table as stored."""
        return _as_json(self)


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """One rank: its place, its machine, its software, its device; None is absent.

    `stamp_bound_ns` is how far a device's time stamps may be off the host's clock. `telemetry` and `copies` describe
    the helper of the node, `journal` the folder of the time stamps, `start` and `nccl` what preflight read, `problems`
    what is missing from the trace, and why. `extra` holds all other keys, also those of other versions.
    """

    rank: int | None = None
    local_rank: int | None = None
    node_rank: int | None = None
    hostname: str | None = None
    nodes_simulated: bool | None = None
    boot_id: str | None = None
    cpu_model: str | None = None
    cpus: int | None = None
    affinity: Sequence[int] | None = None
    nvidia_driver: str | None = None
    device: Mapping[str, Any] | None = None
    software: Mapping[str, Any] | None = None
    variables: Mapping[str, Any] | None = None
    backend: Mapping[str, Any] | None = None
    stamp_bound_ns: float | None = None
    journal: Mapping[str, Any] | None = None
    preflight: Mapping[str, Any] | None = None
    start: Mapping[str, Any] | None = None
    nccl: Mapping[str, Any] | None = None
    telemetry: Mapping[str, Any] | None = None
    copies: Mapping[str, Any] | None = None
    problems: Mapping[str, str] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Mapping[str, Any], shared: Mapping[str, Any] | None = None) -> RankReport:
        """The report of a table in `/ranks`. `shared` has the tables of facts that all ranks share.

        A value of another type is kept in `extra`, and its field is None.
        """
        tables = {name: {**_table(shared or {}, name), **_table(values, name)} for name in SHARED if shared}
        return cls(**_sorted_out(cls, {**values, **{name: table for name, table in tables.items() if table}}))

    def as_json(self) -> dict[str, Any]:
        """The table as stored."""
        return _as_json(self)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that this rank drives: several where its backend names them, else the one."""
        several = (self.backend or {}).get("devices") or [self.device or {}]
        return tuple(Device.from_json(each) for each in several if isinstance(each, Mapping))

    @property
    def gpu_uuids(self) -> tuple[str | None, ...]:
        """The UUIDs of the GPUs that this rank drives; None for one whose framework does not report it."""
        return tuple(device.uuid for device in self.devices if device.kind == "gpu")

    def backend_fact(self, name: str) -> Any:
        """A fact of the backend, None if absent."""
        return (self.backend or {}).get(name)


def _as_json(report: Device | RankReport) -> dict[str, Any]:
    known = {each.name: getattr(report, each.name) for each in fields(report) if each.name != "extra"}
    return {**report.extra, **{name: value for name, value in known.items() if value is not None}}


def _sorted_out(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the dataclass's fields that have their types; all others as `extra`."""
    types = _types(kind)
    known = {name: value for name, value in values.items() if name in types and isinstance(value, types[name])}
    return {**known, "extra": {name: value for name, value in values.items() if name not in known}}


@cache
def _types(kind: type) -> dict[str, Any]:
    """For each field, `T | None`, the type to test against."""
    hints = {name: get_args(hint)[0] for name, hint in get_type_hints(kind).items() if name != "extra"}
    tested = {float: (int, float), Sequence[int]: list}
    return {name: tested.get(hint, get_origin(hint) or hint) for name, hint in hints.items()}


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name)
    return table if isinstance(table, Mapping) else {}
