"""What every backend must do, on real ranks: `contract.py BACKEND CHECK:STEPS[:TYPE[:step]] …`.

BACKEND is a name of the table or FILE.py:CLASS. CHECKs: `joined` (after STEPS steps with other data on every rank all
hold the parameters that one process learns from the joined batch; `broken` is the same with the averaging left out, and
comes last), `alone` (without reduction every rank learns from its own data alone, and none waits for another),
`complete` (a rank has its gradients complete before another has begun its step), `resnet50` (ranks agree with one
another), `falls` (the loss on a fixed batch), `samples` (those really seen), `facts` (printed as JSON). Prints what
differs, and for each check whether it holds.
"""

import copy
import importlib.util
import json
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parent))
import contract_model
from common import run_of

from hpc.backends import BACKENDS, load_backend
from hpc.measure.world import world_of
from hpc.workloads import load_factory

TOLERANCE = {"fp32": 1e-6, "fp64": 1e-12}
LIKE_A_BACKEND = {"KerasDistributedOptimizer": "tensorflow-horovod"}


def spec(name, steps, **fields):
    workload = "delay" if name == "mpi" else "mlp"
    batch_size, measured_steps = contract_model.LOCAL, max(1, steps - 5)
    return run_of(fields, backend=name, workload=workload, batch_size=batch_size, measured_steps=measured_steps)


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
        _members[0].join(run, world_of(comm), comm)
    backend = copy.copy(_members[0])
    if hasattr(backend, "_begin"):
        backend._begin(run, comm.rank)
    _members.append(backend)
    return backend


class Training:
    """A backend that has trained some steps; what it did is in its attributes.

    `one_by_one`: a rank begins its steps when the one before it has ended all of its own. `through` is given the marks
    and the backend, and gives the marks that are taken.
    """

    def __init__(
        self, where, comm, steps, factory=None, change=None, sequential=False, through=lambda timer, _: timer, **fields
    ):
        name = LIKE_A_BACKEND.get(where.partition(":")[2], where)
        self.framework = BACKENDS[name].framework
        self.run = spec(name, steps, **fields)
        self.backend = member(where, self.run, comm)
        self.backend.build(factory(self.framework))
        if change is not None:
            change(self.backend)
        timer = through(self.backend.make_timer(self.run.steps), self.backend)
        if sequential and comm.rank:
            comm.recv(source=comm.rank - 1)
        timer.begin(0)
        self.samples = [self.backend.step(step, timer) for step in range(steps)]
        timer.resolve()
        if sequential and comm.rank + 1 < comm.size:
            comm.send("ended", dest=comm.rank + 1)
        self.losses = self.backend.losses()
        self.parameters = [value.copy() for value in self.backend.parameters()]
        self.stamps = np.array(timer.stamps.tolist()).reshape(-1, 6)[:steps]
        if hasattr(self.backend, "_recording"):
            self.backend._recording.close()  # the next check has a record of its own


def of_contract(framework):
    return import_module(f"contract_{framework}")


def joined(where, comm, steps, kind, broken=False, **fields):
    """Prints what differs from one process on the joined batch; True where nothing does."""
    seed = {"fp32": 32, "fp64": 64}[kind]

    def change(backend):
        if broken:
            of_contract(BACKENDS[where].framework).break_averaging(backend)

    done = Training(where, comm, steps, lambda framework: of_contract(framework).Workload, change, seed=seed, **fields)
    assert len(done.losses) == done.run.steps
    assert np.isfinite(done.losses[:steps]).all()
    assert done.samples == [contract_model.LOCAL] * steps
    gathered = comm.gather(of_contract(done.framework).in_order(done.parameters))
    right = True
    if comm.rank == 0:
        before, joined_values = contract_model.first_values(done.run, 0), contract_model.learned(done.run, steps)
        moved = max(float(np.abs(a - b).max()) for a, b in zip(joined_values, before, strict=True))
        assert moved > 1e-3, "nothing was learned: the check would prove nothing"
        right = False not in [
            _agrees(rank, values, gathered[0], joined_values, kind) for rank, values in enumerate(gathered)
        ]
    return right


