"""Model FLOPs utilisation (MFU): the FLOPs of the model per second, as a share of what the devices could do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpc.model.trace import Trace

TERA = 1e12


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """The dense peaks of a device in TFLOPS, by precision, and the document that has them. `names` matches the whole
    name that its driver gives it. `units` are the compute units of a card that can be divided into several devices,
    which have the card's name; 0 of others."""

    names: str
    tflops: Mapping[str, float]
    source: str
    units: int = 0


def _device(
    names: str,
    source: str,
    *,
    half: float | None = None,
    fp16: float | None = None,
    bf16: float | None = None,
    tf32: float | None = None,
    fp32: float | None = None,
    units: int = 0,
) -> Peaks:
    """A device; `half` is its peak in bf16 and amp-fp16 alike. What its document does not state is left out."""
    peaks = {"fp32": fp32, "tf32": tf32, "bf16": half or bf16, "amp-fp16": half or fp16}
    return Peaks(names=names, tflops={name: peak for name, peak in peaks.items() if peak}, source=source, units=units)


_SPARSE = "half of the figures with sparsity"
_ACCUMULATED = "dense, FP16 accumulated in FP32"
_DIE = "half of the figures: each of its two dies (GCD) is a device"

DEVICES = (
    _device(
        r"(NVIDIA )?A100-(SXM4?|PCIE)-(40|80)GB|NVIDIA A100 80GB PCIe",
        "NVIDIA A100 Tensor Core GPU datasheet (nvidia-a100-datasheet-us-nvidia-1758950-r4-web)",
        half=312, tf32=156, fp32=19.5,
    ),
    _device(
        r"NVIDIA H100 80GB HBM3", f"NVIDIA H100 Tensor Core GPU datasheet, H100 SXM; {_SPARSE}",
        half=989.5, tf32=494.5, fp32=67,
    ),
    _device(
        r"NVIDIA H100 PCIe", f"NVIDIA H100 Tensor Core GPU datasheet, H100 PCIe; {_SPARSE}",
        half=756.5, tf32=378, fp32=51,
    ),
    _device(r"NVIDIA H100 NVL", f"NVIDIA H100 Tensor Core GPU datasheet, H100 NVL; {_SPARSE}", half=835.5),
    _device(
        r"NVIDIA H200", f"NVIDIA H200 Tensor Core GPU datasheet, H200 SXM; {_SPARSE}", half=989.5, tf32=494.5, fp32=67
    ),
    _device(r"NVIDIA H200 NVL", f"NVIDIA H200 Tensor Core GPU datasheet, H200 NVL; {_SPARSE}", half=835.5),
    _device(
        r"NVIDIA GH200 (120GB|480GB|144G HBM3e)", f"NVIDIA GH200 Grace Hopper Superchip datasheet; {_SPARSE}",
        half=989.5,
    ),
    _device(r"NVIDIA B200", f"NVIDIA Blackwell datasheet, HGX B200, of each of 8; {_SPARSE}", half=2250),
    _device(r"NVIDIA B300( SXM6 AC)?", f"NVIDIA HGX datasheet, HGX B300, of each of 8; {_SPARSE}", half=2250),
    _device(
        r"NVIDIA GB200", f"NVIDIA Blackwell datasheet, GB200 NVL72, of each of 72; {_SPARSE}", half=2500, tf32=1250
    ),
    _device(r"NVIDIA GB300", f"NVIDIA GB300 NVL72 datasheet, of each of 72; {_SPARSE}", half=2500),
    _device(r"NVIDIA L4", f"NVIDIA L4 Tensor Core GPU datasheet; {_SPARSE}", half=121),
    _device(r"NVIDIA L40", "NVIDIA L40 datasheet", half=181.05, tf32=90.5, fp32=90.5),
    _device(r"NVIDIA L40S", "NVIDIA L40S datasheet", half=362.05, tf32=183, fp32=91.6),
    _device(r"NVIDIA A10", "NVIDIA A10 Tensor Core GPU datasheet", half=125, tf32=62.5, fp32=31.2),
    _device(r"NVIDIA A30", "NVIDIA A30 Tensor Core GPU datasheet", half=165),
    _device(r"NVIDIA A40", "NVIDIA A40 datasheet", half=149.7, tf32=74.8, fp32=37.4),
    _device(
        r"Tesla V100-SXM2-(16|32)GB", "NVIDIA V100 datasheet (volta-v100-datasheet-update-us-1165301-r5), SXM2",
        fp16=125, fp32=15.7,
    ),
    _device(
        r"Tesla V100-PCIE-(16|32)GB", "NVIDIA V100 datasheet (volta-v100-datasheet-update-us-1165301-r5), PCIe",
        fp16=112, fp32=14,
    ),
    _device(
        r"Tesla V100S-PCIE-32GB", "NVIDIA V100 datasheet (volta-v100-datasheet-update-us-1165301-r5), V100S",
        fp16=130, fp32=16.4,
    ),
    _device(r"Tesla T4", "NVIDIA T4 datasheet (t4-tensor-core-datasheet-951643)", fp16=65, fp32=8.1),
    _device(r"NVIDIA GeForce RTX 3090", f"NVIDIA Ampere GA102 whitepaper; {_ACCUMULATED}", half=71, fp32=35.6),
    _device(
        r"NVIDIA GeForce RTX 4090", f"NVIDIA Ada GPU architecture whitepaper; {_ACCUMULATED}",
        half=165.2, tf32=82.6, fp32=82.6,
    ),
    _device(
        r"NVIDIA GeForce RTX 5090", f"NVIDIA RTX Blackwell GPU architecture whitepaper; {_ACCUMULATED}", half=209.5,
        fp32=104.8,
    ),
    _device(
        r"(NVIDIA )?RTX A6000", f"NVIDIA RTX A6000 datasheet (proviz-print-nvidia-rtx-a6000); {_SPARSE}",
        half=154.8, fp32=38.7,
    ),
    _device(
        r"NVIDIA RTX 6000 Ada Generation", f"NVIDIA Ada professional GPU architecture whitepaper 1.1; {_ACCUMULATED}",
        half=364.2, fp32=91.1,
    ),
    _device(
        r"AMD Instinct MI100", "AMD Instinct MI100 datasheet, fp32 of matrices", fp16=184.6, bf16=92.3, fp32=46.1
    ),
    _device(r"AMD Instinct MI210", "AMD Instinct MI210 datasheet, fp32 of matrices", half=181, fp32=45.3),
    _device(r"AMD Instinct MI250", f"AMD Instinct MI250 datasheet, fp32 of matrices; {_DIE}", half=181.05, fp32=45.25),
    _device(r"AMD Instinct MI250X", f"AMD Instinct MI250X datasheet, fp32 of matrices; {_DIE}", half=191.5, fp32=47.85),
    _device(
        r"AMD Instinct MI300X( OAM)?", "AMD Instinct MI300X datasheet, fp32 of matrices, without sparsity",
        half=1307.4, fp32=163.4, units=304,
    ),
    _device(r"AMD Instinct MI300A", "AMD Instinct MI300A datasheet, without sparsity", half=980.6, units=228),
    _device(r"AMD Instinct MI325X( OAM)?", "AMD Instinct MI325X datasheet, without sparsity", half=1307.4, units=304),
    _device(r"AMD Instinct MI355X( OAM)?", "AMD Instinct MI355X datasheet, without sparsity", half=2500, units=256),
    _device(r"GAUDI2", "Intel at Hot Chips 2024, Gaudi 2, datasheet figures of its matrix engines", bf16=432),
    _device(r"GAUDI3", "Intel at Hot Chips 2024, Gaudi 3, datasheet figures of its matrix engines", bf16=1835),
)  # fmt: skip
"""What makers' datasheets and whitepapers state, without sparsity. A device that may be one of several is left out
(NVIDIA H100 without more, as cards with other memory and power call themselves), and so is a part of one (MIG). AMD's
partitions have the card's name: their compute units say which part they are."""


