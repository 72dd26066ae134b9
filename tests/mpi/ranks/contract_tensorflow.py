"""The contract's model for TensorFlow."""

import contract_model as model

from hpc.workloads.tensorflow_base import tf


class Perceptron(tf.Module):
    """Its variables are known by their names: tf.Module sorts them."""

    def __init__(self, values):
        super().__init__()
        self.w1, self.b1, self.w2, self.b2 = (tf.Variable(value) for value in values)

    def __call__(self, features):
        return tf.nn.relu(features @ self.w1 + self.b1) @ self.w2 + self.b2


class Momentum:
    """As Keras has it: the rate is in the momentum."""

    def __init__(self, variables):
        self.momenta = [tf.Variable(tf.zeros_like(variable)) for variable in variables]

    def apply(self, gradients, variables):
        for gradient, variable, momentum in zip(gradients, variables, self.momenta, strict=True):
            kind = gradient.dtype
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=variable.handle, accum=momentum.handle, grad=gradient, lr=tf.constant(model.RATE, kind),
                momentum=tf.constant(model.MOMENTUM, kind),
            )  # fmt: skip


class Workload:
    """A rank's share of every step's batch."""

    rows = None

    def __init__(self, run, device, rank):
        self.run, self.rank = run, rank
        self.model = Perceptron(model.first_values(run, rank))

    def batch(self, step):
        features, labels = model.share(self.run, self.rank, step, self.rows)
        return tf.constant(features), tf.constant(labels)

    def loss(self, model_, batch):
        features, labels = batch
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model_(features)))

    def optimizer(self, **implementation):
        return Momentum(self.model.trainable_variables)

    def samples(self, batch):
        return len(batch[1])


def in_order(parameters):
    """As the contract has them: tf.Module sorts by name."""
    b1, b2, w1, w2 = parameters
    return [w1, b1, w2, b2]


def break_averaging(backend):
    backend._average = lambda gradients: gradients
