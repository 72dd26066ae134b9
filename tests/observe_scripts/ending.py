"""How scripts end that reduce gradients by gloo: at once, which many do, and never in Python's own end.

The work of a reduction keeps the context of its backward (torch 2.13, `_engine_run_backward`), which a thread of gloo
frees. Where it comes to that only while Python ends, the process is aborted: "terminate called without an active
exception". Plain torch on a busy machine does so in 7 of 40 launches of three ranks, without any hooks.
"""

import os
import sys


def leave():
    """Ends this process with status 0."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
