"""Rankwise under one name: `rankwise COMMAND`, `python -m rankwise COMMAND`, `from rankwise.observe import data, step`.

The wheel has the packages of the checkout in `_src`, which only Rankwise's own processes have on their path: PyPI has
packages called `parse`, `launch` and `tools`.
"""

from pathlib import Path

_HERE = Path(__file__).resolve().parent
SOURCE = _HERE / "_src" if (_HERE / "_src").is_dir() else _HERE.parent
"""The folder of the packages: in the wheel, or the checkout."""
