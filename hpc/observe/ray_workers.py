"""The hooks in workers of Ray, whose environment is that of the cluster, which may have been started before.

`ray.init` asks the function that RAY_RUNTIME_ENV_HOOK names for the environment of a job's workers; here it does so
once, in the process of the script that imports Ray.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from pathlib import Path
from typing import Any

_VARIABLE, _EVENTS = "RAY_RUNTIME_ENV_HOOK", "RANKWISE_OBSERVE"
_SITE = Path(__file__).parent / "site"
_of_script = ""  # the function that the script's environment names


def hook() -> None:
    """Has `ray.init` ask `with_hooks`. Ray is imported."""
    ray = sys.modules["ray"]
    original = ray.init

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        global _of_script  # noqa: PLW0603 - a process is in one cluster at a time
        before = os.environ.get(_VARIABLE)
        _of_script = before or ""
        os.environ[_VARIABLE] = f"{__name__}.{with_hooks.__name__}"
        try:
            return original(*args, **kwargs)
        finally:
            del os.environ[_VARIABLE]
            if before is not None:
                os.environ[_VARIABLE] = before

    ray.init = init  # type: ignore[attr-defined]


def with_hooks(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """The environment of workers, with the way to the hooks before what they import from elsewhere."""
    if _of_script:
        module, _, name = _of_script.rpartition(".")
        runtime_env = getattr(importlib.import_module(module), name)(runtime_env)
    variables = {**((runtime_env or {}).get("env_vars") or {})}
    path = variables.get("PYTHONPATH", "${PYTHONPATH}")  # Ray puts in what the cluster has
    variables |= {"PYTHONPATH": f"{_SITE}{os.pathsep}{path}", _EVENTS: os.environ[_EVENTS]}
    return {**(runtime_env or {}), "env_vars": variables}
