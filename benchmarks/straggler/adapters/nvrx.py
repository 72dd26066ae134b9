"""NVIDIA Resiliency Extension: sections of `nvidia_resiliency_ext.straggler`, marked as its usage guide does.

Sections are `data`, `forward` and `optimizer`: a section must be the same work on all ranks, and the backward has
DDP's all-reduce in it, in which those wait that are not late. A report is made each ten steps. A rank that
`identify_stragglers` names in a section (relative score below 0.75, its default) in at least two of the four reports is
named; ms is what its median is longer than the smallest of all ranks, the mean over the reports.

As it is it does not start without CUDA: `Detector.initialize` says "libcupti.so.12: cannot open shared object file";
with the package nvidia-cuda-cupti-cu12 `generate_report` says "Torch not compiled with CUDA enabled", and without that
call of `torch.cuda.synchronize` "CUPTI_ERROR_NOT_INITIALIZED". Here both are replaced where there is no CUDA, so that
its sections, which are wall time on the CPU, are reported; its scores of GPU kernels are not judged here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from benchmarks.straggler.adapters.common import Answer, cannot_tell, finding, named, print_answer
from benchmarks.straggler.hooks import Hooks

WARMUP, EVERY = 5, 10
SECTIONS = ("data", "forward", "optimizer")


class NoKernels:
    """In place of its CuptiManager: no kernel was launched."""

    def __init__(self, **options: Any) -> None:
        self.get_results: Callable[[], dict[str, Any]] = dict
        self.initialize = self.reset_results = self.shutdown = lambda: None


class ToolHooks(Hooks):
    """Sections, and a report each ten steps."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(folder, rank)
        import torch
        from nvidia_resiliency_ext import straggler

        if not torch.cuda.is_available():
            torch.cuda.synchronize = lambda device=None: None
            straggler.straggler.CuptiManager = NoKernels
        self.detector: Any = straggler.Detector
        self.detector.initialize(scores_to_compute="all", gather_on_rank0=True)
        self.steps = 0
        self.reports: list[Any] = []

    def part(self, name: str) -> AbstractContextManager[object]:
        if name not in SECTIONS:
            return nullcontext()
        section: AbstractContextManager[object] = self.detector.detection_section(name, profile_cuda=False)
        return section

    def end_of_step(self) -> None:
        self.steps += 1
        if self.steps % EVERY == WARMUP:
            report = self.detector.generate_report()
            if report is not None and self.steps > WARMUP:
                named = report.identify_stragglers()["straggler_sections_relative"]
                self.reports.append({
                    "scores": report.section_relative_perf_scores,
                    "rank_0": {name: per_step(its) for name, its in report.local_section_summaries.items()},
                    "named": {name: sorted(each.rank for each in ranks) for name, ranks in named.items()},
                })  # fmt: skip

    def end(self) -> None:
        if self.rank == 0:
            (self.folder / "reports.json").write_text(json.dumps(self.reports))
        self.detector.shutdown()


def per_step(summary: dict[Any, float]) -> float:
    """ms a step: a section's median, times how often a step enters it."""
    of = {key.name: value for key, value in summary.items()}
    return of["MED"] * of["NUM"] / EVERY


def answer(folder: Path, ranks: int) -> Answer:
    path = folder / "reports.json"
    if not path.exists():
        return cannot_tell("no report was made")
    reports = json.loads(path.read_text())
    findings = []
    for section in SECTIONS:
        for rank in range(ranks):
            times = sum(rank in report["named"].get(section, []) for report in reports)
            if times >= 2:
                findings.append(finding([rank], section, _longer(reports, section, rank)))
    return named(findings, json.dumps([report["named"] for report in reports]))


def _longer(reports: list[dict[str, Any]], section: str, rank: int) -> float:
    """ms a step that the rank takes longer than the fastest: a score is the smallest median by the rank's own."""
    longer = 0.0
    for report in reports:
        scores = report["scores"][section]
        smallest = report["rank_0"][section] * scores["0"]
        longer += smallest / scores[str(rank)] - smallest
    return longer / len(reports)


def version() -> str:
    from importlib.metadata import version

    return version("nvidia-resiliency-ext")


if __name__ == "__main__":
    print_answer("nvidia-resiliency-ext", version, answer)
