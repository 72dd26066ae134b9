"""Horovod is built once, kept whole, installed where it is not yet."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.horovod.machine import Machine
from tests.waiting import LIMIT_S


@pytest.fixture
def commands(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the tool would have run: the build makes a wheel, all else does nothing."""
    ran: list[str] = []

    def run(argv: list[str], _log: Path, _environment: object = None) -> None:
        ran.append(" ".join(argv))
        if "wheel" in argv:
            beside = Path(argv[argv.index("--wheel-dir") + 1])
            beside.mkdir()
            (beside / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl").write_text("whole")

    monkeypatch.setattr(tool, "run", run)
    monkeypatch.setattr(tool, "make_environment", lambda folder, _log: folder / "bin" / "python")
    return ran


def stored_wheels(machine: Machine) -> list[Path]:
    return list(machine.cache.glob("rankwise/horovod/*/*.whl"))


def test_a_fitting_installation_is_not_rebuilt(
    tool: ModuleType, ingredients: ModuleType, machine: Machine, commands: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    machine.install_horovod(built_for=dict(ingredients.find_ingredients().made_of))
    assert tool.main([]) == 0
    assert commands == []
    assert not machine.cache.exists()
    messages = "horovod: 0.28.1 for torch 2.13.0+cpu, tensorflow 2.21.0, Open MPI 4.1.4 is installed\n"
    assert capsys.readouterr().out == messages


def test_a_wheel_is_built_imported_stored_and_installed(
    tool: ModuleType, machine: Machine, commands: list[str]
) -> None:
    assert tool.main([]) == 0
    [wheel] = stored_wheels(machine)
    built, tried, torch, tensorflow, installed = commands
    assert "pip" in built and " wheel " in built
    assert "--python" in tried and "horovod-0.28.1" in tried
    assert "import horovod.torch" in torch and "import horovod.tensorflow" in tensorflow
    assert installed.endswith(f"install --force-reinstall --no-deps {wheel}")
    assert not (wheel.parent / "building").exists()


def test_an_unfinished_wheel_is_not_used(
    tool: ModuleType, ingredients: ModuleType, machine: Machine, commands: list[str]
) -> None:
    folder = machine.cache / "rankwise" / "horovod" / ingredients.find_ingredients().key
    half = folder / "building" / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    half.parent.mkdir(parents=True)
    half.write_text("half")
    assert tool.kept_wheel(folder) is None
    assert tool.main([]) == 0
    assert " wheel " in commands[0]
    assert [wheel.read_text() for wheel in stored_wheels(machine)] == ["whole"]


def test_a_wheel_that_does_not_import_is_not_stored(
    tool: ModuleType,
    machine: Machine,
    commands: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    builds = tool.run

    def run(argv: list[str], log: Path, environment: object = None) -> None:
        if "-c" in argv:
            raise tool.BuildFailed("mpi4py loads another MPI")
        builds(argv, log, environment)

    monkeypatch.setattr(tool, "run", run)
    assert tool.main(["--where-possible"]) == 1
    assert "mpi4py loads another MPI" in capsys.readouterr().out
    assert stored_wheels(machine) == []


def test_a_failing_command_shows_its_errors_and_where_its_log_lies(tool: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_text("b.cc:1: error: of a command before\n")
    script = "echo 'a.cc:1: error: no such thing'; seq 100; exit 3"
    with pytest.raises(tool.BuildFailed) as failure:
        tool.run(["/bin/sh", "-c", script], log, {"PATH": "/usr/bin:/bin"})
    lines = str(failure.value).splitlines()
    assert lines[:3] == ["a.cc:1: error: no such thing", "1", "2"]
    assert lines[-3:] == ["99", "100", f"horovod: build failed with 3; the above is from {log}"]
    assert len(lines) < 20


def test_concurrent_builds_exclude_each_other(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, events = threading.Event(), list[str]()
    monkeypatch.setattr(tool, "say", lambda _text: waits.set())

    def second() -> None:
        with tool.locked(tmp_path):
            events.append("second")

    other = threading.Thread(target=second)
    with tool.locked(tmp_path):
        other.start()
        assert waits.wait(LIMIT_S)
        events.append("first")
    other.join(LIMIT_S)
    assert events == ["first", "second"]


def test_runs_settings_do_not_reach_the_build(
    tool: ModuleType, ingredients: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOROVOD_SKIP_COMPILE", "1")
    monkeypatch.setenv("HOROVOD_NCCL_HOME", "/opt/nccl")
    monkeypatch.setenv("HOROVOD_CUDA_HOME", "/opt/cuda")
    result = ingredients.find_ingredients()
    environment = tool.build_environment(tmp_path / "bin" / "python", result, tmp_path)
    assert "HOROVOD_SKIP_COMPILE" not in environment
    assert environment["HOROVOD_NCCL_HOME"] == "/opt/nccl"
    assert environment["HOROVOD_CUDA_HOME"] == environment["CUDA_HOME"] == "/opt/cuda"
    assert json.loads(environment["RANKWISE_BUILT_FOR"]) == dict(result.made_of)
