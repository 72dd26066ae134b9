"""What copying the stamps to the traces costs a run: a loop of steps with a copier on its node against without.

`python -m benchmarks.bench_copy [SECONDS BETWEEN COPIES …]`. To be met: 0.5 % of a 10 ms step, copied every second, ten
times as often as usual: blocks of ten seconds are too few to tell as much. Blocks with and without alternate in one
process, each as long as an interval; without, the copier is stopped by a signal, and what it missed it copies when it
goes on. It copies the journals of eight ranks. It runs on a core of its own where there is one, and on the rank's; what
it takes of a core stands beside it.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from benchmarks.helper import pin, ran_s, work_of
from benchmarks.pairs import compare
from hpc.measure.timer import StepTimer
from hpc.node_agent.agent import Copying, NodeAgent
from hpc.recovery.folders import PARTIAL
from hpc.recovery.journal import Journal, read_progress

ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
STEPS_S, INTERVALS_S = (0.010, 0.001), (1.0,)
RANKS, BLOCKS_S = 8, 60.0
"""Ranks of the node, and how long all blocks of a comparison take together."""
TIME_LIMIT = 1.005


def main() -> None:
    """Prints one line per comparison, and one of what the copier did."""
    everywhere = os.sched_getaffinity(0)
    core = min(everywhere)
    os.sched_setaffinity(0, {core})
    for interval_s in [float(argument) for argument in sys.argv[1:]] or INTERVALS_S:
        for step_s in STEPS_S:
            work = work_of(step_s)
            if everywhere - {core}:
                _compare("on a core of its own", work, step_s, interval_s, everywhere - {core})
            _compare("on the rank's core", work, step_s, interval_s, {core})


def _compare(name: str, work: Callable[[], None], step_s: float, interval_s: float, copier_on: set[int]) -> None:
    steps = round(interval_s / step_s)
    blocks = max(4, round(BLOCKS_S / interval_s / 2))
    with tempfile.TemporaryDirectory() as traces:
        journals = [Journal(Path(traces), "bench", rank, steps * 2 * (blocks + 1)) for rank in range(RANKS)]
        for rank, journal in enumerate(journals):
            journal.note(facts={"rank": rank})
        partial = Path(traces) / f"bench{PARTIAL}"
        folders = dict.fromkeys(range(RANKS), journals[0].folder)
        agent = NodeAgent([], copying=Copying(folders=folders, partial=partial, interval_s=interval_s))
        agent.start()
        assert agent._process is not None, "no helper can be had here"
        process = agent._process.pid
        while "placed" not in agent.copy_facts():
            time.sleep(0.01)
        pin(process, copier_on)
        timer = StepTimer(len(journals[0].samples))
        timer.record_into(journals[0].stamps)
        done = 0

        def loop() -> None:
            nonlocal done
            samples = journals[0].samples
            timer.begin(done)
            for step in range(done, done + steps):
                work()
                timer.batch_ready()
                timer.forward_end()
                timer.grads_ready()
                timer.reduced()
                timer.end()
                samples[step] = 1
            done += steps

        def between() -> None:
            _others(journals, done)

        def copied() -> None:
            os.kill(process, signal.SIGCONT)
            loop()

        def not_copied() -> None:
            os.kill(process, signal.SIGSTOP)
            loop()

        try:
            limit = TIME_LIMIT if step_s == STEPS_S[0] else None
            what = f"copied every {interval_s:g} s / not, steps of {1e3 * step_s:g} ms, copier {name}"
            comparison = compare(what, copied, not_copied, limit=limit, blocks=blocks, between=between)
            print(comparison, flush=True)
            helper_s, copied_steps = ran_s(process), sum(each.completed for each in read_progress(partial).values())
            watched_s = (blocks + 1) * comparison.ours_s
            print(f"    {copied_steps} rows copied; the copier ran {helper_s / watched_s:.3%} of the time", flush=True)
        finally:
            os.kill(process, signal.SIGCONT)
            for journal in journals:
                journal.remove()
            agent.end()


def _others(journals: list[Journal], done: int) -> None:
    """Brings the other ranks of the node as far as the one whose steps are timed."""
    first, width = journals[1].steps_completed, 6
    for journal in journals[1:]:
        journal.stamps[width * first : width * done] = journals[0].stamps[width * first : width * done]
        journal.samples[first:done] = array("q", [1]) * (done - first)


if __name__ == "__main__":
    if not ENVIRONMENT.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.bench_copy", *sys.argv[1:]],
                  {**os.environ, **ENVIRONMENT})  # fmt: skip
    main()
