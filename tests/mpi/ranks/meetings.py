"""Collectives called in several ways while they are recorded, as JSON of rank 0: names, roots and stamps."""

import json
import os

import torch
import torch.distributed as dist
from common import main_or_abort

from hpc.backends.torch_loop import recorded
from hpc.backends.torch_process_group import open_store
from hpc.measure.meetings import Meetings
from hpc.measure.timer import StepTimer

STEPS, WARMUP = 4, 2


def one_step(meetings, step, group):
    meetings.begin(step)
    values = torch.ones(4)
    dist.all_reduce(values)
    ahead = dist.all_gather([torch.empty(4), torch.empty(4)], values, async_op=True)
    dist.broadcast(values, src=1)
    ahead.wait()
    dist.reduce(values, dst=0)
    dist.all_reduce(values, group=group)
    dist._broadcast_coalesced(dist.group.WORLD, [values], 1024, 0)
    never = dist.barrier(async_op=True)
    meetings.finish()
    never.wait()


def main(comm):
    store, interface = open_store(comm, None)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)
    groups = [dist.new_group([rank]) for rank in range(comm.size)]
    meetings, timer = Meetings(STEPS, WARMUP), StepTimer(STEPS)
    timer.record_meetings(meetings)
    originals = dist.ProcessGroup.allreduce, dist.Work.wait, dist._broadcast_coalesced
    with recorded(meetings):
        for step in range(STEPS):
            one_step(meetings, step, groups[comm.rank])
    dist.all_reduce(torch.ones(1))  # what was put back can be called
    restored = (dist.ProcessGroup.allreduce, dist.Work.wait, dist._broadcast_coalesced) == originals
    if comm.rank == 0:
        facts = {"names": meetings.names, "roots": meetings.roots, "irregular": meetings.irregular_steps}
        print(json.dumps({**facts, "restored": restored, "stamps": list(meetings.stamps)}))
    dist.destroy_process_group()


main_or_abort(main)
