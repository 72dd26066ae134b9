"""A backend's facts on models with early collectives, as JSON of rank 0: `early_collectives.py RUN-FIELDS-AS-JSON`.

`plain` is the workload mlp, `norm` has batch norm behind it, `synchronised` batch norm over all ranks; `no_sync` is
`norm` without reduction, `refused` the message for `synchronised` without reduction.
"""

import dataclasses
import json

from common import main_or_abort, requested_run

from hpc.backends import BACKENDS, InvalidRun, load_backend
from hpc.measure.world import world_of
from hpc.workloads import load_factory

KINDS = ("plain", "norm", "synchronised")
OUTPUTS = 10
FACTS = ("meets_before_gradients", "gradient_bytes", "reduces")


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
    """Some facts of a built backend; TensorFlow's first step adds to facts described before it."""
    framework = BACKENDS[backend._run.backend].framework
    backend.build(factory(framework, kind))
    described = backend.describe().as_json()
    if framework == "tensorflow":
        timer = backend.make_timer(backend._run.steps)
        timer.begin(0)
        backend.step(0, timer)
    parameters = sum(value.nbytes for value in backend.parameters())
    return {**{name: described[name] for name in FACTS}, "parameter_bytes": parameters}


def main(comm):
    run = requested_run(measured_steps=1)
    backend = load_backend(run.backend)
    backend.join(run, world_of(comm), comm)
    # On a CPU, DDP takes no synchronised batch norm.
    facts = {kind: built(backend, kind) for kind in KINDS if (run.backend, kind) != ("torch-ddp", "synchronised")}
    backend._run, backend._reduces = dataclasses.replace(run, reduction="off"), False
    try:
        facts["refused"] = ""
        facts["no_sync"] = built(backend, "norm")
        built(backend, "synchronised")
    except InvalidRun as error:
        facts["refused"] = str(error)
    if comm.rank == 0:
        print(json.dumps(facts))
    backend.build(factory(BACKENDS[run.backend].framework, "plain"))
    backend.make_timer(run.steps)
    backend.leave()


main_or_abort(main)
