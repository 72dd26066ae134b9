"""One attempt of a run by `python -m hpc.rank` on real ranks in a separate folder, and its files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hpc.model.outcome import RankNote, read_rank_note
from hpc.model.spec import RunSpec
from hpc.model.trace import Trace
from hpc.model.trace_file import read_trace
from hpc.recovery.collect import collect
from hpc.workloads import code_digest

Ranks = Callable[..., subprocess.CompletedProcess[str]]
HERE = Path(__file__).parent / "ranks"
WARMUP, STEPS = 6, 12


def spec(**changes: Any) -> RunSpec:
    usual: dict[str, Any] = {
        "nodes": 1, "ranks_per_node": 2, "gpus_per_node": 0, "cpus_per_rank": 1, "backend": "mpi", "workload": "delay",
        "batch_size": 4, "precision": "fp32", "scaling": "weak", "warmup_steps": WARMUP,
        "measured_steps": STEPS - WARMUP, "repeat": 1, "seed": 0, "site": "here",
    }  # fmt: skip
    digest = code_digest(changes.get("workload", "delay"))
    return RunSpec(**{**usual, "code_digest": digest, **changes})


def assert_refused(ranks: Ranks, expected: Iterable[tuple[dict[str, Any], str, str]]) -> None:
    """Each of these runs is refused by an exception of this type with this text; one start of a rank tries all."""
    requests, kinds, texts = zip(*expected, strict=True)
    done = ranks(1, HERE / "refusals.py", json.dumps(requests), env={"CUDA_VISIBLE_DEVICES": ""})
    for refusal, kind, text in zip(json.loads(done.stdout.splitlines()[-1]), kinds, texts, strict=True):
        assert refusal.startswith(f"{kind}: ") and text in refusal


class Attempt:
    """One attempt of a run in a separate folder."""

    def __init__(self, ranks: Ranks, folder: Path, run: RunSpec, *words: str, **how: Any) -> None:
        self.run, self.traces, self.stem = run, folder / "traces", f"{run.run_id}.1"
        self.traces.mkdir()
        (folder / "job.sh").write_text("#!/bin/bash\nexport MY_TOKEN=hush\nexport NCCL_DEBUG=WARN\n")
        (folder / "run.json").write_text(json.dumps(run.to_json()))
        argv = [str(folder / "run.json"), "--attempt", "1", "--traces", str(self.traces)]
        self.argv = [*argv, "--script", str(folder / "job.sh"), *words]
        self.done = ranks(how.pop("size", run.ranks), Path("-m"), "hpc.rank", *self.argv, **how)

    def trace(self) -> Trace:
        return read_trace(self.traces / f"{self.stem}.h5")

    def notes(self) -> list[RankNote]:
        return [read_rank_note(path) for path in sorted(self.traces.glob(f"{self.stem}.rank*.json"))]

    def left_nothing_but_its_trace(self) -> bool:
        names = [path.name for path in self.traces.iterdir()]
        return names == [f"{self.stem}.h5"] and collect(self.traces, self.stem) == 0
