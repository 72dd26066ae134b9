"""The sleeps of `delay` in the phases of a tiny torch model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from hpc.model.spec import RunSpec
from hpc.workloads.delay import Sleeper


class _SleepInBackward(torch.autograd.Function):
    """Passes its input on; its backward sleeps before any gradient of what came before it is complete."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, sleep: Callable[[], None]) -> torch.Tensor:
        ctx.sleep = sleep
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.sleep()
        return gradients[0], None


class TorchDelay:
    """For torch backends: a straight line fitted to a few samples, with the sleeps in its phases."""

    def __init__(self, run: RunSpec, device: torch.device, rank: int) -> None:
        self._sleeper = Sleeper.of(run, rank)
        self.injected_ns = self._sleeper.injected_ns
        torch.manual_seed(run.seed)
        self.model = torch.nn.Linear(8, 1)
        random = torch.Generator().manual_seed(run.seed + rank)
        self._inputs = torch.randn(run.rank_batch_size, 8, generator=random).to(device)
        self._targets = self._inputs.sum(dim=1, keepdim=True)
        self._step = 0
        self._reduced_by_optimizer = False

    def batch(self, step: int) -> torch.Tensor:
        self._step = step
        self._sleeper.sleep("data", step)
        return self._inputs

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        """Mean squared error; half of the sleep of `compute` is here, half at the beginning of backward."""
        step = self._step
        self._sleeper.sleep("compute", step, share=0.5)
        sleep_in_backward = partial(self._sleeper.sleep, "compute", step, share=0.5)
        output = _SleepInBackward.apply(model(batch), sleep_in_backward)  # type: ignore[no-untyped-call]  # torch says no types
        loss = torch.nn.functional.mse_loss(output, self._targets)
        real_backward = loss.backward

        def backward() -> None:
            real_backward()  # type: ignore[no-untyped-call]  # torch says no types
            if not self._reduced_by_optimizer:
                self._sleeper.sleep("transfer", step)

        # An attribute of this one tensor: the backend calls it as it would the method, and t4 comes after it.
        loss.backward = backward  # type: ignore[method-assign, assignment]  # as the comment says
        return loss

    def optimizer(self, **implementation: bool) -> torch.optim.Optimizer:
        """Gradient descent whose step begins with the sleep of `update`."""
        workload = self

        # A class of its own, not hooks: Horovod makes its optimizer of the class, and hooks stay behind.
        class SleepingSGD(torch.optim.SGD):
            def __init_subclass__(cls) -> None:
                workload.reduce_in(cls)

            def step(self, closure: Any = None) -> Any:
                workload._sleeper.sleep("update", workload._step)
                return super().step(closure)

        return SleepingSGD(self.model.parameters(), lr=0.01, **implementation)

    def reduce_in(self, optimizer: Any) -> None:
        """From now on the sleep of `transfer` follows the reduction of this class of Horovod's, not backward."""
        self._reduced_by_optimizer = True
        synchronize = optimizer.synchronize

        def and_sleep(reducing: Any) -> None:
            synchronize(reducing)
            self._sleeper.sleep("transfer", self._step)

        optimizer.synchronize = and_sleep

    def samples(self, batch: torch.Tensor) -> int:
        return len(batch)
