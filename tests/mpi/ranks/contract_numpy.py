"""The contract's model for numpy backends."""

import contract_model as model
import numpy as np


class Workload:
    """A rank's share of every step's batch."""

    rows = None

    def __init__(self, run, device, rank):
        self.run, self.rank = run, rank
        self.parameters = model.first_values(run, rank)
        self.momenta = [np.zeros_like(value) for value in self.parameters]

    def batch(self, step):
        self.features, self.labels = model.share(self.run, self.rank, step, self.rows)
        return self.labels

    def forward(self, batch):
        loss, self.hidden, self.shares = model.forward(self.parameters, self.features, self.labels)
        return float(loss)

    def backward(self):
        return model.gradients(self.parameters, self.features, self.labels, self.hidden, self.shares)

    def receive(self, gradients):
        self.gradients = gradients

    def update(self):
        model.update(self.parameters, self.momenta, self.gradients)

    def samples(self, batch):
        return len(batch)


def in_order(parameters):
    """As the contract has them."""
    return parameters


def break_averaging(backend):
    backend._average = lambda gradients: gradients
