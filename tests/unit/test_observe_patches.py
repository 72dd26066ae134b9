"""What hooks replace, and what is said where there is nothing to replace, or something with other arguments."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

from hpc.model.timestamps import INNER
from hpc.observe import events as e
from hpc.observe import horovod_calls, recording
from hpc.observe.patches import Patches
from hpc.run.script_groups import unseen_calls
from tests.unit.observed_events import DDP, Script


def torch_with(function: Any) -> Any:
    return types.SimpleNamespace(Kind=type("Kind", (), {"method": function}))


def counting(calls: list[int]) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def hook(self: Any, value: Any, size: int = 1) -> Any:
            calls.append(value)
            return original(self, value, size)

        return hook

    return make


def test_a_hook_is_called_and_taken_off_again() -> None:
    module, calls, patches = torch_with(lambda self, value, size: value + size), list[int](), Patches()
    patches.replace(module, "Kind.method", counting(calls), "what it shows")
    assert (module.Kind().method(3, 4), calls) == (7, [3])
    patches.remove()
    assert (module.Kind().method(3, 4), calls, patches.lacking) == (7, [3], {})


class OfPybind:
    """A function without a code object, which says what it takes in its first line, as pybind's do."""

    def __init__(self, line: str) -> None:
        self.__doc__ = f"{line}\nMore of it."


MORE = "method(self: Kind, arg0: list[tuple[int, int]], size: int, further: int) -> None"
AS_MANY = "method(self: Kind, arg0: dict[str, tuple[int, int]], size: int = 1) -> list[int]"


@pytest.mark.parametrize(
    "function",
    [
        lambda self, value, size, further: 0,
        lambda self: 0,
        lambda self, value, *, size, further: 0,
        OfPybind(MORE),
    ],
)
def test_a_function_with_other_arguments_keeps_its_place_and_is_named(function: Any) -> None:
    module, patches = torch_with(function), Patches()
    patches.replace(module, "Kind.method", counting([]), "what it shows")
    assert vars(module.Kind)["method"] is function
    assert patches.lacking == {"Kind.method": ("takes other arguments", "what it shows")}


@pytest.mark.parametrize(
    "function",
    [lambda self, value, size: 0, lambda self, *values: 0, OfPybind(AS_MANY), OfPybind("method(*args)"), max],
)
def test_one_that_can_be_called_so_or_does_not_say_is_replaced(function: Any) -> None:
    module, patches = torch_with(function), Patches()
    patches.replace(module, "Kind.method", counting([]), "what it shows")
    assert vars(module.Kind)["method"] is not function and not patches.lacking


def test_what_is_not_there_is_named_where_something_is_not_seen_for_it() -> None:
    patches = Patches()
    patches.replace(torch_with(max), "Other.method", counting([]), "what it shows")
    patches.replace(torch_with(max), "Kind.other", counting([]))
    patches.replace(torch_with(max), "Other.__init__", lambda _: lambda *values: None, "when it is made")
    patches.register("register_hook", None, print, "ends of updates")
    assert patches.lacking == {
        "Other.method": ("is not there", "what it shows"), "Other.__init__": ("is not there", "when it is made"),
        "register_hook": ("is not there", "ends of updates"),
    }  # fmt: skip


def test_a_lacking_hook_is_a_remark_and_the_reason_of_what_is_absent() -> None:
    lacking = {"Reducer.prepare_for_backward": ["is not there", "in which backward DDP reduces"]}
    script = Script(**DDP, lacking_hooks=lacking, torch="9.9")
    for _ in range(3):
        script.fetch()
        script.forward(armed=False)
        script.play("backward update")
    observed = script.observed()
    remark = "Reducer.prepare_for_backward is not there in torch 9.9: not seen is in which backward DDP reduces"
    assert remark in observed.remarks
    (reason,) = {observed.absent[name] for name in INNER}
    assert reason.startswith("in which backward DDP reduces is not seen: this torch has no place for the hook on ")


def test_without_a_step_the_lacking_hook_is_in_the_reason() -> None:
    script = Script(lacking_hooks={"register_optimizer_step_post_hook": ["is not there", "updates, which end steps"]})
    script.at(e.BACKWARD_IN)
    assert "register_optimizer_step_post_hook is not there in torch ?" in script.observed().reason


@pytest.mark.parametrize(
    ("facts", "calls"),
    [
        ({"ddp": True, "lacking_hooks": {"_broadcast_coalesced": ["", ""]}}, 1),
        ({"ddp": False, "lacking_hooks": {"_broadcast_coalesced": ["", ""]}}, 0),
        ({"ddp": True, "lacking_hooks": {}}, 0),
        ({"sharded": True, "lacking_hooks": {"torch.distributed._functional_collectives": ["", ""]}}, 1),
    ],
)
def test_calls_that_no_hook_sees_are_such_before_the_gradients(facts: dict[str, Any], calls: int) -> None:
    assert len(unseen_calls(facts)) == calls


def test_a_call_of_horovod_goes_on_where_the_record_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Exception] = []
    full: Any = types.SimpleNamespace(
        off=False, elsewhere={"rank": 0}, recorder=types.SimpleNamespace(name=lambda *_: 1), place=lambda: 0, cells=[],
        mark=None, failed=failures.append,
    )  # fmt: skip
    monkeypatch.setattr(recording, "current", full)
    call = horovod_calls._Calls(types.SimpleNamespace()).of_call("all-reduce")(lambda tensor: tensor + 1)
    assert call(1) == 2
    assert [type(error) for error in failures] == [IndexError]
