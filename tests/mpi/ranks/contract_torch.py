"""The contract's model for torch backends."""

import contract_model as model
import torch


class Workload:
    """A rank's share of every step's batch."""

    rows = None

    def __init__(self, run, device, rank):
        self.run, self.rank, self.device = run, rank, device
        w1, b1, w2, b2 = map(torch.from_numpy, model.first_values(run, rank))
        first, second = torch.nn.Linear(model.FEATURES, model.HIDDEN), torch.nn.Linear(model.HIDDEN, model.CLASSES)
        self.model = torch.nn.Sequential(first, torch.nn.ReLU(), second).to(w1.dtype)
        first.load_state_dict({"weight": w1.T, "bias": b1})
        second.load_state_dict({"weight": w2.T, "bias": b2})

    def batch(self, step):
        features, labels = model.share(self.run, self.rank, step, self.rows)
        return torch.from_numpy(features).to(self.device), torch.from_numpy(labels).to(self.device)

    def loss(self, model_, batch):
        features, labels = batch
        return torch.nn.functional.cross_entropy(model_(features), labels)

    def optimizer(self, **implementation):
        return torch.optim.SGD(self.model.parameters(), lr=model.RATE, momentum=model.MOMENTUM, **implementation)

    def samples(self, batch):
        return len(batch[0])


def in_order(parameters):
    """As the contract has them: torch keeps weights [outputs, inputs]."""
    w1, b1, w2, b2 = parameters
    return [w1.T, b1, w2.T, b2]


def break_averaging(backend):
    if hasattr(backend._model, "module"):
        backend._model = backend._model.module  # DDP's hooks are in its forward
    elif hasattr(backend._model, "set_gradient_divide_factor"):
        for part in backend._model.modules():  # FSDP2's: gradients are added up, and not divided
            if hasattr(part, "set_gradient_divide_factor"):
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)
    else:
        # What Horovod's hooks begin, and synchronize() takes the gradient from: it stays the rank's own.
        backend._optimizer._allreduce_grad_async = lambda p: ((lambda: p.grad), (None, False))
