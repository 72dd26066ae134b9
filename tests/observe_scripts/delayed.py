"""A plain training by DDP, FSDP2 or all-reduces by hand, with known delays on some ranks in some steps."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from delays import Delays
from ending import leave
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--plan", type=Path, required=True)
parser.add_argument("--truth", type=Path, required=True)
parser.add_argument("--parallel", choices=("ddp", "fsdp2", "by-hand"), required=True)
parser.add_argument("--batch-norm", action="store_true")
parser.add_argument("--clip", action="store_true")
parser.add_argument("--comm-hook", action="store_true")
parser.add_argument("--unused", action="store_true", help="a layer has a gradient in every other step alone")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--width", type=int, default=256)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
delay = Delays(args.plan, rank)
torch.manual_seed(rank)
torch.set_num_threads(1)


class Numbers(Dataset):
    def __init__(self):
        self.fetched, self.samples = 0, torch.randn(64, args.width)

    def __len__(self):
        return args.batch_size * (delay.steps + 1)

    def __getitem__(self, index):
        if self.fetched % args.batch_size == 0:
            delay("dataset")
        self.fetched += 1
        return self.samples[index % 64], index % 4


class Identity(torch.autograd.Function):
    """Takes its time on the way back."""

    @staticmethod
    def forward(ctx, inputs):
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        delay("backward")
        return gradient


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(self.block() for _ in range(4))
        self.last = nn.Linear(args.width, 4)
        self.spare, self.calls = nn.Linear(4, 4) if args.unused else None, 0

    def block(self):
        norm = [nn.BatchNorm1d(args.width)] if args.batch_norm else []
        return nn.Sequential(nn.Linear(args.width, args.width), *norm, nn.ReLU())

    def forward(self, inputs):
        for number, block in enumerate(self.blocks):
            if number == 1 and args.parallel == "fsdp2" and not args.clip:
                delay("collective")  # the block's all-gather
            inputs = block(inputs)
            if number == 1:
                delay("forward")
                inputs = Identity.apply(inputs)
        self.calls += 1
        outputs = self.last(inputs)
        return self.spare(outputs) if self.spare is not None and self.calls % 2 else outputs


class AveragingSGD(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        delay("optimizer")  # its averages of the parameters
        return loss


class MarkedDDP(DistributedDataParallel):
    def _distributed_broadcast_coalesced(self, *args, **kwargs):
        delay.meet(super()._distributed_broadcast_coalesced, *args, **kwargs)


def reduce_in_hook(state, bucket):
    """DDP's reduction, by Python: no meeting of the script's own. With the call for the last bucket a rank is ready."""
    if bucket.is_last():
        delay("collective")
    reduced = default_hooks.allreduce_hook(state, bucket)
    delay.reached["grads"] = delay.met.pop()[0]
    return reduced


def average_gradients(model):
    delay("collective")
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= size


model = Net()
if args.parallel == "ddp":  # the first layer's gradient comes last
    model.blocks[0][0].weight.register_post_accumulate_grad_hook(lambda parameter: delay.mark("grads"))
    model = MarkedDDP(model, find_unused_parameters=args.unused)
    if args.comm_hook:
        model.register_comm_hook(None, reduce_in_hook)
elif args.parallel == "fsdp2":
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
optimizer = AveragingSGD(model.parameters(), lr=1e-3, momentum=0.9)
criterion = nn.CrossEntropyLoss()
delay.watch(dist.ProcessGroup, ("allreduce", "all_gather_single", "reduce_scatter_single"), dist.Work)
delay.watch_functional(functional, ("all_reduce",))
for step, (inputs, targets) in enumerate(DataLoader(Numbers(), args.batch_size)):
    if step == delay.steps:
        break
    if args.batch_norm:
        delay("collective")  # DDP's broadcast of its buffers
    delay.mark("called")
    loss = criterion(model(inputs), targets)
    delay.mark("backward")
    loss.backward()
    if args.parallel == "by-hand":
        average_gradients(model)
    delay.mark("reduced")
    if args.clip:
        delay("collective")  # the norm of all shards
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if args.parallel == "ddp" and not args.batch_norm:
        shown = loss.detach().clone()
        if not args.comm_hook:
            delay("collective")
        dist.all_reduce(shown)  # the mean loss, for the log
    delay.mark("end")
delay.write(args.truth)
leave()
