"""Rankwise under one name: `rankwise COMMAND`, `python -m rankwise COMMAND`, `from rankwise.observe import data, step`,
and for notebooks `rankwise.load(path)` (docs/formats.md).

The wheel has the packages of the checkout in `_src`, which only Rankwise's own processes have on their path: PyPI has
packages called `parse`, `launch` and `tools`.
"""

from __future__ import annotations

from pathlib import Path

TYPE_CHECKING = False  # `from rankwise.observe import step` stands in scripts, which need nothing of this
if TYPE_CHECKING:
    from rankwise.measurement import Measurement

_HERE = Path(__file__).resolve().parent
SOURCE = _HERE / "_src" if (_HERE / "_src").is_dir() else _HERE.parent
"""The folder of the packages: in the wheel, or the checkout."""


def load(*paths: str | Path, base: str = "") -> Measurement:
    """Reads folders or files with traces, logs, or a summary of ours (JSON), as `rankwise summarize` does.

    `base` is the case that speedups are against, `2n8g`; by default 1n1g or the smallest. Raises FileNotFoundError
    where a path is not there, and ValueError where nothing was read, or no point has that case.
    """
    from rankwise.inside import call
    from rankwise.measurement import Measurement

    return Measurement(*call("frames.read", [*map(str, paths)], base))
