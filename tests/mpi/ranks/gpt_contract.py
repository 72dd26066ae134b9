"""What every strategy must learn with workload gpt: `gpt_contract.py CASE …`, each CASE a JSON object.

A CASE has fields of the run, and `switches`: `untied` gives the tiny decoder an output layer of its own,
`apart_at_first` gives every rank other weights, `broken` leaves the averaging out, `usual` trains by the workload's
rate and epsilon. AdamW's steps hardly depend on the scale of the gradients: without `usual` a large epsilon makes a sum
in the place of an average move the parameters elsewhere. After three steps on tokens that differ for every rank and
step, all ranks must hold the parameters that one process learns from the joined batch. Prints for each case a line of
JSON: how far the parameters of any rank are off those, how far these have moved, and the backend's facts.
"""

import json
import sys
from dataclasses import replace

import numpy as np
import torch
from common import main_or_abort, run_of
from contract_torch import break_averaging

from hpc.backends import load_backend
from hpc.measure.world import world_of
from hpc.workloads import gpt
from hpc.workloads.torch_gpt import TorchGPT

STEPS = 3
TINY, USUAL, SENSITIVE = gpt.SIZES["tiny"], (gpt.LEARNING_RATE, gpt.EPSILON), (1e-2, 1e-2)


def learned(run, steps):
    """The parameters of one process before and after some steps on the joined batch."""
    single = replace(run, backend="torch-ddp", options={**run.options, "activation_checkpointing": "off"})
    workload = TorchGPT(single, torch.device("cpu"), 0)
    before = [parameter.detach().numpy().copy() for parameter in workload.model.parameters()]
    optimizer = workload.optimizer(foreach=False)
    for step in range(steps):
        joined = torch.from_numpy(np.concatenate([tokens(single, rank, step) for rank in range(run.ranks)]))
        assert len(np.unique(joined.numpy(), axis=0)) == run.global_batch_size, "sequences are alike: proves nothing"
        workload.loss(workload.model, joined).backward()
        optimizer.step()
        optimizer.zero_grad()
    return before, [parameter.detach().numpy() for parameter in workload.model.parameters()]


def tokens(run, rank, step):
    """Those of a rank in a step."""
    return gpt.random_tokens(replace(run, seed=1000 * run.seed + step), rank)


def distance(values, others):
    return max(float(np.abs(a - b).max()) for a, b in zip(values, others, strict=True))


def train(comm, run, switches):
    """The run's parameters, samples, time stamps and facts on this rank."""

    def factory(run, device, rank):
        workload = TorchGPT(run, device, rank)
        workload.batch = lambda step: torch.from_numpy(tokens(run, rank, step)).to(device)
        if "apart_at_first" in switches:
            for parameter in workload.model.parameters():
                parameter.data.add_(comm.rank)
        return workload

    backend = load_backend(run.backend)
    simulated = run.ranks_per_node if run.nodes > 1 else None
    backend.join(run, world_of(comm, simulated), comm)
    backend.build(factory)
    if "broken" in switches:
        break_averaging(backend)
    timer = backend.make_timer(run.steps)
    timer.begin(0)
    samples = [backend.step(step, timer) for step in range(STEPS)]
    backend.release()
    timer.resolve()
    parameters = backend.parameters()
    facts, losses = backend.describe().as_json(), backend.losses()[:STEPS]
    assert np.isfinite(losses).all()
    stamps = np.array(timer.stamps.tolist()).reshape(-1, 6)[:STEPS]
    backend.leave()
    return parameters, samples, stamps, facts


def main(comm):
    for case in sys.argv[1:]:
        fields = json.loads(case)
        switches = fields.pop("switches", [])
        gpt.SIZES = {**gpt.SIZES, "tiny": replace(TINY, tied="untied" not in switches)}
        gpt.LEARNING_RATE, gpt.EPSILON = USUAL if "usual" in switches else SENSITIVE
        options = {"size": "tiny", "sequence_length": "8", **fields.pop("options", {})}
        run = run_of({"batch_size": 2, **fields}, workload="gpt", options=options)
        parameters, samples, stamps, facts = train(comm, run, switches)
        before, expected = learned(run, STEPS)
        off, same = distance(parameters, expected), [comm.bcast(value) for value in parameters]
        everywhere = comm.allgather((off, distance(parameters, same), sum(samples)))
        if comm.rank == 0:
            result = {
                "off": max(figures[0] for figures in everywhere), "apart": max(figures[1] for figures in everywhere),
                "moved": distance(before, expected), "tokens": sum(figures[2] for figures in everywhere),
                "count": sum(v.size for v in parameters),
                "ordered": bool((np.diff(stamps, axis=1) >= 0).all()), "facts": facts,
            }  # fmt: skip
            print(json.dumps(result), flush=True)


main_or_abort(main)
