"""Trainings whose ranks meet in groups, with known delays on one rank in some steps: `--shape` is a function below.

Each function makes the groups, the model and the optimizer, and returns what a step does. Nothing computes for long;
experts and blocks sleep instead.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ending import leave
from group_delays import Backwards, GroupDelays
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH = 16, 8
BLOCK_MS = 1.0


class Block(nn.Module):
    """Two layers; the whole of it takes BLOCK_MS a pass. The script's delays are in it where it is the `late` block."""

    def __init__(self, late=False):
        super().__init__()
        self.first, self.second, self.late = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH), late

    def forward(self, inputs):
        # Behind the first layer: inputs of the model have no gradient.
        return self.second(torch.relu(Backwards.apply(self.first(self.work(inputs, "forward")), self.back)))

    def back(self, gradient):
        return self.work(gradient, "backward")

    def work(self, tensor, place):
        time.sleep(BLOCK_MS / 1e3)
        if self.late:
            delay(place)
        return tensor


class AveragingSGD(torch.optim.SGD):
    def step(self, closure=None):
        delay("optimizer")
        return super().step(closure)


def batch():
    delay("data")
    return torch.randn(BATCH, WIDTH)


def mark_gradients(model):
    """Has the last gradient of a backward noted."""
    latest = [0]

    def note(parameter):
        latest[0] = time.perf_counter_ns()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(note)
    return latest


def backward(loss, group, latest):
    """A backward in which DDP reduces: a meeting from the last own gradient to the return."""
    loss.backward()
    delay.note("reduction", group, latest[0], latest[0], time.perf_counter_ns())


def plain_step(forward, optimizer, back=torch.Tensor.backward):
    def step():
        loss = forward(batch()).square().mean()
        back(loss)
        optimizer.step()
        optimizer.zero_grad()

    return step


def by_ddp(model, forward, group):
    latest = mark_gradients(model)
    return plain_step(forward, AveragingSGD(model.parameters(), lr=1e-3), lambda loss: backward(loss, group, latest))


def pairs():
    """Three all-gathers in groups of two neighbours, which are none of a mesh, and DDP over all."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    pair = groups[rank // 2]

    class Gathering(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block(late=number == 1) for number in range(3))

        def forward(self, inputs):
            for block in self.blocks:
                inputs = block(inputs)
                of_both = [torch.empty_like(inputs) for _ in range(2)]
                dist.all_gather(of_both, inputs.detach(), group=pair)
                inputs = inputs + 1e-3 * sum(of_both)
            return inputs

    model = Gathering()
    return by_ddp(model, DistributedDataParallel(model), dist.group.WORLD)


def split_model(mesh):
    blocks = [Block(), Block(late=True)]
    for block in blocks:
        parallelize_module(block, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    return nn.Sequential(*blocks)


def tp_fsdp():
    """Tensor parallel pairs by DTensor, FSDP2 across them."""
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    model = split_model(mesh["tp"])
    for block in model:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return plain_step(model, AveragingSGD(model.parameters(), lr=1e-3))


class Copied(torch.autograd.Function):
    """The same on all ranks of a group; gradients are summed over it."""

    @staticmethod
    def forward(ctx, tensor, group):
        ctx.group = group
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Summed(torch.autograd.Function):
    """Summed over a group; gradients are the same on all its ranks."""

    @staticmethod
    def forward(ctx, tensor, group):
        result = tensor.clone()
        dist.all_reduce(result, group=group)
        return result

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def tp_ddp():
    """Tensor parallel pairs with collectives of their own, as Megatron's, and DDP across them."""
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    tp, group = mesh["tp"].get_group(), mesh["dp"].get_group()

    class SplitBlock(Block):
        def forward(self, inputs):
            return Summed.apply(super().forward(Copied.apply(inputs, tp)), tp)

    model = nn.Sequential(SplitBlock(), SplitBlock(late=True))
    return by_ddp(model, DistributedDataParallel(model, process_group=group), group)


def hsdp():
    """FSDP2 in pairs, replicas across them."""
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = nn.Sequential(Block(), Block(late=True), Block())
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return plain_step(model, AveragingSGD(model.parameters(), lr=1e-3))


