"""Model FLOPs utilisation (MFU): the FLOPs of the model per second, as a share of what the devices could do."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
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


@cache
def known_devices() -> tuple[Peaks, ...]:
    """What devices.toml, beside this file, has from makers' documents."""
    rows = tomllib.loads(Path(__file__).with_name("devices.toml").read_text(encoding="utf-8"))["device"]
    return tuple(Peaks(**row) for row in rows)


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
    peaks = next((device for device in known_devices() if re.fullmatch(device.names, names[0])), None)
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