def on_one_rank(where, comm, steps, kind, **fields):
    """Prints what differs from one process on each rank's own data; True where nothing does. Hangs where ranks wait."""
    seed = {"fp32": 32, "fp64": 64}[kind]
    done = Training(
        where, comm, steps, lambda framework: of_contract(framework).Workload, sequential=True, seed=seed,
        reduction="off", **fields,
    )  # fmt: skip
    facts = done.backend.describe()
    assert (facts.reduces, facts.gradient_bytes) == (False, 0)
    values = of_contract(done.framework).in_order(done.parameters)
    joined_batch = contract_model.learned(done.run, steps)
    apart = max(float(np.abs(a - b).max()) for a, b in zip(values, joined_batch, strict=True))
    assert apart > 1e-3, "as far from the joined batch as rounding: the check would prove nothing"
    right = _agrees(comm.rank, values, values, contract_model.learned(done.run, steps, comm.rank), kind, "its own data")
    return comm.allreduce(right, op=MPI.LAND)


def complete(where, comm, steps):
    """Rank 1 takes its batch when rank 0 says that its own gradients are complete. Hangs where that comes too late.

    Not in the first three steps: DDP agrees on its buckets in the second forward, of a static graph in the third.
    """
    begin = 3

    class SendsReduced:
        """StepTimer that sends its t3 to rank 1 when the last of a step's calls has come."""

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

    done = Training(where, comm, steps, waiting, through=SendsReduced, seed=32)
    return (done.stamps[:, 3] > done.stamps[:, 1]).all()


def _agrees(rank, values, of_rank_0, joined_values, kind, reference="the joined batch"):
    for number, (actual, expected) in enumerate(zip(values, joined_values, strict=True)):
        if actual.dtype != {"fp32": np.float32, "fp64": np.float64}[kind]:
            print(f"rank {rank}, parameter {number}: is {actual.dtype} under {kind}")
            return False
        if not (off := float(np.abs(actual - expected).max())) <= TOLERANCE[kind]:
            print(f"rank {rank}, parameter {number}: {off:.3g} off {reference}")
            return False
        if not np.array_equal(actual, of_rank_0[number]):
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
    gathered = [comm.bcast(value) for value in done.parameters]
    same = [np.array_equal(values, expected) for values, expected in zip(done.parameters, gathered, strict=True)]
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
    """Every rank counts what it really saw, which is not what was requested."""

    rows = contract_model.LOCAL - 1 - comm.rank

    def fewer(framework):
        return type("FewerSamples", (of_contract(framework).Workload,), {"rows": rows})

    done = Training(where, comm, steps, fewer, seed=32)
    return comm.allreduce(done.samples == [rows] * steps, op=MPI.LAND)


def facts(where, comm, steps):
    """Prints the backend's facts as JSON."""
    workload = spec(where, steps).workload
    done = Training(where, comm, steps, lambda framework: load_factory(workload, framework))
    if comm.rank == 0:
        print(json.dumps(done.backend.describe().as_json()), flush=True)
    return True


CHECKS = {"resnet50": resnet50, "falls": falls, "samples": samples, "complete": complete, "facts": facts}


def main():
    """Runs the checks one after the other, in one group of ranks."""
    where, *cases = sys.argv[1:]
    comm = MPI.COMM_WORLD
    for case in cases:
        check, steps, *settings = case.split(":")
        if check in CHECKS:
            right = CHECKS[check](where, comm, int(steps))
        else:
            learning = on_one_rank if check == "alone" else partial(joined, broken=check == "broken")
            kind, timing = [*settings, "phases"][:2]
            right = learning(where, comm, int(steps), kind, timing=timing)
        if comm.rank == 0:
            print(f"{case} {'holds' if right else 'does not hold'} on {comm.size} ranks", flush=True)
    _members[-1].leave()


main()
