"""Facts of TensorFlow runs on real ranks, a line of JSON each: `tensorflow_facts.py LIST-OF-RUN-FIELDS [taken]`.

One start of the ranks makes all runs; they have one backend and group, and those in fp32 come first. Horovod and
TensorFlow make one group in the life of a process: the first run joins it, each later one takes a copy of its backend.
`taken` lets another socket have the port that rank 1 has chosen.
"""

import copy
import json
import socket
import sys

import numpy as np
from common import main_or_abort, run_of

from hpc.backends import addresses, load_backend
from hpc.measure.world import world_of
from hpc.workloads import is_user_code, load_factory

STEPS = 4
THIEF = socket.socket()


def take_the_port_of_rank_1(comm, backend):
    def endpoints(*arguments):
        chosen = addresses.endpoints(*arguments)
        if comm.rank == 1:
            THIEF.bind(("", int(chosen[1].rpartition(":")[2])))
            THIEF.listen()
        comm.Barrier()
        return chosen

    sys.modules[type(backend).__module__].endpoints = endpoints


def compiled_calls(backend):
    """How many calls of the step's graph XLA has to compile."""
    traced = backend._first.get_concrete_function(backend._workload.batch(0)).graph.as_graph_def()
    nodes = [*traced.node, *(node for function in traced.library.function for node in function.node_def)]
    return sum(node.attr["_XlaMustCompile"].b for node in nodes)


def facts_of(run, backend, comm):
    factory = load_factory(run.workload, "tensorflow")
    backend.build(factory)
    timer = backend.make_timer(run.steps)
    timer.begin(0)
    for step in range(STEPS):
        backend.step(step, timer)
    timer.resolve()
    facts = {
        "losses": backend.losses(),
        "frameworks": [name for name in ("torch", "jax", "paddle", "horovod") if name in sys.modules],
        "compiled_calls": compiled_calls(backend),
        **backend.describe().as_json(),
    }
    mine = backend.parameters()
    everyone = comm.gather(mine)
    if comm.rank == 0:
        facts["ranks_agree"] = all(np.array_equal(a, b) for its in everyone for a, b in zip(its, mine, strict=True))
        if is_user_code(run.workload):
            on_one_rank = factory.__init__.__globals__["on_one_rank"](run, STEPS)
            facts["off_alone"] = max(float(np.abs(a - b).max()) for a, b in zip(mine, on_one_rank, strict=True))
    return facts


def main(comm):
    first, *others = (run_of(fields, backend="tensorflow-horovod") for fields in json.loads(sys.argv[1]))
    member = load_backend(first.backend)
    if "taken" in sys.argv:
        take_the_port_of_rank_1(comm, member)
    member.join(first, world_of(comm), comm)
    facts = [facts_of(first, member, comm)]
    from hpc.backends.tensorflow_loop import set_precision  # which has imported TensorFlow as the run joined

    for run in others:
        backend = copy.copy(member)
        backend._begin(run, comm.rank)
        set_precision(run.precision)
        facts.append(facts_of(run, backend, comm))
    member.leave()
    if comm.rank == 0:
        print(*map(json.dumps, facts), sep="\n")


main_or_abort(main)
