"""The site file that the doctor makes of Slurm's words. The texts are shortened from a development cluster (22.05) and
from public output of A100 sites."""

from __future__ import annotations

import pytest

from launch.jobs.site import read_site
from launch.scheduler.slurm_nodes import propose

CONFIG = """\
ClusterName             = leo
DefMemPerCPU            = 3800
MpiDefault              = none
SelectTypeParameters    = CR_CORE_MEMORY
TopologyPlugin          = topology/block
"""
PARTITIONS = """\
PartitionName=debug Default=NO MaxNodes=2 MaxTime=00:30:00 DefMemPerNode=UNLIMITED
PartitionName=gpu Default=YES MaxNodes=UNLIMITED MaxTime=1-00:00:00 DefMemPerNode=UNLIMITED
PartitionName=cpu Default=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED
"""
NODES = """\
NodeName=g1 CPUEfctv=60 CPUTot=64 Gres=gpu:a100:4(S:0-1),nic:2 Partitions=gpu,debug
NodeName=g2 CPUEfctv=60 CPUTot=64 Gres=gpu:a100:4(S:0-1) Partitions=gpu
NodeName=c1 CPUTot=128 Gres=(null) Partitions=cpu
NodeName=c2 CPUTot=96 Gres=(null) Partitions=cpu
"""
MPI = "MPI plugin types are...\n\tpmix\n\tnone\n\tcray_shasta\nspecific pmix plugin versions available: pmix_v4\n"


def test_a_site_file_is_made_of_what_slurm_says(tmp_path) -> None:
    text = propose(CONFIG, PARTITIONS, NODES, MPI, "login07.leo.example")
    assert (
        text
        == """\
# Made of scontrol's and srun's words: read it, correct it, name it with --site. Nothing here was measured.
name = "leo"
hostname_pattern = "login[0-9]+\\\\.leo\\\\.example"
partition = "gpu"  # others: debug, cpu
gpus_per_node = 4
gpu_type = "a100"
cpus_per_node = 60
time_limit_min = 1440
mpi = "pmix"  # srun --mpi=list: pmix, cray_shasta
# topology/block: [by_nodes."N-"] with sbatch = { segment = N } keeps a job inside its racks

[sbatch]
mem = 0  # all memory of a node: a job has DefMemPerCPU or DefMemPerNode otherwise

[by_partition.debug]
time_limit_min = 30
max_nodes = 2

[by_partition.cpu]
gpus_per_node = 0
# cpus_per_node: nodes of cpu differ (96, 128); name the one to use
# no GRES gpu on cpu: if its nodes have GPUs all the same, gpu_request = "none"
"""
    )
    (tmp_path / "leo.toml").write_text(text)
    assert read_site(tmp_path / "leo.toml").gpus_per_node == 4


@pytest.mark.parametrize(
    ("config", "mpi", "has_memory"),
    [
        (CONFIG.replace("= none", "= cray_shasta"), "cray_shasta", True),
        (CONFIG.replace("= none", "= (null)"), "pmix", True),
        (CONFIG.replace("CORE_MEMORY", "CORE"), "pmix", False),
        (CONFIG.replace("3800", "UNLIMITED"), "pmix", False),
    ],
)
def test_slurms_own_defaults_are_kept(config: str, mpi: str, has_memory: bool) -> None:
    text = propose(config, PARTITIONS, NODES, MPI, "login07")
    assert f'mpi = "{mpi}"' in text and ("mem = 0" in text) == has_memory
    assert 'mpi = "pspmix"' in propose("", PARTITIONS, NODES, "MPI plugin types are...\n\tnone\n\tpspmix\n", "login07")
