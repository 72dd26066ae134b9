"""launch.sweep.target: where the GPU count of a node comes from, and the error if it is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc.model.spec import SpecError
from launch.jobs.site import Site
from launch.sweep import target
from launch.sweep.spec import SweepSpec
from tests.unit.fake_commands import write_program


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (False, r"no Slurm controller answers here \(scontrol ping: .* is DOWN\)"),
        (True, "sinfo does not say; state it with"),
    ],
)
def test_an_unknown_gpu_count_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool, message: str
) -> None:
    # Fakes of a cluster whose controller is away, and of one whose sinfo shows no GPUs.
    fakes = {
        "scontrol": f"echo 'Slurmctld(primary) at head is {'UP' if answers else 'DOWN'}'",
        "sbatch": "exit 1",
        "sinfo": "echo 'n1|main*|idle|8|infinite|1-infinite|UNLIMITED|(null)|(null)'",
    }
    for name, body in fakes.items():
        write_program(tmp_path, name, body)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpecError, match=message):
        target.decide_target(SweepSpec.from_mapping({"nodes": "1"}), Site(name="jumbo"))
    decided = target.decide_target(SweepSpec.from_mapping({"nodes": "1", "gpus_per_node": "0"}), Site(name="jumbo"))
    assert (decided.gpus_per_node, decided.cpus_per_node) == (0, 8 if answers else None)
