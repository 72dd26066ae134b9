"""Ranks in groups, as argv says: `calls` in and between them, without training; or a training whose ranks meet in two
dimensions, `steps` steps of it."""

import sys

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

kind, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)


def layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))


def train(model, step, after=lambda: None, parameters=None) -> None:
    """`step` makes the gradients of a batch, `after` is between that and the update."""
    optimizer = torch.optim.SGD(parameters or model.parameters(), lr=0.01)
    for batch in DataLoader(torch.randn(8 * steps, 8), batch_size=8):
        step(batch)
        after()
        optimizer.step()
        optimizer.zero_grad()


def call_in_groups() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    pair = mesh["tp"].get_group()
    value, parts = torch.ones(4), [torch.ones(2), torch.ones(2)]
    dist.all_reduce(value, group=pair)
    dist.broadcast(value, src=dist.get_global_rank(pair, 1), group=pair)
    all_reduce(value, "sum", (mesh, 1)).sum()
    dist.all_to_all_single(torch.empty(4), value, group=mesh["dp"].get_group())
    dist.all_to_all(parts, [torch.ones(2), torch.ones(2)], group=pair)
    dist.barrier()
    for _ in range(3):  # equal ranks: it is the same group, however often it is made
        dist.all_reduce(value, group=[dist.new_group([0, 3]), dist.new_group([1, 2])][rank in (1, 2)])
    three = dist.new_group([0, 1, 3], group_desc="ep")
    if rank in (0, 1, 3):
        dist.all_reduce(value, group=three)
    single = [dist.new_group([each]) for each in range(ranks)][rank]
    dist.all_reduce(value, group=single)
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    operations = [dist.P2POp(dist.isend, value, after), dist.P2POp(dist.irecv, value.clone(), before)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    if rank == 2:
        dist.send(value, 0, tag=5)
        dist.send(value, 3)
    elif rank == 0:
        dist.recv(value, tag=5)  # from any rank
    elif rank == 3:
        dist.recv(value, 2)


def train_in_pairs() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    pair = mesh["tp"].get_group()
    model = DistributedDataParallel(layers(), process_group=mesh["dp"].get_group())

    def step(batch: torch.Tensor) -> None:
        result = model(batch)
        dist.all_reduce(result.detach().clone(), group=pair)
        result.square().mean().backward()

    train(model, step)


def train_hybrid() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = layers()
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    train(model, lambda batch: model(batch).square().mean().backward())


def train_pipeline() -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    model = layers()
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda result, target: (result - target).square().mean())

    def step(batch: torch.Tensor) -> None:
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(target=batch)

    def after() -> None:
        if unanswered and rank == 0:  # to nobody: its receiver does not come
            dist.isend(torch.ones(1), 1, tag=9)

    train(model, step, after)


unanswered = "unanswered" in sys.argv
{
    "calls": call_in_groups, "pairs": train_in_pairs, "hybrid": train_hybrid, "pipeline": train_pipeline,
}[kind]()  # fmt: skip
dist.destroy_process_group()
