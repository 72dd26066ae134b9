"""What `ranks/torch_facts.py` finds out about a run of a torch backend on real ranks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from tests.mpi.attempts import HERE, Ranks

SCRIPT = HERE / "torch_facts.py"
_found: dict[str, dict[str, Any]] = {}


def facts(
    ranks: Ranks, *words: str, size: int = 2, together: Sequence[dict[str, Any]] = (), **asked: Any
) -> dict[str, Any]:
    """The facts of a run, made once per test session: the same one is many tests' reference. It is made in one start of
    the ranks with the runs `together`, where it is one of these."""
    key = _key(words, size, asked)
    if key not in _found:
        runs = together if asked in together else [asked]
        done = ranks(size, SCRIPT, json.dumps(runs), *words, env=_environment(words, asked))
        lines = done.stdout.splitlines()[-len(runs) :]
        _found.update({_key(words, size, run): json.loads(line) for run, line in zip(runs, lines, strict=True)})
    return _found[key]


def _key(words: tuple[str, ...], size: int, asked: dict[str, Any]) -> str:
    return json.dumps([words, size, asked], sort_keys=True)


def refused(ranks: Ranks, *words: str, size: int = 1, **asked: Any) -> str:
    """What a run that ends as invalid says."""
    done: subprocess.CompletedProcess[str]
    done = ranks(size, SCRIPT, json.dumps([asked]), *words, env=_environment(words, asked), check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    return done.stderr


def _environment(words: tuple[str, ...], asked: dict[str, Any]) -> dict[str, str]:
    own: dict[str, str] = asked.get("env", {})
    return own if "apart" not in words or "GLOO_SOCKET_IFNAME" in own else {**own, "GLOO_SOCKET_IFNAME": "lo"}
