"""Paddle workloads of people's own: one that is right, and some that are wrong or odd in one way each."""

import paddle
from paddle import nn


class Small:
    """Learns to answer 0, from other inputs on every rank."""

    def __init__(self, run, device, rank):
        paddle.seed(run.seed + rank)  # other parameters on every rank: the backend has to make them equal
        self.rank = rank
        self.model = self.make_model()
        self.inputs = paddle.randn([run.rank_batch_size, 4])

    def make_model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def batch(self, step):
        self.step = step
        return self.inputs

    def loss(self, model, batch):
        return model(batch).square().mean()

    def optimizer(self, **implementation):
        return paddle.optimizer.SGD(0.1, parameters=self.model.parameters(), **implementation)

    def samples(self, batch):
        return len(batch)


class AsksForTooMuch(Small):
    def batch(self, step):
        return paddle.empty([1 << 50])


class TwoTypes(Small):
    """Gradients of two types, which no bucket holds together."""

    class Model(nn.Layer):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 8)
            self.second = nn.Linear(8, 1).to(dtype="float64")

        def forward(self, x):
            return self.second(self.first(x).astype("float64"))

    def make_model(self):
        return self.Model()
