"""Unchanged scripts on ranks that no MPI connects: torchrun's, and one alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.backends import missing_modules
from hpc.model.outcome import Outcome
from hpc.model.spec import SCRIPT
from hpc.model.trace import Trace
from hpc.model.trace_file import read_trace
from hpc.recovery.collect import collect
from hpc.recovery.recover import main as recover
from tests.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "observe_scripts"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
README = (ROOT / "README.md").read_text()
OBSERVE = ("-m", "hpc.observe")
LOSS = re.compile(r"rank (\d) step (\d+) loss (-?0x[0-9a-f.]+p[+-]\d+)")

pytestmark = pytest.mark.skipif(bool(missing_modules(SCRIPT)), reason="; ".join(missing_modules(SCRIPT)))


def run(folder: Path, *words: str, without_mpi: bool = False) -> subprocess.CompletedProcess[str]:
    """The command in the folder; `without_mpi`: mpi4py cannot be imported, by the script either."""
    paths = [str(ROOT)]
    if without_mpi:
        (folder / "none").mkdir()
        (folder / "none" / "mpi4py.py").write_text("raise ImportError('no mpi4py here')\n")
        paths.insert(0, str(folder / "none"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def only_trace(folder: Path) -> Trace:
    """The trace; beside it may be copies of stamps, where a busy machine's helper did not end in time."""
    (path,), (begin,) = (folder / "traces").glob("*.h5"), (folder / "traces").glob("*.begin.json")
    assert begin.name == path.name.replace(".h5", ".begin.json")
    return read_trace(path)


def test_torchruns_ranks_are_measured(tmp_path: Path) -> None:
    """By the README's command, on two ranks."""
    (command,) = re.findall(r"Already have a script\?\s`([^`]+)`", README)
    script = [str(SCRIPTS / "ddp_loop.py"), "--epochs", "4"]
    words = {"torchrun": TORCHRUN[:-2], "8": ["2"], "--": ["--warmup", "10", "--"], "train.py": script}
    assert {*words} < {*command.split()}
    argv = [each for part in command.split() for each in words.get(part, [part])]
    done = run(tmp_path, *argv, without_mpi=True)
    assert done.returncode == 0, done.stderr
    trace = only_trace(tmp_path)
    assert trace.stamps.shape == (2, 24, 6)
    assert [rank["connections"] for rank in trace.ranks] == ["tcp", "tcp"]
    assert (trace.run.nodes, trace.run.ranks_per_node) == (1, 2)
    for rank in trace.ranks:
        called = rank["script"]["collective_record"]
        assert called["after_steps"] == 5  # written in the warm-up: the script ends by os._exit
        sizes = [kind["bytes"] * kind["per_step"] for kind in called["kinds"] if kind["name"] == "all-reduce"]
        assert sum(sizes) == rank["script"]["facts"]["gradient_bytes"] > 0
        assert not any("duration_ms" in kind for kind in called["kinds"])  # gloo measures none
    assert len(LOSS.findall(done.stdout)) == 48  # equal to those without hooks: test_observe.py
    shown = run(tmp_path, sys.executable, "-m", "parse.summarize", "traces", "--ledger", "--format", "json")
    assert shown.returncode == 0, shown.stderr
    (ledger,) = json.loads(shown.stdout)["ledgers"]
    assert ledger["verdict"]
    assert any("a step of rank 0 by torch's record: " in remark for remark in ledger["remarks"])


@pytest.mark.all
def test_a_rank_of_torchruns_that_fails_ends_the_others_and_leaves_all_steps(tmp_path: Path) -> None:
    words = ("--", str(SCRIPTS / "late_loader.py"), "--truth", "truth", "--end", "exit")
    done = run(tmp_path, *TORCHRUN, *OBSERVE, "--warmup", "10", *words)
    assert done.returncode == 1
    assert "rank 1: rank_fail: the script ended with exit status 7" in done.stderr
    (note,) = (tmp_path / "traces").glob("*.1.rank1.json")
    stem = note.name.removesuffix(".rank1.json")
    assert collect(tmp_path / "traces", stem) == 2
    assert recover([str(tmp_path / "traces")]) == 0
    trace = read_trace(tmp_path / "traces" / f"{stem}.h5")
    assert trace.outcome is Outcome.RANK_FAIL
    assert trace.steps_completed.tolist() == [30, 30]


