"""The collectives of both TensorFlow backends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from hpc.backends.tensorflow_horovod import TensorFlowHorovod
from hpc.backends.tensorflow_loop import TensorFlowLoop
from hpc.backends.tensorflow_multiworker import TensorFlowMultiWorker
from hpc.model.collective_plan import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, Collective
from hpc.workloads.collectives import ROOT
from hpc.workloads.tensorflow_base import tf


class _Collectives(TensorFlowLoop):
    """The shared part of both Groups. A call is one TensorFlow function, never in place: tensors do not change."""

    in_place: tuple[str, ...] = ()

    @abstractmethod
    def _operation(self, collective: Collective) -> Callable[[Any], Any]:
        """The collective of a tensor."""

    def prepare(self, collective: Collective, given: Any) -> tuple[Callable[[], None], Callable[[], Any]]:
        function = tf.function(self._operation(collective))
        with tf.device(self._device):
            sent = tf.constant(given)
        held: list[Any] = [sent]

        def call() -> None:
            held[0] = function(sent)
            self._wait()

        def result() -> Any:
            return held[0].numpy()

        return call, result

    def leave(self) -> None:
        self._leave_group()


class TensorFlowHorovodCollectives(_Collectives, TensorFlowHorovod):
    """Horovod's: NCCL or MPI."""

    def _operation(self, collective: Collective) -> Callable[[Any], Any]:
        hvd, name = self._hvd, f"{collective.operation}_{collective.bytes}"
        operations: dict[str, Callable[[Any], Any]] = {
            ALL_REDUCE: lambda sent: hvd.allreduce(sent, op=hvd.Sum, name=name),
            REDUCE_SCATTER: lambda sent: hvd.reducescatter(sent, op=hvd.Sum, name=name),
            ALL_GATHER: lambda sent: hvd.allgather(sent, name=name),
            BROADCAST: lambda sent: hvd.broadcast(sent, ROOT, name=name),
        }
        return operations[collective.operation]


class TensorFlowMultiWorkerCollectives(_Collectives, TensorFlowMultiWorker):
    """The strategy's own: it has no others for a replica to call."""

    def _operation(self, collective: Collective) -> Callable[[Any], Any]:
        def all_reduce(sent: Any) -> Any:
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(sent))

        def all_gather(sent: Any) -> Any:
            return tf.distribute.get_replica_context().all_gather(tf.identity(sent), axis=0)

        operation = {ALL_REDUCE: all_reduce, ALL_GATHER: all_gather}[collective.operation]
        return lambda sent: self._in_replica(operation, sent)
