"""What the collectives of the TensorFlow backends share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from hpc.backends.tensorflow_loop import TensorFlowLoop
from hpc.model.collective_plan import Collective
from hpc.workloads.tensorflow_base import tf


class TensorFlowCollectives(TensorFlowLoop):
    """The shared part of the Groups. A call is one TensorFlow function, never in place: tensors do not change."""

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
