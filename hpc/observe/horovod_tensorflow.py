"""Hooks on Horovod with TensorFlow: the steps of loops that reduce gradients by it, their batches.

Of a tf.function that reduces inside, call and return alone are seen: they are a step. Otherwise a step ends with the
update behind a reduction. `hvd.allreduce` may be of a metric: where a loop calls it itself, an update must follow it.
Keras' `fit` and the two lines say themselves where steps are.
"""

from __future__ import annotations

import sys
import weakref
from functools import partial
from typing import Any

from . import events as e
from . import recording
from .horovod_calls import state_rank
from .keras_fit import PACKAGES, begin
from .patches import Patches
from .samples import Count

_STEPS = "steps of loops with Horovod's tape or optimizer"
_UPDATES = ("optimizers.base_optimizer.BaseOptimizer", "optimizers.optimizer.Optimizer")
"""Classes of Keras and of tf_keras whose `apply_gradients` is an update."""


def hook() -> None:
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
    before = len(hooks.patches)
    for package in PACKAGES:
        for path in _UPDATES:
            module, _, kind = f"{package}.src.{path}".rpartition(".")
            if "apply_gradients" in vars(getattr(sys.modules.get(module), kind, object)):
                hooks.replace(sys.modules[module], f"{kind}.apply_gradients", loop.make_update)
    return len(hooks.patches) > before


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
