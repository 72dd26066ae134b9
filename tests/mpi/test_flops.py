"""FLOPs by the tables of layers, against those that torch counts by the shapes of forward and backward."""

from __future__ import annotations

from typing import Any

import pytest

from hpc.workloads import load_factory, table_flops
from tests.unit.traces import make_run

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("workload", "options"),
    [
        pytest.param("resnet50", {"image_size": "64"}, marks=pytest.mark.all),
        ("mlp", {"width": "30", "depth": "3"}),
        ("mlp", {"depth": "0"}),
        pytest.param("arcface", {"image_size": "30", "classes": "101", "head": "replicated"}, marks=pytest.mark.all),
    ],
)
def test_torch_counts_what_the_table_has(workload: str, options: dict[str, str]) -> None:
    from hpc.backends.torch_loop import counted_flops

    run = make_run(backend="torch-ddp", workload=workload, batch_size=3, options=options)
    trained = load_factory(workload, "torch")(run, torch.device("cpu"), 0)
    state = torch.get_rng_state()
    flops, by = counted_flops(trained)
    assert flops == table_flops(run) and by.startswith("counted by torch's FlopCounterMode")
    assert all(value.device.type == "cpu" and value.grad is None for value in trained.model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_head_that_trains_some_classes_counts_these() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from hpc.workloads.torch_arcface import MarginHead

    head = MarginHead(torch.ones(100, 512), range(100), margin="arcface", sample_ratio=0.5, seed=0)
    with FlopCounterMode(display=False) as counter:
        head(torch.ones(4, 512, requires_grad=True), torch.arange(4)).backward()

    def table(**options: str) -> int:
        flops = table_flops(make_run(backend="torch-ddp", workload="arcface", options={"classes": "100", **options}))
        assert flops is not None
        return flops

    fewer = table(head="replicated") - table(head="replicated", sample_ratio="0.5")
    assert counter.get_total_flops() == 4 * fewer


class Reads:
    """A person's training whose loss needs a value."""

    model = torch.nn.Linear(4, 1)

    def batch(self, step: int) -> Any:
        return {"x": torch.ones(8, 4)}

    def samples(self, batch: Any) -> int:
        return len(batch["x"])

    def loss(self, model: Any, batch: Any) -> Any:
        loss = model(batch["x"]).sum()
        return loss if loss.item() > 0 else -loss


def test_what_needs_values_is_not_counted_and_says_so() -> None:
    from hpc.backends.torch_loop import counted_flops

    flops, reason = counted_flops(Reads())
    assert flops is None and reason.startswith("its FLOPs could not be counted by shapes alone (RuntimeError: ")
