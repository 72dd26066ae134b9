"""launch.sweep.target: what the sizes of a sweep depend on, and what is said where nothing tells them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc.model.spec import SpecError
from launch.jobs.site import Site
from launch.sweep import target
from launch.sweep.spec import SweepSpec


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (False, r"no Slurm controller answers here that could be asked \(scontrol ping: .* is DOWN\)"),
        (True, "sinfo does not say; state it with"),
    ],
)
def test_who_did_not_tell_how_many_gpus_a_node_has_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool, why: str
) -> None:
    # Fakes of a cluster whose controller is away, and of one whose sinfo shows no GPUs.
    fakes = {
        "scontrol": f"echo 'Slurmctld(primary) at head is {'UP' if answers else 'DOWN'}'",
        "sbatch": "exit 1",
        "sinfo": "echo 'n1|main*|idle|8|infinite|1-infinite|UNLIMITED|(null)|(null)'",
    }
    for name, body in fakes.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpecError, match=why):
        target.decide_target(SweepSpec.from_mapping({"nodes": "1"}), Site(name="jumbo"))
    told = target.decide_target(SweepSpec.from_mapping({"nodes": "1", "gpus_per_node": "0"}), Site(name="jumbo"))
    assert (told.gpus_per_node, told.cpus_per_node) == (0, 8 if answers else None)
