"""What `ranks/torch_facts.py` finds out about a run of a torch backend on real ranks."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.mpi.attempts import HERE, Ranks

SCRIPT = HERE / "torch_facts.py"
_facts_of: dict[str, dict[str, Any]] = {}


def facts(ranks: Ranks, *switches: str, size: int = 2, **fields: Any) -> dict[str, Any]:
    """The facts, found once per test session for each run asked for: the same one is many tests' reference."""
    key = json.dumps([switches, size, fields], sort_keys=True)
    if key not in _facts_of:
        done = ranks(size, SCRIPT, json.dumps(fields), *switches, env=_environment(switches, fields))
        _facts_of[key] = json.loads(done.stdout.splitlines()[-1])
    return _facts_of[key]


def refused(ranks: Ranks, *switches: str, size: int = 1, **fields: Any) -> str:
    """What a run that ends as invalid says."""
    done: subprocess.CompletedProcess[str]
    done = ranks(size, SCRIPT, json.dumps(fields), *switches, env=_environment(switches, fields), check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    return done.stderr


def _environment(switches: tuple[str, ...], fields: dict[str, Any]) -> dict[str, str]:
    defaults: dict[str, str] = fields.get("env", {})
    return (
        defaults
        if "apart" not in switches or "GLOO_SOCKET_IFNAME" in defaults
        else {**defaults, "GLOO_SOCKET_IFNAME": "lo"}
    )
