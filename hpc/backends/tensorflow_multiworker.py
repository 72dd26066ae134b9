"""TensorFlow's MultiWorkerMirroredStrategy: NCCL where the run has GPUs, a ring over gRPC where it has none."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from hpc.backends import InvalidRun, WorkloadError
from hpc.backends.addresses import PortTaken, endpoints, requested_interface
from hpc.backends.tensorflow_loop import CPU, TensorFlowCollectives, TensorFlowLoop
from hpc.model.collective_plan import ALL_GATHER, ALL_REDUCE, Collective
from hpc.workloads.tensorflow_base import tf

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec

_HEARTBEAT_S = 120
_MIB = 2**20
_NO_PROXY = "no_grpc_proxy"


class TensorFlowMultiWorker(TensorFlowLoop):
    """One process per device; variables are mirrored, and all-reduced gradients are applied to each mirror."""

    def _join_group(self, run: RunSpec, world: World, comm: Intracomm) -> str:
        self._comm = comm
        workers = endpoints(comm, requested_interface(self._device != CPU)) if comm.size > 1 else []
        self._strategy = _make_strategy(workers, world.rank, self._device, _communication(self._options))
        if self._strategy.num_replicas_in_sync != comm.size:
            raise InvalidRun(
                f"TensorFlow sees {self._strategy.num_replicas_in_sync} replicas where MPI sees {comm.size} ranks"
            )
        if comm.size == 1:
            return "none"
        on_gpus = {"ring": "grpc ring", "nccl": "nccl", "auto": "chosen by TensorFlow"}
        return "grpc ring" if self._device == CPU else on_gpus[str(self._options["collective"])]

    def _scope(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = self._strategy.scope()
        return scope

    def _local_variable(self, variable: Any) -> Any:
        # Outside the strategy an optimizer treats this rank's mirror as a plain variable. Inside it, a Keras optimizer
        # would add up the gradients of all ranks once more.
        (mirror,) = self._strategy.experimental_local_results(variable)
        return mirror

    def _make_equal(self, model: Any) -> None:
        """Does nothing: a variable made in the strategy's scope begins with rank 0's value."""

    def _in_replica(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._strategy.run(function, arguments)

    def _average(self, gradients: list[Any]) -> list[Any]:
        # A function's argument is on no device yet, and the strategy reduces to where a tensor is.
        placed = [tf.identity(gradient) for gradient in gradients]
        averaged: list[Any] = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, placed)
        return averaged

    def _make_optimizer(self) -> Any:
        optimizer = self._workload.optimizer()
        if getattr(optimizer, "_distribution_strategy", None) is self._strategy:
            raise WorkloadError(
                f"{type(self._workload).__name__} makes its optimizer together with its model; Keras would then add up "
                "the averaged gradients of all ranks: make it in optimizer()"
            )
        return optimizer

    def _leave_group(self) -> None:
        # Rank 0 serves the others until all have come here: none may find it gone.
        self._comm.Barrier()


def _make_strategy(workers: list[str], rank: int, device: str, communication: Any) -> Any:
    """The strategy over these workers, over this process alone where there are none. Raises PortTaken.

    They are passed in the form of TF_CONFIG; the user's own TF_CONFIG is ignored.
    """
    addresses = {worker.rpartition(":")[0] for worker in workers}
    if workers:  # otherwise gRPC connects through a proxy
        others = os.environ.get(_NO_PROXY) or os.environ.get("no_proxy", "")
        os.environ[_NO_PROXY] = ",".join(filter(None, [others, *sorted(addresses)]))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": workers} if workers else {}),
        task_type="worker" if workers else None,
        task_id=rank if workers else None,
        rpc_layer="grpc",
        num_accelerators={} if device == CPU else {"GPU": 1},
    )
    _be_patient()
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(resolver, communication)
    except tf.errors.UnknownError as error:
        if "Could not start gRPC server" not in str(error):
            raise
        raise PortTaken(
            f"rank {rank} of {socket.gethostname()} chose {workers[rank]}; it was free then, and is taken now that "
            "TensorFlow binds it: another attempt chooses another one"
        ) from error


def _be_patient() -> None:
    """Has TensorFlow give up a rank that does not answer after _HEARTBEAT_S, instead of its own 10 s.

    A node that is busy for seconds ends no run so; a rank that dies is noticed by what started it. The strategy
    configures the service itself, and has no option for the limit.
    """
    from tensorflow.python.eager import context

    its = context.context()
    its.configure_coordination_service = partial(
        its.configure_coordination_service, heartbeat_timeout_in_ms=1000 * _HEARTBEAT_S
    )


def _communication(options: Any) -> Any:
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=int(float(options["bytes_per_pack_mb"]) * _MIB),
        implementation=tf.distribute.experimental.CommunicationImplementation(str(options["collective"]).upper()),
    )


class TensorFlowMultiWorkerCollectives(TensorFlowCollectives, TensorFlowMultiWorker):
    """The strategy's own: it has no others for a replica to call."""

    def _operation(self, collective: Collective) -> Callable[[Any], Any]:
        def all_reduce(sent: Any) -> Any:
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(sent))

        def all_gather(sent: Any) -> Any:
            return tf.distribute.get_replica_context().all_gather(tf.identity(sent), axis=0)

        operation = {ALL_REDUCE: all_reduce, ALL_GATHER: all_gather}[collective.operation]
        return lambda sent: self._in_replica(operation, sent)
