"""The bundle for clusters without internet: its wheels are those of the target, and install.sh names what is wrong."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.waiting import LIMIT_S
from tools.bundle.__main__ import INSTALL, describe, installer, main, parse_arguments, readme
from tools.bundle.archive import checkout_files, untracked_files, write_archive
from tools.bundle.wheels import BundleError, Target, Wheel, collect, project_requirements

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHER = f"3.{sys.version_info.minor + 1}"
MACHINE = platform.machine()
SHELLCHECK = Path(sys.executable).parent / "shellcheck"
BACKEND = """
from pathlib import Path

def prepare_metadata_for_build_wheel(folder, settings=None):
    info = Path(folder, "rankwise-0.1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text('''Metadata-Version: 2.1
Name: rankwise
Version: 0.1.0
Requires-Dist: numpy>=1.26
Requires-Dist: tomli; python_version < "3.11"
Provides-Extra: mpi
Requires-Dist: mpi4py>=4.1; extra == "mpi"
Provides-Extra: torch
Requires-Dist: torch>=2.6; extra == "torch"
''')
    return info.name

def build_wheel(folder, settings=None, metadata=None):
    raise NotImplementedError
"""


def put_wheel(
    folder: Path, name: str, *requires: str, tag: str = "py3-none-any", files: dict[str, str] | None = None
) -> Path:
    """A wheel of version 1.0 that requires these."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-{tag}.whl"
    info = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", metadata + "".join(f"Requires-Dist: {line}\n" for line in requires))
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
        for member, text in (files or {}).items():
            archive.writestr(member, text)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all pip knows in this test."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    return folder


def collected(tmp_path: Path, python: str, *requirements: str) -> list[str]:
    target = Target(python=python, machine=MACHINE)
    wheels = collect([Requirement(each) for each in requirements], target, tmp_path / "wheels")
    assert sorted(path.name for path in (tmp_path / "wheels").iterdir()) == [wheel.path.name for wheel in wheels]
    return [wheel.path.name.split("-")[0] for wheel in wheels]


@pytest.mark.all
@pytest.mark.slow
def test_markers_are_those_of_the_target(tmp_path: Path, index: Path) -> None:
    """pip evaluates markers for the Python that runs it: wheels are added to what it downloads, and removed."""
    put_wheel(index, "first", f'newer; python_version >= "{OTHER}"', f'older; python_version < "{OTHER}"',
              'darwin; sys_platform == "darwin"', 'absent; extra == "more"')  # fmt: skip
    put_wheel(index, "newer", "below[more]")
    put_wheel(index, "below", 'deepest; extra == "more"')
    for name in ("older", "deepest"):
        put_wheel(index, name)
    assert collected(tmp_path, OTHER, "first") == ["below", "deepest", "first", "newer"]
    shutil.rmtree(tmp_path / "wheels")
    assert collected(tmp_path, HERE, "first") == ["first", "older"]


def test_wheels_are_those_of_the_target(tmp_path: Path, index: Path) -> None:
    compact = OTHER.replace(".", "")
    for system in (f"2_17_{MACHINE}", f"2_28_{MACHINE}", f"2_34_{MACHINE}", "2_28_riscv64"):
        tag = f"cp{compact}-cp{compact}-manylinux_{system}"
        put_wheel(index, "compiled", tag=tag)
    [wheel] = collect([Requirement("compiled")], Target(python=OTHER, machine=MACHINE), tmp_path / "wheels")
    assert wheel.path.name == f"compiled-1.0-cp{compact}-cp{compact}-manylinux_2_28_{MACHINE}.whl"


def test_a_package_without_a_wheel_is_named_with_what_to_do(tmp_path: Path, index: Path) -> None:
    put_wheel(index, "first", "onlysource>=1.0")
    with tarfile.open(index / "onlysource-1.0.tar.gz", "w:gz") as sdist:
        sdist.add(__file__, "onlysource-1.0/setup.py")
    with pytest.raises(BundleError) as problem:
        collected(tmp_path, HERE, "first")
    text = str(problem.value)
    assert text.startswith(f"no wheel of onlysource>=1.0 for CPython {HERE} on Linux {MACHINE} with glibc 2.28; pip:\n")
    assert "pip wheel --no-deps 'onlysource>=1.0' --wheel-dir built" in text and "PIP_FIND_LINKS=" in text


def test_an_index_that_cannot_be_reached_is_named_as_such(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(BundleError, match=r"^the package index cannot be reached: no wheel of first for") as problem:
        collected(tmp_path, HERE, "first")
    assert "Connection refused" in str(problem.value) and "source only" not in str(problem.value)


@pytest.mark.all
def test_an_index_that_was_not_needed_but_not_reached_is_noted(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another build of torch than that of the index may be the consequence."""
    put_wheel(index, "first")
    assert collected(tmp_path, HERE, "first") == ["first"]
    assert capsys.readouterr().err == ""
    shutil.rmtree(tmp_path / "wheels")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    assert collected(tmp_path, HERE, "first") == ["first"]
    assert "note: pip could not reach a package index" in capsys.readouterr().err


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose metadata needs nothing to be built."""
    folder = tmp_path / "work" / "rankwise"
    folder.mkdir(parents=True)
    (folder / "backend.py").write_text(BACKEND)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "constraints.txt").write_text("# tested\nTorch==2.13.0\ntensorflow-cpu==2.21.0\n")
    return folder


@pytest.mark.all
@pytest.mark.slow
def test_requirements_are_those_of_the_extras(project: Path, index: Path) -> None:
    target = Target(python=HERE, machine=MACHINE)
    assert list(map(str, project_requirements(project, target, []))) == ["numpy>=1.26"]
    assert list(map(str, project_requirements(project, target, ["mpi"]))) == ["numpy>=1.26", "mpi4py>=4.1"]
    assert list(map(str, project_requirements(project, target, ["torch"]))) == ["numpy>=1.26", "torch==2.13.0,>=2.6"]
    with pytest.raises(BundleError, match=r"^unknown extras: cuda, mpl; known are mpi, torch$"):
        project_requirements(project, target, ["cuda", "mpi", "mpl"])


@pytest.mark.parametrize(
    ("tag", "minor"),
    [
        ("py3-none-any", 0),
        ("cp312-cp312-manylinux_2_28_x86_64", 28),
        ("cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64", 17),
        ("cp312-cp312-manylinux1_x86_64", 5),
    ],
)
def test_the_c_library_that_a_wheel_needs(tag: str, minor: int) -> None:
    assert Wheel(Path(f"package-1.0-{tag}.whl")).glibc_minor == minor


def test_a_wheel_that_promises_no_c_library_is_refused() -> None:
    with pytest.raises(BundleError, match="is for no platform of glibc"):
        _ = Wheel(Path("package-1.0-cp312-cp312-linux_x86_64.whl")).glibc_minor


@pytest.mark.parametrize(
    ("line", "build"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None", "CPU build"),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None", "CUDA 13.0 build"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.0.51831'", "ROCm (HIP) 7.0.51831 build"),
        ("cuda = None", "CPU build"),
    ],
)
def test_torch_is_described_by_its_own_record(tmp_path: Path, line: str, build: str) -> None:
    wheel = put_wheel(tmp_path, "torch", files={"torch/version.py": f"debug = False\n{line}\nxpu = None\n"})
    assert f": {build}; " in describe(Wheel(wheel))
    with pytest.raises(BundleError, match="does not record CUDA"):
        describe(Wheel(put_wheel(tmp_path, "torch", files={"torch/version.py": "debug = False\n"})))


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse_arguments(["--python-version", "3.12.1", "--extras", "torch, mpi,,mpi"])
    assert (options.python_version, options.extras) == ("3.12", ["mpi", "torch"])
    assert parse_arguments([]).python_version == HERE
    for wrong in (["--python-version", "3.9"], ["--python-version", "python3.12"], ["--machine", "x86 64"]):
        with pytest.raises(SystemExit):
            main(wrong)
        assert wrong[1] in capsys.readouterr().err


def unpacked(tmp_path: Path, *, target: Target | None = None, glibc: str = "2.5") -> Path:
    """A bundle whose only wheel is a tiny one; returns the folder into which it was unpacked."""
    target = target or Target(python=HERE, machine=MACHINE)
    project = tmp_path / "setup.py"
    project.write_text("")
    members: dict[str, Path | bytes] = {
        "README.txt": readme(target, "Rankwise."),
        "wheels/tiny-1.0-py3-none-any.whl": put_wheel(tmp_path, "tiny"), "rankwise/setup.py": project,
        "rankwise/pyproject.toml": b'[build-system]\nrequires = ["setuptools>=68"]\n',
    }  # fmt: skip
    members |= installer(target, ["mpi"], glibc, members)
    write_archive(tmp_path / "bundle.tar.gz", "it's here", members, 1_700_000_000)
    subprocess.run(["tar", "-xzf", "bundle.tar.gz"], cwd=tmp_path, check=True)
    return tmp_path / "it's here"


def install(folder: Path, *, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    argv = ["env", f"PYTHON={python}", "sh", str(folder / "install.sh")]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def refusal(folder: Path, *, python: str = sys.executable) -> str:
    """What install.sh says where it refuses; it must have installed nothing."""
    done = install(folder, python=python)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert not (folder / "rankwise/.venv/bin").exists()
    return done.stderr


@pytest.mark.parametrize(
    ("changes", "python", "messages"),
    [
        ({"target": Target(python=HERE, machine="sparc64")}, sys.executable,
         (f"wrong architecture: this machine is {MACHINE}, the bundle is for sparc64", f"MACHINE={MACHINE}")),
        ({"target": Target(python=OTHER, machine=MACHINE)}, sys.executable,
         (f"wrong Python: {sys.executable} is CPython {HERE}, the bundle is for CPython {OTHER}",
          f"PYTHON=/path/to/python{OTHER} sh install.sh")),
        ({}, "/nowhere/python3", (f"there is no /nowhere/python3 here; the bundle is for CPython {HERE}",)),
        ({"glibc": "2.999"}, sys.executable,
         ("wrong C library: this machine has glibc 2.", "the wheels need glibc 2.999 or newer")),
    ],
)  # fmt: skip
def test_install_names_what_does_not_fit(
    tmp_path: Path, changes: dict[str, Any], python: str, messages: tuple[str, ...]
) -> None:
    message = refusal(unpacked(tmp_path, **changes), python=python)
    assert [each for each in messages if each not in message] == []


@pytest.mark.parametrize("name", ["wheels/tiny-1.0-py3-none-any.whl", "rankwise/setup.py", "SHA256SUMS"])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_install_names_a_damaged_file(tmp_path: Path, name: str, damage: str) -> None:
    folder = unpacked(tmp_path)
    if damage == "changed":
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(bytes([*content[:-1], content[-1] ^ 1]) if content else b"\n")
    else:
        (folder / name).unlink()
    message = refusal(folder)
    assert f"damaged, changed or missing files in {folder}:" in message
    assert re.findall(r"^(?:install\.sh: )?(\S+): FAILED", message, re.MULTILINE) == [name]
    assert "unpack the archive again" in message


def test_install_refuses_what_the_bundle_did_not_bring(tmp_path: Path) -> None:
    """pip would take a newer wheel that no sum is of; sha256sum would wait for a pipe."""
    folder = unpacked(tmp_path)
    whole = folder / "wheels/tiny-1.0-py3-none-any.whl"
    more = whole.with_name("tiny-2.0-py3-none-any.whl")
    more.write_bytes(whole.read_bytes())
    message = refusal(folder)
    assert "that the bundle did not bring" in message and more.name in message and whole.name not in message
    more.unlink()
    moved = whole.rename(tmp_path / "moved")
    whole.symlink_to(moved)
    assert whole.name in refusal(folder)
    for name in ("wheels/tiny-1.0-py3-none-any.whl", "SHA256SUMS", "rankwise/setup.py"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        assert f"./{name}" in refusal(folder)


def test_install_leaves_an_installation_as_it_is(tmp_path: Path) -> None:
    folder = unpacked(tmp_path)
    (folder / "rankwise/.venv").mkdir()
    message = refusal(folder)
    assert "rankwise/.venv exists: Rankwise is installed" in message
    subprocess.run(["sh", "-c", message.partition("reinstall it: ")[2]], check=True)
    assert not (folder / "rankwise/.venv").exists()


@pytest.mark.all
@pytest.mark.slow
def test_an_installation_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """The only wheel is none of setuptools, so pip cannot build the project: it says so and never asks an index."""
    folder = unpacked(tmp_path)
    done = install(folder)
    assert done.returncode != 0 and "No matching distribution found for setuptools" in done.stderr
    assert "installed. Next:" not in done.stdout and not (folder / "rankwise/.venv").exists()


def test_a_link_in_the_checkout_is_in_no_bundle(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    (tmp_path / "link").symlink_to("/etc/hostname")
    subprocess.run([*git, "add", "."], check=True)
    with pytest.raises(BundleError, match="link is a symbolic link"):
        checkout_files(tmp_path)


def test_files_are_those_that_git_tracks_and_others_are_known(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path)]
    with pytest.raises(BundleError, match="a bundle is made from a git checkout; git in "):
        checkout_files(tmp_path)
    subprocess.run([*git, "init", "--quiet"], check=True)
    for name in ("kept", "removed", ".gitignore"):
        (tmp_path / name).write_text("*.h5\n")
    subprocess.run([*git, "add", "."], check=True)
    (tmp_path / "removed").unlink()
    for name in ("mine.toml", "trace.h5"):
        (tmp_path / name).write_text("")
    assert (checkout_files(tmp_path), untracked_files(tmp_path)) == ([".gitignore", "kept"], ["mine.toml"])


def test_equal_contents_give_equal_bytes(tmp_path: Path) -> None:
    members: dict[str, Path | bytes] = {"b": b"2", "a": b"1"}
    for name in ("one", "two"):
        write_archive(tmp_path / name, "top", members, 1_700_000_000)
        members = dict(reversed(members.items()))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert int.from_bytes((tmp_path / "one").read_bytes()[4:8], "little") == 1_700_000_000  # the time in gzip's head
    write_archive(tmp_path / "two", "top", members | {"a": b"3"}, 1_700_000_000)
    assert (tmp_path / "one").read_bytes() != (tmp_path / "two").read_bytes()
    with tarfile.open(tmp_path / "one") as archive:
        assert archive.getnames() == ["top/a", "top/b"]
        assert {member.mtime for member in archive} == {1_700_000_000}


def test_install_is_clean_by_shellcheck(tmp_path: Path) -> None:
    rendered = tmp_path / "install.sh"
    script = installer(Target(python=HERE, machine=MACHINE), ["mpi", "torch"], "2.28", {})["install.sh"]
    assert isinstance(script, bytes)
    rendered.write_bytes(script)
    assert not re.search("@[A-Z]+@", rendered.read_text()) and "extras='[mpi,torch]'" in rendered.read_text()
    for script in (INSTALL, rendered):
        done = subprocess.run([str(SHELLCHECK), "--shell=sh", "--severity=style", str(script)],
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
