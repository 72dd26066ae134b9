"""A backend that looks right and trains every rank by itself: Horovod's optimizer around one of Keras 3, with `fit`."""

import contract_model as model
import horovod.tensorflow.keras as hvd
import keras
import tensorflow as tf

from hpc.backends import BACKENDS
from hpc.backends.horovod_group import join_horovod
from hpc.measure.timer import host_timer
from hpc.model.options import read_options


class KerasDistributedOptimizer:
    """What Horovod's own Keras example does."""

    def join(self, run, world, comm):
        self.run, self.rank = run, world.rank
        options = read_options(BACKENDS["tensorflow-horovod"].options, run.options)
        join_horovod(hvd, "tensorflow", options, run, comm)

    def build(self, factory):
        self.workload = workload = factory(self.run, "/CPU:0", self.rank)
        start = workload.model
        self.model = keras.Sequential([
            keras.Input(shape=(start.w1.shape[0],)),
            keras.layers.Dense(start.w1.shape[1], activation="relu", dtype=start.w1.dtype.name),
            keras.layers.Dense(start.w2.shape[1], dtype=start.w1.dtype.name),
        ])  # fmt: skip
        self.model.set_weights([hvd.broadcast(v, 0).numpy() for v in (start.w1, start.b1, start.w2, start.b2)])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(model.RATE, momentum=model.MOMENTUM))
        self.model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        self.its_losses = [float("nan")] * self.run.steps

    def make_timer(self, steps):
        return host_timer("step", steps)

    def step(self, index, timer):
        features, labels = batch = self.workload.batch(index)
        timer.batch_ready()
        done = self.model.fit(features, labels, batch_size=len(labels), epochs=1, verbose=0, shuffle=False)
        self.its_losses[index] = done.history["loss"][0]
        timer.end()
        return self.workload.samples(batch)

    def losses(self):
        return self.its_losses

    def parameters(self):
        w1, b1, w2, b2 = self.model.get_weights()
        return [b1, b2, w1, w2]  # in the order of the contract's own model

    def leave(self):
        tf.keras.backend.clear_session()
        hvd.shutdown()
