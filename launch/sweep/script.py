"""A sweep over a person's own training script, which alone decides what it trains on, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpc.model.spec import SCRIPT, UNKNOWN, SpecError, check_arguments
from launch.jobs.options import flag

SCRIPT_PAUSE_S = 600
"""A script may do without a step for so long, as it evaluates or writes a checkpoint, before it counts as hanging."""
_DECIDED_BY_SCRIPTS = (
    "recipe", "backend", "workload", "data", "data_cache", "precision", "timing", "option",
    "block_steps", "epochs", "target_accuracy", "eval_every", "collectives", "no_sync", "seed",
)  # fmt: skip


def script_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a sweep that follow from its script; none where there is no script.

    Raises SpecError for options of which the script decides, for arguments without a script, and where the script
    cannot be one.
    """
    arguments: Sequence[str] = tuple(values.get("arguments") or ())
    if "script" not in values:
        if arguments:
            raise SpecError(
                f"{arguments[0]!r} follows --, as arguments of a script do, and there is no --script FILE.py"
            )
        return {}
    if decided := [name for name in _DECIDED_BY_SCRIPTS if values.get(name) is not None]:
        raise SpecError(
            f"{', '.join(map(flag, decided))} and --script exclude each other: the script decides that; "
            "its own arguments follow --"
        )
    script = str(values["script"])
    check_script(script)
    check_arguments(arguments)
    settings: dict[str, Any] = {
        "backend": (SCRIPT,), "workload": (script,), "precision": (UNKNOWN,), "arguments": arguments,
        "no_baseline": values.get("no_baseline") is not False,  # one of several ranks, a pipeline, cannot start as 1n1g
    }  # fmt: skip
    return settings if values.get("batch_size") is not None else {**settings, "batch_size": (0,)}


def check_script(script: str) -> None:
    """Raises SpecError where this is no Python file that can be read."""
    path = Path(script)
    if not script.endswith(".py") or ":" in script:
        raise SpecError(f"--script {script!r} is no path of a Python file: it ends with .py, and has no colon")
    if not path.is_file():
        raise SpecError(f"--script {script!r}: there is no file {path.absolute()}")
