"""Log formats as data: a table of a TOML file each (docs/logs.md has how to write one)."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

from hpc.system.regular_file import parse_toml, read_text
from hpc.system.text import nearest
from parse.logs.engine.log_format import FACTS, LogFormat, LogPattern, StepLine
from parse.logs.formats.computed import COMPUTED, UNSET
from parse.logs.line_pattern import RATE, WHOLE_FACTS, WORK, LinePattern, OtherLine, PatternError, pattern_format

SHARED = "shared.toml"
"""What several shipped formats have in common: pieces of expressions by name, and lines."""
MAX_FILE_BYTES, MAX_FORMATS, MAX_LINES = 1 << 20, 100, 200
SECTIONS = {
    "pauses": "pause", "facts": "facts", "evaluations": "evaluation", "epochs": "epoch", "summaries": "summary",
    "headings": "heading", "remarks": "remark",
}  # fmt: skip
"""The lists of lines besides `steps`, with the kind of record that each makes."""
CHOICES = {
    "unit": ("samples", "tokens"), "rates": ("all", "rank"), "printed": ("rates", "durations"),
    "numbered": ("epoch", "run"), "counts": ("steps", "samples"),
}  # fmt: skip
_TYPES = {field.name: type(field.default) for field in dataclasses.fields(LogFormat)} | {"title": str, "mean_from": int}
KINDS = {str: "text", bool: "true or false", int: "whole number"}
PROPERTIES = (
    "title", *CHOICES, "publishes_mean", "warmup", "total", "model", "task", "from_zero", "mean_from", "bars",
    "one_bar", "anywhere", "signs",
)  # fmt: skip
SHIPPED = ("like", "continued", "unset")
"""Further properties of shipped formats."""
ENTRY = ("line", "marker")
ENTRY_SHIPPED = ("regex", "block", "by", "before", "arguments", "parameters", "settings")
"""What shipped formats alone may say of a line: expressions are not bounded by themselves."""
PARAMETER_TEXT = re.compile(r"(?:^|  )(\w+) : ((?:(?!  | $).)*)")
PARAMETER_JSON = re.compile(r'"(\w+)": (\[[^\]]{0,1000}\]|"[^"]{0,1000}"|[^",{}]+)')
ARGUMENT = re.compile(r"\b(\w+)=('[^']{0,1000}'|\[[^\]]{0,1000}\]|[^,()]*)")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_THOUSANDS = re.compile(r"\d[\d,]*(?:\.\d+)?,?")
_TEMPLATE = re.compile(r"\{(\w+)\}")
_CLASS = re.compile(r"^(?:<[\w.]*\.)?(?:Fres)?(\w+)")


line_pattern = cache(LinePattern)
"""The form of a step line, taken apart once."""


class FormatError(ValueError):
    """A file of formats cannot be used; the text names the table, the field, and what to do."""


def _class(text: str) -> str:
    match = _CLASS.search(text)
    return match[1] if match else text


def _number(text: str) -> str:
    """A number without its commas; any other text as it is."""
    return text.replace(",", "") if _THOUSANDS.fullmatch(text) else text


WAYS: Mapping[str, Callable[[str], str]] = {
    "": lambda text: text,
    "count": lambda text: str(sum(bool(part.strip()) for part in text.split(","))),
    "product": lambda text: str(math.prod(map(int, re.findall(r"\d+", text)))),
    "share": lambda text: f"{float(text) * 100:.6g}",
    "thousandths": lambda text: f"{float(text) * 100:.3f}",
    "error": lambda text: f"{(1 - float(text)) * 100:.6g}",
    "stem": lambda text: PurePosixPath(text).stem,
    "joined": lambda text: text.replace(" ", "_"),
    "class": _class,
}
"""How a text becomes a value, by what stands behind `__` in the name of its group: `top1__share` is a share of 1, and
`thousandths` one to three decimals of a percent. `count` counts what stands between commas, `product` multiplies all
whole numbers, `class` is the name in `FresResNet50` and in `<plsc.models.resnet.ResNet object at 0x…>`."""


def shipped() -> tuple[LogFormat, ...]:
    """The formats of this folder's files, in their order; those of progress bars that any program draws come last, and
    behind them those without steps."""
    formats: list[LogFormat] = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        if path.name != SHARED:
            formats += _formats(parse_toml(read_text(path)), path.name, shared=_shared())
    return tuple(sorted(formats, key=lambda each: (not each.steps, each.anywhere)))


def formats_of(path: Path) -> tuple[LogFormat, ...]:
    """The formats of a person's file. Raises FormatError."""
    try:
        tables = parse_toml(read_text(path, MAX_FILE_BYTES))
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise FormatError(f"is no TOML: {error}") from None
    if not 0 < len(tables) <= MAX_FORMATS:
        raise FormatError(f"has {len(tables)} tables: a format is a table [its-name], 1 to {MAX_FORMATS} of them")
    return tuple(_formats(tables, "", shared=None))