def test_one_rank_without_mpi_leaves_a_trace_and_says_how_to_read_it(tmp_path: Path) -> None:
    truth = tmp_path / 'it\'s the "truth"'
    script = (str(SCRIPTS / "late_loader.py"), "--steps", "20", "--truth", str(truth))
    done = run(tmp_path, sys.executable, *OBSERVE, "--warmup", "5", "--", *script, without_mpi=True)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "traces").glob("*.h5")
    assert f"rankwise summarize traces/{path.name} --ledger" in done.stdout
    assert json.loads((truth / "rank0.json").read_text())["variables"]["RANK"] == "0"
    trace = only_trace(tmp_path)
    assert trace.stamps.shape == (1, 20, 6)
    assert [rank["connections"] for rank in trace.ranks] == ["tcp"]
    assert "mpi" not in trace.environment["software"]


@pytest.mark.parametrize(("package", "has_rank"), [("lightning", False), ("json", True)])
def test_a_script_whose_framework_starts_ranks_has_no_variables_and_a_launchers_option_reaches_it(
    tmp_path: Path, package: str, has_rank: bool
) -> None:
    """deepspeed and torch.distributed.launch put --local_rank before what a person wrote."""
    (tmp_path / "train.py").write_text(
        f"import os, sys\nif not os:\n    import {package}\nprint(sys.argv[1:], 'RANK' in os.environ)\n"
    )
    words = ("--local_rank=3", "--warmup", "5", "--", "train.py", "--its")
    done = run(tmp_path, sys.executable, *OBSERVE, *words, without_mpi=True)
    assert done.returncode == 3 and f"['--local_rank=3', '--its'] {has_rank}\n" in done.stdout


ONE_UNSEEN = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp

def train(rank, group):
    dist.init_process_group("gloo", init_method=f"file://{group}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    dist.barrier()
    os._exit(0) if rank else None

if __name__ == "__main__":
    other = mp.get_context("spawn").Process(target=train, args=(1, sys.argv[1]))
    hooks = os.environ.pop("RANKWISE_OBSERVE")
    other.start()
    os.environ["RANKWISE_OBSERVE"] = hooks
    train(0, sys.argv[1])
    other.join()
    os._exit(0)
"""


def test_a_rank_whose_others_no_hook_sees_is_no_run_of_one_rank(tmp_path: Path) -> None:
    """As a worker of Ray whose others are on another node."""
    (tmp_path / "train.py").write_text(ONE_UNSEEN)
    words = ("--warmup", "5", "--", "train.py", str(tmp_path / "group"))
    done = run(tmp_path, sys.executable, *OBSERVE, *words, without_mpi=True)
    assert done.returncode == 3 and "its process group has 2 ranks, and hooks saw one" in done.stderr
    assert not [*(tmp_path / "traces").glob("*.h5")]


FAILS_ONCE = """
import pathlib, torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    if step == 10 and pathlib.Path("broken").exists():
        raise ValueError("my own mistake")
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.all
def test_launches_are_runs_of_a_point_and_one_that_failed_is_attempted_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAILS_ONCE)
    words = (*TORCHRUN, *OBSERVE, "--warmup", "5", "--batch-size", "2", "--", "train.py")
    assert run(tmp_path, *words).returncode == 0
    (tmp_path / "broken").touch()
    failed = run(tmp_path, *words)
    assert failed.returncode == 1
    assert "ValueError: my own mistake; its steps become a trace by" in failed.stderr
    (tmp_path / "broken").unlink()
    third = run(tmp_path, *words)
    assert third.returncode == 0, third.stderr
    assert "run 2 of its point in traces" in third.stdout
    names = sorted(path.name.rpartition("_")[2] for path in (tmp_path / "traces").glob("*.h5"))
    assert names == ["r1.1.h5", "r2.2.h5"]
    shown = run(tmp_path, sys.executable, "-m", "parse.summarize", "traces", "--format", "json")
    (point,) = json.loads(shown.stdout)["results"]
    assert point["runs_ok"] == 2
