"""hpc.workloads.arcface: who holds which classes, and values that do not depend on it."""

from __future__ import annotations

import numpy as np
import pytest

from hpc.workloads.arcface import final_size, head_values, initial_values, shard, units
from tests.unit.traces import make_run

CLASSES = 2500


@pytest.mark.parametrize(("classes", "ranks"), [(10, 1), (10, 4), (3, 4), (85_742, 32), (8, 8)])
def test_every_class_has_one_rank_and_shares_differ_by_one_at_most(classes: int, ranks: int) -> None:
    shards = [shard(classes, ranks, rank) for rank in range(ranks)]
    assert [number for held in shards for number in held] == [*range(classes)]
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_the_heads_values_do_not_depend_on_the_sharding(ranks: int) -> None:
    run = make_run(workload="arcface", backend="torch-ddp", options={"classes": str(CLASSES)})
    whole = head_values(run, range(CLASSES))
    parts = [head_values(run, shard(CLASSES, ranks, rank)) for rank in range(ranks)]
    assert whole.shape == (CLASSES, 512) and np.array_equal(np.concatenate(parts), whole)
    assert whole.std() == pytest.approx((2 / CLASSES) ** 0.5, rel=0.01)
    assert len({row.tobytes() for row in whole}) == CLASSES
    assert head_values(run, range(0)).shape == (0, 512)


def test_the_backbone_is_that_of_the_reference() -> None:
    assert [unit.name for unit in units() if unit.stride == 2] == [f"layer{stage}.0" for stage in (1, 2, 3, 4)]
    assert len([*units()]) == 24 and (final_size(112), final_size(16), final_size(15)) == (7, 1, 1)
    values = initial_values(make_run(workload="arcface", backend="torch-ddp"))
    # insightface's iresnet50 has 43,590,848 parameters, a PReLU weight for each of 5,888 channels among them: 25 here.
    assert sum(value.size for value in values.values()) == 43_590_848 - 5_888 + 25
    assert values["fc.weight"].shape == (512, 512 * 7 * 7)
