"""Why runs are refused, as JSON, `TYPE: text` of each: `refusals.py LIST-OF-RUN-FIELDS`. One rank.

A run that is not refused as it joins makes one step where it has a workload FILE:CLASS; the runs of a backend share the
group that the first of these has joined.
"""

import json
import sys

from common import run_of
from mpi4py import MPI

from hpc.backends import BACKENDS, load_backend
from hpc.measure.world import world_of
from hpc.workloads import is_user_code, load_factory

members = {}


def joined(run):
    backend = load_backend(run.backend)
    backend.join(run, world_of(MPI.COMM_WORLD), MPI.COMM_WORLD)
    return backend


def refusal(fields):
    run = run_of(fields)
    try:
        if not is_user_code(run.workload):
            joined(run)
            return "nothing"
        if run.backend not in members:
            for name in [*members]:
                members.pop(name).leave()
            members[run.backend] = joined(run)
        backend = members[run.backend]
        backend.build(load_factory(run.workload, BACKENDS[run.backend].framework))
        timer = backend.make_timer(8)
        timer.begin(0)
        backend.step(0, timer)
    except Exception as error:  # noqa: BLE001 - which one it is, is what is tested
        return f"{type(error).__name__}: {error}"
    return "nothing"


print(json.dumps([refusal(fields) for fields in json.loads(sys.argv[1])]))
