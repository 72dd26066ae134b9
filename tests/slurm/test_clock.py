"""The global clock on a real Slurm whose nodes have clocks of their own, a thousand seconds and more apart."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "mpi" / "ranks" / "clock_namespaces.py"
NODES, RANKS_PER_NODE = 4, 2


def test_ranks_on_nodes_with_their_own_clocks_are_inside_their_bounds(cluster):
    if not cluster.shape.clocks:
        pytest.skip("this machine refuses time namespaces, so its nodes share one clock")
    printed = cluster.run(
        "srun", "--mpi=pmix", f"--nodes={NODES}", f"--ntasks={NODES * RANKS_PER_NODE}",
        f"--ntasks-per-node={RANKS_PER_NODE}", "--cpus-per-task=1", "--chdir", ROOT,
        "env", f"PYTHONPATH={ROOT}", sys.executable, SCRIPT, timeout_s=LIMIT_S,
    )  # fmt: skip
    everybody = json.loads(printed)
    assert len(everybody) == NODES * RANKS_PER_NODE
    zero = everybody[0]
    nodes = {values["host"]: values for values in everybody}
    assert len(nodes) == len({values["domain"] for values in everybody}) == len({n["ahead_s"] for n in nodes.values()})
    assert len(nodes) == NODES
    for values in everybody:
        error_ns, bound_ns = np.abs(values["error_ns"]), np.array(values["bound_ns"])
        assert (error_ns <= bound_ns).all()
        assert values["points"] == nodes[values["host"]]["points"]
        apart_ns = (zero["ahead_s"] - values["ahead_s"]) * 1e9
        if values["host"] == zero["host"]:
            assert apart_ns == bound_ns.max() == 0
        else:
            assert abs(apart_ns) >= 1e12
            assert bound_ns.min() > 0
