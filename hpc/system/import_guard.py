"""PyPI has packages called `launch` and `parse`: none of them is taken for this project's."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
OWN = ("launch", "parse", "tools")


class OwnPackages:
    """A finder of this project's packages by their place, whatever else has their names.

    PyPI's `launch` and `parse` may come earlier on the path.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The package of this name; None for all other modules."""
        if name not in OWN:
            return None
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(ROOT / name)]
        return spec


def use_own_packages() -> None:
    """Has this process import this project's packages. Those that it has imported already stay."""
    if OwnPackages not in sys.meta_path:
        sys.meta_path.insert(0, OwnPackages)


def is_installed(root: Path = ROOT) -> bool:
    """Whether this project is that of a wheel, which has it in rankwise/_src."""
    return root.name == "_src"


def install_command(extra: str = "", root: Path = ROOT) -> str:
    """The command for a package that is missing: `pip install -e '.[torch]'` in the folder of a checkout, `pip install
    'rankwise[torch]'` where this project is installed itself; without an optional group, with the checkout's path."""
    from shlex import quote

    project = "rankwise" if is_installed(root) else "." if extra else str(root)
    editable = "" if is_installed(root) else "-e "
    return f"pip install {editable}{quote(f'{project}[{extra}]' if extra else project)}"
