"""Refusals of TensorFlow backends as JSON: the type and the text of each exception. One process."""

import json
from functools import partial
from pathlib import Path

from common import run_of
from mpi4py import MPI

from hpc.backends import load_backend
from hpc.measure.world import world_of
from hpc.workloads import load_factory

USERS = Path(__file__).with_name("user_tensorflow.py")
REFUSED_BEFORE = {
    "amp-fp16": {"precision": "amp-fp16"},
    "a GPU": {"gpus_per_node": 1},
    "nccl": {"backend": "tensorflow-multiworker", "options": {"collective": "nccl"}},
}
REFUSED_WORKLOADS = (
    "LacksLossAndSamples",
    "IsNotBuilt",
    "LeavesAPartOut",
    "GivesALossPerSample",
    "ChoosesItsOwnPrecision",
)


def joined(**fields):
    run = run_of(fields, backend="tensorflow-horovod")
    backend = load_backend(run.backend)
    backend.join(run, world_of(MPI.COMM_WORLD), MPI.COMM_WORLD)
    return backend


def trained(backend, workload):
    backend.build(load_factory(f"{USERS}:{workload}", "tensorflow"))
    timer = backend.make_timer(8)
    timer.begin(0)
    backend.step(0, timer)


def refusal(what):
    try:
        what()
    except Exception as error:  # noqa: BLE001 - which one it is, is what is tested
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


refusals = {name: refusal(partial(joined, **fields)) for name, fields in REFUSED_BEFORE.items()}
horovod = joined()
for workload in REFUSED_WORKLOADS:
    refusals[workload] = refusal(partial(trained, horovod, workload))
horovod.leave()
strategy = joined(backend="tensorflow-multiworker", precision="bf16")
for workload in ("MakesItsOptimizerAtOnce", "IgnoresThePrecision"):
    refusals[workload] = refusal(partial(trained, strategy, workload))
print(json.dumps(refusals))
