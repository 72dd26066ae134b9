"""Trains on two ranks or four that read the same batches, or their own, as argv says: `steps` steps."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

kind, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
pairs = [dist.new_group([first, first + 1]) for first in range(0, ranks, 2)]  # nobody names them
pair = pairs[rank // 2]
torch.manual_seed(rank // 2)


def batches():
    return DataLoader(TensorDataset(torch.randn(8 * steps, 64)), 8)


def train(model, loss) -> None:
    """`loss` has also made the gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for (batch,) in batches():
        loss(batch)
        optimizer.step()
        optimizer.zero_grad()


def torch_pipeline() -> None:
    stage = torch.nn.Linear(64, 64)
    schedule = Schedule1F1B(PipelineStage(stage, rank, 2, torch.device("cpu")), 2, loss_fn=torch.nn.functional.mse_loss)
    train(stage, lambda batch: schedule.step(batch) if rank == 0 else schedule.step(target=batch))


def pipeline_by_hand() -> None:
    """As picotron's: the model's forward is called past its hooks."""
    stage = torch.nn.Linear(64, 64)

    def receive(sender: int) -> torch.Tensor:
        tensor = torch.empty(8, 64)
        dist.irecv(tensor, sender, group=pair).wait()
        return tensor

    def step(batch: torch.Tensor) -> None:
        if rank == 0:
            result = stage.forward(batch)
            dist.isend(result.detach(), 1, group=pair).wait()
            torch.autograd.backward(result, receive(1))
        else:
            hidden = receive(0).requires_grad_()
            (stage.forward(hidden) - batch).square().mean().backward()
            dist.isend(hidden.grad, 0, group=pair).wait()

    train(stage, step)


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=pair)
        return gradient


class Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x, group=pair)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = torch.empty_like(x)
        dist.all_to_all_single(result, x.contiguous(), group=pair)
        return result

    backward = forward


def tensor_by_hand() -> None:
    """Megatron's pair of layers."""
    before, wide, narrow = torch.nn.Linear(64, 64), torch.nn.Linear(64, 128), torch.nn.Linear(128, 64, bias=False)
    model = torch.nn.ModuleList([before, wide, narrow])
    train(model, lambda batch: Reduced.apply(narrow(wide(Copied.apply(before(batch))))).square().mean().backward())


def layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))


def split(mesh) -> torch.nn.Module:
    return parallelize_module(layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def plain(model) -> None:
    train(model, lambda batch: model(batch).square().mean().backward())


def tensor_and_shards() -> None:
    """Of a mesh whose names say nothing."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    plain(fully_shard(split(mesh["inner"]), mesh=mesh["outer"]))


def reduced_by_hand(exchange=lambda result: result) -> None:
    model = layers()

    def step(batch: torch.Tensor) -> None:
        exchange(model(batch)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    train(model, step)


{
    "torch-pipeline": torch_pipeline,
    "pipeline-by-hand": pipeline_by_hand,
    "tensor-by-hand": tensor_by_hand,
    "tensor": lambda: plain(split(init_device_mesh("cpu", (ranks,)))),
    "tensor-and-shards": tensor_and_shards,
    "shards": lambda: plain(fully_shard(layers())),
    "ddp": lambda: plain(DistributedDataParallel(layers())),
    "reduced-by-hand": reduced_by_hand,
    "exchanged": lambda: reduced_by_hand(Exchanged.apply),
}[kind]()
dist.destroy_process_group()
