"""The parser of every command's options: the error about an unknown option names the nearest that exists."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

_UNKNOWN = "unrecognized arguments: "


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser whose error about unknown options names the nearest option of each.

    Description and epilog are shown as they are, line by line, unless another `formatter_class` is given.
    """

    def __init__(self, prog: str | None = None, **options: Any) -> None:
        super().__init__(prog, **{"formatter_class": argparse.RawDescriptionHelpFormatter, **options})

    def error(self, message: str) -> NoReturn:
        """As ArgumentParser: prints usage and message, and exits with 2."""
        unknown = message.removeprefix(_UNKNOWN).split() if message.startswith(_UNKNOWN) else []
        known = sorted(set(self._options()))
        hints = [hint for option in unknown if (hint := _nearest(option, known))]
        super().error("; ".join([message, *hints]))

    def _options(self) -> Iterator[str]:
        """Every option of this parser and of its sub-commands."""
        yield from self._option_string_actions
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._option_string_actions


def _nearest(option: str, known: Sequence[str]) -> str:
    name = option.partition("=")[0]
    nearest = get_close_matches(name, known, n=1) if name.startswith("-") else []
    return f"did you mean {nearest[0]} instead of {name}?" if nearest else ""
