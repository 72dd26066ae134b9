"""The parser of every command's options: its help fits the terminal, its error about an unknown option names the
nearest that exists."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise, takewhile
from typing import Any, NoReturn

from hpc.system import removed
from hpc.system.command_line import text_width
from hpc.system.sanitize import plain, without_secrets
from hpc.system.text import nearest

_UNKNOWN = "unrecognized arguments: "
_EXAMPLE = "      "
"""Before the text of an example that has no room beside its command."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Fits usage, texts and options to the room for text; lines of a text that fit it are shown unchanged."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"width": text_width() - 2, **options})

    def start_section(self, heading: str | None) -> None:
        """As argparse's, with a heading that fits."""
        super().start_section(heading and textwrap.fill(heading, self._width))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent(fitted(text, width + 2), indent)

    def _format_usage(self, usage: str | None, *arguments: Any) -> str:
        requested, usage = usage, super()._format_usage(usage, *arguments)
        if max(map(len, usage.splitlines())) <= self._width + 2:
            return usage
        lines, indent = [""], " " * 4
        if requested is not None:
            filled = (textwrap.fill(line, self._width + 2, subsequent_indent=3 * indent) for line in usage.splitlines())
            return "\n".join(filled) + "\n\n"
        for part in re.findall(r"\[[^]]*\](?:\.\.\.)?|\S+", usage):
            if len(lines[-1]) + 1 + len(part) > self._width:
                lines.append(indent + part)
            else:
                lines[-1] += f" {part}" if lines[-1] else part
        return "\n".join(lines) + "\n\n"


def fitted(text: str, width: int) -> str:
    """The text, its wider paragraphs refilled. Commands to be copied, which are moved in, stay whole."""
    paragraphs: list[tuple[str, int]] = []  # and the column where the lines after its first one begin
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        begins = not paragraphs or not line or not paragraphs[-1][0] or indent != paragraphs[-1][1]
        gap = re.search(r"(?<=\S) {2,}(?=\S)", line)
        if begins or (gap and not indent):
            paragraphs.append((line, indent if gap is None else gap.end()))
        elif indent and gap is None and not paragraphs[-1][0].startswith(" "):
            paragraphs[-1] = f"{paragraphs[-1][0]} {line.strip()}", indent
        elif indent:
            paragraphs.append((line, indent))
        else:
            paragraphs[-1] = f"{paragraphs[-1][0]} {line}", 0
    return text if max(map(len, text.split("\n"))) <= width else "\n".join(_filled(*each, width) for each in paragraphs)


def _filled(paragraph: str, hanging: int, width: int) -> str:
    if len(paragraph) <= width:
        return paragraph
    if not paragraph.startswith(" "):
        return textwrap.fill(paragraph, width, subsequent_indent=" " * min(hanging, width // 3),
                             break_long_words=False, break_on_hyphens=False)  # fmt: skip
    command, _, rest = paragraph.strip().partition("  ")
    indent = paragraph[: len(paragraph) - len(paragraph.lstrip())]
    if not rest:
        return paragraph
    return f"{indent}{command}\n" + textwrap.fill(
        rest.strip(), width, initial_indent=_EXAMPLE, subsequent_indent=_EXAMPLE
    )


class CheckedAction(argparse.Action):
    """An option whose value is checked against all others once the whole command line is read."""

    def refusal(self, options: argparse.Namespace, outputs: Collection[str]) -> str:
        """Why the command is not carried out; `outputs` are the names of all options of this kind."""
        return ""


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser whose error about unknown options names the nearest option of each.

    Description and epilog are shown unchanged, line by line, as far as there is room for their lines.
    """

    def __init__(self, prog: str | None = None, **options: Any) -> None:
        command = (prog or "").removeprefix("rankwise ")
        self._options_gone = {**removed.OPTIONS.get(command.partition(" ")[0], {}), **removed.OPTIONS.get(command, {})}
        super().__init__(prog, **{"formatter_class": HelpFormatter, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As ArgumentParser; exits with 2 at an option, or a choice of one, that is gone, whatever else is missing, and
        where a CheckedAction refuses."""
        given = [*takewhile(lambda argument: argument != "--", sys.argv[1:] if args is None else args), ""]
        for argument, following in pairwise(given):
            option, assigned, value = argument.partition("=")
            choice = f"{option} {value if assigned else following}"
            if option in self._options_gone and option not in self._option_string_actions:
                super().error(f"{option} is no option any more: {self._options_gone[option]}")
            if choice in self._options_gone:
                super().error(f"{choice} is gone: {self._options_gone[choice]}")
        options, extras = super().parse_known_args(args, namespace)
        checked = [action for action in self._actions if isinstance(action, CheckedAction)]
        for action in checked:
            if reason := action.refusal(options, [each.dest for each in checked]):
                self.error(plain(reason))
        return options, extras

    def error(self, message: str) -> NoReturn:
        """As ArgumentParser, without secrets, and with a line before the usage that names what unknown options mean."""
        unknown = message.removeprefix(_UNKNOWN).split() if message.startswith(_UNKNOWN) else []
        known = sorted(set(self._options()))
        hints = [hint for option in unknown if (hint := _nearest(option, known))]
        if hints:
            print(f"did you mean {', '.join(hints)}?", file=sys.stderr)
        super().error(without_secrets(message))

    def _options(self) -> Iterator[str]:
        """Every option of this parser and of its sub-commands."""
        yield from self._option_string_actions
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._option_string_actions


def _nearest(option: str, known: Sequence[str]) -> str:
    name = option.partition("=")[0]
    near = nearest(name, known) if name.startswith("-") else ""
    return f"{near} instead of {name}" if near else ""
