"""A training on a simulated accelerator by DDP, FSDP2 or all-reduces by hand, with known delays of host or device."""

import argparse
import statistics
import sys
import time
from pathlib import Path

import simulated_torch
import torch
import torch.distributed as dist
from delays import Delays
from ending import leave
from simulated_torch import device, marked
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--plan", type=Path, required=True)
parser.add_argument("--truth", type=Path, required=True)
parser.add_argument("--parallel", choices=("ddp", "fsdp1", "fsdp2", "by-hand", "gathered"), required=True)
parser.add_argument("--ahead", type=int, default=3, help="steps that the host may be ahead of the device")
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--forward-ms", type=float, default=1.0, help="of a layer; its backward takes twice as long")
parser.add_argument("--update-ms", type=float, default=1.0)
args = parser.parse_args()
BATCH = 4


class DeviceDelays(Delays):
    """Marks are events of the device, whose true times are written at the end; `ms` is for kernels."""

    def ms(self, place):
        noted = self.slept_ns.setdefault(place, [])
        noted.append(int(self.planned(place, len(noted)) * 1e6))
        return noted[-1] / 1e6

    def here(self, place):
        """Whether the plan has it here now."""
        return self.planned(place, len(self.marks_ns.get("end", []))) > 0

    def mark(self, name):
        self.reached[name] = marked()
        if name == "end":
            for its, event in self.reached.items():
                self.marks_ns.setdefault(its, []).append(event)
            self.meetings_ns.append(list(simulated_torch.calls))
            self.reached = {}
            simulated_torch.calls.clear()

    def waited(self, call):
        """A stream that goes on later than the collective ended waits for its host, not for the collective."""
        arrived, begin, went_on = (event.true_ns for event in call)
        return arrived, begin, max(begin, min(went_on, simulated_torch.ends[id(call)].true_ns))

    def write(self, folder):
        device.synchronize()
        self.marks_ns = {name: [event.true_ns for event in events] for name, events in self.marks_ns.items()}
        self.meetings_ns = [[list(self.waited(call)) for call in step] for step in self.meetings_ns]
        super().write(folder)


dist.init_process_group("gloo")
rank = dist.get_rank()
delay = DeviceDelays(args.plan, rank)
steps = delay.steps + args.ahead + 5  # of the last ones the times are lost with a process that ends at once
torch.manual_seed(0)
torch.set_num_threads(1)


class Numbers(Dataset):
    def __init__(self):
        self.fetched, self.samples = 0, torch.randn(64, 8)

    def __len__(self):
        return BATCH * (steps + 1)

    def __getitem__(self, index):
        if self.fetched % BATCH == 0:
            delay("dataset")
        self.fetched += 1
        return self.samples[index % 64], index % 4


class Kernels(torch.autograd.Function):
    """What a layer takes on the device, there and back."""

    @staticmethod
    def forward(ctx, inputs, is_middle):
        ctx.is_middle = is_middle
        device.run(args.forward_ms)
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        device.run(2 * args.forward_ms)
        if ctx.is_middle and (ms := delay.ms("backward")):
            device.run(ms)
        return gradient, None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(args.layers))
        self.last = nn.Linear(8, 4)

    def forward(self, inputs):
        for number, block in enumerate(self.blocks):
            inputs = Kernels.apply(block(inputs), number == 1)
            if number == 1:
                if ms := delay.ms("forward"):
                    device.run(ms)
                delay("python")
        return self.last(inputs)


class SGD(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        device.run(args.update_ms + delay.ms("update"))
        return loss


def reduce_on_device(_, bucket):
    """DDP's reduction of a bucket on a stream of its own; the compute stream waits before the backward returns."""
    reductions.append(simulated_torch.collective())
    if bucket.is_last():
        torch.autograd.Variable._execution_engine.queue_callback(wait_for_reductions)
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def wait_for_reductions():
    while reductions:
        reductions.pop(0).wait()


def reduce_by_hand():
    delay("collective")
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


class Gathered(nn.Module):
    """A layer whose parameters are gathered on a stream of their own while the layer before it runs, as ZeRO-3 does.

    Its Work is waited for on that stream, for which the training's stream waits where it needs them.
    """

    def __init__(self, layer, following):
        super().__init__()
        self.layer, self.following, self.going = layer, following, None

    def gather(self):
        side.wait_stream(device.current_stream())
        with device.stream(side):
            shard = self.layer[0].bias.detach()
            self.going = dist.all_gather_single(shard.repeat(simulated_torch.RANKS), shard, async_op=True)

    def forward(self, inputs):
        if self.going is None:
            self.gather()
        with device.stream(side):
            self.going.wait()
        self.going = None
        device.current_stream().wait_stream(side)
        for layer in self.following:
            layer.gather()
        return self.layer(inputs)


def bound_queue(step):
    """The host gets no further ahead than so many steps, as the queue of a real device is full some time."""
    stream = device.default_stream
    if step == 0:
        device.queue_depth = 1 << 40
    elif step == 5:
        device.queue_depth = max(1, args.ahead * (stream.queued - bound_queue.before))
    bound_queue.before = stream.queued


reductions = []
model = Net()
if args.parallel == "ddp":
    model.blocks[0][0].weight.register_post_accumulate_grad_hook(lambda parameter: delay.mark("grads"))
    model = DistributedDataParallel(model, bucket_cap_mb=1e-4)
    model.register_comm_hook(None, reduce_on_device)
elif args.parallel == "fsdp2":
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    simulated_torch.watch_fsdp(sys.modules["torch.distributed.fsdp._fully_shard._fsdp_param_group"].FSDPParamGroup)
elif args.parallel == "fsdp1":
    model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}), device_id="cpu")
elif args.parallel == "gathered":
    side, blocks = device.training_stream(), []
    for layer in reversed(model.blocks):
        blocks.insert(0, Gathered(layer, blocks[:1]))
    model.blocks = nn.ModuleList(blocks)
optimizer = SGD(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
simulated_torch.register()
simulated_torch.begin()
returned_ns = []
for step, (inputs, targets) in enumerate(DataLoader(Numbers(), BATCH)):
    if step == steps:
        break
    bound_queue(step)
    delay.mark("called")
    loss = criterion(model(inputs), targets)
    delay.mark("backward")
    loss.backward()
    if args.parallel in ("by-hand", "gathered"):
        reduce_by_hand()
    delay.mark("reduced")
    if delay.here("item"):
        loss.item()
    delay("item")
    optimizer.step()
    optimizer.zero_grad()
    delay.mark("end")
    returned_ns.append(time.perf_counter_ns())
delay.write(args.truth)
ahead_ms = [(done - returned) / 1e6 for done, returned in zip(delay.marks_ns["end"], returned_ns, strict=True)]
print(f"rank {rank}: the host was ahead by {statistics.median(ahead_ms):.1f} ms (median)", file=sys.stderr)
dist.barrier()
leave()
