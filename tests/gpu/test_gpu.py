"""One GPU: NCCL, every precision, and stamps of device events. Where there is none this says so and is skipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.spec import RunSpec
from hpc.stamps import BEGIN, END
from hpc.trace import Trace, read_trace

ROOT = Path(__file__).resolve().parents[2]
ASK_TORCH = "import torch; print(torch.version.cuda is not None, torch.cuda.device_count())"


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    asked = subprocess.run([sys.executable, "-c", ASK_TORCH], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        pytest.skip("no torch here: pip install -e '.[torch]'")
    built, count = asked.stdout.split()
    if built == "False":
        pytest.skip("this torch was built without CUDA")
    if count == "0":
        pytest.skip("torch sees no GPU here")


def traced(folder: Path, **asked: Any) -> Trace:
    usual: dict[str, Any] = {
        "nodes": 1, "ranks_per_node": 1, "gpus_per_node": 1, "cpus_per_rank": 2, "backend": "torch-ddp",
        "workload": "resnet50", "batch_size": 16, "precision": "fp32", "scaling": "weak", "warmup_steps": 10,
        "measured_steps": 10, "repeat": 1, "seed": 0, "site": "here",
    }  # fmt: skip
    run = RunSpec(**usual | asked)
    (folder / "run.json").write_text(json.dumps(run.to_json()))
    (folder / "job.sh").write_text("#!/bin/bash\n")
    argv = [str(folder / "run.json"), "--attempt", "1", "--traces", str(folder), "--script", str(folder / "job.sh")]
    alone = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM", "PMI", "SLURM_"))}
    done = subprocess.run(
        [sys.executable, "-m", "hpc.rank", *argv], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**alone, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return read_trace(folder / f"{run.run_id}.1.h5")


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "amp-fp16"])
def test_a_gpu_trains_in_every_precision_and_stamps_by_its_own_events(tmp_path: Path, precision: str) -> None:
    trace = traced(tmp_path, precision=precision)
    assert trace.environment["backend"]["transport"] == "nccl"
    assert trace.environment["backend"]["tf32"] == (precision == "tf32")
    assert trace.environment["backend"]["synchronises_every_step"] is False
    assert trace.ranks[0]["device"]["kind"] == "gpu"
    assert trace.ranks[0]["stamp_bound_ns"] > 0
    assert (np.diff(trace.stamps, axis=2) >= 0).all()
    assert (trace.stamps[:, 6:, BEGIN] == trace.stamps[:, 5:-1, END]).all()
    assert np.isfinite(trace.losses[:, 0]).all()
    # The stamps lie on the host's clock: between the synchronisation before the window and the one after it.
    assert trace.clock_local_ns[0, 1] < trace.stamps[0, 5, BEGIN] < trace.stamps[0, -1, END]
    assert trace.stamps[0, -1, END] < trace.clock_local_ns[0, 2] + trace.ranks[0]["stamp_bound_ns"]


def test_a_static_loss_scale_trains(tmp_path: Path) -> None:
    trace = traced(tmp_path, precision="amp-fp16", options={"loss_scale": "128"})
    assert trace.environment["backend"]["options"]["loss_scale"] == "128"
    assert np.isfinite(trace.losses[:, 0]).all()
