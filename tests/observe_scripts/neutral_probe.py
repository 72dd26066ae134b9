"""Runs a script as `python SCRIPT …` would, with a fixed seed: neutral_probe.py RESULT SCRIPT [ARGUMENTS].

At its end RESULT.<rank> gets a digest of all parameters behind each update (so a loss that differs shows), of random
numbers, its threads, handlers of signals and the most memory that it had, as JSON.
"""

import atexit
import hashlib
import json
import os
import random
import resource
import runpy
import signal
import sys
import threading
from pathlib import Path

result, script, *arguments = sys.argv[1:]


def digest(tensor):
    """Empty of one whose memory is given back, as FSDP does with what it has gathered."""
    its = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if not its.untyped_storage().size():
        return ""
    return hashlib.sha256(its.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def updated(optimizer, args, kwargs):
    if torch.compiler.is_compiling():
        return
    updates.append(optimizer)
    for group in optimizer.param_groups:
        for each in group["params"]:
            so_far.update(digest(each).encode() if each.device.type == "cpu" else b"")


def masks():
    """Signals that are ignored, and blocked."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {words[0]: words[1] for words in lines if words[0] in ("SigIgn:", "SigBlk:")}


def named(handler):
    return getattr(handler, "__qualname__", str(handler))


def write(written=[]):  # noqa: B006 - once in a process
    if written or os.getpid() != process:
        return
    written.append(True)
    state = {
        "updates": len(updates),
        "parameters": so_far.hexdigest(),
        "random": [digest(torch.get_rng_state()), hashlib.sha256(repr(random.getstate()).encode()).hexdigest()],
        "threads": sorted(thread.name.rstrip("0123456789-") for thread in threading.enumerate()),
        "native_threads": len([*Path("/proc/self/task").iterdir()]),
        "signals": {number.name: named(signal.getsignal(number)) for number in signal.valid_signals()
                    if isinstance(number, signal.Signals)},
        "masks": masks(),
        "memory_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }  # fmt: skip
    Path(f"{result}.{os.environ.get('RANK', '0')}").write_text(json.dumps(state))


def leave(status=0):
    write()
    end(status)


updates, so_far = [], hashlib.sha256()
process, end, os._exit = os.getpid(), os._exit, leave
sys.argv = [script, *arguments]
sys.path[0] = str(Path(script).parent)
if "simulated" in Path(script).read_text():  # which comes to torch before its import
    import simulated_torch  # noqa: F401
import torch  # noqa: E402

random.seed(0)
torch.manual_seed(0)
atexit.register(write)
sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(updated)
try:
    runpy.run_path(script, run_name="__main__")
finally:
    write()
