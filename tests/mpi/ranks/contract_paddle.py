"""The contract's model for Paddle."""

import contract_model as model
import paddle


class Workload:
    """A rank's share of every step's batch."""

    rows = None

    def __init__(self, run, device, rank):
        self.run, self.rank = run, rank
        w1, b1, w2, b2 = model.first_values(run, rank)
        paddle.set_default_dtype(str(w1.dtype))
        first, second = paddle.nn.Linear(model.FEATURES, model.HIDDEN), paddle.nn.Linear(model.HIDDEN, model.CLASSES)
        first.set_state_dict({"weight": w1, "bias": b1})
        second.set_state_dict({"weight": w2, "bias": b2})
        self.model = paddle.nn.Sequential(first, paddle.nn.ReLU(), second)

    def batch(self, step):
        features, labels = model.share(self.run, self.rank, step, self.rows)
        return paddle.to_tensor(features), paddle.to_tensor(labels)

    def loss(self, model_, batch):
        features, labels = batch
        return paddle.nn.functional.cross_entropy(model_(features), labels)

    def optimizer(self, **implementation):
        return paddle.optimizer.Momentum(
            model.RATE, model.MOMENTUM, parameters=self.model.parameters(), **implementation
        )

    def samples(self, batch):
        return len(batch[1])


def in_order(parameters):
    """As the contract has them: Paddle keeps weights [inputs, outputs] too."""
    return parameters


def break_averaging(backend):
    backend._model.grad_need_sync = False  # the reducer must outlive the hooks that it has put on the parameters
