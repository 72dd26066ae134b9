"""Submitting 100 jobs / submitit submitting 100 functions, both to an sbatch that only answers: processor time of this
process, as ratios in one run. `python -m benchmarks.bench_submit`."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from pathlib import Path
from time import process_time

from submitit import SlurmExecutor

from benchmarks.pairs import against_limit
from launch.follow import say
from launch.jobs.plan import make_folders
from launch.queue import Queue
from launch.sweep.cli import read_arguments
from launch.sweep.prepare import prepare, with_jobs
from launch.sweep.submit import Sweep
from launch.sweep.text import describe_event
from parse.stats import median

LIMIT, PAIRS, JOBS = 1.5, 7, 100
SBATCH = '#!/bin/sh\necho "Submitted batch job $$"\n'


def main() -> None:
    """Prints the ratio, with the times behind it."""
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _commands(folder / "bin")
        for pair in range(PAIRS + 1):
            ours.append(_sweep(folder / f"ours{pair}"))
            theirs.append(_submitit(folder / f"theirs{pair}"))
    ratios = [mine / other for mine, other in zip(ours[1:], theirs[1:], strict=True)]
    mine_ms, other_ms = (1000 * median(taken[1:]) / JOBS for taken in (ours, theirs))
    print(against_limit(f"{JOBS} jobs / submitit ({mine_ms:.2f}/{other_ms:.2f} ms each)", ratios, LIMIT, ""))


def _commands(folder: Path) -> None:
    """Commands of a Slurm that takes every job and lists none."""
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "squeue": "#!/bin/sh\n", "srun": "#!/bin/sh\n"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def _sweep(folder: Path) -> float:
    """Processor time from written scripts to submitted and recorded jobs, in s."""
    folder.mkdir()
    site = folder / "site.toml"
    site.write_text('launcher = "srun"\ncpus_per_node = 64\ngpus_per_node = 0\n')
    nodes = ",".join(map(str, range(1, JOBS + 1)))
    request = f"--site {site} --nodes {nodes} --no-baseline --workload delay --backend mpi --out {folder}"
    with contextlib.redirect_stdout(io.StringIO()):
        prepared = with_jobs(prepare(read_arguments(request.split())))
        make_folders(prepared.folders)
        sweep = Sweep(prepared)
        with sweep.lock.held(lambda holder: None):
            queue = Queue(sweep.scheduler, sweep.begin(), sweep, sweep.lock)
            begin = process_time()
            for event in queue.advance():
                say(describe_event(event))
            taken = process_time() - begin
    assert len(queue.all_job_ids) == JOBS
    return taken


def _submitit(folder: Path) -> float:
    """Processor time of submitit for as many functions, without the pauses that it makes between them, in s."""
    executor = SlurmExecutor(folder)
    executor.update_parameters(time=10, nodes=1)
    executor._throttling = 0.0
    begin = process_time()
    jobs = [executor.submit(pow, number, 2) for number in range(JOBS)]
    taken = process_time() - begin
    assert len(jobs) == JOBS
    return taken


if __name__ == "__main__":
    main()
