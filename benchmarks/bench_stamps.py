"""What looking at a run costs it: all stamps and telemetry on against all off, and what they keep of a step.

`python -m benchmarks.bench_stamps`. To be met: 0.5 % of a 10 ms step and 100 bytes per rank and step at most. Blocks
with and without alternate in one process. The helper that reads telemetry is the same one throughout: without, it is
stopped by a signal. What it takes of a core stands beside it: so much it could take from a rank, were it on its core.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.helper import pin, ran_s, work_of
from benchmarks.memory import KEPT
from benchmarks.pairs import compare
from hpc.measure.timer import StepTimer
from hpc.node_agent.agent import NodeAgent, TelemetryRequest
from hpc.node_agent.sources import RankProcess, pid_namespace
from hpc.recovery.journal import Journal

ENVIRONMENT = {**KEPT, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
STEP_S, STEPS, BLOCKS = 0.010, 100, 60
PARTS = 10
"""A step is so many equal parts, which the marks come between as between the parts of a training step."""
TIME_LIMIT, MEMORY_LIMIT_BYTES = 1.005, 100
FEW_STEPS, MANY_STEPS = 2_000, {"mpi": 202_000, "torch-ddp": 22_000}


class NoTimer(StepTimer):
    """Records nothing."""

    def begin(self, step: int) -> None:
        """Nothing."""

    def batch_ready(self) -> None:
        """Nothing."""

    def forward_end(self) -> None:
        """Nothing."""

    def grads_ready(self) -> None:
        """Nothing."""

    def reduced(self) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


def main() -> None:
    """Prints one line per comparison."""
    core = min(os.sched_getaffinity(0))
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    work = work_of(STEP_S / PARTS)
    if everywhere - {core}:
        _compare_time("helper on a core of its own", work, (core,), everywhere - {core})
    _compare_time("helper on the rank's core, there being no other", work, tuple(everywhere), {core})
    for backend, steps in MANY_STEPS.items():
        print(_memory(backend, steps))


def _compare_time(name: str, work: Callable[[], None], of_ranks: tuple[int, ...], helper_on: set[int]) -> None:
    with tempfile.TemporaryDirectory() as traces:
        journal = Journal(Path(traces), "bench", 0, STEPS)
        rank = RankProcess(pid=os.getpid(), cores=of_ranks, pid_namespace=pid_namespace())
        agent = NodeAgent([rank], telemetry=TelemetryRequest())
        agent.start()
        assert agent._process is not None, "no telemetry can be had here"
        helper = agent._process.pid
        pin(helper, helper_on)
        timer = StepTimer(STEPS)
        timer.record_into(journal.stamps)
        nothing = NoTimer(STEPS)

        def watched() -> None:
            os.kill(helper, signal.SIGCONT)
            _steps(work, timer, journal.samples)

        def unwatched() -> None:
            os.kill(helper, signal.SIGSTOP)
            _steps(work, nothing, journal.samples)

        before_s = ran_s(helper)
        try:
            comparison = compare(
                f"stamps and telemetry / neither, {name}", watched, unwatched, limit=TIME_LIMIT, blocks=BLOCKS
            )
        finally:
            helper_s = ran_s(helper) - before_s
            os.kill(helper, signal.SIGCONT)
            recording = agent.stop_telemetry()
            agent.end()
            journal.remove()
    assert recording is not None
    watched_s = (BLOCKS + 1) * comparison.ours_s
    print(comparison)
    print(
        f"    a step of {comparison.reference_s / STEPS * 1e3:.2f} ms; {len(recording.series)} series, "
        f"{len(recording.local_ns) / watched_s:.2f} samples/s; the helper ran {helper_s / watched_s:.3%} of the time "
        f"{recording.facts['placed']}"
    )


def _steps(work: Callable[[], None], timer: StepTimer, samples: memoryview) -> None:
    timer.begin(0)
    for step in range(STEPS):
        work()
        timer.batch_ready()
        for _ in range(3):
            work()
        timer.forward_end()
        for _ in range(4):
            work()
        timer.grads_ready()
        work()
        timer.reduced()
        work()
        samples[step] = 1
        timer.end()
    timer.resolve()


def _memory(backend: str, steps: int) -> str:
    """How much more is held after many steps than after few, per step."""
    held = {}
    for count in (FEW_STEPS, steps):
        command = [sys.executable, "-m", "benchmarks.stamps_memory", backend, str(count)]
        environment = {name: value for name, value in os.environ.items() if name not in KEPT}
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
        held[count] = int(printed.split()[-1])
    bytes_per_step = (held[steps] - held[FEW_STEPS]) / (steps - FEW_STEPS)
    verdict = "met" if bytes_per_step <= MEMORY_LIMIT_BYTES else "missed"
    return f"kept of a step, {backend}: {bytes_per_step:.0f} bytes; limit {MEMORY_LIMIT_BYTES}: {verdict}"


if __name__ == "__main__":
    if not ENVIRONMENT.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.bench_stamps"], {**os.environ, **ENVIRONMENT})
    main()
