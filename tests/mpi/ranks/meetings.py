"""What a backend says of models in which ranks may meet, as JSON of rank 0: `meetings.py RUN-FIELDS-AS-JSON`.

`plain` is the workload mlp, `norm` has batch norm behind it, `synchronised` batch norm over all ranks; `refused` is
what is said where the last is to be a twin.
"""

import dataclasses
import json
import sys
import traceback

from mpi4py import MPI

from hpc.backends import BACKENDS, InvalidRun, load_backend
from hpc.measure.world import world_from_mpi
from hpc.model.spec import RunSpec
from hpc.workloads import load_factory

KINDS = ("plain", "norm", "synchronised")
OUTPUTS = 10
TOLD = ("meets_before_gradients", "gradient_bytes", "reduces")


def torch_layer(model, kind):
    from torch import nn

    model.append(nn.BatchNorm1d(OUTPUTS))
    return nn.SyncBatchNorm.convert_sync_batchnorm(model) if kind == "synchronised" else model


def paddle_layer(model, kind):
    from paddle import nn

    model.add_sublayer("norm", nn.SyncBatchNorm(OUTPUTS) if kind == "synchronised" else nn.BatchNorm1D(OUTPUTS))
    return model


def tensorflow_layer(model, kind):
    from tensorflow import keras

    norm = keras.layers.BatchNormalization(synchronized=kind == "synchronised")
    norm_model = keras.Sequential([keras.Input((OUTPUTS,)), norm])

    class Both:
        def __init__(self):
            self.trainable_variables = [*model.trainable_variables, *norm_model.trainable_variables]
            self.variables = [*model.variables, *norm_model.variables]

        def __call__(self, features):
            return norm_model(model(features), training=True)

    return Both()


LAYERS = {"torch": torch_layer, "paddle": paddle_layer, "tensorflow": tensorflow_layer}


def factory(framework, kind):
    class Changed(load_factory("mlp", framework)):
        def __init__(self, run, device, rank):
            super().__init__(run, device, rank)
            if kind != "plain":
                self.model = LAYERS[framework](self.model, kind)

        def optimizer(self, **implementation):
            if framework != "tensorflow":
                return super().optimizer(**implementation)
            from tensorflow import keras

            return keras.optimizers.SGD(0.01)

    return Changed


def built(backend, kind):
    """What it says of itself; TensorFlow's looks through what its first step has traced, and tells who asked before."""
    framework = BACKENDS[backend._run.backend].framework
    backend.build(factory(framework, kind))
    described = backend.describe().as_json()
    if framework == "tensorflow":
        timer = backend.make_timer(backend._run.steps)
        timer.begin(0)
        backend.step(0, timer)
    parameters = sum(value.nbytes for value in backend.parameters())
    return {**{name: described[name] for name in TOLD}, "parameter_bytes": parameters}


def main(comm):
    usual = {
        "nodes": 1, "ranks_per_node": comm.size, "gpus_per_node": 0, "cpus_per_rank": 1, "workload": "mlp",
        "batch_size": 4, "precision": "fp32", "scaling": "weak", "warmup_steps": 5, "measured_steps": 1, "repeat": 1,
        "seed": 0, "site": "here",
    }  # fmt: skip
    run = RunSpec(**usual | json.loads(sys.argv[1]))
    backend = load_backend(run.backend)
    backend.join(run, world_from_mpi(comm), comm)
    # On a CPU, DDP takes no synchronised batch norm.
    facts = {kind: built(backend, kind) for kind in KINDS if (run.backend, kind) != ("torch-ddp", "synchronised")}
    backend._run, backend._reduces = dataclasses.replace(run, reduction="off"), False
    try:
        facts["refused"] = ""
        facts["twin"] = built(backend, "norm")
        built(backend, "synchronised")
    except InvalidRun as error:
        facts["refused"] = str(error)
    if comm.rank == 0:
        print(json.dumps(facts))
    backend.build(factory(BACKENDS[run.backend].framework, "plain"))
    backend.make_timer(run.steps)
    backend.leave()


try:
    main(MPI.COMM_WORLD)
except Exception:  # noqa: BLE001 - whatever it is, the other ranks must not wait for this one
    traceback.print_exc()
    MPI.COMM_WORLD.Abort(3)
