"""Facts of a Slurm cluster, read on a login node: settings, a partition, its nodes, the PMI types of srun."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpc.system.tool import run_tool
from launch.cluster.partitions import SINFO, read_partitions

COMMAND_TIMEOUT_S = 30


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """`settings` and `partition` hold scontrol's output. `gpus` and `cpus` are the distinct counts per node of the
    partition, () if sinfo does not report them; `pmis` are the PMI types of srun. `unread` has the errors of failed
    commands, by command.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    partition: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 0
    gpus: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    pmis: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)


def read_cluster(partition: str) -> ClusterFacts:
    """Runs scontrol, sinfo and srun --mpi=list for a partition, the default one if empty. Starts no job."""
    unread: dict[str, str] = {}

    def run(*command: str) -> str:
        answer = run_tool(command, timeout_s=COMMAND_TIMEOUT_S)
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
        # `pmix_v4` counts as pmix.
        pmis=tuple(dict.fromkeys(re.findall(r"\b(pmix|pmi2)(?:_v\d+)?\b", run("srun", "--mpi=list")))),
        unread=unread,
    )  # fmt: skip
