"""The loop that each framework's own examples show, over the model and the optimizer that a backend has made.

Nothing is measured in them. The very same objects are trained: two models of one shape differ by more than what is
looked for, by where they lie in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Step = Callable[[int], object]


def _torch(backend: Any) -> Step:
    workload, model, optimizer = backend._workload, backend._model, backend._optimizer

    def step(index: int) -> None:
        optimizer.zero_grad()
        loss = workload.loss(model, workload.batch(index))
        loss.backward()
        optimizer.step()

    return step


def _tensorflow_horovod(backend: Any) -> Step:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    workload, optimizer, variables = backend._workload, backend._optimizer, backend._variables

    @tf.function  # type: ignore[untyped-decorator]  # mypy is not shown TensorFlow
    def train(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = workload.loss(workload.model, batch)
        tape = hvd.DistributedGradientTape(tape)
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return lambda index: train(workload.batch(index))


def _tensorflow_multiworker(backend: Any) -> Step:
    import tensorflow as tf

    workload, optimizer, variables = backend._workload, backend._optimizer, backend._variables

    def in_replica(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = workload.loss(workload.model, batch)
        replica = tf.distribute.get_replica_context()
        averaged = replica.all_reduce(tf.distribute.ReduceOp.MEAN, tape.gradient(loss, variables))
        optimizer.apply(averaged, variables)
        return loss

    train = tf.function(lambda batch: backend._strategy.run(in_replica, (batch,)))
    return lambda index: train(workload.batch(index))


def _paddle(backend: Any) -> Step:
    workload, model, optimizer = backend._workload, backend._model, backend._optimizer

    def step(index: int) -> None:
        loss = workload.loss(model, workload.batch(index))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


PLAIN: Mapping[str, Callable[[Any], Step]] = {
    "torch-ddp": _torch,
    "torch-horovod": _torch,
    "tensorflow-horovod": _tensorflow_horovod,
    "tensorflow-multiworker": _tensorflow_multiworker,
    "paddle-fleet": _paddle,
}
"""By backend: from the backend to one step of the plain loop."""
