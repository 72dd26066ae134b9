"""Hooks on Horovod with torch: which rank a process is, and when its optimizers and calls wait for other ranks.

Horovod reduces beside the backward; what it has not done by then is waited for in the optimizer's `synchronize`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

from . import events as e
from . import recording

CALLS = {
    "allreduce": "all-reduce", "allreduce_": "all-reduce", "grouped_allreduce": "all-reduce",
    "grouped_allreduce_": "all-reduce", "sparse_allreduce": "all-reduce", "allgather": "all-gather",
    "alltoall": "all-to-all", "reducescatter": "reduce-scatter", "barrier": "barrier",
}  # fmt: skip
"""Horovod's functions that return when all ranks have called them, and the names of their collectives."""
OPTIMIZERS = ("_DistributedOptimizer",)


def hook() -> None:
    """After the import of horovod.torch, whose torch has its hooks already."""
    o = recording.current
    if o is None or o.off:
        return
    horovod = sys.modules["horovod.torch"]
    calls = _Calls(horovod)
    for name in OPTIMIZERS:
        module = sys.modules.get("horovod.torch.optimizer")
        o.replace(
            module, f"{name}.synchronize", calls.make_synchronize, "when Horovod's optimizer waits for other ranks"
        )
        o.replace(module, f"{name}._allreduce_grad_async", calls.make_submit, "when a rank has submitted its gradients")
    for name, collective in CALLS.items():
        o.replace(horovod, name, calls.of_call(collective))


class _Calls:
    def __init__(self, horovod: Any) -> None:
        self._horovod, self._inside, self._submitted_ns = horovod, False, 0
        self._bytes: dict[int, int] = {}  # by the identity of an optimizer

    def _call(
        self, o: recording.ProcessRecording, name: str, size: int, original: Any, /, *args: Any, submitted_ns: int = 0,
        **named: Any,
    ) -> Any:  # fmt: skip
        """The original's result; the events of a collective in which a rank waits. It has arrived when it had submitted
        its last part, or with this call."""
        try:
            state_rank(o, self._horovod)
            which = o.recorder.name(f"{name} of Horovod", e.UNCLEAR if _in_a_part(named) else e.NO_ROOT)
            at = o.place()
            o.cells[at + 1] = e.COLLECTIVE_IN | which << 8 | size << 24
            o.cells[at] = submitted_ns or perf_counter_ns()
            if o.mark is not None:
                o.mark(at)
        except Exception as error:  # noqa: BLE001 - the script must not end for a hook
            o.failed(error)
            return original(*args, **named)
        self._inside = True
        try:
            return original(*args, **named)
        finally:
            self._inside = False
            o.note(e.COLLECTIVE_OUT, which, e.place_of(at))

    def make_synchronize(self, original: Any) -> Any:
        def synchronize(optimizer: Any) -> Any:
            o = recording.current
            if o is None or o.off or self._inside:
                return original(optimizer)
            size = self._bytes.get(id(optimizer)) or self._bytes_of(optimizer)
            submitted_ns, self._submitted_ns = self._submitted_ns, 0
            return self._call(o, "all-reduce", size, original, optimizer, submitted_ns=submitted_ns)

        return synchronize

    def make_submit(self, original: Any) -> Any:
        """Of one gradient, in the backward: others need no more of this rank once the last is submitted."""

        def submit(optimizer: Any, gradient: Any) -> Any:
            result = original(optimizer, gradient)
            if not self._inside:
                self._submitted_ns = perf_counter_ns()
            return result

        return submit

    def _bytes_of(self, optimizer: Any) -> int:
        """The bytes of its gradients, which Horovod reduces together."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        size: int = sum(each.numel() * each.element_size() for each in gradients)
        self._bytes[id(optimizer)] = size
        return size

    def of_call(self, collective: str) -> Any:
        def make(original: Any) -> Any:
            def call(*args: Any, **named: Any) -> Any:
                o = recording.current
                if o is None or o.off or self._inside:
                    return original(*args, **named)
                tensor: Any = args[0] if args else named.get("tensor")
                size = tensor.numel() * tensor.element_size() if hasattr(tensor, "element_size") else 0
                return self._call(o, collective, size, original, *args, **named)

            return call

        return make


def state_rank(o: recording.ProcessRecording, horovod: Any) -> None:
    """Keeps which rank this process is, once Horovod knows."""
    if not o.elsewhere and horovod.is_initialized():
        o.elsewhere = {"rank": horovod.rank(), "size": horovod.size(), "joined": True, "horovod": True}
        o.recorder.state(**o.elsewhere)


def _in_a_part(named: Mapping[str, Any]) -> bool:
    """Whether a call is among some of the ranks, a process set."""
    return getattr(named.get("process_set"), "process_set_id", 0) not in (0, None)
