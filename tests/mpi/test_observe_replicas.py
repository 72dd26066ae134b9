"""Which ranks of unchanged scripts read the same batch, so that its samples count once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc.observe.steps import steps_of
from hpc.run.data_replicas import DataReplicas, group_roles, may_share, replicas_of, roles_as_text
from hpc.run.script_steps import RankSteps
from tests.mpi.conftest import further
from tests.mpi.observed import run


def replicas(folder: Path, kind: str, ranks: int) -> DataReplicas:
    ended = run(folder, "replicas.py", kind, "8", ranks=ranks)
    assert ended.statuses == [0] * ranks, ended.errors
    assert not any("failed" in recorded.facts for recorded in ended.recorded)
    rank_steps = [RankSteps(observed=steps_of(each), facts=each.facts) for each in ended.recorded]
    assert all(step.samples == 8 for each in rank_steps for step in each.steps)
    roles = [group_roles(each, range(ranks), ranks) for each in rank_steps]
    known = replicas_of([roles_as_text(each) for each in roles])
    together = bool(known.replicas or known.reason)
    assert [may_share(each, ranks) for each in roles] == [together] * ranks
    return known


@pytest.mark.parametrize("kind", ["torch-pipeline", *further("tensor", "pipeline-by-hand", "tensor-by-hand")])
def test_stages_and_parts_of_a_model_read_one_batch(tmp_path: Path, kind: str) -> None:
    known = replicas(tmp_path, kind, ranks=2)
    assert known.replicas == ((0, 1),) and not known.reason


@pytest.mark.parametrize("kind", [*further("ddp", "shards", "reduced-by-hand")])
def test_ranks_whose_gradients_are_reduced_read_batches_of_their_own(tmp_path: Path, kind: str) -> None:
    assert replicas(tmp_path, kind, ranks=2) == DataReplicas()


@pytest.mark.all
def test_shards_of_parts_of_a_model_are_as_many_replicas_as_shards(tmp_path: Path) -> None:
    assert replicas(tmp_path, "tensor-and-shards", ranks=4).replicas == ((0, 1), (2, 3))


@pytest.mark.all
def test_of_groups_that_exchange_for_an_unknown_end_the_replicas_are_not_known(tmp_path: Path) -> None:
    known = replicas(tmp_path, "exchanged", ranks=4)
    assert not known.replicas
    assert known.reason.startswith(
        "which ranks read the same batch is not known; nothing says what these groups are for: all-to-all of ranks 0-1 "
        "(groups of 2 neighbours), all-to-all of ranks 2-3 (groups of 2 neighbours); name the dimensions"
    )
