"""Facts of ranks as preflight gathers them, MADE UP: two nodes of two ranks with a GPU each, where all is well."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hpc.model.findings import CheckFinding
from hpc.model.spec import RunSpec
from hpc.preflight.compare import CheckStage, judge
from hpc.preflight.types import Gpu, ImagesSeen, Launched, NodeFacts, RankFacts, Seen, Transports

GIB = 1 << 30
RUN = RunSpec(
    nodes=2, ranks_per_node=2, gpus_per_node=2, cpus_per_rank=2, backend="torch-ddp", workload="resnet50", batch_size=4,
    precision="fp32", scaling="weak", warmup_steps=6, measured_steps=6, repeat=1, seed=0, site="here",
    data="imagefolder:/data/set",
)  # fmt: skip
LAUNCHED = Launched(size=4, variables={"SLURM_NTASKS": "4"}, library="Open MPI 5")
NODE = NodeFacts(
    busy_cores=0.05, busiest=("sshd (pid 7) 0.05",), memory_bytes=64 * GIB,
    memory_free_bytes=60 * GIB, gpus=2,
)  # fmt: skip
TRANSPORTS = Transports(peers={"NET/IB/GDRDMA": (2,), "P2P/CUMEM": (1,)}, network="IB")


def rank(number: int, **changes: Any) -> RankFacts:
    """Rank `number` of four; `changes` replaces fields, `gpu` and `about_node` fields of those."""
    node, place = divmod(number, 2)
    uuids = tuple(f"uuid-{node}-{each}" for each in range(2))
    gpu = Gpu(
        uuid=uuids[place], name="NVIDIA H200", driver="580.1", memory_bytes=140 * GIB, used_bytes=GIB // 2,
        near_cores=(0, 1, 2, 3),
    )  # fmt: skip
    gpu = dataclasses.replace(gpu, **changes.pop("gpu", {}))
    about_node = dataclasses.replace(NODE, **changes.pop("about_node", {}))
    usual = RankFacts(
        rank=number, node=node, hostname=f"node{node}", cores=(2 * place, 2 * place + 1),
        about_node=about_node if place == 0 else None,
        in_sight=uuids, devices=(uuids[place],), gpus=(gpu,), device=gpu.name,
        software={"torch": "2.13", "nccl": "2.27.5"}, transports=TRANSPORTS,
        images=ImagesSeen(images=100, groups=2, sha256="ab"),
    )  # fmt: skip
    return dataclasses.replace(usual, **changes)


def seen(changes: Mapping[int, Mapping[str, Any]] | None = None, **other: Any) -> Seen:
    """All four ranks, some of them changed."""
    ranks = [rank(number, **(changes or {}).get(number, {})) for number in range(4)]
    return Seen(**{"run": RUN, "launched": LAUNCHED, "ranks": ranks, **other})


def findings(looked_at: Seen, **levels: Any) -> dict[str, CheckFinding]:
    """What all stages find, the later in place of the earlier."""
    return {finding.name: finding for stage in CheckStage for finding in judge(stage, looked_at, levels)}
