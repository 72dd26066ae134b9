"""The sleeps of `delay`, 60 ms with a scatter of 10 %, and a gradient of 256 kB, for networks that limit their rate."""

from dataclasses import replace

import numpy as np

from hpc.workloads.delay import DelayWorkload

PARAMETERS = 64_000


class Heavy(DelayWorkload):
    """For the backend mpi."""

    def __init__(self, run, device, rank):
        super().__init__(replace(run, workload="delay", options={"compute_ms": "60@scatter=0.1"}), device, rank)
        self._heavy = np.zeros(PARAMETERS, np.float32)
        self.parameters = [*self.parameters, np.zeros(PARAMETERS, np.float32)]

    def backward(self):
        return [*super().backward(), self._heavy]
