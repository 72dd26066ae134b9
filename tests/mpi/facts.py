"""What `ranks/torch_facts.py` finds out about a run of a torch backend on real ranks."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.mpi.attempts import HERE, Ranks

SCRIPT = HERE / "torch_facts.py"
_found: dict[str, dict[str, Any]] = {}


def facts(ranks: Ranks, *words: str, size: int = 2, **asked: Any) -> dict[str, Any]:
    """The facts, found once per test session for each run asked for: the same one is many tests' reference."""
    key = json.dumps([words, size, asked], sort_keys=True)
    if key not in _found:
        done = ranks(size, SCRIPT, json.dumps(asked), *words, env=_environment(words, asked))
        _found[key] = json.loads(done.stdout.splitlines()[-1])
    return _found[key]


def refused(ranks: Ranks, *words: str, size: int = 1, **asked: Any) -> str:
    """What a run that ends as invalid says."""
    done: subprocess.CompletedProcess[str]
    done = ranks(size, SCRIPT, json.dumps(asked), *words, env=_environment(words, asked), check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    return done.stderr


def _environment(words: tuple[str, ...], asked: dict[str, Any]) -> dict[str, str]:
    own: dict[str, str] = asked.get("env", {})
    return own if "apart" not in words or "GLOO_SOCKET_IFNAME" in own else {**own, "GLOO_SOCKET_IFNAME": "lo"}
