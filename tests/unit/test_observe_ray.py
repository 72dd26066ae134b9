"""What Ray's workers get of the hooks, without Ray."""

from __future__ import annotations

import os
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest

from hpc.observe import ray_workers
from hpc.run.script_steps import read_steps

SITE = str(Path(ray_workers.__file__).parent / "site")


def environment(runtime_env: object = None) -> object:
    """As Ray asks, in `ray.init`."""
    module, _, name = os.environ["RAY_RUNTIME_ENV_HOOK"].rpartition(".")
    return getattr(import_module(module), name)(runtime_env)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("ray")
    module.init = lambda runtime_env=None: environment(runtime_env)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setenv("RANKWISE_OBSERVE", "/events")
    monkeypatch.delenv("RAY_RUNTIME_ENV_HOOK", raising=False)
    ray_workers.hook()
    return module


def test_workers_get_the_way_to_the_hooks_before_what_they_have(ray: types.ModuleType) -> None:
    way = {"PYTHONPATH": f"{SITE}:${{PYTHONPATH}}", "RANKWISE_OBSERVE": "/events"}
    assert ray.init() == {"env_vars": way}
    given = {"pip": ["x"], "env_vars": {"PYTHONPATH": "/mine", "A": "1"}}
    assert ray.init(given) == {"pip": ["x"], "env_vars": {**way, "A": "1", "PYTHONPATH": f"{SITE}:/mine"}}
    assert given["env_vars"] == {"PYTHONPATH": "/mine", "A": "1"} and "RAY_RUNTIME_ENV_HOOK" not in os.environ


def of_site(runtime_env: object) -> dict[str, object]:
    return {"of": runtime_env}


def test_a_function_that_the_site_names_is_asked_first(ray: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_RUNTIME_ENV_HOOK", f"{__name__}.of_site")
    monkeypatch.setitem(sys.modules, __name__, types.SimpleNamespace(of_site=of_site))  # type: ignore[arg-type]
    assert ray.init({"pip": []})["of"] == {"pip": []}
    assert os.environ["RAY_RUNTIME_ENV_HOOK"] == f"{__name__}.of_site"


def test_where_no_hook_came_the_reason_names_ray(tmp_path: Path) -> None:
    without = read_steps(tmp_path).observed.reason
    assert "python -I and -E, env -i" in without and "Ray" not in without
    (tmp_path / "1.ray").touch()
    assert "it imports Ray: hooks come to workers on this node" in read_steps(tmp_path).observed.reason
