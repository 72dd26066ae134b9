"""Loops of DDP that reduce several times in a step, or update otherwise than once; rank 1 has each batch 20 ms late."""

import sys
import time

import torch
import torch.distributed as dist
from ending import leave
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

kind, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)


def net(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))


def ddp(inputs=16, outputs=16):
    return DistributedDataParallel(net(inputs, outputs))


def sgd(*models):
    return torch.optim.SGD([parameter for model in models for parameter in model.parameters()], lr=1e-3)


def minimise(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


if kind == "models":  # three in one backward
    first, second, third = ddp(), ddp(), ddp()
    optimizer = sgd(first, second, third)

    def train(x, number):
        minimise(third(first(x) + second(x)).square().mean(), optimizer)

elif kind == "backwards":  # a model in each
    first, second = ddp(), ddp()
    optimizer = sgd(first, second)

    def train(x, number):
        losses = first(x).square().mean(), second(x).square().mean()
        optimizer.zero_grad()
        for loss in losses:
            loss.backward()
        optimizer.step()

elif kind == "again":  # a backward that reduces nothing behind the one that does
    model = ddp()
    optimizer = sgd(model)

    def train(x, number):
        y = model(x)
        y.square().mean().backward(retain_graph=True)
        y.abs().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

elif kind == "unused":  # other gradients come last in two of three steps, from when DDP logs few iterations

    class SlowBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(0.02 * rank)
            return gradient

    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.front, self.first, self.second = nn.Linear(16, 16), net(16, 16), net(16, 16)

        def forward(self, x, number):
            if number > 12 and number % 3 == 1:
                x = SlowBackward.apply(self.front(x))
            return (self.second if number > 12 and number % 3 == 2 else self.first)(x)

    model = DistributedDataParallel(Either(), find_unused_parameters=True)
    optimizer = sgd(model)

    def train(x, number):
        minimise(model(x, number).square().mean(), optimizer)

elif kind == "hook":
    model = ddp()
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    optimizer = sgd(model)

    def train(x, number):
        minimise(model(x).square().mean(), optimizer)

elif kind == "skipped":  # one update of five
    model = ddp()
    optimizer = sgd(model)

    def train(x, number):
        model(x).square().mean().backward()
        if number % 5 != 4:
            optimizer.step()
            optimizer.zero_grad()

elif kind == "turns":
    generator, discriminator = ddp(), ddp(outputs=1)
    of_generator, of_discriminator = sgd(generator), sgd(discriminator)

    def train(x, number):
        minimise(discriminator(generator(x).detach()).mean() - discriminator(x).mean(), of_discriminator)
        minimise(-discriminator(generator(x)).mean(), of_generator)

elif kind == "closures":
    model = ddp()
    lbfgs = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=3, tolerance_grad=0, tolerance_change=0)

    def train(x, number):
        def closure():
            lbfgs.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        lbfgs.step(closure)

else:  # the optimizer inside the backward, behind an all-reduce by hand
    assert kind == "in-backward"
    model = net(16, 16)
    optimizers = {parameter: torch.optim.SGD([parameter], lr=1e-3) for parameter in model.parameters()}

    def update(parameter):
        dist.all_reduce(parameter.grad)
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)

    def train(x, number):
        model(x).square().mean().backward()


for number, x in enumerate(DataLoader(torch.randn(4 * steps, 16), batch_size=4)):
    if rank == 1:
        time.sleep(0.02)
    train(x, number)
leave()
