"""Trainings that compute for 15 ms and reduce 17 kB in a step, for runs on hosts with a network of their own."""

import time

import numpy as np

INPUTS, WIDTH = 64, 56
COMPUTE_S = 0.015


class Numpy:
    """For the backend mpi: gradients of two layers, drawn once."""

    def __init__(self, run, device, rank):
        random = np.random.default_rng(run.seed)
        self.parameters = [random.standard_normal(shape, np.float32) for shape in ((INPUTS, WIDTH), (WIDTH, 10))]
        self.gradients = [parameter * np.float32(0.01) for parameter in self.parameters]
        self.samples_of_rank = run.rank_batch_size

    def batch(self, step):
        return step

    def forward(self, batch):
        time.sleep(COMPUTE_S)
        return float(self.parameters[1][0, 0])

    def backward(self):
        return self.gradients

    def receive(self, gradients):
        self.received = gradients

    def update(self):
        for parameter, gradient in zip(self.parameters, self.received, strict=True):
            np.subtract(parameter, np.float32(0.01) * gradient, out=parameter)

    def samples(self, batch):
        return self.samples_of_rank


class Torch:
    """For the backend torch-ddp."""

    def __init__(self, run, device, rank):
        import torch

        torch.manual_seed(run.seed)
        self.torch = torch
        self.model = torch.nn.Sequential(torch.nn.Linear(INPUTS, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10))
        self.inputs = torch.randn(run.rank_batch_size, INPUTS, device=device)
        self.labels = torch.randint(10, (run.rank_batch_size,), device=device)

    def batch(self, step):
        return self.inputs, self.labels

    def loss(self, model, batch):
        time.sleep(COMPUTE_S)
        return self.torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    def optimizer(self, **how):
        return self.torch.optim.SGD(self.model.parameters(), lr=0.01, **how)

    def samples(self, batch):
        return len(batch[0])
