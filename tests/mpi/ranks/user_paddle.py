"""Paddle workloads of people's own: one that is right, and some that are wrong or odd in one way each."""

import paddle
from mpi4py import MPI
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


class AnswersInTheMiddle(Small):
    """Rank 1 goes on in the middle of its backward only when rank 0 has its last gradient.

    Whoever reduces a bucket before a rank's last gradient is there makes rank 0 wait for rank 1, and both for ever.
    """

    class Wait(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            MPI.COMM_WORLD.recv(source=0)
            return gradient * 1

    def make_model(self):
        wide = 600  # weights of more than a MiB, for more than one bucket where they are as Paddle has them
        self.first = nn.Linear(4, wide)
        middle = nn.Sequential() if self.rank == 0 else self.Waiting()
        return nn.Sequential(self.first, middle, nn.Linear(wide, wide), nn.Linear(wide, 1))

    class Waiting(nn.Layer):
        def forward(self, x):
            return AnswersInTheMiddle.Wait.apply(x)

    def optimizer(self, **implementation):
        if self.rank == 0:
            waited_for = {id(p) for p in self.first.parameters()}

            def arrived(parameter):
                waited_for.discard(id(parameter))
                if not waited_for:
                    waited_for.update(id(p) for p in self.first.parameters())
                    MPI.COMM_WORLD.send(None, dest=1)

            for parameter in self.first.parameters():
                parameter.register_hook(lambda _, parameter=parameter: arrived(parameter))
        return super().optimizer(**implementation)
