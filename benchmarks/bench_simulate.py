"""What every command takes of a simulated run of 16,384 ranks × 100 steps: whole processes.

`python -m benchmarks.bench_simulate [FOLDER]`; 0.13 GB are written there and removed. To be met: 1 GB of memory, 10 s
for the ledger, 30 s and 10 MB for the page; and the ledger names the straggler with its cost. Times are of the
processor, which the work of others lengthens least.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.pairs import against_limit
from hpc.model.spec import SIMULATED
from hpc.model.trace_file import read_trace

RANKS, STRAGGLER, STEPS, REPEATS = 16384, 777, "30:32", 5
STATED = ("--compute", "20ms", "--scatter", "0.5ms", "--node-scatter", "0.2ms", "--data", "1ms", "--collectives", "3ms")
MEMORY_LIMIT_MB, PAGE_LIMIT_MB = 1000.0, 10.0
LIMITS_S = {"summarize": 10.0, "ledger": 10.0, "page": 30.0, "timeline": 30.0, "forecast": 10.0}


def main() -> None:
    """Prints a line per figure and limit."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_simulate", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as name:
        _measure(Path(name))


def _measure(folder: Path) -> None:
    traces = folder / "traces"
    _process("simulate", "--ranks", "8", *STATED, "--out", str(traces))
    late = ("--straggler", f"{STRAGGLER}:5")
    taken = [_process("simulate", "--ranks", str(RANKS), *STATED, *late, "--out", str(traces))]
    print(f"simulate {RANKS} ranks: {taken[0][0]:.1f} s, {taken[0][1]:.0f} MB")
    large = next(path for path in traces.glob("*.h5") if path.stat().st_size > 1e6)
    commands = {
        "summarize": ("summarize", str(traces)),
        "ledger": ("summarize", str(traces), "--ledger", "--format", "json", "--out", str(folder / "ledger.json")),
        "page": ("report", str(traces), "--out", str(folder / "page.html")),
        "timeline": ("timeline", str(large), "--steps", STEPS, "--out", str(folder / "timeline.json.gz")),
        "forecast": ("forecast", str(traces), "--nodes", "4096"),
    }
    for name, command in commands.items():
        taken = [_process(*command) for _ in range(1 + REPEATS)][1:]  # the first brings the files to memory
        print(against_limit(f"{name} of {RANKS} ranks", [seconds for seconds, _ in taken], LIMITS_S[name], "s"))
        print(against_limit(f"memory of {name}", [mb for _, mb in taken], MEMORY_LIMIT_MB, "MB"))
    size_mb = (folder / "page.html").stat().st_size / 1e6
    print(against_limit("size of the page", [size_mb] * 2, PAGE_LIMIT_MB, "MB"))
    (cost,) = read_trace(large).environment[SIMULATED]["costs_ms"].values()
    verdict = json.loads((folder / "ledger.json").read_text())["ledgers"][-1]["verdict"]
    print(f"straggler {verdict['ranks']} costs {verdict['costs']:.2f} ms a step; put in: {STRAGGLER}, {cost:.2f} ms")


def _process(command: str, *arguments: str) -> tuple[float, float]:
    """Seconds of the processor and peak memory in MB of a command of parse."""
    started = subprocess.Popen([sys.executable, "-m", f"parse.{command}", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(started.pid, 0)
    if status and command != "forecast":  # which cannot tell of two sizes
        raise SystemExit(f"parse.{command} ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


if __name__ == "__main__":
    main()
