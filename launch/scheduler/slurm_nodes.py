"""The nodes, partitions and settings of a cluster, from sinfo, scontrol and srun."""

from __future__ import annotations

import re

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
