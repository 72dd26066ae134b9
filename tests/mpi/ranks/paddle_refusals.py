"""Refusals of paddle-fleet as JSON: by the fields of the run, the type and the text of the exception. One rank.

`paddle_refusals.py LIST-OF-RUN-FIELDS`.
"""

import json
import sys

from common import run_of
from mpi4py import MPI

from hpc.backends import load_backend
from hpc.measure.world import world_of


def refusal(fields):
    run = run_of(fields, backend="paddle-fleet")
    try:
        load_backend(run.backend).join(run, world_of(MPI.COMM_WORLD), MPI.COMM_WORLD)
    except Exception as error:  # noqa: BLE001 - which one it is, is what is tested
        return f"{type(error).__name__}: {error}"
    return "nothing"


print(json.dumps([refusal(fields) for fields in json.loads(sys.argv[1])]))
