"""Trains on two ranks or four that read the same batches, or their own, as argv says: `steps` steps."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
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


class Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = torch.empty_like(x)
        dist.all_to_all_single(result, x.contiguous(), group=pair)
        return result

    backward = forward


def layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))


def split(mesh) -> torch.nn.Module:
    return parallelize_module(layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def plain(model) -> None:
    train(model, lambda batch: model(batch).square().mean().backward())


def exchanged() -> None:
    model = layers()

    def step(batch: torch.Tensor) -> None:
        Exchanged.apply(model(batch)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    train(model, step)


{
    "torch-pipeline": torch_pipeline,
    "tensor": lambda: plain(split(init_device_mesh("cpu", (ranks,)))),
    "ddp": lambda: plain(DistributedDataParallel(layers())),
    "exchanged": exchanged,
}[kind]()
dist.destroy_process_group()
