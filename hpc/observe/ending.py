"""Records the exception that ends a script, which its exit status does not tell."""

from __future__ import annotations

import sys
from typing import Any

from .observer import Observer

_MAX_CHARACTERS = 2000


def hook(o: Observer) -> None:
    """Records the type and the message of an exception that nothing in the script catches, before it is shown."""

    def make(original: Any) -> Any:
        def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            try:
                name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
                o.recorder.state(exception={"type": name, "message": str(error)[:_MAX_CHARACTERS]})
            except Exception as failure:  # noqa: BLE001 - whatever it is, the script's own error is shown
                o.failed(failure)
            original(kind, error, trace)

        return excepthook

    o.replace(sys, "excepthook", make)
