"""What hooks on a device do where an optimizer reads its counters: Adam does, twice for each parameter."""

from __future__ import annotations

import gc
from typing import Any

import pytest


@pytest.mark.parametrize(("on_device", "by_torch"), [(False, False), (True, True)])
def test_counters_of_the_host_are_read_without_the_hook(on_device: bool, by_torch: bool) -> None:
    torch = pytest.importorskip("torch")
    from hpc.observe.hooks import make_counter_read

    read: Any = []
    value = make_counter_read(torch.Tensor.item, lambda number: on_device)(lambda number: read.append(number) or 3.0)
    assert value(torch.tensor(3.0)) == 3.0
    assert bool(read) is by_torch


def test_what_is_no_plain_tensor_is_left_to_torch() -> None:
    torch = pytest.importorskip("torch")
    from hpc.observe.hooks import make_counter_read

    value = make_counter_read(torch.Tensor.item, lambda number: False)(lambda number: ("torch", number))
    parameter = torch.nn.Parameter(torch.tensor(2.0))
    assert value(7) == ("torch", 7) and value(parameter)[0] == "torch"


def test_torchs_optimizers_still_read_by_that_name() -> None:
    """Otherwise the hook on `Tensor.item` would be called for each parameter again."""
    torch = pytest.importorskip("torch")
    names = torch.optim.Adam.step.__globals__
    assert names["_get_value"](torch.tensor(2.0)) == 2.0 and names["_get_value"](5) == 5


def test_all_objects_are_looked_through_a_few_times_for_an_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from hpc.observe import observer

    looks: Any = []
    monkeypatch.setattr(gc, "get_objects", lambda: looks.append(1) or [])
    o = observer.Observer.__new__(observer.Observer)
    vars(o).update(known_optimizers=0, marked=False, _watched=lambda: None, _searches=0)
    for _ in range(100):
        o.watch_for_updates(search_anew=True)
    assert 0 < len(looks) < 10
