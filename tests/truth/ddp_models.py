"""Real trainings under DDP, with sleeps where `SLEEP` says: `PHASE:MS@rank=R`, the whole of it in one place.

`data` sleeps in the input, `compute` in the middle of backward: after the gradients of the last layers, before those of
the first.
"""

import torch
import torch.distributed.nn.functional as differentiable
from torch import nn

from hpc.measure.meetings import Meetings
from hpc.workloads import arcface
from hpc.workloads.delay import PHASES, Sleeper
from hpc.workloads.torch_arcface import ShardedMarginHead, TorchGroup


class _Sleep(torch.autograd.Function):
    """Passes its input on, and sleeps in its backward."""

    @staticmethod
    def forward(ctx, values, sleep):
        ctx.sleep = sleep
        return values.view_as(values)

    @staticmethod
    def backward(ctx, gradient):
        ctx.sleep()
        return gradient, None


class _SleepInBackward(nn.Module):
    def __init__(self, sleep):
        super().__init__()
        self.sleep = sleep

    def forward(self, values):
        return _Sleep.apply(values, self.sleep)


class WithoutBatchNorm:
    """Two convolutions and a linear layer on small random images."""

    batch_norm = False

    def __init__(self, run, device, rank):
        phase, _, delays = run.env["SLEEP"].partition(":")
        options = {f"{each}_ms": delays if each == phase else "0" for each in PHASES}
        self.sleeper = Sleeper(options, rank, run.ranks, run.steps)
        self.injected_ns = self.sleeper.injected_ns
        self.step = 0
        torch.manual_seed(run.seed)
        norm = nn.BatchNorm2d if self.batch_norm else nn.Identity
        self.model = nn.Sequential(
            nn.Conv2d(3, 16, 3), norm(16), nn.ReLU(),
            _SleepInBackward(lambda: self.sleeper.sleep("compute", self.step)),
            nn.Conv2d(16, 32, 3), norm(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 100),
        )  # fmt: skip
        random = torch.Generator(device).manual_seed(run.seed + rank)
        self.images = torch.randn(run.rank_batch_size, 3, 32, 32, device=device, generator=random)
        self.labels = torch.randint(100, (run.rank_batch_size,), device=device, generator=random)

    def batch(self, step):
        self.step = step
        for phase in ("transfer", "update"):  # nothing sleeps there, and the record says so
            self.sleeper.sleep(phase, step)
        self.sleeper.sleep("data", step)
        return self.images, self.labels

    def loss(self, model, batch):
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels)

    def optimizer(self, **how):
        return torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, **how)

    def samples(self, batch):
        return len(batch[0])


class WithBatchNorm(WithoutBatchNorm):
    """The same with batch norm after each convolution: buffers that DDP broadcasts before each forward if set so."""

    batch_norm = True


class _CommonNorm(nn.Module):
    """Normalises by mean and variance over all ranks, which meet for it in forward and in backward."""

    def forward(self, values):
        moments = torch.stack((values.mean((0, 2, 3)), (values * values).mean((0, 2, 3))))
        mean, square = (differentiable.all_reduce(moments) / torch.distributed.get_world_size()).unbind()
        variance = (square - mean * mean).clamp_min(1e-5)
        return (values - mean[:, None, None]) / variance.sqrt()[:, None, None]


class WithCommonNorm(WithoutBatchNorm):
    """The same with a norm over all ranks after each convolution."""

    def __init__(self, run, device, rank):
        super().__init__(run, device, rank)
        layers = [*self.model]
        layers[1] = layers[5] = _CommonNorm()
        self.model = nn.Sequential(*layers)
        self.early_collectives = ["a norm over all ranks"]


class WithShardedHead(WithoutBatchNorm):
    """The same before ArcFace's head, whose 400 classes are sharded over the ranks, which meet for it."""

    def __init__(self, run, device, rank):
        super().__init__(run, device, rank)
        self.model = nn.Sequential(*[*self.model][:-1])
        classes = arcface.shard(400, run.ranks, rank)
        weights = torch.randn(len(classes), 512, generator=torch.Generator().manual_seed(run.seed + rank))
        self.meetings = Meetings(run.steps, run.warmup_steps, arcface.MEETINGS)
        group = arcface.MeasuredGroup(TorchGroup(), self.meetings)
        self.head = ShardedMarginHead(group, weights, classes, margin="arcface", sample_ratio=1.0, seed=run.seed + rank)
        self.local_parameters = [*self.head.parameters()]
        self.early_collectives = ["the sharded head gathers features"] if run.ranks > 1 else []

    def loss(self, model, batch):
        images, labels = batch
        return self.head(model(images), labels)
