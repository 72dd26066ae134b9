"""Which packages the wheel has, and where; all else about the project is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import find_packages, setup

# The wheel has one name, `rankwise`, and the other packages in rankwise/_src: PyPI has others of their names.
# A checkout that is installed with -e has them all at its top level, for `python -m hpc.sweep`.
INSIDE = "" if {"editable_wheel", "develop"} & {*sys.argv} else "rankwise._src."
TOP_LEVEL = ("hpc", "launch", "parse", "sbatch_templates", "tools")

# tools/release writes them, so that a shell completes what pip installed; a checkout has none.
COMPLETIONS = {
    "share/bash-completion/completions": "rankwise",
    "share/zsh/site-functions": "_rankwise",
    "share/fish/vendor_completions.d": "rankwise.fish",
}

setup(
    data_files=[
        (place, [f"completions/{name}"]) for place, name in COMPLETIONS.items() if Path("completions", name).is_file()
    ],
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
    include_package_data=False,  # what is named here, and no folder taken for a package
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
            "parse.page": ["templates/*"],
        }.items()
    },
)
