"""What a Slurm cluster says of itself to a login node: its settings, a partition, its nodes, the PMIs of srun."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpc.system.tool import run_tool

COMMAND_TIMEOUT_S = 30


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """`settings` and `partition` hold scontrol's own words. `gpus` and `cpus` are the different numbers that nodes of
    the partition have, () where sinfo does not tell; `pmis` what srun speaks. `unread` says by the command why one of
    them told nothing.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    partition: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 0
    gpus: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    pmis: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)


def read_cluster(partition: str) -> ClusterFacts:
    """Asks scontrol, sinfo and srun; the partition is the default one where none is named. Starts nothing."""
    unread: dict[str, str] = {}

    def answer(*command: str) -> str:
        printed, why = _answer(*command)
        if why:
            unread[" ".join(command)] = why
        return printed

    settings = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", answer("scontrol", "show", "config"), re.MULTILINE))
    found = _partition(answer("scontrol", "-o", "show", "partition", *([partition] if partition else [])), partition)
    name = found.get("PartitionName", partition)
    rows = [line.strip().split("|") for line in answer("sinfo", "-h", "-N", "-p", name, "-o", "%N|%G|%c").splitlines()]
    rows = [row for row in rows if len(row) == 3]
    gpus = {sum(int(n) for n in re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", gres)) for _, gres, _ in rows}
    return ClusterFacts(
        settings=settings,
        partition=found,
        nodes=len({node for node, _, _ in rows}),
        # No GPU in sinfo is none, or one that nobody configured.
        gpus=tuple(sorted(gpus)) if gpus != {0} else (),
        cpus=tuple(sorted({int(count) for _, _, count in rows if count.isdigit()})),
        pmis=_pmis(answer("srun", "--mpi=list")),
        unread=unread,
    )


def _partition(printed: str, asked: str) -> dict[str, str]:
    found = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in printed.splitlines() if "PartitionName=" in line]
    return next((one for one in found if asked or one.get("Default") == "YES"), {})


def _pmis(printed: str) -> tuple[str, ...]:
    """Those that a site can name; a pmix of a version (`pmix_v4`) is pmix, too."""
    words = re.findall(r"\b(pmix|pmi2)(?:_v\d+)?\b", printed)
    return tuple(dict.fromkeys(words))


def _answer(*command: str) -> tuple[str, str]:
    """What a command prints, on either of its outputs, and why it told nothing."""
    answer = run_tool(command, timeout_s=COMMAND_TIMEOUT_S)
    return (answer.stdout + answer.stderr, "") if answer.ok else ("", answer.describe())
