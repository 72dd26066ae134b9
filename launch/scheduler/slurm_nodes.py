"""The nodes, partitions and settings of a cluster, from scontrol and srun, and the site file made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from hpc.system.tool import Answer, run_tool
from launch.jobs.site import LAUNCHERS
from launch.scheduler.protocol import ClusterFacts, Node, Partition, SubmitError
from launch.scheduler.slurm_jobs import COMMAND_TIMEOUT_S

CONFIG, MPI_LIST = ("scontrol", "show", "config"), ("srun", "--mpi=list")
_UNAVAILABLE = re.compile(r"blocked|down|drain|error|fail|future|inval|maint|perfctrs|unknown")
"""States of nodes that take no job now, each joined to others by a +; they are prefixes of what scontrol prints."""


def show(kind: str, partition: str) -> tuple[str, ...]:
    """The command that shows all partitions or nodes, one a line; those of hidden partitions, too, where one is named,
    which may be several."""
    return ("scontrol", *(["-a"] if partition else []), "-o", "show", kind)


def partitions_of(name: str) -> tuple[Partition, ...]:
    """The named partitions, else all. Raises SubmitError if scontrol fails or shows no node of them."""

    def run(kind: str) -> str:
        answer = run_tool(show(kind, name), timeout_s=COMMAND_TIMEOUT_S)
        if not answer.ok:
            raise SubmitError(f"the nodes of partition {name or '(default)'}: {answer.describe()}")
        return answer.stdout

    partitions = _named(name, read_partitions(run("partition"), run("node")))
    if not any(each.nodes for each in partitions):
        raise SubmitError(f"Slurm knows no node of partition {name or '(default)'}")
    return partitions


def _named(names: str, partitions: tuple[Partition, ...]) -> tuple[Partition, ...]:
    return tuple(each for each in partitions if not names or each.name in names.split(","))


def read_partitions(partitions: str, nodes: str) -> tuple[Partition, ...]:
    """The partitions in the output of `scontrol -o show partition`, with those of `show node`."""
    members: dict[str, list[Node]] = {}
    for fields in _lines("NodeName", nodes):
        for name in fields.get("Partitions", "").split(","):
            members.setdefault(name, []).append(_node(fields))
    return tuple(
        Partition(
            name=fields["PartitionName"], default=fields.get("Default") == "YES",
            nodes=tuple(members.get(fields["PartitionName"], ())), max_time_min=minutes_of(fields.get("MaxTime", "")),
            max_nodes=_count(fields.get("MaxNodes", "")), max_cpus_per_node=_count(fields.get("MaxCPUsPerNode", "")),
        )
        for fields in _lines("PartitionName", partitions)
    )  # fmt: skip


def _lines(name: str, printed: str) -> list[dict[str, str]]:
    """The fields of the lines that begin with this one; the first of two of one name, as a comment is the last."""
    lines = [line for line in printed.splitlines() if line.startswith(f"{name}=")]
    return [dict(reversed(re.findall(r"(\w+)=(\S*)", line))) for line in lines]


def _node(fields: Mapping[str, str]) -> Node:
    """GPUs are in Gres as `gpu:a100:4(S:0-1),nic:2`, where a type is configured."""
    gpus = re.findall(r"\bgpu(?::([^:,()]+))?:(\d+)", fields.get("Gres", ""))
    features = fields.get("AvailableFeatures", "(null)")
    return Node(
        # CPUEfctv (22.05) leaves out the cores that CoreSpecCount keeps for the system.
        name=fields["NodeName"], cpus=_count(fields.get("CPUEfctv") or fields.get("CPUTot", "")),
        up=_is_up(fields.get("State", "UNKNOWN")), gpus=sum(int(count) for _, count in gpus),
        gpu_types=frozenset(kind for kind, _ in gpus if kind),
        features=frozenset() if features == "(null)" else frozenset(features.split(",")),
    )  # fmt: skip


def minutes_of(text: str) -> int | None:
    """Whole minutes of Slurm's `days-hours:minutes:seconds`; None for `infinite` and any other text."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, _ = (int(part or 0) for part in match.groups())
    return (24 * days + hours) * 60 + minutes


def _is_up(state: str) -> bool:
    """Of `IDLE+CLOUD+POWERED_DOWN`; a node that is being started does not respond yet."""
    states = state.lower().split("+")
    if "*" in state or ("not_responding" in states and not any(each.startswith("power") for each in states)):
        return False
    return not any(map(_UNAVAILABLE.match, states))


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def mpi_types(printed: str) -> tuple[str, ...]:
    """The types that `srun --mpi=list` prints, one a line and of PMIx its versions, which count as pmix, too; those
    that most MPIs speak come first."""
    listed = re.findall(r"^(?:srun:)?\s*(\w+)\s*$|\b(pmix_v\d+)\b", printed, re.MULTILINE)
    types = [plain or version for plain, version in listed]
    types += ["pmix"] if any(each.startswith("pmix_v") for each in types) else []
    return tuple(sorted({*types} - {"none"}, key=lambda each: (each not in LAUNCHERS["srun"], each)))


