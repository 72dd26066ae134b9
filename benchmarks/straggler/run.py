"""Starts the trainings, with a tool or without one, and keeps what they recorded and what the tool says."""

from __future__ import annotations

import importlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.straggler.cases import Case
from benchmarks.straggler.score import Cause, Truth, truth_of

HERE = Path(__file__).resolve().parent
TOOLS = sorted(path.stem for path in (HERE / "adapters").glob("*.py") if path.stem not in ("__init__", "common"))
LIMIT_S = 240
KEPT = 1.05
"""A mean step of so many times the pace keeps it: one in twenty may miss its batch."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """An adapter, and the interpreter that has its tool. No name: the training alone."""

    name: str
    python: str

    @property
    def adapter(self) -> ModuleType | None:
        return importlib.import_module(f"benchmarks.straggler.adapters.{self.name}") if self.name else None


@dataclass(frozen=True, kw_only=True)
class Result:
    """One training under a tool. `failure`: why it has no truth; `load`: the machine's load average at its end."""

    case: str
    tool: str
    truth: Truth | None
    answer: dict[str, Any]
    failure: str = ""
    load: float | None = None

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def read_result(path: Path) -> Result:
    """A result as `Result.write` has it."""
    its = json.loads(path.read_text())
    if its["truth"]:
        its["truth"]["causes"] = tuple(Cause(**each) for each in its["truth"]["causes"])
        its["truth"] = Truth(**its["truth"])
    return Result(**its)


def run(case: Case, tool: Tool, folder: Path, server: Server | None = None) -> Result:
    """One training, its ranks started by us, by a server or by the tool's command, and the tool's answer."""
    failure = train(case, tool, folder) if server is None else server.train(case, folder)
    truth = None if failure else truth_of(folder, case.warmup, scored_ms=case.scored_ms)
    if truth is not None and 0 < KEPT * case.pace < truth.step_ms:
        failure = (
            f"steps of {truth.step_ms:.0f} ms did not keep the pace of {case.pace:.0f}: who works more delayed others"
        )
    return Result(
        case=case.name,
        tool=tool.name,
        truth=None if failure else truth,
        answer=_answer(case, tool, folder),
        failure=failure,
        load=os.getloadavg()[0],
    )


class Server:
    """Makes one training after the other in processes forked from one that has imported torch and the tool.

    For tools that need no launcher; it saves most of a short training's time.
    """

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._process = subprocess.Popen(
            [tool.python, str(HERE / "training.py"), "--serve"], env=_environment(tool), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def train(self, case: Case, folder: Path) -> str:
        """As `train` does."""
        _lay(case, folder)
        assert self._process.stdin is not None and self._process.stdout is not None
        port = str(_free_port())
        ranks = [_as_torchrun(rank, case.ranks, port) for rank in range(case.ranks)]
        request = {"case": str(folder / "case.json"), "folder": str(folder), "ranks": ranks, "limit_s": LIMIT_S}
        with beside(self._tool, case, folder, port):
            print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        return _first_failure(json.loads(line), folder) if line else "the server of trainings has ended"

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def needs_launcher(tool: Tool) -> bool:
    """Whether its ranks are started by a command of the tool's own."""
    return hasattr(tool.adapter, "command")


def _environment(tool: Tool) -> dict[str, str]:
    """The trainings', with what the tool's adapter adds."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RANK", "WORLD_SIZE")
    }
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if hasattr(tool.adapter, "ToolHooks"):
        environment["STRAGGLER_TOOL"] = tool.name
    if tool.adapter is not None and hasattr(tool.adapter, "environment"):
        environment |= tool.adapter.environment(tool.python)
    return environment


def train(case: Case, tool: Tool, folder: Path) -> str:
    """Makes a training in a fresh folder: what went wrong; empty if all ended with 0."""
    _lay(case, folder)
    training = [str(HERE / "training.py"), str(folder / "case.json"), str(folder)]
    port, argv = str(_free_port()), [tool.python, *training]
    if tool.adapter is not None and needs_launcher(tool):
        argv = tool.adapter.command(tool.python, training, folder)
    with beside(tool, case, folder, port):
        ranks = [
            _started(argv, _environment(tool) | _as_torchrun(rank, case.ranks, port), folder, f"output-{rank}.txt")
            for rank in range(case.ranks)
        ]
        deadline = time.monotonic() + LIMIT_S
        try:
            return _first_failure([rank.wait(max(0.1, deadline - time.monotonic())) for rank in ranks], folder)
        except subprocess.TimeoutExpired:
            return f"not at its end after {LIMIT_S} s"
        finally:
            for rank in ranks:
                _end(rank)


@contextmanager
def beside(tool: Tool, case: Case, folder: Path, port: str) -> Iterator[None]:
    """What the tool needs beside the ranks, as long as they live; SIGTERM ends it."""
    if tool.adapter is None or not hasattr(tool.adapter, "beside"):
        yield
        return
    argv = tool.adapter.beside(tool.python, case.ranks, folder, port)
    process = _started(argv, _environment(tool), folder, "beside.txt")
    try:
        yield
        process.terminate()
        process.wait(LIMIT_S)
    finally:
        _end(process)


def _started(argv: list[str], env: dict[str, str], folder: Path, output: str) -> subprocess.Popen[bytes]:
    """In a session of its own; what it prints is in the folder."""
    with (folder / output).open("w") as file:
        return subprocess.Popen(
            argv, env=env, cwd=folder, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills its session where it is still there."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _lay(case: Case, folder: Path) -> None:
    """An empty folder with the case's file."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "case.json").write_text(json.dumps(case.plan()))


def _first_failure(statuses: list[int], folder: Path) -> str:
    for at, status in enumerate(statuses):
        if status:
            return f"exit status {status}: {(folder / f'output-{at}.txt').read_text()[-800:]}"
    return ""


def _answer(case: Case, tool: Tool, folder: Path) -> dict[str, Any]:
    """The tool's, by its adapter in its interpreter."""
    argv = [tool.python, str(HERE / "adapters" / f"{tool.name}.py"), str(folder), str(case.ranks)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        text = f"the adapter ended with {done.returncode}: {done.stderr[-800:]}"
        return {"tool": tool.name, "version": "?", "verdict": "cannot tell", "findings": [], "text": text}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _as_torchrun(rank: int, ranks: int, port: str) -> dict[str, str]:
    return {
        "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip


def cpu_of_children_s() -> float:
    """CPU time of all processes that were started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
