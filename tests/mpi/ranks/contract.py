"""What every backend must do, on real ranks: `contract.py BACKEND CHECK:STEPS[:TYPE[:step]] …`.

BACKEND is a name of the table or FILE.py:CLASS. CHECKs: `joined` (after STEPS steps with other data on every rank all
hold the parameters that one process learns from the joined batch; `broken` is the same with the averaging left out, and
comes last), `alone` (without reduction every rank learns from its own data alone, and none waits for another),
`complete` (a rank has its gradients complete before another has begun its step), `resnet50` (ranks agree with one
another), `falls` (the loss on a fixed batch), `samples` (those really seen). Prints what differs, and for each check
whether it holds.
"""

import copy
import importlib.util
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parent))
import contract_model

from hpc.backends import BACKENDS, load_backend
from hpc.measure.world import world_from_mpi
from hpc.model.spec import RunSpec
from hpc.workloads import load_factory

TOLERANCE = {"fp32": 1e-6, "fp64": 1e-12}
LIKE_A_BACKEND = {"KerasDistributedOptimizer": "tensorflow-horovod"}


def spec(name, comm, steps, **asked):
    usual = {
        "nodes": 1, "ranks_per_node": comm.size, "gpus_per_node": 0, "cpus_per_rank": 1, "backend": name,
        "workload": "delay" if name == "mpi" else "mlp", "batch_size": contract_model.LOCAL, "precision": "fp32",
        "scaling": "weak", "warmup_steps": 5, "measured_steps": max(1, steps - 5), "repeat": 1, "seed": 0,
        "site": "here",
    }  # fmt: skip
    return RunSpec(**{**usual, **asked})


def loaded(where):
    path, _, attribute = where.partition(":")
    if not attribute:
        return load_backend(where)
    module_spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return getattr(module, attribute)()


_members = []


def member(where, run, comm):
    """A backend that is in the group of ranks, not yet built.

    Horovod, Paddle and TensorFlow make one group in the life of a process. The first check joins it; each later one
    takes a copy of the backend as it was then, with its own run.
    """
    if not _members:
        _members.append(loaded(where))
        _members[0].join(run, world_from_mpi(comm), comm)
    backend = copy.copy(_members[0])
    backend._run, backend._reduces = run, run.reduction == "on"
    backend._options = dict(getattr(backend, "_options", {}))
    _members.append(backend)
    return backend


class Training:
    """A backend that has trained some steps; what it did is in its attributes.

    `one_by_one`: a rank begins its steps when the one before it has ended all of its own. `through` is given the marks
    and the backend, and gives the marks that are taken.
    """

    def __init__(
        self, where, comm, steps, factory=None, change=None, one_by_one=False, through=lambda timer, _: timer, **asked
    ):
        name = LIKE_A_BACKEND.get(where.partition(":")[2], where)
        self.framework = BACKENDS[name].framework
        self.run = spec(name, comm, steps, **asked)
        self.backend = member(where, self.run, comm)
        self.backend.build(factory(self.framework))
        if change is not None:
            change(self.backend)
        timer = through(self.backend.make_timer(self.run.steps), self.backend)
        if one_by_one and comm.rank:
            comm.recv(source=comm.rank - 1)
        timer.begin(0)
        self.samples = [self.backend.step(step, timer) for step in range(steps)]
        timer.resolve()
        if one_by_one and comm.rank + 1 < comm.size:
            comm.send("ended", dest=comm.rank + 1)
        self.losses = self.backend.losses()
        self.parameters = [value.copy() for value in self.backend.parameters()]
        self.stamps = np.array(timer.stamps.tolist()).reshape(-1, 6)[:steps]


def of_contract(framework):
    return import_module(f"contract_{framework}")


def joined(where, comm, steps, kind, broken=False, **asked):
    """Prints what differs from one process on the joined batch; True where nothing does."""
    seed = {"fp32": 32, "fp64": 64}[kind]

    def change(backend):
        if broken:
            of_contract(BACKENDS[where].framework).break_averaging(backend)

    done = Training(where, comm, steps, lambda framework: of_contract(framework).Workload, change, seed=seed, **asked)
    assert len(done.losses) == done.run.steps
    assert np.isfinite(done.losses[:steps]).all()
    assert done.samples == [contract_model.LOCAL] * steps
    everyone = comm.gather(of_contract(done.framework).in_order(done.parameters))
    right = True
    if comm.rank == 0:
        before, wanted = contract_model.first_values(done.run, 0), contract_model.learned(done.run, steps)
        moved = max(float(np.abs(a - b).max()) for a, b in zip(wanted, before, strict=True))
        assert moved > 1e-3, "nothing was learned: the check would prove nothing"
        right = False not in [_agrees(rank, values, everyone[0], wanted, kind) for rank, values in enumerate(everyone)]
    return right


