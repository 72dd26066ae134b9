"""What torch-dp can show without a GPU: why it refuses a run, and that its threads train in the requested precision."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

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


REFUSED: tuple[tuple[dict[str, Any], tuple[str, ...], str], ...] = (
    ({}, (), "no GPU was requested; torch-dp splits a batch over the GPUs of a node and would be the bare model"),
    ({"gpus_per_node": 2}, (), "2 GPUs per node were requested; torch "),
    ({"gpus_per_node": 2}, ("one_gpu",), "2 GPUs per node were requested; "),
    ({"gpus_per_node": 1, "ranks_per_node": 2}, (), "1 nodes with 2 ranks each were requested; torch-dp is one"),
    (
        {"gpus_per_node": 2, "reduction": "off"},
        (),
        "reduction was switched off; torch-dp has no no-sync run: ",
    ),
    ({"gpus_per_node": 2, "options": {"compile": "on"}}, ("one_gpu",), "compile was requested; torch.compile does"),
)


@pytest.mark.parametrize(("fields", "switches", "message"), REFUSED)
def test_an_impossible_run_is_refused_with_the_reason(
    ranks: Ranks, fields: dict[str, Any], switches: tuple[str, ...], message: str
) -> None:
    together = [{"backend": "torch-dp", **impossible} for impossible, others, _ in REFUSED if others == switches]
    refusal = reason(ranks, *switches, together=together, backend="torch-dp", **fields)
    assert refusal.startswith(f"InvalidRun: {message}")


def test_its_threads_train_in_the_requested_precision() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_THREAD], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["torch.float16"]
