"""The nodes, partitions and settings of a cluster, from sinfo, scontrol and srun, and the site file made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from hpc.system.tool import run_tool
from launch.jobs.site import LAUNCHERS
from launch.scheduler.protocol import ClusterFacts, Node, Partition, SubmitError
from launch.scheduler.slurm_jobs import COMMAND_TIMEOUT_S

FACT_TIMEOUT_S = 30
_FIELDS = ("%N", "%P", "%T", "%c", "%l", "%s", "%B", "%G", "%f")
SINFO = ("sinfo", "-h", "-N", "-o", "|".join(_FIELDS))
"""The command whose output `read_partitions` reads."""
_UNAVAILABLE = re.compile(r"blocked|down|drain|error|fail|future|inval|maint|perfctrs|unknown")
"""States of nodes that take no job now; a `*` after a state marks a node that does not respond."""


def partitions_of(name: str) -> tuple[Partition, ...]:
    """The named partition, else all. Raises SubmitError if sinfo fails or lists no node."""
    answer = run_tool([*SINFO, *(["-p", name] if name else [])], timeout_s=COMMAND_TIMEOUT_S)
    if not answer.ok:
        raise SubmitError(f"the nodes of partition {name or '(default)'}: {answer.describe()}")
    partitions = read_partitions(answer.stdout)
    if not partitions:
        raise SubmitError(f"sinfo knows no node of partition {name or '(default)'}")
    return partitions


def read_partitions(printed: str) -> tuple[Partition, ...]:
    """The partitions in the output of `sinfo -h -N` with the columns of this module."""
    partitions: dict[str, Partition] = {}
    for line in printed.splitlines():
        values = [value.strip() for value in line.split("|", len(_FIELDS) - 1)]
        if len(values) != len(_FIELDS):
            continue
        name, partition, state, cpus, time, sizes, max_cpus, gres, features = values
        node = Node(
            name=name, cpus=int(cpus) if cpus.isdecimal() else None, up=_is_up(state),
            gpus=sum(int(n) for n in re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", gres)),
            features=frozenset() if features == "(null)" else frozenset(features.split(",")),
        )  # fmt: skip
        before = partitions.get(partition)
        partitions[partition] = Partition(
            name=partition.removesuffix("*"), default=partition.endswith("*"),
            nodes=(*(before.nodes if before else ()), node), max_time_min=minutes_of(time),
            max_nodes=_limit(sizes.rpartition("-")[2]), max_cpus_per_node=_limit(max_cpus),
        )  # fmt: skip
    return tuple(partitions.values())


def minutes_of(text: str) -> int | None:
    """Whole minutes of Slurm's `days-hours:minutes:seconds`; None for `infinite` and any other text."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, _ = (int(part or 0) for part in match.groups())
    return (24 * days + hours) * 60 + minutes


def _is_up(state: str) -> bool:
    return "*" not in state and not _UNAVAILABLE.match(state.lower())


def _limit(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def mpi_types(printed: str) -> tuple[str, ...]:
    """The types that `srun --mpi=list` prints, one a line and of PMIx its versions, which count as pmix, too; those
    that most MPIs speak come first."""
    listed = re.findall(r"^(?:srun:)?\s*(\w+)\s*$|\b(pmix_v\d+)\b", printed, re.MULTILINE)
    types = [plain or version for plain, version in listed]
    types += ["pmix"] if any(each.startswith("pmix_v") for each in types) else []
    return tuple(sorted({*types} - {"none"}, key=lambda each: (each not in LAUNCHERS["srun"], each)))


def read_cluster(partition: str) -> ClusterFacts:
    """Runs scontrol, sinfo and srun --mpi=list for a partition, the default one if empty. Starts no job."""
    unread: dict[str, str] = {}

    def run(*command: str) -> str:
        answer = run_tool(command, timeout_s=FACT_TIMEOUT_S)
        if not answer.ok:
            unread[" ".join(command)] = answer.describe()
            return ""
        return answer.stdout + answer.stderr

    settings = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", run("scontrol", "show", "config"), re.MULTILINE))
    printed = run("scontrol", "-o", "show", "partition", *([partition] if partition else []))
    shown = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in printed.splitlines() if "PartitionName=" in line]
    fields = next((fields for fields in shown if partition or fields.get("Default") == "YES"), {})
    named = read_partitions(run(*SINFO, "-p", fields.get("PartitionName", partition)))
    nodes = [node for each in named for node in each.nodes]
    gpus = {node.gpus for node in nodes}
    return ClusterFacts(
        settings=settings, partition=fields, nodes=len({node.name for node in nodes}),
        # No GPU in sinfo: the node has none, or they are not configured.
        gpus=tuple(sorted(gpus)) if gpus != {0} else (),
        cpus=tuple(sorted({node.cpus for node in nodes if node.cpus is not None})),
        pmis=mpi_types(run("srun", "--mpi=list")),
        unread=unread,
    )  # fmt: skip


# A site file made of what the cluster says: `python -m launch.doctor --format site`.

CountOrText = TypeVar("CountOrText", int, str)
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


def site_file(hostname: str) -> str:
    """The text of a site file for the cluster that this host sees. Raises SubmitError where a command fails."""
    texts = {}
    for name, command in COMMANDS.items():
        answer = run_tool(command, timeout_s=FACT_TIMEOUT_S)
        if not answer.ok:
            raise SubmitError(f"{' '.join(command)}: {answer.describe()}; run it on a login node of the cluster")
        texts[name] = answer.stdout + answer.stderr
    return propose(**texts, hostname=hostname)


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


def _of_mpi(settings: Mapping[str, str], listed: str) -> list[str]:
    kinds = dict.fromkeys(re.findall(r"^[ \t]+(\w+?)(?:_v\d+)?[ \t]*$", listed, re.MULTILINE))
    kinds.pop("none", None)
    default = re.sub(r"_v\d+$", "", settings.get("MpiDefault", "none"))
    kind = default if default not in ("none", "(null)") else next((each for each in _MPI if each in kinds), "")
    return [_line("mpi", kind, f"srun --mpi=list: {', '.join(kinds)}")] if kind else []


def _of_memory(settings: Mapping[str, str], partitions: str) -> list[str]:
    """`mem = 0`, all of a node's memory, where jobs get less unless they request it."""
    if "memory" not in settings.get("SelectTypeParameters", "").lower():
        return []
    stated = [settings.get(name, "") for name in ("DefMemPerCPU", "DefMemPerNode")]
    stated += re.findall(r"DefMemPer(?:CPU|Node)=(\S+)", partitions)
    if all(value in _UNLIMITED or value == "0" for value in stated):
        return []
    return ["", "[sbatch]", _line("mem", 0, "all memory of a node: a job has DefMemPerCPU or DefMemPerNode otherwise")]


def _gpus(node: Mapping[str, str]) -> list[tuple[str, int]]:
    """Type and number of its GPUs, from `gpu:a100:4(S:0-1),nic:2`; the type is empty where none is configured."""
    configured = re.findall(r"gpu(?::([A-Za-z][^:(,]*))?:(\d+)", node.get("Gres", ""))
    return [(kind or "", int(count)) for kind, count in configured]


def _fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S*)", line))


def _different(values: Iterable[CountOrText]) -> tuple[CountOrText, ...]:
    different: set[CountOrText] = set(values)
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