def alone(where, comm, steps, kind, **asked):
    """Prints what differs from one process on each rank's own data; True where nothing does. Hangs where ranks wait."""
    seed = {"fp32": 32, "fp64": 64}[kind]
    done = Training(
        where, comm, steps, lambda framework: of_contract(framework).Workload, one_by_one=True, seed=seed,
        reduction="off", **asked,
    )  # fmt: skip
    described = done.backend.describe()
    assert (described["reduces"], described["gradient_bytes"]) == (False, 0)
    mine = of_contract(done.framework).in_order(done.parameters)
    joined_batch = contract_model.learned(done.run, steps)
    apart = max(float(np.abs(a - b).max()) for a, b in zip(mine, joined_batch, strict=True))
    assert apart > 1e-3, "as far from the joined batch as rounding: the check would prove nothing"
    right = _agrees(comm.rank, mine, mine, contract_model.learned(done.run, steps, comm.rank), kind, "its own data")
    return comm.allreduce(right, op=MPI.LAND)


def complete(where, comm, steps):
    """Rank 1 takes its batch when rank 0 says that its own gradients are complete. Hangs where that comes too late.

    Not in the first three steps: DDP agrees on its buckets in the second forward, of a static graph in the third.
    """
    begin = 3

    class Telling:
        """StepTimer whose t3 is told to rank 1, when the last of a step's calls has come."""

        def __init__(self, timer, backend):
            self._timer, self._backend, self._calls = timer, backend, 0
            if hasattr(backend, "_timer"):
                backend._timer = self  # what the gradients' hooks call

        def __getattr__(self, name):
            return getattr(self._timer, name)

        def grads_ready(self):
            self._timer.grads_ready()
            self._calls += 1
            each = len(getattr(self._backend, "_hooks", "1"))
            if comm.rank == 0 and self._calls > begin * each and self._calls % each == 0:
                comm.send("complete", dest=1)

    def waiting(framework):
        class Waiting(of_contract(framework).Workload):
            def batch(self, step):
                if comm.rank == 1 and step >= begin:
                    comm.recv(source=0)
                return super().batch(step)

        return Waiting

    done = Training(where, comm, steps, waiting, through=Telling, seed=32)
    return (done.stamps[:, 3] > done.stamps[:, 1]).all()


def _agrees(rank, values, of_rank_0, wanted, kind, of="the joined batch"):
    for number, (found, its) in enumerate(zip(values, wanted, strict=True)):
        if found.dtype != {"fp32": np.float32, "fp64": np.float64}[kind]:
            print(f"rank {rank}, parameter {number}: is {found.dtype} under {kind}")
            return False
        if not (off := float(np.abs(found - its).max())) <= TOLERANCE[kind]:
            print(f"rank {rank}, parameter {number}: {off:.3g} off {of}")
            return False
        if not np.array_equal(found, of_rank_0[number]):
            print(f"rank {rank}, parameter {number}: not equal to rank 0's")
            return False
    return True


def resnet50(where, comm, steps):
    """The ranks agree with one another, though batch norm sees each rank's images alone."""
    done = Training(
        where, comm, steps, lambda framework: load_factory("resnet50", framework), workload="resnet50", batch_size=2,
        options={"image_size": "64"},
    )  # fmt: skip
    before = comm.allgather(done.losses[0])
    assert comm.size == 1 or len(set(before)) > 1, "all ranks saw the same images: the check would prove nothing"
    everyone = [comm.bcast(value) for value in done.parameters]
    same = [np.array_equal(mine, its) for mine, its in zip(done.parameters, everyone, strict=True)]
    right = comm.allreduce(all(same), op=MPI.LAND)
    if not right and not all(same):
        print(f"rank {comm.rank}: {same.count(False)} of {len(same)} parameters differ from rank 0's")
    return right and sum(value.size for value in done.parameters) == 25_557_032


def falls(where, comm, steps):
    """The loss of a fixed batch is lower at the end than in the beginning, on every rank."""
    workload = "delay" if where == "mpi" else "mlp"
    done = Training(where, comm, steps, lambda framework: load_factory(workload, framework), workload=workload)
    first, last = done.losses[0], done.losses[steps - 1]
    print(f"rank {comm.rank}: loss {first:.4f} to {last:.4f}")
    return comm.allreduce(last < 0.9 * first, op=MPI.LAND)


def samples(where, comm, steps):
    """Every rank counts what it really saw, which is not what was asked for."""

    kept = contract_model.LOCAL - 1 - comm.rank

    def fewer(framework):
        return type("FewerSamples", (of_contract(framework).Workload,), {"rows": kept})

    done = Training(where, comm, steps, fewer, seed=32)
    return comm.allreduce(done.samples == [kept] * steps, op=MPI.LAND)


CHECKS = {
    "resnet50": resnet50,
    "falls": falls,
    "samples": samples,
    "complete": complete,
}


def main():
    """Runs the checks one after the other, in one group of ranks."""
    where, *cases = sys.argv[1:]
    comm = MPI.COMM_WORLD
    for case in cases:
        check, steps, *words = case.split(":")
        if check in CHECKS:
            right = CHECKS[check](where, comm, int(steps))
        else:
            learns = alone if check == "alone" else partial(joined, broken=check == "broken")
            right = learns(where, comm, int(steps), words[0], timing=words[1] if len(words) > 1 else "phases")
        if comm.rank == 0:
            print(f"{case} {'holds' if right else 'does not hold'} on {comm.size} ranks", flush=True)
    _members[-1].leave()


main()
