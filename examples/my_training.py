"""A training of one's own, to be measured: `rankwise sweep --workload examples/my_training.py:MyTraining …`."""

import torch
from torch import nn


class MyTraining:
    def __init__(self, run, device, rank):
        torch.manual_seed(run.seed)
        body = (nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.model = nn.Sequential(*body, nn.Linear(256, 10))
        random = torch.Generator(device).manual_seed(run.seed + rank)
        self.images = torch.randn(run.rank_batch_size, 3, 32, 32, device=device, generator=random)
        self.labels = torch.randint(10, (run.rank_batch_size,), device=device, generator=random)

    def batch(self, step):  # what a step trains on, on the device: a loader of yours would read it here
        return self.images, self.labels

    def loss(self, model, batch):  # `model` is self.model with the gradients' averaging around it
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def optimizer(self, **how):  # `how` says which implementation was requested: fused=True, foreach=True …
        return torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, **how)

    def samples(self, batch):  # how many samples the batch really has
        return len(batch[0])
