"""hpc.sweeps.target: what the sizes of a sweep depend on, and what is said where nothing tells them."""

from __future__ import annotations

import pytest

from hpc.spec import SpecError
from hpc.sweep_spec import SweepSpec
from hpc.sweeps import target
from launch.site import Site


@pytest.mark.parametrize(
    ("answers", "why"), [(False, "no Slurm controller answers here"), (True, "sinfo does not say; state it with")]
)
def test_who_did_not_tell_how_many_gpus_a_node_has_is_named(
    monkeypatch: pytest.MonkeyPatch, answers: bool, why: str
) -> None:
    # In place of a cluster: one whose controller is away, and one whose sinfo shows no GPUs.
    monkeypatch.setattr(target, "controller_answers", lambda: answers)
    monkeypatch.setattr(target, "nodes_of", lambda site: (None, 8))
    with pytest.raises(SpecError, match=why):
        target.decide_target(SweepSpec.from_mapping({"nodes": "1"}), Site(name="jumbo"))
    told = target.decide_target(SweepSpec.from_mapping({"nodes": "1", "gpus_per_node": "0"}), Site(name="jumbo"))
    assert (told.gpus_per_node, told.cpus_per_node) == (0, 8 if answers else None)
