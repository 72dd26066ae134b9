"""Outputs of nccl-tests, of public ones shortened to a few sizes: tests/unit/logs/nccl.

That of rccl-tests on an AMD GPU is the sample in the comments of a public parser of it.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "nccl"


def ranks(host: str, first: int = 0, count: int = 8) -> str:
    return "".join(
        f"#  Rank {first + device:2} Group  0 Pid {295203 + device} on    {host} device  {device} [0x18] "
        "NVIDIA H100 80GB HBM3\n"
        for device in range(count)
    )


# github.com/NVIDIA/nccl-tests/issues/290, on one node
ONE_NODE = (FOLDER / "one_node.txt").read_text()
# The same issue, on two nodes under srun --label, results not checked
TWO_NODES = (FOLDER / "two_nodes.txt").read_text()
# github.com/aws-ia/terraform-aws-eks-blueprints, the example with EFA: mpirun -tag-output, NCCL_DEBUG=INFO
TAGGED = (FOLDER / "tagged.txt").read_text()
# Head: github.com/NVIDIA/nccl/issues/398 (2020, no Group); rows: github.com/NVIDIA/nccl/issues/439 (no root, `error`);
# its end by the format strings of src/common.cu, 2.10
OLD = (FOLDER / "old.txt").read_text()
# github.com/NVIDIA/dgx-spark-playbooks/issues/25 (2.17.6; its end by the format strings of src/util.cu) and pull 103
# (2.20.0; cut off)
NEW = (FOLDER / "new.txt").read_text()
# github.com/NVIDIA/nccl-tests/issues/107: built without MPI, two processes that know nothing of each other
WITHOUT_MPI = (FOLDER / "without_mpi.txt").read_text()
