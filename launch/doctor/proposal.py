"""A site file made of what a cluster says of itself: `python -m launch.doctor --format site`. It starts no job."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from launch.cluster.partitions import minutes_of

Fields = Mapping[str, str]
Thing = TypeVar("Thing", int, str)
COMMANDS = {
    "config": ("scontrol", "show", "config"), "partitions": ("scontrol", "-o", "show", "partition"),
    "nodes": ("scontrol", "-o", "show", "node"), "mpi": ("srun", "--mpi=list"),
}  # fmt: skip
"""What is asked of the cluster, by the argument of `propose` that takes its output."""
_UNLIMITED = ("UNLIMITED", "INFINITE", "")
_MPI = ("pmix", "cray_shasta", "pmi2")
"""Ways to start MPI in the order in which they are proposed where Slurm has no default: most Open MPIs speak PMIx."""


@dataclass(frozen=True, kw_only=True)
class PartitionFacts:
    """A partition by its nodes: the different GPU counts, GPU types and CPU counts of these, and its limits."""

    name: str
    is_default: bool
    gpus: tuple[int, ...]
    gpu_types: tuple[str, ...]
    cpus: tuple[int, ...]
    minutes: int | None
    max_nodes: int | None

    def keys(self) -> dict[str, object]:
        """The keys of a site that follow from it; none where its nodes differ."""
        keys: dict[str, object] = {}
        if len(self.gpus) == 1:
            keys["gpus_per_node"] = self.gpus[0]
        if len(self.gpu_types) == 1:
            keys["gpu_type"] = self.gpu_types[0]
        if len(self.cpus) == 1:
            keys["cpus_per_node"] = self.cpus[0]
        limits = {"time_limit_min": self.minutes, "max_nodes": self.max_nodes}
        return keys | {name: limit for name, limit in limits.items() if limit is not None}


def propose(config: str, partitions: str, nodes: str, mpi: str, hostname: str) -> str:
    """The text of a site file from the output of COMMANDS and the name of this host. What Slurm does not say is left
    out; where nodes differ a comment says so."""
    settings = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", config, re.MULTILINE))
    known = list(_partitions(partitions, nodes))
    chosen = next((each for each in known if each.is_default), known[0] if known else None)
    lines = [
        "# Made of scontrol's and srun's words: read it, correct it, name it with --site. Nothing here was measured.",
        f"name = {_text(settings.get('ClusterName', 'cluster'))}",
        f"hostname_pattern = {_text(_pattern(hostname))}",
    ]
    if chosen is not None:
        others = [each.name for each in known if each is not chosen]
        lines.append(_line("partition", chosen.name, f"others: {', '.join(others)}" if others else ""))
        lines += [_line(name, value) for name, value in chosen.keys().items()]
        lines += [f"# {remark}" for remark in _remarks(chosen)]
    lines += _of_mpi(settings, mpi)
    topology = settings.get("TopologyPlugin", "")
    if topology.endswith("block"):
        lines.append('# topology/block: [by_nodes."N-"] with sbatch = { segment = N } keeps a job inside its racks')
    lines += _of_memory(settings, partitions)
    for other in known:
        if chosen is not None and other is not chosen:
            keys = {name: value for name, value in other.keys().items() if chosen.keys().get(name) != value}
            of_other = [_line(name, value) for name, value in keys.items()] + [f"# {each}" for each in _remarks(other)]
            lines += ["", f"[by_partition.{_key(other.name)}]", *of_other] if of_other else []
    return "\n".join(lines) + "\n"


def _partitions(partitions: str, nodes: str) -> Iterator[PartitionFacts]:
    of_nodes = [_fields(line) for line in nodes.splitlines() if line.startswith("NodeName=")]
    for line in partitions.splitlines():
        fields = _fields(line)
        if name := fields.get("PartitionName"):
            members = [node for node in of_nodes if name in node.get("Partitions", "").split(",")]
            yield PartitionFacts(
                name=name, is_default=fields.get("Default") == "YES",
                gpus=_different(sum(count for _, count in _gpus(node)) for node in members),
                gpu_types=_different(kind for node in members for kind, _ in _gpus(node) if kind),
                # CPUEfctv (22.05) leaves out the cores that CoreSpecCount keeps for the system.
                cpus=_different(int(node.get("CPUEfctv") or node.get("CPUTot") or 0) for node in members),
                minutes=minutes_of(fields.get("MaxTime", "")), max_nodes=_count(fields.get("MaxNodes", "")),
            )  # fmt: skip


def _remarks(partition: PartitionFacts) -> Iterator[str]:
    for name, values in {"gpus_per_node": partition.gpus, "gpu_type": partition.gpu_types,
                         "cpus_per_node": partition.cpus}.items():  # fmt: skip
        if len(values) > 1:
            yield f"{name}: nodes of {partition.name} differ ({', '.join(map(str, values))}); name the one to use"
    if partition.gpus == (0,):
        yield f'no GRES gpu on {partition.name}: if its nodes have GPUs all the same, gpu_request = "none"'


def _of_mpi(settings: Fields, listed: str) -> list[str]:
    kinds = dict.fromkeys(re.findall(r"^[ \t]+(\w+?)(?:_v\d+)?[ \t]*$", listed, re.MULTILINE))
    kinds.pop("none", None)
    default = re.sub(r"_v\d+$", "", settings.get("MpiDefault", "none"))
    kind = default if default not in ("none", "(null)") else next((each for each in _MPI if each in kinds), "")
    return [_line("mpi", kind, f"srun --mpi=list: {', '.join(kinds)}")] if kind else []


def _of_memory(settings: Fields, partitions: str) -> list[str]:
    """`mem = 0`, all of a node's memory, where jobs get less unless they request it."""
    if "memory" not in settings.get("SelectTypeParameters", "").lower():
        return []
    stated = [settings.get(name, "") for name in ("DefMemPerCPU", "DefMemPerNode")]
    stated += re.findall(r"DefMemPer(?:CPU|Node)=(\S+)", partitions)
    if all(value in _UNLIMITED or value == "0" for value in stated):
        return []
    return ["", "[sbatch]", _line("mem", 0, "all memory of a node: a job has DefMemPerCPU or DefMemPerNode otherwise")]


def _gpus(node: Fields) -> list[tuple[str, int]]:
    """Type and number of its GPUs, from `gpu:a100:4(S:0-1),nic:2`; the type is empty where none is configured."""
    configured = re.findall(r"gpu(?::([A-Za-z][^:(,]*))?:(\d+)", node.get("Gres", ""))
    return [(kind or "", int(count)) for kind, count in configured]


def _fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S*)", line))


def _different(values: Iterable[Thing]) -> tuple[Thing, ...]:
    different: set[Thing] = set(values)
    return tuple(sorted(different))


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _pattern(hostname: str) -> str:
    """A pattern of this host's name and of those that differ in a number alone."""
    return re.sub(r"\d+", "[0-9]+", re.escape(hostname).replace(r"\-", "-"))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _line(name: str, value: object, remark: str = "") -> str:
    shown = _text(value) if isinstance(value, str) else str(value)
    return f"{name} = {shown}" + (f"  # {remark}" if remark else "")
