"""hpc.backends.training: losses, the loss scale, and refusals that need no framework."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from hpc.backends import InvalidRun, WorkloadError
from hpc.backends.training import Losses, check_no_sync, check_workload, static_scale, synchronised_norms
from tests.unit.traces import make_run


class OnDevice:
    """A loss whose conversion would wait for a device."""

    reads = 0

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        OnDevice.reads += 1
        return self.value


def test_losses_are_read_when_released_and_not_before() -> None:
    losses = Losses(4)
    losses.record(0, OnDevice(1.5))
    losses.record(2, OnDevice(2.5))
    assert OnDevice.reads == 0
    losses.release()
    assert OnDevice.reads == 2
    losses.record(3, 0.25)
    first, missing, *others = losses.values()
    assert (first, others) == (1.5, [2.5, 0.25])
    assert math.isnan(missing)
    assert OnDevice.reads == 2


def test_a_loss_scale_is_dynamic_or_a_number_above_0() -> None:
    assert (static_scale("dynamic"), static_scale("1024")) == (None, 1024)
    for option in ("0", "-1", "inf", "nan", "soon"):
        with pytest.raises(InvalidRun, match="must be dynamic or a number above 0"):
            static_scale(option)


def test_a_workload_without_a_part_of_the_contract_is_refused() -> None:
    parts = dict.fromkeys(("model", "batch", "loss", "optimizer", "samples"))
    check_workload(SimpleNamespace(**parts), "torch")
    with pytest.raises(WorkloadError, match="SimpleNamespace has no loss, samples; a torch workload has model, batch"):
        check_workload(SimpleNamespace(model=None, batch=None, optimizer=None), "torch")


def test_a_no_sync_run_has_no_synchronised_batch_norm() -> None:
    layer = type("SyncBatchNorm", (), {})()
    run = make_run(ranks_per_node=2, reduction="off")
    assert run.ranks > 1
    assert synchronised_norms(run, [object()]) == []
    check_no_sync(run, [])
    check_no_sync(make_run(ranks_per_node=2), synchronised_norms(run, [layer]))
    with pytest.raises(InvalidRun, match=r"\(synchronised batch norm\): this workload has no no-sync run"):
        check_no_sync(run, synchronised_norms(run, [layer]))
