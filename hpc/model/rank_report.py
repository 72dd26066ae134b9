"""RankReport: the facts that a rank reports of itself, a table per rank in `/ranks` of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin, get_type_hints

SHARED = ("software", "variables", "backend", "preflight")
"""Tables of a report of which a trace stores what all ranks share once, in its environment."""


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """One rank: its place, its machine, its software, its device; None is absent.

    `stamp_bound_ns` is how far a device's time stamps may be off the host's clock. `telemetry` and `copies` describe
    the helper of the node, `input` how the rank reads its data from files, `journal` the folder of the time stamps,
    `start` and `nccl` what preflight read, `problems` what is missing from the trace, and why. `extra` holds all other
    keys, also those of other versions.
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
    input: Mapping[str, Any] | None = None
    problems: Mapping[str, str] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Mapping[str, Any], shared: Mapping[str, Any] | None = None) -> RankReport:
        """The report of a table in `/ranks`. `shared` has the tables of facts that all ranks share.

        A value of another type is stored in `extra`, and its field is None.
        """
        tables = {name: _table(shared, name) for name in SHARED if name in shared} if shared else {}
        joined = {name: _joined(table, _table(values, name)) for name, table in tables.items() if table}
        known: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for name, value in {**values, **joined}.items():
            is_known = name in _TYPES and isinstance(value, _TYPES[name])
            (known if is_known else extra)[name] = value
        return cls(**known, extra=extra)

    def as_json(self) -> dict[str, Any]:
        """The table as stored."""
        known = {name: getattr(self, name) for name in _TYPES}
        return {**self.extra, **{name: value for name, value in known.items() if value is not None}}

    @property
    def gpu_uuids(self) -> tuple[str | None, ...]:
        """The UUIDs of the GPUs that this rank drives; None for one whose framework does not report it.

        They are those of its backend's `devices` if it names several, else that of its device.
        """
        devices = [device for device in self.backend_fact("devices") or [self.device] if isinstance(device, Mapping)]
        return tuple(device.get("uuid") for device in devices if device.get("kind") == "gpu")

    def backend_fact(self, name: str) -> Any:
        """A fact of the backend, None if absent."""
        return (self.backend or {}).get(name)


_HINTS = {name: get_args(hint)[0] for name, hint in get_type_hints(RankReport).items() if name != "extra"}
_TYPES = {
    name: (int, float)
    if hint is float
    else list
    if hint == Sequence[int]
    else (dict, Mapping)
    if get_origin(hint) is Mapping
    else get_origin(hint) or hint
    for name, hint in _HINTS.items()
}
"""For each field, `T | None`, the type that a stored value must have; dict is looked at first, which is fast."""


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name)
    return table if isinstance(table, dict) or (table is not None and isinstance(table, Mapping)) else {}


def _joined(shared: Mapping[str, Any], its: Mapping[str, Any]) -> Mapping[str, Any]:
    """Both tables; without a copy where one is empty."""
    return {**shared, **its} if shared and its else its or shared
