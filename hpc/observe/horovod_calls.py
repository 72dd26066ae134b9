"""Hooks on Horovod: with torch which rank a process is, and when its optimizers and calls wait for other ranks; with
TensorFlow the steps of loops that reduce gradients by it, and their batches.

Horovod reduces beside torch's backward; what it has not done by then is waited for in the optimizer's `synchronize`.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from functools import partial
from time import perf_counter_ns
from typing import Any

from . import events as e
from . import recording
from .keras_fit import begin
from .patches import Patches
from .recording import Count

CALLS = {
    "allreduce": "all-reduce", "allreduce_": "all-reduce", "grouped_allreduce": "all-reduce",
    "grouped_allreduce_": "all-reduce", "sparse_allreduce": "all-reduce", "allgather": "all-gather",
    "alltoall": "all-to-all", "reducescatter": "reduce-scatter", "barrier": "barrier",
}  # fmt: skip
"""Horovod's functions that return when all ranks have called them, and the names of their collectives."""


def hook() -> None:
    """After the import of horovod.torch, whose torch has its hooks already."""
    o = recording.current
    if o is None or o.off:
        return
    horovod = sys.modules["horovod.torch"]
    calls = _Calls(horovod)
    module, kind = sys.modules.get("horovod.torch.optimizer"), "_DistributedOptimizer"
    o.replace(module, f"{kind}.synchronize", calls.make_synchronize, "when Horovod's optimizer waits for other ranks")
    o.replace(module, f"{kind}._allreduce_grad_async", calls.make_submit, "when a rank has submitted its gradients")
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


# With TensorFlow: of a tf.function that reduces inside, call and return alone are seen: they are a step. Otherwise a
# step ends with the update behind a reduction. `hvd.allreduce` may be of a metric: where a loop calls it itself, an
# update must follow it. Keras' `fit` and the two lines say themselves where steps are.

_STEPS = "steps of loops with Horovod's tape or optimizer"


def hook_tensorflow() -> None:
    """After the import of horovod.tensorflow, whose TensorFlow is there. Nothing is recorded before a reduction."""
    hooks = Patches()
    loop = _Loop(hooks)
    functions = sys.modules.get("tensorflow.python.eager.polymorphic_function.polymorphic_function")
    iterators = sys.modules.get("tensorflow.python.data.ops.iterator_ops")
    hooks.replace(sys.modules["horovod.tensorflow"], "_make_allreduce_grads_fn", loop.make_reducer, _STEPS)
    for name in ("allreduce", "grouped_allreduce"):
        hooks.replace(sys.modules["horovod.tensorflow"], name, loop.make_call_of_reduction)
    hooks.replace(functions, "Function.__call__", loop.make_call, f"{_STEPS} inside a tf.function")
    hooks.replace(iterators, "OwnedIterator.__next__", loop.make_next, f"batches of {_STEPS}")


def _hook_updates(loop: _Loop, hooks: Patches) -> bool:
    """Of Keras, which TensorFlow imports where it is first used; whether it is there."""
    module = sys.modules.get("keras.src.optimizers.base_optimizer")
    if module is not None:
        hooks.replace(module, "BaseOptimizer.apply_gradients", loop.make_update, f"updates of {_STEPS}")
    return module is not None


class _Loop:
    """What is known of the loop of a process."""

    def __init__(self, hooks: Patches) -> None:
        self._hooks, self._sees_updates = hooks, False
        self._functions: weakref.WeakSet[Any] = weakref.WeakSet()  # those that reduce inside
        self._counts: weakref.WeakKeyDictionary[Any, Count] = weakref.WeakKeyDictionary()  # by iterators
        self._inside = self._traced = self._called = self._reduced = self._trains = False

    def _recording(self) -> recording.ProcessRecording | None:
        """From the first reduction on what records; None where something else says where steps are."""
        o = recording.current
        if "hpc.observe" in sys.modules or (o is not None and (o.off or o.in_fit)):
            return None
        if not self._trains and (o := begin("Horovod", self._hooks.lacking)) is not None:
            self._trains = True
            try:
                state_rank(o, sys.modules["horovod.tensorflow"])
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)
        return o

    def _see_updates(self) -> None:
        if not self._sees_updates:
            self._sees_updates = _hook_updates(self, self._hooks)

    def make_reducer(self, original: Any) -> Any:
        def make(*args: Any, **named: Any) -> Any:
            reduce, tensorflow = original(*args, **named), sys.modules["tensorflow"]
            self._see_updates()

            def reduces(*gradients: Any, **others: Any) -> Any:
                result = reduce(*gradients, **others)
                if tensorflow.executing_eagerly():
                    self._reduced = True
                else:
                    self._traced = True
                return result

            return tensorflow.autograph.experimental.do_not_convert(reduces)

        return make

    def make_call_of_reduction(self, original: Any) -> Any:
        tensorflow = sys.modules["tensorflow"]

        def reduces(*args: Any, **named: Any) -> Any:
            self._see_updates()
            result = original(*args, **named)
            if tensorflow.executing_eagerly():
                self._reduced = True
            else:
                self._called = True
            return result

        return tensorflow.autograph.experimental.do_not_convert(reduces)

    def make_call(self, original: Any) -> Any:
        def call(function: Any, *args: Any, **named: Any) -> Any:
            if self._inside:
                return original(function, *args, **named)
            if function in self._functions and (o := self._recording()) is not None:
                o.note(e.FORWARD_IN)
            self._inside, self._traced, self._called = True, False, False
            try:
                result = original(function, *args, **named)
            finally:
                self._inside = False
            if self._traced:
                self._functions.add(function)
            if function in self._functions and (o := self._recording()) is not None:
                o.step_ended()
            return result

        return call

    def make_update(self, original: Any) -> Any:
        def apply_gradients(*args: Any, **named: Any) -> Any:
            result = original(*args, **named)
            self._traced |= self._called
            if self._reduced and not self._inside:
                self._reduced = False
                if (o := self._recording()) is not None:
                    o.step_ended()
            return result

        return apply_gradients

    def make_next(self, original: Any) -> Any:
        def fetch(iterator: Any) -> Any:
            o = self._recording() if self._trains else None
            if o is None:
                return original(iterator)
            count = self._counts.setdefault(iterator, Count(None))
            return recording.fetched(o, o.loaders.of(iterator), partial(original, iterator), count.samples)

        return fetch
