"""What a backend or a workload lets itself be told by `--option NAME=VALUE`: kinds, defaults, help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

OptionValue = bool | int | float | str


class OptionError(ValueError):
    """An option is unknown or its value is not of its kind; the text lists what is valid."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option. Its kind is that of `default`; `small` replaces the default where the target has no GPU."""

    default: OptionValue
    help: str
    choices: tuple[str, ...] = ()
    small: str | None = None

    def read(self, name: str, text: str) -> OptionValue:
        """The value that a text stands for. Raises OptionError where it stands for none."""
        if self.choices and text not in self.choices:
            raise OptionError(f"option {name}: {text!r} is not one of {', '.join(self.choices)}")
        if isinstance(self.default, bool):
            if text not in ("on", "off"):
                raise OptionError(f"option {name}: {text!r} is neither on nor off")
            return text == "on"
        if isinstance(self.default, str):
            return text
        try:
            return type(self.default)(text)
        except ValueError:
            kind = "a whole number" if isinstance(self.default, int) else "a number"
            raise OptionError(f"option {name}: {text!r} is not {kind}") from None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question that names the known word nearest to the one that was given; empty where none is near."""
    import difflib  # only a message needs it

    near = difflib.get_close_matches(word, list(known), n=1)
    return f". Did you mean {near[0]}?" if near else ""


def read_options(table: Mapping[str, Option], asked: Mapping[str, str]) -> dict[str, OptionValue]:
    """Every option of the table with the value asked for, else its default; raises OptionError on an unknown name."""
    if unknown := sorted(set(asked) - set(table)):
        known = ", ".join(sorted(table)) or "none"
        raise OptionError(f"unknown option {', '.join(unknown)}; known here: {known}")
    return {name: option.read(name, asked[name]) if name in asked else option.default for name, option in table.items()}
