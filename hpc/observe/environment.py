"""The environment in which a command is observed: it and every Python that it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

FOLDER, STEPS = "RANKWISE_OBSERVE", "RANKWISE_OBSERVE_STEPS"
SITE = Path(__file__).resolve().parent / "site"
"""The folder of the sitecustomize that hooks torch once that is imported."""


def observed(environment: Mapping[str, str], folder: Path, steps: int = 0) -> dict[str, str]:
    """That environment, in which Python records its events in the folder; `steps` ends each script after so many."""
    path = os.pathsep.join(filter(None, (str(SITE), environment.get("PYTHONPATH"))))
    return {**environment, "PYTHONPATH": path, FOLDER: str(folder), STEPS: str(steps or "")}
