"""What Slurm sets for GPUs that are AMD's, against what HIP makes of it: gres.conf(5) warns of the two variables."""

from __future__ import annotations

import sys

from tools.devcluster.cluster import DevCluster

ASK = """
import os
from hpc.backends import InvalidRun
from hpc.backends.device import check_visible_once
try:
    check_visible_once()
    print(os.environ["SLURM_PROCID"], "ok")
except InvalidRun as error:
    print(os.environ["SLURM_PROCID"], error)
"""


def answers(cluster: DevCluster, *options: str) -> dict[str, str]:
    """The answer of each rank on one node."""
    printed = cluster.run("srun", "--nodes=1", *options, sys.executable, "-c", ASK)
    return dict(line.split(" ", 1) for line in printed.splitlines())


def test_a_gpu_that_slurm_hides_twice_is_named_with_the_variable_that_helps(cluster: DevCluster) -> None:
    bound = answers(cluster, "--ntasks=2", "--gpus-per-task=1")
    assert bound["0"] == "ok"
    assert bound["1"].startswith(
        "ROCR_VISIBLE_DEVICES=1 leaves 1 GPU, and HIP looks for CUDA_VISIBLE_DEVICES=1 among these, of which there is "
        "no 1: set HIP_VISIBLE_DEVICES=0, or Flags=amd_gpu_env"
    )


def test_gpus_that_belong_to_the_node_are_hidden_once(cluster: DevCluster) -> None:
    """As sweeps request them."""
    assert answers(cluster, "--ntasks=2", "--gpus-per-node=8") == {"0": "ok", "1": "ok"}
    assert answers(cluster, "--ntasks=1", "--gpus-per-node=4") == {"0": "ok"}
