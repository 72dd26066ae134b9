"""Training on real GPUs: NCCL, every precision, timestamps from device events. Skipped without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.backends import missing_modules
from hpc.model.spec import RunSpec
from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, FORWARD_END, GRADS_READY, INNER, REDUCED
from hpc.model.trace import Trace
from hpc.model.trace_file import read_trace
from hpc.system.gpus import has_amd_gpus

ROOT = Path(__file__).resolve().parents[2]
ASK_TORCH = "import torch; print(bool(torch.version.cuda or torch.version.hip), torch.cuda.device_count())"
ASK_HOROVOD = "import horovod.torch as hvd; print(hvd.nccl_built())"


def output_of(code: str) -> str | None:
    """Standard output of the code in a new process; None if it fails, e.g. on a missing import."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


@pytest.fixture(scope="module", autouse=True)
def gpus() -> int:
    """Number of GPUs that torch sees; skips if there is none."""
    output = output_of(ASK_TORCH)
    if output is None:
        pytest.skip("no torch here: pip install -e '.[torch]'")
    built, count = output.split()
    if built == "False":
        pytest.skip("this torch was built without CUDA and ROCm")
    if count == "0":
        pytest.skip("torch sees no GPU here")
    return int(count)


@pytest.fixture(params=["torch-ddp", "torch-fsdp", "torch-horovod"])
def backend(request: pytest.FixtureRequest) -> str:
    """A backend whose ranks drive one GPU each."""
    name: str = request.param
    if name == "torch-horovod":
        if missing := missing_modules(name):
            pytest.skip("; ".join(missing))
        output = output_of(ASK_HOROVOD)
        assert output is not None, "Horovod is installed and does not load"
        if output == "0":
            pytest.skip("this Horovod was built without NCCL: HOROVOD_GPU_OPERATIONS=NCCL make horovod")
    return name


def spec(**changes: Any) -> RunSpec:
    usual: dict[str, Any] = {
        "nodes": 1, "ranks_per_node": 1, "gpus_per_node": 1, "cpus_per_rank": 2, "backend": "torch-ddp",
        "workload": "resnet50", "batch_size": 16, "precision": "fp32", "scaling": "weak", "warmup_steps": 10,
        "measured_steps": 10, "repeat": 1, "seed": 0, "site": "here",
    }  # fmt: skip
    return RunSpec(**usual | changes)


def launched(folder: Path, run: RunSpec) -> subprocess.CompletedProcess[str]:
    (folder / "run.json").write_text(json.dumps(run.to_json()))
    (folder / "job.sh").write_text("#!/bin/bash\n")
    argv = [str(folder / "run.json"), "--attempt", "1", "--traces", str(folder), "--script", str(folder / "job.sh")]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM", "PMI", "SLURM_"))}
    return subprocess.run(
        [sys.executable, "-m", "hpc.rank", *argv], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    )  # fmt: skip


def traced(folder: Path, **changes: Any) -> Trace:
    run = spec(**changes)
    done = launched(folder, run)
    assert done.returncode == 0, done.stderr
    return read_trace(folder / f"{run.run_id}.1.h5")


TF32 = pytest.param(
    "tf32", marks=pytest.mark.skipif(has_amd_gpus(), reason="TF32 is a mode of NVIDIA GPUs, which AMD's are refused")
)
PRECISIONS = pytest.mark.parametrize("precision", ["fp32", TF32, "bf16", "amp-fp16"])


@PRECISIONS
def test_training_in_every_precision_timestamps_steps_by_device_events(
    tmp_path: Path, backend: str, precision: str
) -> None:
    if (backend, precision) == ("torch-fsdp", "amp-fp16"):
        pytest.skip("torch-fsdp refuses amp-fp16, on CPUs as on GPUs: tests/unit/test_refusals.py")
    trace = traced(tmp_path, backend=backend, precision=precision)
    facts = trace.environment["backend"]
    assert facts["transport"] == "nccl"
    assert facts["tf32"] == (precision == "tf32")
    assert facts["absent_stamps"] == []
    # Horovod's synchronize() waits on the host.
    assert facts["synchronises_every_step"] == (backend == "torch-horovod")
    assert trace.ranks[0]["device"]["kind"] == "gpu"
    assert trace.ranks[0]["stamp_bound_ns"] > 0
    assert (np.diff(trace.stamps, axis=2) >= 0).all()
    assert (trace.stamps[:, 6:, BEGIN] == trace.stamps[:, 5:-1, END]).all()
    assert np.isfinite(trace.losses[:, 0]).all()
    # The stamps lie on the host's clock: between the synchronisation before the window and the one after it.
    assert trace.clock_local_ns[0, 1] < trace.stamps[0, 5, BEGIN] < trace.stamps[0, -1, END]
    assert trace.stamps[0, -1, END] < trace.clock_local_ns[0, 2] + trace.ranks[0]["stamp_bound_ns"]


@pytest.mark.parametrize("name", ["torch-ddp", "torch-fsdp"])
def test_a_decoder_trains_in_bf16_and_counts_tokens(tmp_path: Path, name: str) -> None:
    options = {"size": "tiny", "sequence_length": "128", "activation_checkpointing": "on"}
    trace = traced(tmp_path, backend=name, workload="gpt", precision="bf16", options=options)
    assert trace.samples.tolist() == [[16 * 128] * trace.run.steps]
    assert trace.environment["backend"]["flops_per_token"] > 0
    assert (np.diff(trace.stamps, axis=2) >= 0).all()
    assert np.isfinite(trace.losses[:, 0]).all()


def test_step_timing_records_begin_batch_and_end_only(tmp_path: Path, backend: str) -> None:
    trace = traced(tmp_path, backend=backend, timing="step")
    assert trace.environment["backend"]["absent_stamps"] == list(INNER)
    assert (trace.stamps[:, :, [FORWARD_END, GRADS_READY, REDUCED]] == ABSENT).all()
    assert (np.diff(trace.stamps[:, :, [BEGIN, BATCH_READY, END]], axis=2) >= 0).all()


@PRECISIONS
@pytest.mark.parametrize("devices", [1, 2])
def test_torch_dp_uses_all_gpus_of_the_node(tmp_path: Path, gpus: int, devices: int, precision: str) -> None:
    if gpus < devices:
        pytest.skip(f"torch-dp on {devices} GPUs needs as many; torch sees {gpus}")
    trace = traced(tmp_path, backend="torch-dp", precision=precision, gpus_per_node=devices)
    facts = trace.environment["backend"]
    assert len({device["uuid"] for device in facts["devices"]}) == devices
    assert facts["absent_stamps"] == ["grads_ready"]
    assert (trace.stamps[:, :, GRADS_READY] == ABSENT).all()
    assert (np.diff(np.delete(trace.stamps, GRADS_READY, axis=2), axis=2) >= 0).all()
    assert trace.samples.tolist() == [[16 * devices] * trace.run.steps]
    assert np.isfinite(trace.losses[:, 0]).all()


def test_a_static_loss_scale_trains(tmp_path: Path) -> None:
    trace = traced(tmp_path, precision="amp-fp16", options={"loss_scale": "128"})
    assert trace.environment["backend"]["options"]["loss_scale"] == "128"
    assert np.isfinite(trace.losses[:, 0]).all()
