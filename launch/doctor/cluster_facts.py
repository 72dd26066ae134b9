"""Facts of a Slurm cluster, read on a login node: settings, a partition, its nodes, the PMI types of srun."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpc.system.tool import run_tool

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

    def answer(*command: str) -> str:
        printed, error = _answer(*command)
        if error:
            unread[" ".join(command)] = error
        return printed

    settings = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", answer("scontrol", "show", "config"), re.MULTILINE))
    fields = _partition(answer("scontrol", "-o", "show", "partition", *([partition] if partition else [])), partition)
    name = fields.get("PartitionName", partition)
    rows = [line.strip().split("|") for line in answer("sinfo", "-h", "-N", "-p", name, "-o", "%N|%G|%c").splitlines()]
    rows = [row for row in rows if len(row) == 3]
    gpus = {sum(int(n) for n in re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", gres)) for _, gres, _ in rows}
    return ClusterFacts(
        settings=settings,
        partition=fields,
        nodes=len({node for node, _, _ in rows}),
        # No GPU in sinfo: the node has none, or they are not configured.
        gpus=tuple(sorted(gpus)) if gpus != {0} else (),
        cpus=tuple(sorted({int(count) for _, _, count in rows if count.isdigit()})),
        pmis=_pmis(answer("srun", "--mpi=list")),
        unread=unread,
    )


def _partition(printed: str, requested: str) -> dict[str, str]:
    partitions = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in printed.splitlines() if "PartitionName=" in line]
    return next((fields for fields in partitions if requested or fields.get("Default") == "YES"), {})


def _pmis(printed: str) -> tuple[str, ...]:
    """The PMI types that a site file can name; `pmix_v4` counts as pmix."""
    words = re.findall(r"\b(pmix|pmi2)(?:_v\d+)?\b", printed)
    return tuple(dict.fromkeys(words))


def _answer(*command: str) -> tuple[str, str]:
    """The output of a command, stdout and stderr, and its error if it failed."""
    answer = run_tool(command, timeout_s=COMMAND_TIMEOUT_S)
    return (answer.stdout + answer.stderr, "") if answer.ok else ("", answer.describe())
