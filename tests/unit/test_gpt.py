"""The decoders as numbers, their tokens, and tokens/s and MFU from a trace to a table."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpc.model.spec import RunSpec
from hpc.model.trace import Trace
from hpc.workloads import gpt
from parse.alarms.table import judge
from parse.report.export import as_json, comma_separated
from parse.report.notices import below_the_table
from parse.report.summary import Summary
from parse.report.table import text
from parse.runs.attempt import measure
from parse.runs.load import load
from parse.runs.machine_use import known_devices
from parse.runs.result import Result, results
from tests.unit.traces import make_ranks, make_run, make_trace, put

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"


def test_sizes_have_the_published_parameters() -> None:
    """meta-llama/Meta-Llama-3-8B and Llama-3.2-1B state 8,030,261,248 and 1,235,814,400."""
    assert gpt.SIZES["8b"].parameters == 8_030_261_248
    assert gpt.SIZES["1b"].parameters == 1_235_814_400
    assert gpt.SIZES["125m"].parameters == 123_587_328


def test_flops_of_a_token() -> None:
    """6 N + 12 L H Q T: for 8b 6 · (8,030,261,248 − 128,256 · 4096) + 12 · 32 · 32 · 128 · 8192."""
    assert gpt.SIZES["8b"].flops_per_token(8192) == 6 * 7_504_924_672 + 12_884_901_888
    # The embedding of 1b is its output layer, too: it multiplies.
    assert gpt.SIZES["1b"].flops_per_token(1) == 6 * 1_235_814_400 + 12 * 16 * 2048


def gpt_run(**changes: object) -> RunSpec:
    options = {"size": "tiny", "sequence_length": "4"} | changes.pop("options", {})  # type: ignore[operator]
    return make_run(**{"backend": "torch-ddp", "workload": "gpt", "batch_size": 2, "options": options, **changes})


def test_random_tokens_are_those_of_seed_and_rank() -> None:
    of_first, of_second = gpt.random_tokens(gpt_run(), 0), gpt.random_tokens(gpt_run(), 1)
    assert of_first.shape == (2, 5) and of_first.max() < 256
    assert np.array_equal(of_first, gpt.random_tokens(gpt_run(), 0))
    assert not np.array_equal(of_first, of_second)


def gpt_trace(device: str | None = None, *, flops: int | None = 10**12, **changes: object) -> Trace:
    """Half a second a step: of 2 · 4 tokens on each device."""
    gpus = {} if device is None else {"gpus_per_node": changes.get("ranks_per_node", 1)}
    run = gpt_run(**gpus, **changes)
    ranks = make_ranks(run, **({} if device is None else {"device": {"kind": "gpu", "name": device}}))
    known = {} if flops is None else {"flops_per_token": flops, "flops_by": gpt.FLOPS_BY}
    backend = {"transport": "nccl", **known}
    ranks = [{**facts, "backend": backend} for facts in ranks]
    tokens = np.full((run.ranks, run.steps), 8, np.int32)
    environment = {"software": {"torch": "2.13"}, "options": {"size": "tiny", "sequence_length": 4}}
    return make_trace(run, step_s=0.5, samples=tokens, ranks=ranks, environment=environment)


def points(tmp_path: Path, *traces: Trace) -> tuple[Result, ...]:
    for trace in traces:
        put(tmp_path, trace)
    return judge(results(load([tmp_path])))


def test_a_trace_says_that_its_samples_are_tokens(tmp_path: Path) -> None:
    with h5py.File(put(tmp_path, gpt_trace())) as file:
        assert file["samples"].attrs["unit"] == b"tokens"
    with h5py.File(put(tmp_path, make_trace())) as file:
        assert file["samples"].attrs["unit"] == b"samples"


@pytest.mark.parametrize(
    ("device", "precision", "tflops"),
    [(H100, "bf16", 989.5), (H100, "fp32", 67), (A100, "tf32", 156), ("AMD Instinct MI250X", "bf16", 191.5)],
)
def test_mfu_is_the_models_flops_over_the_peak_of_all_devices(device: str, precision: str, tflops: float) -> None:
    its = measure(gpt_trace(device, ranks_per_node=2, precision=precision)).utilisation
    assert (its.peak_tflops, its.reason) == (tflops, "")
    # Two devices train 16 tokens of 1e12 FLOPs in half a second: 16 TFLOPS on each. Each die of an MI250X is a device:
    # the datasheet's 383 TFLOPS in bf16 are of both.
    assert its.share == pytest.approx(16 / tflops)


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (gpt_trace(), "no peak is known for CPUs"),
        (gpt_trace("NVIDIA GeForce RTX 4080"), "no datasheet's peak is known here for NVIDIA GeForce RTX 4080"),
        (gpt_trace("Tesla T4", precision="bf16"), "no peak in bf16 is known here for Tesla T4"),
        (gpt_trace("NVIDIA H100"), "no datasheet's peak is known here for NVIDIA H100"),
        (gpt_trace(H100, flops=None), ""),
    ],
)
def test_without_a_known_peak_there_is_no_mfu_but_a_reason(trace: Trace, reason: str) -> None:
    its = measure(trace).utilisation
    assert (its.share, its.reason) == (None, reason)


def test_mfu_is_shown_with_its_peak_and_its_absence_with_the_reason(tmp_path: Path) -> None:
    (result,) = shown = points(tmp_path, gpt_trace(H100, precision="bf16"))
    summary = Summary(results=shown)
    assert result.mfu == pytest.approx(16 / 989.5)
    assert "MFU" in text(summary) and "1.6" in text(summary)
    (of_page,) = json.loads(as_json(summary))["results"]
    assert of_page["mfu"] == pytest.approx(16 / 989.5) and of_page["no_mfu"] == ""
    (row,) = csv.DictReader(io.StringIO(comma_separated(summary)))
    assert float(row["mfu"]) == pytest.approx(16 / 989.5)
    (notice,) = [notice.text for notice in below_the_table(summary) if "MFU" in notice.text]
    assert notice.startswith("MFU 1.6 % of 989.5 TFLOPS a device in bf16: NVIDIA H100 Tensor Core GPU datasheet")

    (tmp_path / "unknown").mkdir()
    (result,) = shown = points(tmp_path / "unknown", gpt_trace("NVIDIA H100"))
    (notice,) = [notice.text for notice in below_the_table(Summary(results=shown)) if "MFU" in notice.text]
    assert notice == f"no MFU: {result.no_mfu}" == "no MFU: no datasheet's peak is known here for NVIDIA H100"

    (tmp_path / "cpu").mkdir()
    summary = Summary(results=points(tmp_path / "cpu", gpt_trace()))
    (of_page,) = json.loads(as_json(summary))["results"]
    assert (of_page["mfu"], of_page["no_mfu"]) == (None, "no peak is known for CPUs")
    assert "MFU" not in text(summary)


PEAKS = {
    "A100-SXM4-40GB": 312, "NVIDIA A100-SXM4-80GB": 312, "NVIDIA A100-PCIE-40GB": 312, "NVIDIA A100 80GB PCIe": 312,
    "NVIDIA H100 80GB HBM3": 989.5, "NVIDIA H100 PCIe": 756.5, "NVIDIA H100 NVL": 835.5,
    "NVIDIA H200": 989.5, "NVIDIA H200 NVL": 835.5,
    "NVIDIA GH200 120GB": 989.5, "NVIDIA GH200 480GB": 989.5, "NVIDIA GH200 144G HBM3e": 989.5,
    "NVIDIA B200": 2250, "NVIDIA B300 SXM6 AC": 2250, "NVIDIA GB200": 2500, "NVIDIA GB300": 2500,
    "NVIDIA L4": 121, "NVIDIA L40": 181.05, "NVIDIA L40S": 362.05,
    "NVIDIA A10": 125, "NVIDIA A30": 165, "NVIDIA A40": 149.7,
    "Tesla V100-SXM2-16GB": 125, "Tesla V100-SXM2-32GB": 125, "Tesla V100-PCIE-32GB": 112, "Tesla V100S-PCIE-32GB": 130,
    "Tesla T4": 65,
    "NVIDIA GeForce RTX 3090": 71, "NVIDIA GeForce RTX 4090": 165.2, "NVIDIA GeForce RTX 5090": 209.5,
    "NVIDIA RTX A6000": 154.8, "RTX A6000": 154.8, "NVIDIA RTX 6000 Ada Generation": 364.2,
    "AMD Instinct MI100": 184.6, "AMD Instinct MI210": 181, "AMD Instinct MI250": 181.05, "AMD Instinct MI250X": 191.5,
    "AMD Instinct MI300X": 1307.4, "AMD Instinct MI300X OAM": 1307.4, "AMD Instinct MI300A": 980.6,
    "AMD Instinct MI325X": 1307.4, "AMD Instinct MI355X": 2500,
}  # fmt: skip
"""Of names as nvidia-smi and torch print them, the dense peaks in amp-fp16."""
UNKNOWN = (
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "NVIDIA A100-SXM-64GB", "NVIDIA A100X",
    "GRID A100-10C", "NVIDIA A10G", "NVIDIA H100", "NVIDIA H20", "NVIDIA L20", "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU", "Quadro RTX 6000", "Tesla V100-SXM3-32GB",
    "NVIDIA GB200 NVL4", "AMD Instinct MI308X", "AMD Instinct MI300X VF", "AMD Radeon Graphics",
)  # fmt: skip
"""Parts of devices, others of similar names, and names that several have."""


@pytest.mark.parametrize("device", PEAKS)
def test_the_peak_of_each_device_by_its_whole_name(device: str) -> None:
    matching = [known for known in known_devices() if re.fullmatch(known.names, device)]
    assert len(matching) == 1
    its = measure(gpt_trace(device, ranks_per_node=2, precision="amp-fp16")).utilisation
    assert (its.peak_tflops, its.precision, its.reason) == (PEAKS[device], "amp-fp16", "")


@pytest.mark.parametrize(("device", "tflops"), [("GAUDI2", 432), ("GAUDI3", 1835), ("AMD Instinct MI100", 92.3)])
def test_peaks_in_bf16_that_are_not_those_in_fp16(device: str, tflops: float) -> None:
    assert measure(gpt_trace(device, ranks_per_node=2, precision="bf16")).utilisation.peak_tflops == tflops


@pytest.mark.parametrize("device", UNKNOWN)
def test_an_unknown_device_has_no_peak(device: str) -> None:
    its = measure(gpt_trace(device, ranks_per_node=2, precision="amp-fp16")).utilisation
    assert (its.share, its.reason) == (None, f"no datasheet's peak is known here for {device}")


def test_every_peak_has_a_source_and_rises_with_fewer_bits() -> None:
    tested = [
        known
        for known in known_devices()
        if any(re.fullmatch(known.names, name) for name in (*PEAKS, "GAUDI2", "GAUDI3"))
    ]
    assert len(tested) == len(known_devices()) >= 25
    for device in known_devices():
        assert re.search(r"datasheet|whitepaper", device.source)
        fp32, tf32, bf16 = (device.tflops.get(name) for name in ("fp32", "tf32", "bf16"))
        rising = [peak for peak in (fp32, tf32, bf16 or device.tflops.get("amp-fp16")) if peak]
        assert rising == sorted(rising) and rising
        assert tf32 is None or "NVIDIA" in device.names


def test_fewer_tokens_than_those_of_the_sequences_are_noticed(tmp_path: Path) -> None:
    (result,) = points(tmp_path, whole := gpt_trace())
    assert "not_as_asked" not in [alarm.name for alarm in result.alarms]
    (tmp_path / "short").mkdir()
    (result,) = points(tmp_path / "short", dataclasses.replace(whole, samples=whole.samples - 1))
    (text_of,) = [alarm.text for alarm in result.alarms if alarm.name == "not_as_asked"]
    assert text_of == "run 1: 1 ranks, 10 steps, 70 tokens were measured; requested were 1, 10, 80"
