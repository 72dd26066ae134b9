"""Small things that are done often: processor time as ratios in one run.

`python -m benchmarks.bench_start`. A log is held against plain reading of its lines by one regular expression, a table
against the imports that it cannot do without, a trace against opening it by h5py, an interval against sorting.
"""

from __future__ import annotations

import random
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from time import process_time

import h5py

from benchmarks.bench_logs import NGC, SMALL_STEPS, filled, hour, places
from benchmarks.pairs import against_limit
from hpc.model.outcome import Outcome
from parse.stats import interval_rank, median_interval
from tests.unit.traces import make_run, make_trace, put, put_exit_record, put_plan, repeats

START_LIMIT, LOG_LIMIT, TRACE_LIMIT, INTERVAL_LIMIT = 2.2, 40.0, 4.0, 25.0
"""Ratios: a table that imports the formats of logs has 4.2; 3 ms of a log are 40 times plain reading, and were 170; a
trace has its record, too; an interval whose work is cubic has a ratio of 3,000."""
LOGS, VALUES, TIMES = 1000, 10_000, 9
LINE = re.compile(r"Iteration: (\d+)  train\.loss : (\S+)  train\.total_ips : (\S+) img/s")


def main() -> None:
    """Prints a line per ratio."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        nine, many = root / "nine", root / "many"
        _traces(nine, 3)
        _traces(many, 33)
        paths = _logs(root / "logs")
        bare = "import h5py, numpy"
        start = [_summarize(nine) / _command("-c", bare) for _ in range(TIMES)]
        print(against_limit("table of nine traces / import h5py, numpy", start, START_LIMIT, ""))
        logs = [(_summarize(root / "logs") - _summarize(nine)) / _taken(lambda: _plain(paths)) for _ in range(3)]
        print(against_limit(f"a log of {SMALL_STEPS} steps / plain reading, {LOGS} logs", logs, LOG_LIMIT, ""))
        traces = [(_summarize(many) - _summarize(nine)) / 90 / _h5py(many) for _ in range(TIMES)]
        print(against_limit("a trace in a table / all of its data by h5py", traces, TRACE_LIMIT, ""))
    draw = random.Random(0)
    values = [draw.random() for _ in range(VALUES)]
    name = f"interval of the median of {VALUES} values / sorting them"
    print(against_limit(name, _intervals(values), INTERVAL_LIMIT, ""))


def _traces(folder: Path, count: int) -> None:
    """So many repeats on 1, 2 and 4 nodes, with their plan and records."""
    folder.mkdir()
    runs = [run for nodes in (1, 2, 4) for run in repeats(make_run(nodes=nodes), count)]
    for run in runs:
        put(folder, make_trace(run))
        put_exit_record(folder, run, Outcome.OK)
    put_plan(folder, runs)


def _logs(root: Path) -> list[Path]:
    lines = hour(NGC).encode().split(b"\n")
    paths = [*islice(places(root), LOGS)]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(filled(b"\n".join(lines[: 2 * SMALL_STEPS]) + b"\n", number % 24))
    return paths


def _plain(paths: list[Path]) -> None:
    for path in paths:
        matches = [LINE.search(line) for line in path.read_text().splitlines()]
        rates = [float(match[3]) for match in matches if match]
        assert len(rates) == SMALL_STEPS


def _taken(work: Callable[[], object]) -> float:
    begin = process_time()
    work()
    return process_time() - begin


def _command(*words: str) -> float:
    """Processor time of a Python process, in s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _summarize(folder: Path) -> float:
    return _command("-m", "parse.summarize", str(folder))


def _h5py(folder: Path) -> float:
    """Processor time of one trace whose datasets are all read, in s."""
    paths = [*folder.glob("*.h5")]

    def read() -> None:
        for path in paths:
            with h5py.File(path) as file:
                file.visititems(_read)

    return _taken(read) / len(paths)


def _read(_: str, item: h5py.Group | h5py.Dataset) -> None:
    if isinstance(item, h5py.Dataset):
        item[()]


def _intervals(values: list[float]) -> list[float]:
    ratios = []
    for _ in range(TIMES):
        interval_rank.cache_clear()
        ratios.append(_taken(lambda: median_interval(values)) / _taken(lambda: sorted(values)))
    return ratios


if __name__ == "__main__":
    main()