@cache
def _shared() -> Mapping[str, Any]:
    return parse_toml(read_text(Path(__file__).parent / SHARED))


def _formats(tables: Mapping[str, Any], file: str, *, shared: Mapping[str, Any] | None) -> Iterator[LogFormat]:
    for name, table in tables.items():
        try:
            if not isinstance(table, dict):
                raise FormatError("is no table: a format begins with [its-name]")
            yield _Declaration(name, table, shared).log_format()
        except (FormatError, PatternError) as error:
            raise FormatError(f"{f'{file}, ' if file else ''}[{name}] {error}") from None


def _unknown(name: str, known: Sequence[str], what: str) -> str:
    near = nearest(name, known)
    return f"{name}: no such {what}; " + (f"did you mean {near}? " if near else "") + f"There are {', '.join(known)}"


def check_other_line(line: OtherLine, constants: Sequence[tuple[str, str]], where: str) -> None:
    """Raises FormatError where a line that is no step can be none, or what it says besides cannot be made of it."""
    try:
        line.check()
    except PatternError as error:
        raise FormatError(f"{where} {error}") from None
    for key, value in constants:
        if unknown := {*_TEMPLATE.findall(value)} - {*line.groups}:
            raise FormatError(f"{where} {key} = {value!r}: its line has no {{{min(unknown)}}}")
        if key in WHOLE_FACTS and not re.fullmatch(r"[0-9.]*", _TEMPLATE.sub("", value)):
            raise FormatError(f"{where} {key} = {value!r}: is no number")


