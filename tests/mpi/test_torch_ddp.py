"""The particulars of torch-ddp, on real ranks; what it shares with every backend is in test_contract.py."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from hpc.model.timestamps import INNER
from tests.mpi import facts as of_runs
from tests.mpi.attempts import Ranks
from tests.mpi.facts import reason, refused

TOGETHER: tuple[dict[str, Any], ...] = (
    {},
    {"options": {"static_graph": "off"}},
    {"reduction": "off"},
    {"timing": "step"},
)


def facts(ranks: Ranks, *switches: str, **fields: Any) -> dict[str, Any]:
    return of_runs.facts(ranks, *switches, together=() if switches or "size" in fields else TOGETHER, **fields)


def test_ranks_of_one_host_listen_on_loopback_only(ranks: Ranks) -> None:
    assert facts(ranks)["listening"] == ["0100007F"]


def test_ranks_of_several_hosts_listen_on_the_named_interface(ranks: Ranks) -> None:
    result = facts(ranks, "apart")
    assert result["listening"] == ["0100007F"]
    assert result["ordered"]


def test_a_torch_whose_newer_store_takes_no_open_listener_gets_the_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from hpc.backends import torch_process_group

    made: list[bool] = []

    def store_of_torch_2_6(*place: Any, use_libuv: bool = True, **fields: Any) -> Any:
        made.append(use_libuv)
        if use_libuv and fields["master_listen_fd"] is not None:
            raise NotImplementedError("The libuv TCPStore backend does not support initialization with an listen fd.")
        return torch_process_group.torch.distributed.TCPStore(*place, use_libuv=use_libuv, **fields)

    monkeypatch.setattr(torch_process_group, "TCPStore", store_of_torch_2_6)
    comm = Mock(rank=0, size=1, allgather=lambda value: [value])
    store, interface = torch_process_group.open_store(comm, None)
    store.set("key", "value")
    assert (store.get("key"), interface, made) == (b"value", "lo", [True, False])


def test_a_missing_interface_is_named_with_the_existing_ones(ranks: Ranks) -> None:
    message = refused(ranks, "apart", size=2, env={"GLOO_SOCKET_IFNAME": "ib7"})
    assert "InvalidRun: interface ib7 was requested" in message
    assert "lo 127.0.0.1" in message


def test_a_run_on_a_gpu_that_is_not_there_is_refused(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """How such a run ends, is tested in test_rank.py."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    on_a_gpu = {"backend": "torch-ddp", "gpus_per_node": 1}
    message = reason(ranks, together=[on_a_gpu], **on_a_gpu)
    assert message.startswith("InvalidRun: 1 GPUs per node were requested; torch ")


def test_the_facts_of_a_default_run(ranks: Ranks) -> None:
    result = facts(ranks)
    assert result["options"] == {
        "bucket_cap_mb": 25.0,
        "static_graph": True,
        "gradient_as_bucket_view": True,
        "broadcast_buffers": False,
        "channels_last": True,
        "sgd": "fused",
        "compile": False,
        "loss_scale": "dynamic",
    }
    assert (result["transport"], result["threads"], result["tf32"]) == ("gloo", 2, False)
    assert (result["absent_stamps"], result["fused"], result["synchronises_every_step"]) == ([], True, False)
    assert result["ordered"]
    # All hooks until it is known which gradient comes last, then only that one's.
    assert result["hooks"] == [result["parameters"], 1, 1]


def test_all_hooks_stay_where_the_graph_may_change(ranks: Ranks) -> None:
    result = facts(ranks, options={"static_graph": "off"})
    assert result["hooks"] == [result["parameters"]] * 3


def test_a_no_sync_run_has_the_stamps_of_a_training(ranks: Ranks) -> None:
    result, no_sync = facts(ranks), facts(ranks, reduction="off")
    assert (no_sync["taken"], no_sync["ordered"], no_sync["absent_stamps"]) == ([0, 1, 2, 3, 4, 5], True, [])
    assert no_sync["hooks"] == result["hooks"]
    # A static graph would be reduced once.
    assert {**no_sync["options"], "static_graph": True} == result["options"]
    assert no_sync["losses"][0] == result["losses"][0]
    assert no_sync["losses"][1:] != result["losses"][1:]


def test_timing_of_steps_takes_no_inner_stamps_and_no_hooks(ranks: Ranks) -> None:
    phases, step = facts(ranks), facts(ranks, timing="step")
    assert step["hooks"] == [0, 0, 0]
    assert step["absent_stamps"] == list(INNER)
    assert (phases["taken"], step["taken"]) == ([0, 1, 2, 3, 4, 5], [0, 1, 5])
    assert step["ordered"]
    assert step["losses"] == phases["losses"]
