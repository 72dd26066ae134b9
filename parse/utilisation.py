"""Model FLOPs utilisation (MFU): the FLOPs of the model per second, as a share of what the devices could do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpc.model.trace import Trace

TERA = 1e12


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """The dense peaks of a device in TFLOPS, by precision, and the document that has them. `names` matches the whole
    name that its driver gives it."""

    names: str
    tflops: Mapping[str, float]
    source: str


DEVICES = (
    Peaks(
        names=r"(NVIDIA )?A100[- ].*",
        tflops={"fp32": 19.5, "tf32": 156, "bf16": 312, "amp-fp16": 312},
        source="NVIDIA A100 Tensor Core GPU datasheet (nvidia-a100-datasheet-us-nvidia-1758950-r4-web)",
    ),
    Peaks(
        names=r"NVIDIA H100 80GB HBM3",
        tflops={"fp32": 67, "tf32": 494.5, "bf16": 989.5, "amp-fp16": 989.5},
        source="NVIDIA H100 Tensor Core GPU datasheet, H100 SXM; half of the figures with sparsity",
    ),
    Peaks(
        names=r"NVIDIA H100 PCIe",
        tflops={"fp32": 51, "tf32": 378, "bf16": 756.5, "amp-fp16": 756.5},
        source="NVIDIA H100 Tensor Core GPU datasheet, H100 PCIe; half of the figures with sparsity",
    ),
    Peaks(
        names=r"NVIDIA H200",
        tflops={"fp32": 67, "tf32": 494.5, "bf16": 989.5, "amp-fp16": 989.5},
        source="NVIDIA H200 Tensor Core GPU datasheet, H200 SXM; half of the figures with sparsity",
    ),
)
"""What vendors' datasheets state without sparsity. A device that may be one of several is left out (NVIDIA H100 without
more, as cards with other memory and power call themselves)."""


@dataclass(frozen=True, kw_only=True)
class Utilisation:
    """The MFU of a run as a share, or the reason why there is none; both empty where its FLOPs are not known.

    `peak_tflops` is that of one device, `source` the document that has it.
    """

    share: float | None = None
    reason: str = ""
    peak_tflops: float | None = None
    source: str = ""


def utilisation(trace: Trace, throughput: float) -> Utilisation:
    """The MFU at a throughput in tokens/s: throughput · FLOPs per token / (devices · peak).

    Chowdhery et al. 2022 (PaLM), appendix B; the FLOPs per token are recorded in the trace.
    """
    flops = {report.backend_fact("flops_per_token") for report in trace.reports}
    per_token = flops.pop() if len(flops) == 1 else None
    if not isinstance(per_token, int) or isinstance(per_token, bool) or per_token <= 0:
        return Utilisation()
    names = {str((report.device or {}).get("name") or (report.device or {}).get("kind")) for report in trace.reports}
    peaks, reason = _peaks(sorted(names), trace.run.precision)
    if peaks is None:
        return Utilisation(reason=reason)
    tflops = peaks.tflops[trace.run.precision]
    return Utilisation(
        share=throughput * per_token / (trace.run.devices * tflops * TERA), peak_tflops=tflops, source=peaks.source
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