def read_cluster(partition: str) -> ClusterFacts:
    """Runs scontrol and srun --mpi=list for a partition, the default one if empty. Starts no job."""
    unread: dict[str, str] = {}

    def run(command: tuple[str, ...]) -> str:
        answer = run_tool(command, timeout_s=COMMAND_TIMEOUT_S)
        if not answer.ok:
            unread[" ".join(command)] = answer.describe()
            return ""
        return _printed(answer)

    printed = run(show("partition", partition))
    known = read_partitions(printed, run(show("node", partition)))
    name = partition or next((each.name for each in known if each.default), "")
    named = _named(name, known)
    shown = [each for each in _lines("PartitionName", printed) if each["PartitionName"] in name.split(",")]
    nodes = [node for each in named for node in each.nodes]
    gpus = {node.gpus for node in nodes}
    return ClusterFacts(
        settings=_settings(run(CONFIG)), partition=next(iter(shown), {}), nodes=len({node.name for node in nodes}),
        # No GPU in Gres: the node has none, or they are not configured.
        gpus=tuple(sorted(gpus)) if gpus != {0} else (),
        cpus=tuple(sorted({node.cpus for node in nodes if node.cpus is not None})),
        pmis=mpi_types(run(MPI_LIST)),
        unread=unread,
    )  # fmt: skip


def _printed(answer: Answer) -> str:
    return answer.stdout + answer.stderr  # srun lists its types on the latter


def _settings(config: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", config, re.MULTILINE))


# A site file made of what the cluster says: `rankwise doctor --format site`.

_UNLIMITED = ("UNLIMITED", "INFINITE", "")
_MPI = ("pmix", "cray_shasta", "pmi2")
"""Ways to start MPI in the order in which they are proposed where Slurm has no default: most Open MPIs speak PMIx."""


def site_file(hostname: str) -> str:
    """The text of a site file for the cluster that this host sees. Raises SubmitError where a command fails."""

    def printed(command: tuple[str, ...]) -> str:
        answer = run_tool(command, timeout_s=COMMAND_TIMEOUT_S)
        if not answer.ok:
            raise SubmitError(f"{' '.join(command)}: {answer.describe()}; run it on a login node of the cluster")
        return _printed(answer)

    commands = CONFIG, show("partition", ""), show("node", ""), MPI_LIST
    config, partitions, nodes, mpi = map(printed, commands)
    return propose(config, partitions, nodes, mpi, hostname)


def propose(config: str, partitions: str, nodes: str, mpi: str, hostname: str) -> str:
    """The text of a site file from the output of these commands and the name of this host. What Slurm does not say is
    left out; where nodes differ a comment says so."""
    settings, known = _settings(config), read_partitions(partitions, nodes)
    chosen = next((each for each in known if each.default), known[0] if known else None)
    keys = {} if chosen is None else _keys(chosen)
    lines = [
        "# Made of scontrol's and srun's words: read it, correct it, name it with --site. Nothing here was measured.",
        f"name = {_text(settings.get('ClusterName', 'cluster'))}",
        f"hostname_pattern = {_text(_pattern(hostname))}",
    ]
    if chosen is not None:
        others = [each.name for each in known if each is not chosen]
        lines.append(_line("partition", chosen.name, f"others: {', '.join(others)}" if others else ""))
        lines += [_line(name, value) for name, value in keys.items()]
        lines += [f"# {remark}" for remark in _remarks(chosen)]
    lines += _of_mpi(settings, mpi)
    topology = settings.get("TopologyPlugin", "")
    if topology.endswith("block"):
        lines.append('# topology/block: [by_nodes."N-"] with sbatch = { segment = N } keeps a job inside its racks')
    lines += _of_memory(settings, partitions)
    for other in known:
        if other is not chosen:
            of_other = [_line(name, value) for name, value in _keys(other).items() if keys.get(name) != value]
            of_other += [f"# {each}" for each in _remarks(other)]
            lines += ["", f"[by_partition.{_key(other.name)}]", *of_other] if of_other else []
    return "\n".join(lines) + "\n"


def _different(partition: Partition) -> dict[str, Sequence[object]]:
    """By key of a site: the values that the partition's nodes have."""
    nodes = partition.nodes
    return {
        "gpus_per_node": sorted({node.gpus for node in nodes}),
        "gpu_type": sorted({kind for node in nodes for kind in node.gpu_types}),
        "cpus_per_node": sorted({node.cpus for node in nodes if node.cpus is not None}),
    }


def _keys(partition: Partition) -> dict[str, object]:
    """The keys of a site that follow from a partition; none where its nodes differ."""
    limits = {"time_limit_min": partition.max_time_min, "max_nodes": partition.max_nodes}
    return {name: values[0] for name, values in _different(partition).items() if len(values) == 1} | {
        name: limit for name, limit in limits.items() if limit is not None
    }


def _remarks(partition: Partition) -> Iterator[str]:
    different = _different(partition)
    for name, values in different.items():
        if len(values) > 1:
            yield f"{name}: nodes of {partition.name} differ ({', '.join(map(str, values))}); name the one to use"
    if different["gpus_per_node"] == [0]:
        yield f'no GRES gpu on {partition.name}: if its nodes have GPUs all the same, gpu_request = "none"'


def _of_mpi(settings: Mapping[str, str], listed: str) -> list[str]:
    kinds = dict.fromkeys(re.findall(r"^[ \t]+(\w+?)(?:_v\d+)?[ \t]*$", listed, re.MULTILINE))
    kinds.pop("none", None)
    default = re.sub(r"_v\d+$", "", settings.get("MpiDefault", "none"))
    kind = (
        default if default not in ("none", "(null)") else next((each for each in (*_MPI, *kinds) if each in kinds), "")
    )
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
