"""Horovod on TensorFlow: NCCL where the run has GPUs, MPI where it has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hpc.backends.horovod_group import horovod_facts, join_horovod, load_horovod
from hpc.backends.tensorflow_loop import TensorFlowCollectives, TensorFlowLoop
from hpc.backends.training import BackendFacts
from hpc.model.collective_plan import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, Collective
from hpc.workloads.collectives import ROOT
from hpc.workloads.tensorflow_base import tf

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec


class TensorFlowHorovod(TensorFlowLoop):
    """One process per device; Horovod averages gradients in fused buffers.

    Do not use Horovod's optimizer: around a Keras 3 optimizer it silently averages nothing.
    """

    def _join_group(self, run: RunSpec, world: World, comm: Intracomm) -> str:
        self._hvd = load_horovod("tensorflow", comm)
        self._options = join_horovod(self._hvd, "tensorflow", self._options, run, comm)
        self._compression = getattr(self._hvd.Compression, str(self._options["compression"]))
        self._horovod = horovod_facts(self._hvd, run)
        return self._horovod.operations

    def _make_equal(self, model: Any) -> None:
        # The running statistics too, but not the states of random generators, which are integers.
        held = [v if isinstance(v, tf.Variable) else v.value for v in model.variables]
        self._hvd.broadcast_variables([v for v in held if v.dtype.is_floating], root_rank=0)

    def _average(self, gradients: list[Any]) -> list[Any]:
        if self._hvd.size() == 1:  # as Horovod's own tape does
            return gradients
        return [
            self._hvd.allreduce(
                gradient, op=self._hvd.Average, compression=self._compression, name=f"gradient_{number}"
            )
            for number, gradient in enumerate(gradients)
        ]

    def _loss_and_averaged_gradients(self, batch: Any) -> tuple[Any, list[Any]]:
        return self._loss_and_gradients(
            batch, partial(self._hvd.DistributedGradientTape, op=self._hvd.Average, compression=self._compression)
        )

    def _element_bytes(self, variable: Any) -> int:
        return 2 if self._options["compression"] == "fp16" else super()._element_bytes(variable)

    def group_facts(self) -> BackendFacts:
        return replace(super().group_facts(), horovod=self._horovod)

    def _leave_group(self) -> None:
        self._hvd.shutdown()


class TensorFlowHorovodCollectives(TensorFlowCollectives, TensorFlowHorovod):
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