@dataclass(frozen=True, kw_only=True)
class Utilisation:
    """The MFU of a run as a share, or the reason why there is none; both empty where its FLOPs are not known.

    `peak_tflops` is that of one device in `precision`, `source` the document that has it. `flops` are the model's of a
    sample or token, had as `flops_by` says, where the trace says it.
    """

    share: float | None = None
    reason: str = ""
    peak_tflops: float | None = None
    precision: str = ""
    source: str = ""
    flops: int | None = None
    flops_by: str = ""


def utilisation(trace: Trace, throughput: float) -> Utilisation:
    """The MFU at a throughput in samples/s or tokens/s: throughput · FLOPs of each / (devices · peak).

    Chowdhery et al. 2022 (PaLM), appendix B; the FLOPs of a sample or token are recorded in the trace.
    """
    name = f"flops_per_{trace.run.unit.removesuffix('s')}"
    flops = {report.backend_fact(name) for report in trace.reports} - {None}  # one rank may have counted for all
    flops_by = next((str(by) for report in trace.reports if (by := report.backend_fact("flops_by"))), "")
    if not flops:
        return Utilisation(reason=flops_by)
    each = flops.pop() if len(flops) == 1 else None
    if not isinstance(each, int) or isinstance(each, bool) or each <= 0:
        return Utilisation()
    devices = [report.device or {} for report in trace.reports]
    names = {str(device.get("name") or device.get("kind")) for device in devices}
    peaks, reason = _peaks(sorted(names), trace.run.precision)
    if peaks is not None:
        peaks, reason = _of_partitions(peaks, [device.get("compute_units") for device in devices])
    if peaks is None:
        return Utilisation(reason=reason)
    tflops = peaks.tflops[trace.run.precision]
    return Utilisation(
        share=throughput * each / (trace.run.devices * tflops * TERA),
        peak_tflops=tflops,
        precision=trace.run.precision,
        source=peaks.source,
        flops=each,
        flops_by=flops_by,
    )


def _peaks(names: Sequence[str], precision: str) -> tuple[Peaks | None, str]:
    """The peaks that devices of these names have in common, or the reason why they are not known."""
    if names == ["cpu"]:
        return None, "no peak is known for CPUs"
    if len(names) != 1:
        return None, f"ranks had different devices: {', '.join(names)}"
    peaks = next((device for device in DEVICES if re.fullmatch(device.names, names[0])), None)
    if peaks is None:
        return None, f"no datasheet's peak is known here for {names[0]}"
    if precision not in peaks.tflops:
        return None, f"no peak in {precision} is known here for {names[0]}"
    return peaks, ""


def _of_partitions(whole: Peaks, units: Sequence[Any]) -> tuple[Peaks | None, str]:
    """The peaks of devices with so many compute units, or the reason why they are not known."""
    if not whole.units or {*units} == {whole.units}:
        return whole, ""
    if len({*units}) != 1:
        return None, "ranks had devices of different parts of a card"
    if units[0] is None:
        source = f"{whole.source}; taken for whole cards, as nothing recorded their {whole.units} compute units"
        return replace(whole, source=source), ""
    if not isinstance(units[0], int) or not 0 < units[0] < whole.units:
        return None, f"its devices have {units[0]} compute units, and a whole card has {whole.units}"
    share = units[0] / whole.units
    source = f"{whole.source}; of {units[0]} of a card's {whole.units} compute units, as its partitions have"
    return replace(whole, tflops={name: peak * share for name, peak in whole.tflops.items()}, source=source), ""
