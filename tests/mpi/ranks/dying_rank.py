"""`python -m hpc.rank` whose rank DIES_RANK kills itself by SIGKILL in its step DIES_STEP, counted from 0."""

import os
import signal
import sys

from hpc.rank import main

RANK, STEP = os.environ.get("DIES_RANK", ""), int(os.environ.get("DIES_STEP", "-1"))


def make_mortal(loop):
    step, steps = loop.step, [0]

    def mortal_step(self, index, timer):
        if str(self._rank) == RANK and steps[0] == STEP:
            os.kill(os.getpid(), signal.SIGKILL)
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
