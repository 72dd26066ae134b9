"""The particulars of torch-ddp, on real ranks; what it shares with every backend is in test_contract.py."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from hpc.model.timestamps import INNER
from tests.mpi import facts as of_runs
from tests.mpi.attempts import Ranks
from tests.mpi.facts import refused

TOGETHER: tuple[dict[str, Any], ...] = (
    {},
    {"options": {"static_graph": "off"}},
    {"reduction": "off"},
    {"timing": "step"},
    {"precision": "bf16"},
)


def facts(ranks: Ranks, *words: str, **asked: Any) -> dict[str, Any]:
    return of_runs.facts(ranks, *words, together=() if words or "size" in asked else TOGETHER, **asked)


def test_ranks_of_one_host_meet_on_loopback_and_nowhere_else(ranks: Ranks) -> None:
    assert facts(ranks)["listening"] == ["0100007F"]


def test_ranks_of_several_hosts_meet_on_the_interface_that_was_named(ranks: Ranks) -> None:
    found = facts(ranks, "apart")
    assert found["listening"] == ["0100007F"]
    assert found["ordered"]


def test_an_interface_that_is_not_there_is_named_with_those_that_are(ranks: Ranks) -> None:
    said = refused(ranks, "apart", size=2, env={"GLOO_SOCKET_IFNAME": "ib7"})
    assert "InvalidRun: interface ib7 was asked for" in said
    assert "lo 127.0.0.1" in said


def test_by_default_what_is_said_holds(ranks: Ranks) -> None:
    found = facts(ranks)
    assert found["options"] == {
        "bucket_cap_mb": 25.0,
        "static_graph": True,
        "gradient_as_bucket_view": True,
        "broadcast_buffers": False,
        "channels_last": True,
        "sgd": "fused",
        "compile": False,
        "loss_scale": "dynamic",
    }
    assert (found["transport"], found["threads"], found["tf32"]) == ("gloo", 2, False)
    assert (found["absent_stamps"], found["fused"], found["synchronises_every_step"]) == ([], True, False)
    assert found["ordered"]
    # All hooks until it is known which gradient comes last, then only that one's.
    assert found["hooks"] == [found["parameters"], 1, 1]


def test_all_hooks_stay_where_the_graph_may_change(ranks: Ranks) -> None:
    found = facts(ranks, options={"static_graph": "off"})
    assert found["hooks"] == [found["parameters"]] * 3


def test_a_twin_is_stamped_as_what_it_is_the_twin_of(ranks: Ranks) -> None:
    found, twin = facts(ranks), facts(ranks, reduction="off")
    assert (twin["taken"], twin["ordered"], twin["absent_stamps"]) == ([0, 1, 2, 3, 4, 5], True, [])
    assert twin["hooks"] == found["hooks"]
    # A static graph would be reduced once.
    assert {**twin["options"], "static_graph": True} == found["options"]
    assert twin["losses"][0] == found["losses"][0]
    assert twin["losses"][1:] != found["losses"][1:]


def test_coarse_stamps_leave_out_what_lies_inside_a_step_and_its_hooks(ranks: Ranks) -> None:
    fine, coarse = facts(ranks), facts(ranks, timing="step")
    assert coarse["hooks"] == [0, 0, 0]
    assert coarse["absent_stamps"] == list(INNER)
    assert (fine["taken"], coarse["taken"]) == ([0, 1, 2, 3, 4, 5], [0, 1, 5])
    assert coarse["ordered"]
    assert coarse["losses"] == fine["losses"]


@pytest.mark.parametrize("sgd", ["foreach", "for-loop"])
def test_the_optimizer_asked_for_is_the_one_used(ranks: Ranks, sgd: str) -> None:
    assert facts(ranks, size=1, options={"sgd": sgd})["options"]["sgd"] == sgd


def test_bf16_trains_on_a_cpu_and_is_not_fp32(ranks: Ranks) -> None:
    fp32, bf16 = facts(ranks), facts(ranks, precision="bf16")
    assert bf16["losses"] == pytest.approx(fp32["losses"], rel=0.05)
    assert bf16["losses"] != fp32["losses"]


def test_a_compiled_model_learns_the_same(ranks: Ranks) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU: apt-get install g++")
    plain, compiled = facts(ranks), facts(ranks, options={"compile": "on"})
    assert compiled["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    assert compiled["ordered"]