class ShardedSGD(torch.optim.Optimizer):
    """Reduces, updates its share of each parameter and gathers the result, as nanochat's and modded-nanogpt's do."""

    def step(self):
        delay("optimizer")
        parameters = [each for group in self.param_groups for each in group["params"]]
        shares = [torch.empty(each.numel() // size) for each in parameters]
        reductions = [
            dist.reduce_scatter_tensor(share, each.grad.flatten(), async_op=True)
            for share, each in zip(shares, parameters, strict=True)
        ]
        gathers = []
        for work, share, each in zip(reductions, shares, parameters, strict=True):
            work.wait()
            its = each.data.flatten().chunk(size)[rank].clone().sub_(share, alpha=1e-3 / size)
            whole = torch.empty(each.numel())
            gathers.append((dist.all_gather_into_tensor(whole, its, async_op=True), whole, each))
        delay("gather")
        for work, whole, each in gathers:
            work.wait()
            each.data.copy_(whole.view_as(each))


def shards():
    """The optimizer itself reduces and gathers."""
    model = nn.Sequential(Block(), Block(late=True))
    return plain_step(model, ShardedSGD(model.parameters(), {}))


def local_sgd():
    """DDP in pairs; the pairs average their parameters every fourth step, as DiLoCo and torchft's replicas do."""
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replica", "dp"))
    model = nn.Sequential(Block(), Block(late=True))
    group, across = mesh["dp"].get_group(), mesh["replica"].get_group()
    step = by_ddp(model, DistributedDataParallel(model, process_group=group), group)

    def outer_step():
        if len(delay.done) % 4 == 3:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data, group=across)
                parameter.data /= size // 2
        step()

    return outer_step


def reduce_by_hand(parameters, group, of):
    for parameter in parameters:
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= of


class Exchanged(torch.autograd.Function):
    """All-to-all with these numbers of rows for and from each rank, and back."""

    @staticmethod
    def forward(ctx, rows, sent, received, group):
        ctx.back = received, sent, group
        result = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(result, rows, received, sent, group=group)
        return result

    @staticmethod
    def backward(ctx, gradient):
        return Exchanged.apply(gradient.contiguous(), *ctx.back), None, None, None


def experts():
    """An expert on each of two ranks, replicas across; an expert sleeps for each of its tokens. In a window with the
    place "tokens" all send the experts of its rank, in all replicas, more of theirs."""
    token_ms, tokens = 0.1, 64
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "ep"))
    ep, dp = mesh["ep"].get_group(), mesh["dp"].get_group()
    gate, expert = Block(late=True), nn.Linear(WIDTH, WIDTH)
    optimizer = AveragingSGD([*gate.parameters(), *expert.parameters()], lr=1e-3)

    def sleep_for(rows):
        time.sleep(token_ms * len(rows) / 1e3)
        return rows

    def forward(inputs):
        place, favourite, ms = delay.now
        counts = [tokens // 2] * 2
        if place == "tokens":
            more = min(tokens // 2 - 1, round(ms / token_ms / 4))  # of two senders, forward and backward
            counts = [tokens // 2 + (more if favourite % 2 == at else -more) for at in range(2)]
        rows = gate(torch.randn(tokens, WIDTH))
        sent, received = torch.tensor(counts), torch.empty(2, dtype=torch.int64)
        dist.all_to_all_single(received, sent, group=ep)
        its = Exchanged.apply(rows, counts, received.tolist(), ep)
        out = Backwards.apply(expert(sleep_for(its)), sleep_for)
        return Exchanged.apply(out, received.tolist(), counts, ep)

    def back(loss):
        loss.backward()
        reduce_by_hand(expert.parameters(), dp, size // 2)
        reduce_by_hand(gate.parameters(), dist.group.WORLD, size)

    return plain_step(forward, optimizer, back)


class Turned(torch.autograd.Function):
    """To the next rank of a ring, from the one before; gradients the other way."""

    @staticmethod
    def forward(ctx, tensor, group, ahead):
        ctx.group, ctx.ahead = group, ahead
        members, at = dist.get_process_group_ranks(group), dist.get_rank(group)
        ring, result = len(members), torch.empty_like(tensor)
        operations = [
            dist.P2POp(dist.isend, tensor.contiguous(), members[(at + ahead) % ring], group),
            dist.P2POp(dist.irecv, result, members[(at - ahead) % ring], group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return result

    @staticmethod
    def backward(ctx, gradient):
        return Turned.apply(gradient, ctx.group, -ctx.ahead), None, None


def ring():
    """Keys go round a ring of ranks while each attends to those that it has, as context parallelism does."""
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("cp",))
    model = Block(late=True)
    delay.asleep = {(rank + 1) % size}

    def forward(inputs):
        keys, total = model(inputs), 0.0
        for turn in range(size):
            time.sleep(BLOCK_MS / 1e3)
            total = total + keys
            if turn < size - 1:
                keys = Turned.apply(keys, mesh.get_group(), 1)
        return total

    def back(loss):
        loss.backward()
        reduce_by_hand(model.parameters(), mesh.get_group(), size)

    return plain_step(forward, AveragingSGD(model.parameters(), lr=1e-3), back)


SHAPES = {its.__name__: its for its in (pairs, tp_fsdp, tp_ddp, hsdp, shards, local_sgd, experts, ring)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    delay = GroupDelays(args.plan, rank)
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    step = SHAPES[args.shape]()
    delay.watch()
    for _ in range(delay.steps):
        step()
        delay.end()
    delay.write(args.truth)
    leave()