class _Declaration:
    """The table of one format; `shared` is None for a person's."""

    def __init__(self, name: str, table: Mapping[str, Any], shared: Mapping[str, Any] | None) -> None:
        self.name, self.table, self.shared = name, table, shared
        self.is_shipped = shared is not None
        self.fragments: Mapping[str, str] = shared["fragments"] if shared else {}
        self._like = [shared["lines"][each] for each in table.get("like", ())] if shared else []

    def log_format(self) -> LogFormat:
        if not _NAME.fullmatch(self.name):
            raise FormatError("is no name of a format: small letters, digits and -, 40 at most")
        known = ("steps", *SECTIONS, *PROPERTIES, "values", *(SHIPPED if self.is_shipped else ()))
        for key in self.table:
            if key not in known and not (self.is_shipped and isinstance(self.table[key], dict)):
                raise FormatError(_unknown(key, known, "property"))
        steps = tuple(self._step(entry, where) for entry, where in self._entries("steps"))
        if not steps and not self.is_shipped:
            raise FormatError(
                "steps: it has none; write steps = ['the form of a step line'], in the words of --pattern"
            )
        properties = {key: self._property(key) for key in PROPERTIES if key in self.table}
        words = self.table.get("values", {})
        if not isinstance(words, dict) or not all(
            isinstance(each, dict) and all(isinstance(text, str) for text in each.values()) for each in words.values()
        ):
            raise FormatError(
                "values: is no table of facts, each with its words: values.precision = { O1 = 'amp-fp16' }"
            )
        return LogFormat(
            **{"title": self.name, **self._by_lines(properties), **properties},
            name=self.name,
            steps=steps,
            patterns=tuple(self._patterns()),
        )

    def _by_lines(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """What the fields of its step lines say: their unit, whether of all devices, and whether they are rates."""
        entries = [entry for entry, _ in self._entries("steps")]
        texts = [entry if isinstance(entry, str) else entry.get("line") for entry in entries]
        lines = tuple(line_pattern(text) for text in texts if text)
        derived: dict[str, Any] = {}
        if lines:
            of_lines = pattern_format(lines)
            derived["continued"] = of_lines.continued
            if any(field.kind in (RATE, WORK) for line in lines for field in line.fields):
                derived |= {"unit": of_lines.unit, "rates": of_lines.rates}
            if len(lines) == len(texts):
                numbered = "epoch" if any("epoch" in line.names for line in lines) else "run"
                derived |= {"printed": of_lines.printed, "numbered": numbered}
        for key in ("unit", "rates"):
            if derived.get(key, properties.get(key)) != properties.get(key, derived.get(key)):
                raise FormatError(f"{key} = {properties[key]!r}, but the fields of its steps say {derived[key]!r}")
        if "continued" in self.table:
            derived["continued"] = re.compile(self.table["continued"].encode())
        return derived

    def _entries(self, section: str) -> Iterator[tuple[Any, str]]:
        """The lines of a section, and those of others that it is like, each with its place."""
        for table in (self.table, *self._like):
            entries = table.get(section, [])
            if not isinstance(entries, list) or len(entries) > MAX_LINES:
                raise FormatError(f"{section}: is no list of at most {MAX_LINES} lines")
            for number, entry in enumerate(entries, start=1):
                yield entry, f"{section}, entry {number}:"

    def _property(self, key: str) -> Any:
        value, kind = self.table[key], _TYPES[key]
        if key == "signs":
            if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
                raise FormatError(f"{key} is no list of texts")
            return tuple(each.encode() for each in value)
        if type(value) is not kind:
            raise FormatError(f"{key} = {value!r}: is no {KINDS[kind]}")
        if key in CHOICES and value not in CHOICES[key]:
            raise FormatError(f"{key} = {value!r}: is not one of {', '.join(CHOICES[key])}")
        if isinstance(value, int) and not 0 <= value < 1 << 40:
            raise FormatError(f"{key} = {value}: must be 0 or more")
        return value

    def _step(self, entry: Any, where: str) -> StepLine:
        entry = self._entry(entry, where)
        if "regex" in entry:
            return StepLine(marker=entry["marker"].encode(), expression=self._expression(entry["regex"]))
        try:
            line = line_pattern(entry["line"]).step_line
        except PatternError as error:
            raise FormatError(f"{where} {error}") from None
        return dataclasses.replace(line, marker=self._marker(entry, where) or line.marker)

    def _patterns(self) -> Iterator[LogPattern]:
        for section, kind in SECTIONS.items():
            for entry, where in self._entries(section):
                yield from self._lines(kind, self._entry(entry, where), where)

    def _entry(self, entry: Any, where: str) -> Mapping[str, Any]:
        """The entry as a table, its keys and texts looked at."""
        entry = {"line": entry} if isinstance(entry, str) else entry
        if not isinstance(entry, dict):
            raise FormatError(f"{where} is neither a line's form nor a table {{line = …}}")
        for key in ENTRY_SHIPPED:
            if key in entry and not self.is_shipped:
                raise FormatError(
                    f"{where} {key}: only line, the form of a line as --pattern has it, is bounded in time"
                )
        if not self.is_shipped:
            known = (*ENTRY, *FACTS, "reason", "what", "text")
            for key, value in entry.items():
                if key not in known:
                    raise FormatError(f"{where} {_unknown(key, known, 'name')}")
                if not isinstance(value, str):
                    raise FormatError(f"{where} {key} = {value!r}: is no text")
            if missing := {"line", *(["text"] if where.startswith("remarks") else [])} - {*entry}:
                raise FormatError(f"{where} lacks {' and '.join(sorted(missing))}")
        return entry

    def _marker(self, entry: Mapping[str, Any], where: str) -> bytes:
        """The text that all such lines hold as it is written. Raises FormatError where the line's form has it not."""
        marker = str(entry.get("marker", ""))
        if " ".join(marker.split()) not in " ".join(entry["line"].replace("{{", "{").replace("}}", "}").split()):
            raise FormatError(f"{where} marker = {marker!r}: is no text of its line")
        return marker.encode()

    def _expression(self, regex: str | Sequence[str]) -> bytes:
        """An expression with its pieces in place of their names, `{stamp}`."""
        text = regex if isinstance(regex, str) else "".join(regex)
        return _TEMPLATE.sub(self._fragment, text).encode()

    def _fragment(self, match: re.Match[str]) -> str:
        text = self.fragments.get(match[1])
        return match[0] if text is None else _TEMPLATE.sub(self._fragment, text)

    def _lines(self, kind: str, entry: Mapping[str, Any], where: str) -> Iterator[LogPattern]:
        constants = tuple((key, value) for key, value in entry.items() if key not in (*ENTRY, *ENTRY_SHIPPED))
        computed = COMPUTED[entry["by"]] if "by" in entry else None
        read = partial(self._values, constants, computed)
        form = partial(LogPattern, kind=kind, block=bool(entry.get("block")))
        if "line" in entry:
            other = OtherLine(entry["line"])
            if not self.is_shipped:
                check_other_line(other, constants, where)
            marker = self._marker(entry, where) or other.marker
            if kind == "pause" and "reason" not in entry and "reason" not in other.groups:
                read = partial(self._values, (*constants, ("reason", other.words)), computed)
            yield form(marker=marker, expression=lambda: other.expression, values=read)
        elif "settings" in entry:
            marker, regex = (entry.get(key, self.fragments[f"setting_{key}"]) for key in ("marker", "regex"))
            for setting, fact in self._names(entry["settings"]).items():
                yield form(
                    marker=marker.replace("{name}", setting).encode(),
                    expression=self._expression(regex).replace(b"{name}", setting.encode()),
                    values=partial(self._setting, fact),
                )
        elif "arguments" in entry or "parameters" in entry:
            names = self._names(entry.get("arguments") or entry["parameters"])
            ways = (
                [(entry.get("marker", "Namespace("), entry.get("before", "") + r"Namespace\((?P<pairs>.*)", ARGUMENT)]
                if "arguments" in entry
                else [
                    (" - PARAMETER ", "{dll_stamp}PARAMETER (?P<pairs>.*)", PARAMETER_TEXT),
                    ('"PARAMETER"', r'DLLL \{.{0,400}?"step": "PARAMETER", "data": (?P<pairs>\{.*)', PARAMETER_JSON),
                ]
            )
            for text, regex, pairs in ways:
                yield form(
                    marker=text.encode(),
                    expression=self._expression(regex),
                    values=partial(self._named, names, pairs, computed),
                )
        else:
            yield form(marker=entry["marker"].encode(), expression=self._expression(entry["regex"]), values=read)

    # From a line that matched to its values; each raises ValueError where there are none.

    def _values(
        self,
        constants: Sequence[tuple[str, str]],
        computed: Callable[[Mapping[str, str]], Mapping[str, str]] | None,
        match: re.Match[bytes],
    ) -> Mapping[str, str]:
        groups = {name: text.decode(errors="replace") for name, text in match.groupdict().items() if text is not None}
        groups = {name: text for name, text in groups.items() if name not in ("time", "rank", "time_ms")}
        if computed:
            return computed(groups)
        used = {name for _, value in constants for name in _TEMPLATE.findall(value)}
        made = self._made(
            {name: text if "__" in name else _number(text) for name, text in groups.items() if name not in used}
        )
        if not made and groups and not constants:
            raise ValueError("no value is set")
        return made | {name: _TEMPLATE.sub(lambda at: groups.get(at[1], ""), value) for name, value in constants}

    def _setting(self, fact: str, match: re.Match[bytes]) -> Mapping[str, str]:
        """A setting's value under the fact's name; of `fact=value` that value, where the setting is on."""
        text = match["value"].decode(errors="replace").strip()
        name, _, value = fact.partition("=")
        made = {} if text in self._unset else self._made({name: value or text})
        if not made:
            raise ValueError("it is not set")
        return made

    def _names(self, table: str) -> Mapping[str, str]:
        """The facts by the program's names for them."""
        return next(each[table] for each in (self.table, *self._like) if table in each)

    @property
    def _unset(self) -> tuple[str, ...]:
        return tuple(self.table.get("unset", UNSET))

    def _named(
        self,
        names: Mapping[str, str],
        form: re.Pattern[str],
        computed: Callable[[Mapping[str, str]], Mapping[str, str]] | None,
        match: re.Match[bytes],
    ) -> Mapping[str, str]:
        """The facts of a program's arguments, and those that follow from several of them."""
        pairs = form.findall(match["pairs"].decode(errors="replace"))
        arguments = {name: value.strip("'\" ") for name, value in pairs}
        texts = {fact: arguments[name] for name, fact in names.items() if arguments.get(name, "") not in UNSET}
        made = self._made(texts)
        return {**made, **(computed(arguments) if computed else {})}

    def _made(self, texts: Mapping[str, str]) -> dict[str, str]:
        """The values of texts by their names, in the words of `values`; what has the word "" is none."""
        values = self.table.get("values", {})
        made = {}
        for name, text in texts.items():
            fact, _, way = name.partition("__")
            value = WAYS[way](text)
            made[fact] = values.get(fact, {}).get(value, value)
        return {fact: value for fact, value in made.items() if value != ""}
