"""Every short call of an external tool goes through hpc.system.tool.run_tool, which knows how tools fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STARTS_PROCESSES = {
    "subprocess": {"run", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "Popen"},
    "os": {"system", "popen", "posix_spawn", "posix_spawnp", "execv", "execve", "execvp", "execvpe", "execl", "execlp",
           "spawnv", "spawnl", "spawnlp", "spawnvp"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
}  # fmt: skip
OTHERS = {
    "hpc/system/tool.py": "run_tool itself",
    "hpc/run/script_process.py": "a person's training script: lives as long as the run, is sent signals",
    "hpc/node_agent/agent.py": "the helper of a node: lives as long as the run, takes commands on its standard input",
    "launch/cluster/local.py": "the job script on this machine: lives for hours, holds the lock of the sweep's folder",
    "launch/step/attempt.py": "the launcher of an attempt: lives as long as the attempt, is sent signals",
    "tools/devcluster/daemons.py": "the daemons of the development cluster",
    "tools/devcluster/processes.py": "the daemons of the development cluster",
}


def starts(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of every call that starts a process, also under import aliases."""
    tree = ast.parse(source)
    modules, functions = {name: name for name in STARTS_PROCESSES}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module in STARTS_PROCESSES:
            functions |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Attribute(value=ast.Name(id=module), attr=name):
                    called = (modules.get(module, module), name)
                case ast.Name(id=name):
                    called = functions.get(name, ("", ""))
                case _:
                    continue
            if called[1] in STARTS_PROCESSES.get(called[0], ()):
                yield node.lineno, ".".join(called)


def test_external_tools_are_called_through_run_tool() -> None:
    calls_by_file = {}
    for package in ("hpc", "launch", "parse", "tools/devcluster"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if calls := list(starts(path.read_text())):
                calls_by_file[path.relative_to(ROOT).as_posix()] = calls
    assert {name: calls for name, calls in calls_by_file.items() if name not in OTHERS} == {}
    gone = [name for name in OTHERS if (ROOT / name).exists() and name not in calls_by_file]
    assert not gone, f"these start no process any more: {gone}"


def test_calls_that_bypass_run_tool_are_detected() -> None:
    calls = [
        "import subprocess\nsubprocess.run(['git'])",
        "import subprocess as s\ns.Popen(['git'])",
        "from subprocess import check_output as ask\nask(['git'])",
        "import os\nos.popen('git')",
        "import asyncio\nasyncio.create_subprocess_exec('git')",
    ]
    assert [len(list(starts(source))) for source in calls] == [1] * len(calls)
    assert not list(starts("import subprocess\nx: subprocess.Popen\nother.run([])"))
