"""Facts of runs of a torch backend on real ranks, a line of JSON each: `torch_facts.py LIST-OF-RUN-FIELDS [SWITCH …]`.

One start of the ranks makes all runs, each with a group of its own. Horovod makes one group in the life of a process:
its first run joins it, each later one takes a copy of its backend, with the same fusion threshold and cycle time.

Switches: `apart` makes every rank believe that it has a network stack of its own, as ranks on different hosts have;
`apart_at_first` gives every rank other weights; `another`: Horovod was built for another torch; `unloadable`: it does
not load; `unseen`: it sees this rank only; `without_mpi`, `without_nccl`: it lacks those; `twice`: a second MPI is
loaded; `hooked` gives the workload's optimizer a hook; `tied` adds two layers with the same weights to
its model; `one_gpu` makes torch see a GPU; `refusals`: runs that are refused have the reason in place of
facts. A run has the switches of its field `pretend`, too; they end with it.
"""

import copy
import json
import os
import sys
import traceback
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from mpi4py import MPI

from hpc.backends import InvalidRun, WorkloadError, addresses, horovod_group, load_backend
from hpc.measure.world import world_of
from hpc.model.options import OptionError
from hpc.model.timestamps import ABSENT
from hpc.workloads import load_factory
from tests.mpi.ranks.common import LISTENING, run_of, sockets

STEPS = 3
HOROVOD_ANSWERS = {"unseen": ("size", 1), "without_mpi": ("mpi_built", False), "without_nccl": ("nccl_built", 0)}
VARIABLES = ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME")


def listening():
    """Local addresses that this process listens on."""
    return sorted({address for address, _ in sockets(LISTENING)})


def pretend(switches, until):
    """Switches something on `until` that stack is closed."""

    def put(place, name, value):
        until.enter_context(patch.object(place, name, value))

    if "apart" in switches:
        put(addresses, "_network_stack", lambda: str(comm.rank))
    if "another" in switches:
        put(horovod_group, "built_against", lambda: {"torch": "1.13.1"})
    if "twice" in switches:
        put(horovod_group, "_mpi_libraries", lambda: ["/opt/a/libmpi.so.12", "/usr/lib/libmpi.so.40"])
    if "one_gpu" in switches:
        import torch

        put(torch.cuda, "is_available", lambda: True)
        put(torch.cuda, "device_count", lambda: 1)
    if "unloadable" in switches:
        until.enter_context(patch.dict(sys.modules, {"horovod.torch": None}))
    if "without_nccl" in switches:
        import torch

        from hpc.backends import torch_loop

        put(torch_loop, "device_of_rank", lambda *_: torch.device("cpu"))
    for switch, (function, value) in HOROVOD_ANSWERS.items():
        if switch in switches:
            import horovod.torch

            put(horovod.torch, function, lambda value=value: value)


def factory(run, switches):
    import torch

    workload: Any = load_factory(run.workload, "torch")

    class Changed(workload):  # type: ignore[misc]
        def __init__(self, run, device, rank):
            super().__init__(run, device, rank)
            if "apart_at_first" in switches:
                for parameter in self.model.parameters():
                    parameter.data.add_(rank)
            if "tied" in switches:
                first, second = torch.nn.Linear(10, 10), torch.nn.Linear(10, 10)
                second.weight = first.weight
                self.model.extend([first, second])

        def optimizer(self, **implementation):
            optimizer = super().optimizer(**implementation)
            if "hooked" in switches:
                optimizer.register_step_pre_hook(lambda *_: None)
            return optimizer

    return Changed


def rows_of(timer):
    """The stamps of every step by their number, without absent ones."""
    rows = [timer.stamps[6 * step : 6 * step + 6].tolist() for step in range(STEPS)]
    return [{number: stamp for number, stamp in enumerate(row) if stamp != ABSENT} for row in rows]


def member(run):
    """A backend that is in the group of ranks, not yet built."""
    if run.backend in members:
        backend = copy.copy(members[run.backend])
        backend._begin(run, comm.rank)
        return backend
    backend = load_backend(run.backend)
    backend.join(run, world_of(comm), comm)
    if run.backend == "torch-horovod":
        members[run.backend] = copy.copy(backend)
    return backend


def facts_of(fields, is_last):
    with ExitStack() as this_run:
        pretended = fields.pop("pretend", ())
        pretend(pretended, this_run)
        return _facts_of(fields, [*switches, *pretended], is_last)


def _facts_of(fields, switches, is_last):
    before = listening()
    run = run_of(fields, cpus_per_rank=2, backend="torch-ddp")
    try:
        backend = member(run)
        after = listening()
        backend.build(factory(run, switches))
    except (InvalidRun, OptionError, WorkloadError) as error:
        if "refusals" in switches:
            import torch.distributed as dist

            if dist.is_initialized():
                dist.destroy_process_group()
            return {"refused": f"{type(error).__name__}: {error}"}
        traceback.print_exc()
        comm.Abort(3)
    timer = backend.make_timer(run.steps)
    timer.begin(0)
    hooks = []
    for step in range(STEPS):
        backend.step(step, timer)
        hooks.append(sum(len(p._post_accumulate_grad_hooks or ()) for p in backend._parameters))
        backend.release()
    rows = rows_of(timer)
    facts = {
        "variables": {name: float(os.environ[name]) for name in VARIABLES if name in os.environ},
        "listening": [address for address in after if address not in before],
        "hooks": hooks,
        "parameters": len(backend._parameters),
        "layouts": sorted({"contiguous" if p.is_contiguous() else "channels_last" for p in backend._parameters}),
        "implementations": sorted({str(group.get("fused")) for group in backend._optimizer.param_groups}),
        "taken": sorted({number for row in rows for number in row}),
        "ordered": all(list(row.values()) == sorted(row.values()) for row in rows),
        "losses": backend.losses()[:STEPS],
        **backend.describe().as_json(),
    }
    if is_last or run.backend not in members:
        backend.leave()
    return facts


comm = MPI.COMM_WORLD
members: dict[Any, Any] = {}
switches = sys.argv[2:]
pretend(switches, ExitStack())  # which nobody closes: for as long as the process lives
runs = json.loads(sys.argv[1])
for at, fields in enumerate(runs):
    if (facts := facts_of(fields, is_last=at + 1 == len(runs))) and comm.rank == 0:
        print(json.dumps(facts))
