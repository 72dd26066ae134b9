"""Facts of runs of a torch backend on real ranks, a line of JSON each: `torch_facts.py LIST-OF-RUN-FIELDS [WORD …]`.

One start of the ranks makes all runs, each with a group of its own (Horovod makes one group in the life of a process).

Words that change what it finds: `apart` makes every rank believe that it has a network stack of its own, as ranks on
different hosts have; `apart_at_first` gives every rank other weights; `another` says that Horovod was built for another
torch; `unloadable` that it does not load; `unseen` that it sees this rank only; `without_mpi` and `without_nccl` what
it lacks; `twice` that a second MPI is loaded; `hooked` gives the workload's optimizer a hook; `one_gpu` makes torch see
a GPU.
"""

import json
import os
import sys
import traceback
from pathlib import Path

from mpi4py import MPI

from hpc.backends import InvalidRun, WorkloadError, addresses, horovod_build, horovod_group, load_backend
from hpc.measure.world import world_from_mpi
from hpc.model.options import OptionError
from hpc.model.spec import RunSpec
from hpc.model.timestamps import ABSENT
from hpc.workloads import load_factory

STEPS = 3
SAID_BY_HOROVOD = {"unseen": ("size", 1), "without_mpi": ("mpi_built", False), "without_nccl": ("nccl_built", 0)}
TOLD = ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME")


def listening():
    """Local addresses that this process listens on, from the kernel's own table."""
    own = {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    rows += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    return sorted({row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own})


def pretend(words):
    if "apart" in words:
        addresses._network_stack = lambda: (str(comm.rank), "")
    if "another" in words:
        horovod_build.built_against = lambda: {"torch": "1.13.1"}
    if "twice" in words:
        horovod_group._mpi_libraries = lambda: ["/opt/a/libmpi.so.12", "/usr/lib/libmpi.so.40"]
    if "one_gpu" in words:
        import torch

        torch.cuda.is_available = lambda: True
        torch.cuda.device_count = lambda: 1
    if "unloadable" in words:
        sys.modules["horovod.torch"] = None
    if "without_nccl" in words:
        from hpc.backends import torch_loop

        torch_loop.device_of_rank = lambda *_: torch_loop.torch.device("cpu")
    for word, (function, value) in SAID_BY_HOROVOD.items():
        if word in words:
            import horovod.torch

            setattr(horovod.torch, function, lambda value=value: value)


def factory(run, words):
    found = load_factory(run.workload, "torch")

    class Changed(found):
        def __init__(self, run, device, rank):
            super().__init__(run, device, rank)
            if "apart_at_first" in words:
                for parameter in self.model.parameters():
                    parameter.data.add_(rank)

        def optimizer(self, **how):
            made = super().optimizer(**how)
            if "hooked" in words:
                made.register_step_pre_hook(lambda *_: None)
            return made

    return Changed


def rows_of(timer):
    """Of every step the stamps that were taken, by their number."""
    rows = [timer.stamps[6 * step : 6 * step + 6].tolist() for step in range(STEPS)]
    return [{number: stamp for number, stamp in enumerate(row) if stamp != ABSENT} for row in rows]


def facts_of(fields):
    before = listening()
    usual = {
        "nodes": 1, "ranks_per_node": comm.size, "gpus_per_node": 0, "cpus_per_rank": 2, "backend": "torch-ddp",
        "workload": "mlp", "batch_size": 4, "precision": "fp32", "scaling": "weak", "warmup_steps": 5,
        "measured_steps": 3, "repeat": 1, "seed": 0, "site": "here",
    }  # fmt: skip
    run = RunSpec(**usual | fields)
    backend = load_backend(run.backend)
    try:
        backend.join(run, world_from_mpi(comm), comm)
        after = listening()
        backend.build(factory(run, words))
    except (InvalidRun, OptionError, WorkloadError):
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
        "told": {name: float(os.environ[name]) for name in TOLD if name in os.environ},
        "listening": [address for address in after if address not in before],
        "hooks": hooks,
        "parameters": len(backend._parameters),
        "layouts": sorted({"contiguous" if p.is_contiguous() else "channels_last" for p in backend._parameters}),
        "implementations": sorted({str(group.get("fused")) for group in backend._optimizer.param_groups}),
        "taken": sorted({number for row in rows for number in row}),
        "ordered": all(list(row.values()) == sorted(row.values()) for row in rows),
        "losses": backend.losses()[:STEPS],
        **backend.describe(),
    }
    backend.leave()
    return facts


comm = MPI.COMM_WORLD
words = sys.argv[2:]
pretend(words)
for fields in json.loads(sys.argv[1]):
    if (facts := facts_of(fields)) and comm.rank == 0:
        print(json.dumps(facts))
