"""torch.profiler on all ranks, and Holistic Trace Analysis on its traces.

HTA's `get_potential_stragglers` takes collectives of GPU streams named `ncclKernel…` alone; on traces of the CPU that
fails, as the answer's text says. It takes another metric as an argument, as its documentation offers. Here that is its
own rule (of the collective that differs most between the ranks, who starts it last in each step), with gloo's
collectives and the time since the step's first start. HTA always names as many ranks as one asks for. Here one is named
that starts last in nine of ten steps, and a tenth of a step after the first; ms is by how much. HTA has no phases.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from benchmarks.straggler.adapters.common import Answer, cannot_tell, finding, named, print_answer
from benchmarks.straggler.hooks import Hooks

WARMUP = 5


class ToolHooks(Hooks):
    """The profiler, whose steps begin after the warm-up."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(folder, rank)
        from torch.profiler import ProfilerActivity, profile, schedule

        self.profiler: Any = profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=WARMUP - 1, warmup=1, active=10_000),
        )
        self.profiler.start()

    def end_of_step(self) -> None:
        self.profiler.step()

    def end(self) -> None:
        self.profiler.stop()
        self.profiler.export_chrome_trace(str(self.folder / f"rank{self.rank}.json"))


def answer(folder: Path, ranks: int) -> Answer:
    from hta.trace_analysis import TraceAnalysis

    files = {rank: str(folder / f"rank{rank}.json") for rank in range(ranks)}
    if not all(Path(path).exists() for path in files.values()):
        return cannot_tell("the profiler wrote no trace")
    with contextlib.redirect_stdout(io.StringIO()):
        analysis = TraceAnalysis(trace_files=files, trace_dir=str(folder))
    try:
        unchanged = f"as it is: ranks {analysis.get_potential_stragglers(num_candidates=1)}"
    except Exception as error:  # noqa: BLE001 - what it says of traces of the CPU is part of the answer
        unchanged = f"as it is: {type(error).__name__}: {error}"
    its: dict[str, Any] = {}

    def by_start_of_gloo(df: Any, symbols: Any, count: int, visualize: bool) -> Any:
        its["starts"] = starts(df, symbols)
        return its["starts"].eq(its["starts"].max(axis=1), axis=0).sum()

    try:
        analysis.get_potential_stragglers(num_candidates=1, straggler_identification_impl=by_start_of_gloo)
    except LookupError as error:
        return cannot_tell(f"{unchanged}; with gloo's collectives: {error}")
    late = its["starts"]
    last = late.eq(late.max(axis=1), axis=0).mean()
    rank, gap = int(last.idxmax()), late.max(axis=1) - late.min(axis=1)
    text = f"{unchanged}; share of the steps in which it is last, by rank: {[*map(float, last)]}"
    if last.max() < 0.9 or gap.median() < 0.1 * its["starts"].attrs["step_us"]:
        return named([], text)
    return named(
        [finding([rank], None, float((late[rank] - late.drop(columns=rank).median(axis=1)).mean() / 1e3))], text
    )


def starts(df: Any, symbols: Any) -> Any:
    """When each rank starts the collective that differs most between ranks, µs behind the first; [step, rank]."""
    table = symbols.get_sym_table()
    names = [at for at, name in enumerate(table) if name.startswith("gloo:")]
    calls = df[df["name"].isin(names) & (df["iteration"] >= 0)]
    if calls.empty:
        raise LookupError("no gloo collective in the traces")
    last = calls.groupby(["rank", "iteration", "name"], as_index=False).last()
    name = last.groupby(["iteration", "name"])["dur"].std().groupby("name").mean().fillna(0).idxmax()
    late = last[last["name"].eq(name)].pivot(index="iteration", columns="rank", values="ts").dropna()
    result = late.sub(late.min(axis=1), axis=0)
    result.attrs["step_us"] = float(late.min(axis=1).diff().median())
    return result


def version() -> str:
    from importlib.metadata import version

    import torch

    return f"{version('HolisticTraceAnalysis')}, torch {torch.__version__}"


if __name__ == "__main__":
    print_answer("torch.profiler and HolisticTraceAnalysis", version, answer)
