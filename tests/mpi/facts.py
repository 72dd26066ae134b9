"""What `ranks/torch_facts.py` finds out about a run of a torch backend on real ranks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from tests.mpi.attempts import HERE, Ranks

SCRIPT = HERE / "torch_facts.py"
_cache: dict[str, dict[str, Any]] = {}


def facts(
    ranks: Ranks, *switches: str, size: int = 2, together: Sequence[dict[str, Any]] = (), **fields: Any
) -> dict[str, Any]:
    """The facts of a run, which is made once per test session, in one start of the ranks with the runs `together` where
    it is one of these."""
    key = _key(switches, size, fields)
    if key not in _cache:
        runs = together if fields in together else [fields]
        done = ranks(size, SCRIPT, json.dumps(runs), *switches, env=_environment(switches, fields))
        lines = done.stdout.splitlines()[-len(runs) :]
        _cache.update({_key(switches, size, run): json.loads(line) for run, line in zip(runs, lines, strict=True)})
    return _cache[key]


def _key(switches: tuple[str, ...], size: int, fields: dict[str, Any]) -> str:
    return json.dumps([switches, size, fields], sort_keys=True)


def refused(ranks: Ranks, *switches: str, size: int = 1, **fields: Any) -> str:
    """The standard error of a run that ends as invalid."""
    done: subprocess.CompletedProcess[str]
    done = ranks(size, SCRIPT, json.dumps([fields]), *switches, env=_environment(switches, fields), check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    return done.stderr


def reason(ranks: Ranks, *switches: str, together: Sequence[dict[str, Any]], **fields: Any) -> str:
    """Why one rank refuses a run, `TYPE: message`, in one start with the runs `together`; none of them has an `env`."""
    refusal: str = facts(ranks, "refusals", *switches, size=1, together=together, **fields)["refused"]
    return refusal


def _environment(switches: tuple[str, ...], fields: dict[str, Any]) -> dict[str, str]:
    environment: dict[str, str] = fields.get("env", {})
    return {"GLOO_SOCKET_IFNAME": "lo", **environment} if "apart" in switches else environment
