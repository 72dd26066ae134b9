"""`python -m hpc.rank` whose rank DIES_RANK kills itself by SIGKILL in its step DIES_STEP, counted from 0.

From step FULL_FROM to step FULL_UNTIL rank 0 can write no file of more than 4 KiB.
"""

import os
import resource
import signal
import sys

from hpc.rank import main

RANK, STEP = os.environ.get("DIES_RANK", ""), int(os.environ.get("DIES_STEP", "-1"))
FULL = {int(os.environ.get("FULL_FROM", "-1")): 4096, int(os.environ.get("FULL_UNTIL", "-2")): resource.RLIM_INFINITY}


def make_mortal(loop):
    step, steps = loop.step, [0]

    def mortal_step(self, index, timer):
        if str(self._rank) == RANK and steps[0] == STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._rank == 0 and steps[0] in FULL:
            resource.setrlimit(resource.RLIMIT_FSIZE, (FULL[steps[0]], resource.RLIM_INFINITY))
        steps[0] += 1
        return step(self, index, timer)

    loop.step = mortal_step


if os.environ["FRAMEWORK"] == "torch":
    from hpc.backends.torch_loop import TorchLoop as Loop
else:
    # Its threads are set by the backend, before TensorFlow is used for anything.
    from hpc.backends.tensorflow_loop import TensorFlowLoop as Loop

make_mortal(Loop)
sys.exit(main(sys.argv[1:]))
