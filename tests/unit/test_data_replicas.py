"""Which ranks read the same batch, by names of groups and by what is called in them."""

from __future__ import annotations

import numpy as np
import pytest

from hpc.observe import events as e
from hpc.observe.events import BatchRole, GroupRecord, role_of
from hpc.run.data_replicas import (
    DataReplicas,
    GroupRole,
    count_once,
    group_roles,
    may_share,
    replicas_of,
    roles_as_text,
)
from hpc.run.script_steps import RankSteps
from tests.unit.observed_events import Script

PAIR = GroupRecord((0, 1), "groups of 2 neighbours")
LARGE = 1 << 16


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("tp", BatchRole.MODEL),
        ("TENSOR_MODEL_PARALLEL_GROUP", BatchRole.MODEL), ("CONTEXT_PARALLEL_GROUP", BatchRole.MODEL),
        ("pp", BatchRole.MODEL), ("dp_replicate", BatchRole.DATA), ("fsdp", BatchRole.DATA), ("ep", BatchRole.DATA),
        ("EXPERT_MODEL_PARALLEL_GROUP", BatchRole.DATA), ("DATA_PARALLEL_GROUP_WITH_CP", BatchRole.NONE),
        ("dp_shard_cp", BatchRole.NONE), ("groups of 2 neighbours", BatchRole.NONE),
        ("messages", BatchRole.NONE), ("", BatchRole.NONE),
    ],
)  # fmt: skip
def test_a_dimension_has_a_role_by_the_words_of_its_name(name: str, role: BatchRole) -> None:
    assert role_of(name) is role


def its_roles(script: Script, ranks: int = 2) -> dict[tuple[int, ...], BatchRole]:
    recorded = RankSteps(observed=script.observed(), facts=script.facts)
    return {each.ranks: each.role for each in group_roles(recorded, range(ranks), ranks)}


def steps_with(
    forward: int = 0, later: int = 0, *, name: str = "all-reduce", group: GroupRecord | None = PAIR, **facts: object
) -> Script:
    """Steps with a call of so many bytes in the forward, and another behind the backward; 0: none."""
    script = Script(size=2, joined=True, **facts)
    for _ in range(4):
        script.fetch()
        script.forward()
        if forward:
            script.collective(name, size=forward, group=group)
        script.backward()
        if later:
            script.collective(name, size=later, group=group)
        script.update()
    return script


def test_what_is_summed_in_the_forward_is_of_one_batch_unless_all_gradients_are_summed() -> None:
    assert its_roles(steps_with(LARGE)) == {(0, 1): BatchRole.MODEL}
    assert its_roles(steps_with(512)) == {(0, 1): BatchRole.MODEL}  # 8 samples of 16 numbers
    assert its_roles(steps_with(64)) == {}  # a loss, counts
    assert its_roles(steps_with(LARGE, LARGE)) == {(0, 1): BatchRole.MODEL}
    assert its_roles(steps_with(LARGE, 4 * LARGE, gradient_bytes=3 * LARGE)) == {(0, 1): BatchRole.DATA}
    assert its_roles(steps_with(0, LARGE)) == {(0, 1): BatchRole.DATA}
    assert its_roles(steps_with(8)) == {}  # a loss
    assert its_roles(steps_with(LARGE, known_roles=[[[0, 1], "dp", "data"]])) == {(0, 1): BatchRole.DATA}
    assert its_roles(steps_with(LARGE, name="all-to-all")) == {(0, 1): BatchRole.UNKNOWN}


def test_ranks_of_another_world_are_of_no_group_of_the_run() -> None:
    assert its_roles(steps_with(0, known_roles=[[[0, 5], "tp", "model"]])) == {}


def test_messages_within_a_step_carry_parts_of_a_batch_and_others_parameters() -> None:
    sent = GroupRecord((0, 1), "messages")
    assert its_roles(steps_with(LARGE, name="message", group=sent)) == {(0, 1): BatchRole.MODEL}
    assert its_roles(steps_with(0, LARGE, name="message", group=sent)) == {(0, 1): BatchRole.DATA}


def of(ranks: tuple[int, ...], dimension: str, role: BatchRole, calls: str = "") -> GroupRole:
    return GroupRole(ranks=ranks, dimension=dimension, role=role, calls=calls)


def known(*by_rank: list[GroupRole]) -> DataReplicas:
    return replicas_of([roles_as_text(roles) for roles in by_rank])


def test_the_stages_of_a_pipeline_are_one_replica_whoever_sees_it() -> None:
    sent = [of((rank, rank + 1), "messages", BatchRole.MODEL) for rank in range(3)]
    blind = of((2, 3), "messages", BatchRole.DATA)
    assert known([sent[0]], [sent[0], sent[1]], [*sent[1:]], [blind]).replicas == ((0, 1, 2, 3),)


def test_experts_under_ddp_read_batches_of_their_own() -> None:
    roles = [of((0, 1, 2, 3), "dp", BatchRole.DATA), of((0, 1), "ep", BatchRole.DATA)]
    assert known(roles, [], [], []) == DataReplicas()


def test_a_group_of_unknown_role_matters_only_between_replicas() -> None:
    unknown = of((0, 1), "", BatchRole.UNKNOWN, "all-gather")
    assert known([unknown], [], [], []).reason
    assert not known([unknown, of((0, 1), "tp", BatchRole.MODEL)], [], [], []).reason
    everyone = of((0, 1), "", BatchRole.UNKNOWN, "all-gather")
    assert known([everyone], [everyone]) == DataReplicas()
    assert may_share([unknown], 4) and not may_share([everyone], 2)


def test_the_samples_of_a_replica_count_once_and_those_of_unknown_ones_as_stated() -> None:
    samples = np.array([[8, 8], [0, 4], [8, 8]], np.int32)
    count_once(samples, DataReplicas(replicas=((0, 1),)), 0)
    assert samples.tolist() == [[8, 8], [0, 0], [8, 8]]
    count_once(samples, DataReplicas(reason="not known"), 3)
    assert samples.tolist() == [[3, 3]] * 3
    count_once(samples, None, 0)
    assert samples.tolist() == [[3, 3]] * 3
    assert e.read_ranks(e.spelled_ranks(range(0, 64, 8))) == tuple(range(0, 64, 8))
