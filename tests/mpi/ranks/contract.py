"""The contract of every backend, on real ranks: `contract.py BACKEND STEPS [broken]`.

After some steps with different data per rank all ranks hold equal parameters, equal to those of one process that
trained on the joined batch. Ends with 1, and says what differs, where that is not so. `broken` leaves averaging out.
"""

import sys

import numpy as np
from mpi4py import MPI

from hpc.backends import BACKENDS, load_backend
from hpc.spec import RunSpec
from hpc.world import world_from_mpi

LOCAL, FEATURES, CLASSES = 6, 5, 3
TOLERANCE = 1e-6


def joined_batch(step, samples):
    """Features and labels of one step, all ranks' samples together."""
    random = np.random.default_rng(1000 + step)
    return random.standard_normal((samples, FEATURES), np.float32), random.integers(CLASSES, size=samples)


def share(run, rank, step):
    """The part of the joined batch that is this rank's."""
    features, labels = joined_batch(step, run.global_batch_size)
    mine = slice(rank * run.local_batch_size, (rank + 1) * run.local_batch_size)
    return features[mine], labels[mine]


class NumpySoftmax:
    """Softmax regression with momentum."""

    def __init__(self, run, device, rank):
        self.run, self.rank = run, rank
        random = np.random.default_rng(rank)  # different on every rank: the backend has to make them equal
        self.parameters = [random.standard_normal((FEATURES, CLASSES), np.float32), np.zeros(CLASSES, np.float32)]
        self.momentum = [np.zeros_like(p) for p in self.parameters]

    def batch(self, step):
        self.features, self.labels = share(self.run, self.rank, step)
        return self.labels

    def forward(self, batch):
        logits = self.features @ self.parameters[0] + self.parameters[1]
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        self.shares = odds / odds.sum(axis=1, keepdims=True)
        return float(-np.log(self.shares[np.arange(len(batch)), batch]).mean())

    def backward(self):
        errors = (self.shares - np.eye(CLASSES, dtype=np.float32)[self.labels]) / np.float32(len(self.labels))
        return [self.features.T @ errors, errors.sum(axis=0)]

    def receive(self, gradients):
        self.gradients = gradients

    def update(self):
        for parameter, momentum, gradient in zip(self.parameters, self.momentum, self.gradients, strict=True):
            momentum[:] = np.float32(0.9) * momentum + gradient
            parameter[:] -= np.float32(0.1) * momentum

    def samples(self, batch):
        return len(batch)


def torch_mlp(run, device, rank):
    """The workload `mlp`, on a rank's share of the joined batch."""
    import torch

    from hpc.workloads.mlp_torch import TorchMLP

    class SharedMLP(TorchMLP):
        def __init__(self):
            super().__init__(run, device, rank)
            torch.manual_seed(0 if rank == 0 else 99)  # different on every rank: the backend has to make them equal
            self.model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 7), torch.nn.ReLU(), torch.nn.Linear(7, CLASSES))

        def batch(self, step):
            features, labels = share(run, rank, step)
            return torch.from_numpy(features).to(device), torch.from_numpy(labels).to(device)

    return SharedMLP()


FACTORIES = {"numpy": NumpySoftmax, "torch": torch_mlp}


def break_averaging(backend, name):
    """Makes a backend that trains every rank by itself: what the check below must find."""
    if name == "mpi":
        backend._average = lambda gradients, mpi: gradients
    else:
        backend._model = backend._model.module


def trained(name, comm, local_batch_size, steps, broken=False):
    """The parameters after some steps, on every rank of `comm`; and those before the first."""
    run = RunSpec(
        nodes=1, ranks_per_node=comm.size, gpus_per_node=0, cpus_per_rank=1, backend=name,
        workload="delay" if name == "mpi" else "mlp", batch_size=local_batch_size, precision="fp32", scaling="weak",
        warmup_steps=5, measured_steps=steps, repeat=1, seed=0, site="here",
    )  # fmt: skip
    backend = load_backend(name)
    backend.join(run, world_from_mpi(comm), comm)
    backend.build(FACTORIES[BACKENDS[name].framework])
    if broken:
        break_averaging(backend, name)
    marks = backend.make_marks(run.steps)
    before = [p.copy() for p in backend.parameters()]
    marks.begin(0)
    for step in range(steps):
        assert backend.step(step, marks) == local_batch_size
    marks.resolve()
    after = [p.copy() for p in backend.parameters()]
    assert len(backend.losses()) == run.steps
    assert np.isfinite(backend.losses()[:steps]).all()
    backend.leave()
    return after, before


def main():
    name, steps, broken = sys.argv[1], int(sys.argv[2]), "broken" in sys.argv[3:]
    comm = MPI.COMM_WORLD
    mine, before = trained(name, comm, LOCAL, steps, broken)
    everyone = comm.gather(mine)
    if comm.rank:
        return 0
    alone, _ = trained(name, MPI.COMM_SELF, LOCAL * comm.size, steps)
    learned = max(float(np.abs(a - b).max()) for a, b in zip(alone, before, strict=True))
    assert learned > 1e-3, "nothing was learned: the check would prove nothing"
    for rank, parameters in enumerate(everyone):
        for number, (found, wanted) in enumerate(zip(parameters, alone, strict=True)):
            if (off := float(np.abs(found - wanted).max())) > TOLERANCE:
                print(f"rank {rank}, parameter {number}: {off:.3g} off the joined batch")
                return 1
            if not np.array_equal(found, everyone[0][number]):
                print(f"rank {rank}, parameter {number}: not equal to rank 0's")
                return 1
    print(f"equal on {comm.size} ranks")
    return 0


sys.exit(main())
