"""Every short call of an external tool goes through run_tool; every file of others through hpc.system.regular_file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STARTS_PROCESSES = {
    "subprocess": {"run", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "Popen"},
    "os": {"system", "popen", "posix_spawn", "posix_spawnp", "execv", "execve", "execvp", "execvpe", "execl", "execlp",
           "spawnv", "spawnl", "spawnlp", "spawnvp"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
}  # fmt: skip
parsed = cache(ast.parse)
"""The tree of a source, which both kinds of call are sought in."""
OTHERS = {
    "hpc/system/tool.py": "run_tool itself",
    "hpc/run/script_process.py": "a person's training script, and a witness of its signals: live as long as the run",
    "hpc/node_agent/agent.py": "the helper of a node: lives as long as the run, takes commands on its standard input",
    "launch/scheduler/local.py": "the job script on this machine: lives for hours, holds the lock of its folder",
    "launch/step/attempt.py": "the launcher of an attempt: lives as long as the attempt, is sent signals",
    "tools/devcluster/daemons.py": "the daemons of the development cluster",
    "tools/devcluster/processes.py": "the daemons of the development cluster",
}


def starts(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of every call that starts a process, also under import aliases."""
    tree = parsed(source)
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


# The door for files that others may have written: hpc.system.regular_file.

READS = {
    "json": {"load", "loads"},
    "tomllib": {"load", "loads"},
    "gzip": {"open", "GzipFile", "decompress"},
    "numpy": {"load", "fromfile", "memmap", "genfromtxt", "loadtxt"},
    "tarfile": {"open", "TarFile"},
    "zipfile": {"ZipFile"},
    "pickle": {"load", "loads"},
    "h5py": {"File"},
    "io": {"open", "FileIO"},
    "os": {"open"},
}
BY_MODULE = {
    "Image": {"open"},
}
"""Names as they are imported from packages."""
READS_BY_METHOD = {"read_text", "read_bytes"}
READERS = {
    "hpc/system/regular_file.py": "the door itself",
    # What the kernel, this process or this installation wrote.
    "hpc/backends/addresses.py": "/proc",
    "hpc/backends/horovod_group.py": "files of installed packages; /proc",
    "hpc/data.py": "the set that it has just written, and training data",
    "hpc/system/host.py": "/proc",
    "hpc/node_agent/telemetry.py": "/proc and /sys",
    "hpc/node_agent/sources.py": "/proc and /sys",
    "hpc/observe/stacks.py": "/proc, and the stacks of its own process in its private folder",
    "hpc/preflight/facts.py": "/proc and /sys",
    "hpc/recovery/folders.py": "/proc; its private folders, without following links",
    "hpc/system/environment.py": "/proc and /sys",
    "hpc/system/gpus.py": "/sys/class/kfd",
    "launch/scheduler/local.py": "/proc",
    "launch/step/attempt.py": "what the kernel counts of its control group",
    "launch/step/watch.py": "/proc",
    "parse/page/html.py": "files of the project",
    "parse/extrapolation/rule.py": "a file of the project",
    "parse/runs/machine_use.py": "a file of the project",
    # What came over a connection or a pipe of this run, from a process that this one started or that showed its key.
    "hpc/measure/connections.py": "messages between the ranks of a run, of bounded length",
    "hpc/node_agent/__main__.py": "the pipe of the rank that started it",
    "hpc/node_agent/agent.py": "the pipe of the helper that it started",
    "hpc/run/gather.py": "messages between the ranks of a run",
    "hpc/run/script_groups.py": "messages between the ranks of a run",
    "hpc/model/groups.py": "messages between the ranks of a run",
    "hpc/run/data_replicas.py": "messages between the ranks of a run",
    "hpc/run/script_facts.py": "messages between the ranks of a run; the kernel's view of its own processes",
    "hpc/observe/observer.py": "the kernel's view of its own process; hooks import nothing of hpc.system",
    "hpc/script.py": "the kernel's view of the process that started it",
    "hpc/system/version.py": "its own modules",
    "launch/sweep/run_status.py": "the answer of an interpreter that it started",
    "launch/sweep/accept.py": "JSON that it has just made",
    "parse/comparison/pairs.py": "JSON that it has just made",
    # Descriptors that need flags of their own.
    "hpc/model/files.py": "the folder of the traces",
    "hpc/model/trace_file.py": "h5py, of what the door has opened; the folder, flushed",
    "hpc/node_agent/copies.py": "the journals of its node, in its private folder, without following links",
    "hpc/observe/events.py": "private files of its own run; hooks in a script import nothing of hpc.system",
    "hpc/observe/flight_record.py": "as events: a private file of its own run, of bounded length",
    "hpc/recovery/journal.py": "makes the journal",
    "hpc/recovery/stacks.py": "makes the file of stacks",
    "hpc/run/rank_state.py": "/dev/null",
    "hpc/run/script_process.py": "the terminal",
    "hpc/system/atomic.py": "makes records and flushes folders",
    "hpc/run/rendezvous.py": "the private file of rank 0, without following links",
    "hpc/system/command_line.py": "standard streams",
    "launch/scheduler/lock.py": "the lock",
    "launch/sweep/submit.py": "/dev/null",
    # Readers that take what the door has opened, piece by piece.
    "hpc/run/train.py": "arrays in memory whose digest was compared",
    "parse/logs/engine/reader.py": "unpacks what the door has opened, in pieces",
    "parse/trace_events/kineto.py": "unpacks what the door has opened, in pieces",
    "parse/trace_events/timeline_file.py": "writes",
    # Training data, which is read at full speed, by frameworks too.
    "hpc/workloads/image_batches.py": "training data",
    "hpc/workloads/image_sets.py": "training data",
    "hpc/workloads/tensorflow_models.py": "training data",
    "hpc/workloads/torch_dali.py": "training data",
}  # fmt: skip


def reads(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of every call that reads a file, or decodes its content, without the door."""
    tree = parsed(source)
    modules, functions = {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            functions |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open"):
                yield node.lineno, "open"
            case ast.Name(id=name) if functions.get(name, ("", ""))[1] in READS.get(
                functions.get(name, ("", ""))[0], ()
            ):
                yield node.lineno, name
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in READS.get(
                modules.get(module, ""), ()
            ) or name in BY_MODULE.get(module, ()):
                yield node.lineno, f"{module}.{name}"
            case ast.Attribute(attr=name) if name in READS_BY_METHOD:
                yield node.lineno, name
            case ast.Attribute(attr="open", value=value) if not (
                isinstance(value, ast.Name) and (value.id in modules or value.id in functions)
            ) and _for_reading(node):
                yield node.lineno, "Path.open"


def _for_reading(call: ast.Call) -> bool:
    modes = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    return not modes or not (isinstance(modes[0], ast.Constant) and str(modes[0].value)[:1] in "wax")


def test_files_of_others_are_read_through_the_door() -> None:
    reads_by_file = {}
    for package in ("hpc", "launch", "parse"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if calls := list(reads(path.read_text())):
                reads_by_file[path.relative_to(ROOT).as_posix()] = calls
    beside = {name: calls for name, calls in reads_by_file.items() if name not in READERS}
    assert not beside, f"use open_regular, read_whole, read_text, parse_json or parse_toml, or say why not: {beside}"
    gone = [name for name in READERS if name not in reads_by_file]
    assert not gone, f"these read nothing any more: {gone}"
