"""What torch-dp can show without a GPU: why it refuses a run, and that its threads train in the requested precision."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.attempts import Ranks
from tests.mpi.facts import reason

ROOT = Path(__file__).resolve().parents[2]
IN_A_THREAD = """
import threading, torch
from hpc.backends.torch_dp import Autocasting

dtypes = []
model = Autocasting(torch.nn.Linear(2, 2), torch.float16, "cpu")
thread = threading.Thread(target=lambda: dtypes.append(model(torch.ones(1, 2)).dtype))
with torch.autocast("cpu", dtype=torch.float16):  # what a thread knows nothing of
    thread.start()
    thread.join()
print(*dtypes)
"""


@pytest.mark.parametrize(
    ("switches", "message"),
    [((), "2 GPUs per node were requested; torch "), (("one_gpu",), "2 GPUs per node were requested; ")],
)
def test_a_run_on_more_gpus_than_there_are_is_refused(ranks: Ranks, switches: tuple[str, ...], message: str) -> None:
    on_gpus = {"backend": "torch-dp", "gpus_per_node": 2}
    assert reason(ranks, *switches, together=[on_gpus], **on_gpus).startswith(f"InvalidRun: {message}")


def test_its_threads_train_in_the_requested_precision() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_THREAD], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["torch.float16"]
