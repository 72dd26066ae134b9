"""A person's own step lines: `step {step:d} … {samples_per_s:f} img/s`, compiled to a LogFormat (docs/logs.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise

from hpc.system.text import nearest as nearest_name
from parse.logs.engine.fields import DATED_STAMP, MAX_DIGITS, TIME_STAMP, Field
from parse.logs.engine.log_format import FACTS, LogFormat, StepLine, fact

WHOLE, RATE, DURATION, TIME, WORD = "whole number", "rate", "duration", "time stamp", "word"
MEAN, SINCE, WORK = "running mean", "elapsed time", "work"
FACT, REAL, TEXT = "whole number, with commas or without", "number", "word that is read"
_REALS = (RATE, DURATION, MEAN, SINCE, WORK)


@dataclass(frozen=True, kw_only=True)
class PatternField:
    """A field that a pattern may name: the group of a step line that it becomes; of a rate its unit and scope."""

    kind: str
    group: str = ""
    unit: str = "samples"
    rates: str = "all"


FIELDS = {
    "step": PatternField(kind=WHOLE, group="step"),
    "epoch": PatternField(kind=WHOLE, group="epoch"),
    "epoch_steps": PatternField(kind=WHOLE, group="epoch_steps"),
    "rank": PatternField(kind=WHOLE, group="rank"),
    "samples_per_s": PatternField(kind=RATE, group="rate"),
    "tokens_per_s": PatternField(kind=RATE, group="rate", unit="tokens"),
    "samples_per_s_per_device": PatternField(kind=RATE, group="rate", rates="rank"),
    "tokens_per_s_per_device": PatternField(kind=RATE, group="rate", unit="tokens", rates="rank"),
    "seconds": PatternField(kind=DURATION, group="duration_s"),
    "ms": PatternField(kind=DURATION, group="duration_ms"),
    "steps_per_s": PatternField(kind=DURATION, group="steps_per_s"),
    "mean_s": PatternField(kind=MEAN, group="mean_s"),
    "mean_ms": PatternField(kind=MEAN, group="mean_ms"),
    "elapsed_s": PatternField(kind=SINCE, group="since_s"),
    "elapsed_ms": PatternField(kind=SINCE, group="since_ms"),
    "elapsed": PatternField(kind=SINCE, group="runtime"),
    "samples": PatternField(kind=WORK, group="batch"),
    "tokens": PatternField(kind=WORK, group="batch", unit="tokens"),
    "total_samples": PatternField(kind=WORK, group="consumed"),
    "total_tokens": PatternField(kind=WORK, group="consumed", unit="tokens"),
    "total_billion_tokens": PatternField(kind=WORK, group="consumed_billions", unit="tokens"),
    "interval_s": PatternField(kind=DURATION, group="elapsed_s"),
    "first_step": PatternField(kind=WHOLE, group="first"),
    "mean_samples_per_s": PatternField(kind=MEAN, group="mean_rate"),
    "mean_tokens_per_s": PatternField(kind=MEAN, group="mean_rate", unit="tokens"),
    "time": PatternField(kind=TIME, group="time"),
    "_": PatternField(kind=WORD),
}
"""The fields by name. `seconds` and `ms` are of one step, `mean_…` means of all steps so far, `elapsed_s`
and `elapsed_ms` the time since the training began, `elapsed` that as `12:34` or `1:02:34`; `samples` and `tokens` are
what a step takes in, `total_samples`,
`total_tokens` and `total_billion_tokens` what all steps so far took in; `interval_s` the seconds of all steps from
`first_step`, or from the line before, to `step`; `_` is a word not wanted."""
SPEEDS = tuple(name for name, field in FIELDS.items() if field.kind in (*_REALS, TIME) and field.kind != WORK)
_WORD_FACTS = ("model", "precision", "data", "device", "seed", "checksum", "reason", "what")
WHOLE_FACTS = tuple(name for name in FACTS if name not in _WORD_FACTS)
OTHER_FIELDS = {
    **{name: field for name, field in FIELDS.items() if field.kind in (TIME, WORD)},
    **{name: PatternField(kind=FACT, group=name) for name in WHOLE_FACTS},
    **{name: PatternField(kind=FACT, group=name) for name in ("epoch", "rank", "step")},
    **{name: PatternField(kind=TEXT, group=name) for name in _WORD_FACTS},
    "top1": PatternField(kind=REAL, group="top1"),
    "top1_share": PatternField(kind=REAL, group="top1__share"),
    "samples_per_s": PatternField(kind=REAL, group="rate"),
    "seconds": PatternField(kind=REAL, group="seconds"),
}
"""The fields of lines that are no steps: facts, which are whole numbers or words; of evaluations the accuracy in
percent or as a share of 1; of whole epochs and runs their rate and seconds."""
STAMP = "{time?}"
"""A time stamp with its date, where one stands before the text that follows, MAX_STAMP characters at most."""
MAX_STAMP = 120
MAX_PATTERN = 1000
MAX_GAP, MAX_LINES_GAP = 400, 8000
"""Characters that a `…`, and a `\\n`, match at most."""
LINES = "\\n"
"""Stands for the lines below, those that begin with a blank, up to the text that follows it."""
EITHER = "|"
"""Between the texts of `{a|b}`, of which a line has one; an empty one may be missing."""
CONTINUED = re.compile(rb"\n(?=[ \t])")
MAX_WORD = 200
MAX_PADDING = 32
MAX_SHOWN, MAX_BEFORE = 100, 40
"""Characters of a line that an error shows, and before its first field."""

_TOKENS = re.compile(
    r"(?P<gap>(?:…|\.{3,}|[ \t]*\\n)+)|(?P<blank>[ \t]+)|\{\{|\}\}|\{(?P<field>[^{}]*)\}|(?P<open>\{)"
    r"|[^ \t\\….{}]+|.",
    re.DOTALL,
)
_WHOLE_SPEC = re.compile(r"\d*d?")
_REAL_SPEC = re.compile(r"#?\d*(?:\.\d+)?[dfeg]?")
_DIGITS = tuple(b"%d" % digit for digit in range(10))
_SEPARATORS = frozenset(" ,;|\t")
"""Text of these alone does not identify a number of a line."""
_EMPTY_BEHIND = ",;"
"""A word behind one of these may be empty, as a cell of CSV."""

# Possessive, and all bounded: a pattern is matched in time linear in the line.
_WHOLE = rb"\d{1,%d}+" % MAX_DIGITS
_REAL = rb"\d{1,%d}+(?:\.\d{1,30}+)?+(?:[eE][+-]?\d{1,3}+)?+" % MAX_DIGITS
_HAS_POINT = rb"(?=[\d,]{1,30}+(?:\.\d|[eE]))"
_WITH_COMMAS = rb"(?>(?<!\d,)[1-9]\d{0,2}(?:,\d{3}){1,5}+(?![\d,])(?:\.\d{1,15}+)?+|%b)" % _REAL
"""A number that may have commas between thousands; of `10,123,456` that begins behind a comma there is none."""
_FACT = rb"(?>[1-9]\d{0,2}(?:,\d{3}){1,5}+(?![\d,])|%b)" % _WHOLE
_BLANKS = rb"[ \t]++"
_PADDING = rb"[ \t]{0,%d}+" % MAX_PADDING
_NUMBER_BEGINS = rb"(?<![\w.+-])(?<!\d[,:/])"
"""In the middle of a number, a date or a time of day none begins."""
_NUMBER_ENDS = rb"(?![\dkKMG\x80-\xff]|\.\S|[^\s.][.\d])"
"""What follows a number that no text follows: neither more of it, as of a damaged one (`1,234.5`, `33b3`, `0.[10`), nor
its factor of 1000 (`12k`)."""
_LAST_NUMBER_ENDS = rb"(?:(?!\S)|\.(?!\S)|[^\s\d.kKMG\x80-\xff](?![.\d]))"
"""At the end of a pattern. It takes what follows: lines of one shape are equal up to the end of the match."""
_TIME_BEGINS, _TIME_ENDS = rb"(?<![\d.:/-])", rb"(?:Z|[+-]\d\d:?\d\d)?+(?![\d:])"
_STAMP_ENDS = _TIME_ENDS + rb"(?![\x80-\xff]|[.,][^\sA-Za-z])"


class PatternError(ValueError):
    """A pattern cannot be used; the text names the place and the remedy."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """A part of a pattern: `text`, `either`, `blank`, `gap`, `field` or `stamp`, with its text or its field's name and
    what that is, and its place."""

    kind: str
    text: str
    start: int
    stop: int
    field: PatternField = FIELDS["_"]
    has_point: bool = False
    """Of a field: its number always has a decimal point, `{ms:#f}`."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts that it may be, the longest first, of a text itself; none of another token."""
        texts = self.text.split(EITHER) if self.kind == "either" else [self.text] * (self.kind == "text")
        return tuple(sorted(texts, key=len, reverse=True))

    @property
    def is_wanted(self) -> bool:
        """Whether it is a field that is read."""
        return self.kind == "field" and self.field.kind != WORD


@dataclass(frozen=True)
class LinePattern:
    """A form of step line as a person writes it. Raises PatternError where it can be none."""

    text: str

    def __post_init__(self) -> None:
        _check(self.tokens)

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """Its parts, without blanks, gaps and unwanted words that do not matter at its ends."""
        return _without_ends(tuple(_tokens(self.text, FIELDS)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its fields."""
        return tuple(token.text for token in self.tokens if token.kind == "field")

    @property
    def fields(self) -> tuple[PatternField, ...]:
        return tuple(FIELDS[name] for name in self.names)

    @cached_property
    def step_line(self) -> StepLine:
        """The pattern for the log reader; its longest text is the marker."""
        return StepLine(
            marker=_marker(self.tokens),
            expression=lambda: _regex(self.tokens, len(self.tokens)),
            certain_digits=any(letter.isdigit() for text in _texts(self.tokens) for letter in text),
            written=self.text,
        )


@dataclass(frozen=True)
class OtherLine:
    """The form of a line that is no step: texts, and OTHER_FIELDS."""

    text: str

    def check(self) -> None:
        """Raises PatternError where it can be none."""
        if not any(not _SEPARATORS.issuperset(text) for text in _texts(self.tokens)):
            raise PatternError("it has no text: write one that such lines have")
        _check_places(self.tokens)

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """Its parts."""
        return _without_ends(tuple(_tokens(self.text, OTHER_FIELDS)))

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of what it reads."""
        return tuple(token.field.group for token in self.tokens if token.is_wanted)

    @property
    def words(self) -> str:
        """Its text alone."""
        return "".join(token.text if token.kind in ("text", "blank") else " " for token in self.tokens).strip()

    @property
    def marker(self) -> bytes:
        """Its longest text; all of it where it is nothing but text, which is then taken as it is written."""
        return self.words.encode() if self._is_text else _marker(self.tokens)

    @property
    def expression(self) -> bytes:
        """As a regular expression; a group is named as its value is."""
        tokens = [Token(kind="text", text=self.words, start=0, stop=0)] if self._is_text else self.tokens
        return _regex(tokens, len(tokens))

    @property
    def _is_text(self) -> bool:
        return all(token.kind in ("text", "blank") for token in self.tokens)


_OF_A_GROUP = b"".join(
    rb"(?<!%s[ _-])" % each
    for each in b"parallel local tensor pipeline context expert model data group tp dp pp ep cp".split()
)
SIZES = tuple(
    fact(
        key[-8:],
        rb"(?i)(?<![\w.])%s%s['\"]?(?: ?[:=] ?| ?\.{2,80} ?| )['\"]?(?P<%s>[1-9]\d{0,6})(?![\w.])"
        % (_OF_A_GROUP, key.replace(b" ", b"[ _]"), name),
    )
    for name, keys in (
        (b"world_size", b"world_size|world size|number_of_ranks|num_ranks"),
        (b"nodes", b"number_of_nodes|num_nodes|nnodes"),
        (b"gpus_per_node", b"accelerators_per_node|gpus_per_node|devices_per_node|nproc_per_node|ranks_per_node"),
    )
    for key in keys.split(b"|")
)
"""Keys that say the sizes of a run in logs of any program, `world_size: 16`, none that are of a group of its ranks."""


@cache
def pattern_format(patterns: tuple[LinePattern, ...]) -> LogFormat:
    """The log format whose step lines have one of these forms. Raises PatternError where their rates differ in kind.

    Step numbers are those of the run; where they fall back at a new epoch they restart in each.
    """
    fields = [field for pattern in patterns for field in pattern.fields]
    rates = [field for field in fields if field.kind == RATE]
    for first, other in pairwise(rates):
        if (first.unit, first.rates) != (other.unit, other.rates):
            raise PatternError("the rates of all patterns must count the same: samples or tokens, of all or per device")
    units = {field.unit for field in fields if field.kind in (RATE, WORK) or field.group == "mean_rate"}
    if len(units) > 1:
        raise PatternError("what steps take in and the rates must count the same: samples or tokens")
    groups = {field.group for field in fields}
    return LogFormat(
        name="pattern",
        title="lines of the form --pattern",
        steps=tuple(pattern.step_line for pattern in patterns),
        patterns=SIZES,
        unit=next(iter(units), "samples"),
        rates=rates[0].rates if rates else "all",
        printed="rates" if groups & {"rate", "mean_rate"} else "durations",
        numbered="run",
        continued=CONTINUED
        if any(LINES in token.text for pattern in patterns for token in pattern.tokens if token.kind == "gap")
        else None,
    )


def _texts(tokens: Sequence[Token]) -> list[str]:
    return [token.text for token in tokens if token.kind == "text"]


def _marker(tokens: Sequence[Token]) -> bytes:
    return max(_texts(tokens), key=len, default="").encode()


def _tokens(text: str, fields: Mapping[str, PatternField]) -> Iterator[Token]:
    if len(text) > MAX_PATTERN or "\n" in text or "\r" in text:
        raise PatternError(f"a pattern is one line of {MAX_PATTERN} characters at most")
    literal, begin, after = "", 0, 0
    if text.startswith(STAMP):
        after = len(STAMP) + len(text) - len(STAMP) - len(text[len(STAMP) :].lstrip(" \t…"))
        yield Token(kind="stamp", text=text[:after], start=0, stop=after)
    for match in _TOKENS.finditer(text, after):
        kind = match.lastgroup
        if kind is None:
            begin = begin if literal else match.start()
            literal += match[0][:1] if match[0] in ("{{", "}}") else match[0]
            continue
        if literal:
            yield Token(kind="text", text=literal, start=begin, stop=match.start())
            literal = ""
        if kind == "open":
            raise PatternError(f"character {match.start() + 1}: {{ without }}; {{{{ matches a brace of the line")
        if kind == "field" and EITHER in match["field"]:
            yield Token(kind="either", text=match["field"], start=match.start(), stop=match.end())
            continue
        name = _field(match["field"], match.start(), fields) if kind == "field" else match[0]
        of_line = fields[name] if kind == "field" else FIELDS["_"]
        has_point = kind == "field" and ":#" in match["field"]
        yield Token(kind=kind, text=name, start=match.start(), stop=match.end(), field=of_line, has_point=has_point)
    if literal:
        yield Token(kind="text", text=literal, start=begin, stop=len(text))


def _field(written: str, start: int, fields: Mapping[str, PatternField]) -> str:
    """The name of a field. Raises PatternError if there is none of that name, or its type is another."""
    where = f"character {start + 1}: {{{written}}}"
    name, colon, spec = written.partition(":")
    if name == "time?":
        raise PatternError(f"{where}: a time stamp that may be missing is the first of a pattern")
    if name not in fields:
        near = nearest_name(name, fields)
        meant = f"did you mean {{{near}}}? " if near else ""
        raise PatternError(
            f"{where}: no such field; {meant}Fields: {', '.join(fields)} (any word that is not wanted); "
            "{{ and }} are braces of the line"
        )
    kind = fields[name].kind
    if kind in (WHOLE, FACT) and not _WHOLE_SPEC.fullmatch(spec):
        raise PatternError(f"{where}: {name} is a whole number, {{{name}:d}}")
    if kind in (*_REALS, REAL) and name != "elapsed" and not _REAL_SPEC.fullmatch(spec):
        raise PatternError(f"{where}: {name} is a number, {{{name}:f}}")
    if (kind in (TIME, WORD, TEXT) or name == "elapsed") and colon:
        raise PatternError(f"{where}: {name} has no type, {{{name}}}")
    return name


def _without_ends(tokens: Sequence[Token]) -> tuple[Token, ...]:
    first = next((place for place, token in enumerate(tokens) if token.kind not in ("blank", "gap")), 0)
    is_by_order = all(_SEPARATORS.issuperset(text) for text in _texts(tokens))  # then all words of the line count
    ending = ("text", "either", *(["field"] if is_by_order else []))
    wanted = [place for place, token in enumerate(tokens, 1) if token.kind in ending or token.is_wanted]
    return tuple(tokens[first : max(wanted, default=0)])


def _check(tokens: Sequence[Token]) -> None:
    """Raises PatternError if the fields make no step line, or do not fix which words they match."""
    names = [token.text for token in tokens if token.kind == "field"]
    missing = ["{step}"] if "step" not in names else []
    has_stamp = any(token.kind == "stamp" for token in tokens)
    if not has_stamp and not set(names) & set(SPEEDS):
        missing.append(f"one of {', '.join(f'{{{name}}}' for name in SPEEDS)}")
    if missing:
        raise PatternError(f"it lacks {' and '.join(missing)}")
    for kind in _REALS:
        if len(of_kind := [name for name in names if FIELDS[name].kind == kind]) > 1:
            raise PatternError(f"{' and '.join(of_kind)}: a line has one {kind}")
    if ("time" in names or has_stamp) and any(FIELDS[name].kind == SINCE for name in names):
        raise PatternError("a line has one time: a time stamp, or the time since the training began")
    _check_places(tokens)


def _check_places(tokens: Sequence[Token]) -> None:
    """Raises PatternError if fields do not fix which words they match."""
    names = [token.text for token in tokens if token.kind == "field"]
    if has_stamp := any(token.kind == "stamp" for token in tokens):
        names.append("time")
    for place, name in enumerate(names):
        if name != "_" and name in names[:place]:
            raise PatternError(f"it has {{{name}}} twice")
    if has_stamp and not (_segments(tokens) and _is_anchored(_segments(tokens)[0])):
        raise PatternError(f"behind {STAMP} no text fixes which word of the line is meant: write the text beside it")
    for token, following in pairwise(tokens):
        if token.kind == following.kind == "field":
            raise PatternError(
                f"character {following.start + 1}: no text separates {{{token.text}}} and {{{following.text}}}"
            )
    for segment in _segments(tokens)[1:-1]:
        if not _is_anchored(segment):
            raise PatternError(
                f"character {segment[0].start + 1}: between two … no text fixes which word of the line "
                f"{{{next(token.text for token in segment if token.kind == 'field')}}} is: write the text beside it"
            )


def _segments(tokens: Sequence[Token]) -> list[list[Token]]:
    """The parts between gaps."""
    segments: list[list[Token]] = [[]]
    for token in tokens:
        if token.kind in ("gap", "stamp"):
            segments.append([])
        else:
            segments[-1].append(token)
    return [segment for segment in segments if any(token.kind != "blank" for token in segment)]


def _is_anchored(segment: Sequence[Token]) -> bool:
    """Whether its text, or a time stamp, fixes its place in a line."""
    return any(
        not _SEPARATORS.issuperset(token.text) if token.kind == "text" else token.text == "time"
        for token in segment
        if token.kind in ("text", "field")
    )


def _regex(tokens: Sequence[Token], count: int) -> bytes:
    """The regular expression of the first `count` tokens; of all, with the rule for numbers that no text anchors.

    A pattern that begins with such numbers matches from the beginning of a line; where it ends with them no other
    number may follow in the line.
    """
    segments = _segments(tokens)
    parts = [] if _is_anchored(segments[0]) else [rb"^[ \t]*+"]
    in_gap = False
    for place, token in enumerate(tokens[:count]):
        before, behind = _neighbour(tokens, place, -1), _neighbour(tokens, place, 1)
        if token.kind == "gap":
            parts.append(
                (b")" if in_gap else b"") + rb"(?>[^\n]{0,%d}?" % (MAX_LINES_GAP if LINES in token.text else MAX_GAP)
            )
            in_gap = True
        elif token.kind == "stamp":
            parts.append(rb"(?:(?<!\d)(?<!\d[-/])(?P<time>%b)%b[^<\n]{0,%d}?)?" % (DATED_STAMP, _STAMP_ENDS, MAX_STAMP))
        elif token.kind == "blank":
            # Beside a gap, blanks only say that a word ends or begins there.
            parts.append(b"" if "gap" in (before, behind) else _BLANKS)
        elif token.kind == "text":
            literal = re.escape(token.text.encode())
            is_word = token.text[0].isalnum() and (
                place == 0 or before == "stamp" or (tokens[place - 1].kind == "blank" and before == "gap")
            )
            # The text comes first: a lazy repeat that a plain character follows is a fast search.
            parts.append(literal + (rb"(?<!\w%b)" % literal if is_word else b""))
            if behind == "gap" and tokens[place + 1].kind == "blank" and token.text[-1].isalnum():
                parts.append(rb"(?!\w)")
        elif token.kind == "either":
            parts.append(rb"(?>%b)" % b"|".join(map(_loosely, token.choices)))
        else:
            following = tokens[place + 1].choices if behind in ("text", "either") else ()
            least = 0 if before == "text" and tokens[place - 1].text[-1] in _EMPTY_BEHIND else 1
            parts.append(_field_regex(token, before, behind, following, least))
    parts.append(b")" if in_gap else b"")
    if count == len(tokens) and not _is_anchored(segments[-1]):
        parts.append(rb"[^\d\n]{0,%d}+$" % MAX_GAP)
    return b"".join(parts)


def _neighbour(tokens: Sequence[Token], place: int, direction: int) -> str:
    """The kind of the token before (-1) or behind (1): `gap` also where blanks are between; empty at the ends."""
    kinds = [tokens[at].kind for at in (place + direction, place + 2 * direction) if 0 <= at < len(tokens)]
    return "gap" if kinds[:2] == ["blank", "gap"] else kinds[0] if kinds else ""


def _loosely(text: str) -> bytes:
    """A text, whatever its blanks are."""
    return _BLANKS.join(re.escape(part.encode()) for part in re.split(r"[ \t]+", text))


def _field_regex(token: Token, before: str, behind: str, following: tuple[str, ...], least: int) -> bytes:
    """A field between tokens of these kinds; `following` are the texts that may be behind it. A word has `least`
    characters."""
    field = token.field
    if field.kind in (WORD, TEXT):
        name = b"?P<%b>" % field.group.encode() if field.kind == TEXT else b"?:"
        padding = _PADDING if before in ("text", "either") else b""
        if behind in ("gap", ""):
            return padding + rb"(%b\S{%d,%d}+)" % (name, least, MAX_WORD)
        stop = b"|".join(_loosely(text) if text else rb"[ \t]|$" for text in following) or rb"[ \t]"
        return padding + rb"(?>(%b\S{%d,%d}?)(?=%b))" % (name, least, MAX_WORD, stop)
    if field.kind == TIME:
        return (_TIME_BEGINS if before in ("gap", "") else b"") + rb"(?P<time>%b)" % TIME_STAMP + _TIME_ENDS
    begin = _NUMBER_BEGINS if before in ("gap", "stamp", "") else b"" if before == "blank" else _PADDING
    if field.group == "runtime":
        return begin + rb"(?P<runtime>(?:\d{1,4}:)?\d\d:\d\d)(?![\d:])"
    digits = _WHOLE if field.kind == WHOLE else _REAL if "".join(following).startswith(",") else _WITH_COMMAS
    digits = _FACT if field.kind == FACT else digits
    ends = {"gap": _NUMBER_ENDS, "": _LAST_NUMBER_ENDS}.get(behind, b"")
    point = _HAS_POINT if token.has_point else b""
    return begin + point + rb"(?P<%b>%b)" % (field.group.encode(), digits) + ends


def as_pattern(line: bytes, fields: Mapping[str, Field], log_format: LogFormat) -> str:
    """A step line in the words of a pattern: as it is printed, with the fields' names in their places."""
    begin = max(min(field.first for field in fields.values()) - MAX_BEFORE, 0)
    parts = ["… "] if begin else []
    for group, field in sorted(fields.items(), key=lambda each: each[1].first):
        names = [name for name, each in FIELDS.items() if each.group == group and _counts_as(each, log_format)]
        parts.append(line[begin : field.first].decode(errors="replace").replace("{", "{{").replace("}", "}}"))
        parts.append(f"{{{names[0] if names else group}}}")
        begin = field.stop
    return "".join(parts)


def _counts_as(field: PatternField, log_format: LogFormat) -> bool:
    """Whether the field, where it is of a unit or a scope, has those of the format."""
    if field.kind == RATE:
        return (field.unit, field.rates) == (log_format.unit, log_format.rates)
    return field.unit == log_format.unit if field.kind == WORK or field.group == "mean_rate" else True


def why_unmatched(patterns: Sequence[LinePattern], lines: Sequence[bytes]) -> str:
    """Why no line has the form of a pattern: by the one of these `lines`, the first of a file, that one fits furthest;
    where none has even its beginning, by the texts that they hold."""
    best_share, text = 0.0, _by_texts(patterns, lines)
    for pattern in patterns:
        tokens = pattern.tokens
        for count in range(len(tokens), 0, -1):
            if count / len(tokens) <= best_share:
                break
            hit = None if tokens[count - 1].kind in ("gap", "blank") else _first_match(tokens, count, lines)
            if hit is not None:
                best_share, text = count / len(tokens), _expected(pattern, count, *hit, lines, len(patterns) > 1)
                break
    return f"no line has the form of {' or '.join(f'--pattern {pattern.text!r}' for pattern in patterns)}; {text}"


def _by_texts(patterns: Sequence[LinePattern], lines: Sequence[bytes]) -> str:
    """The first of the lines that hold most of the patterns' texts, and the texts that it lacks."""
    texts = tuple(dict.fromkeys(token.text for pattern in patterns for token in pattern.tokens if token.kind == "text"))
    if not lines:
        return "it has no lines"
    held = [(sum(text.encode() in line for text in texts), any(map(line.__contains__, _DIGITS))) for line in lines]
    place = held.index(max(held))
    if texts and not held[place][0]:
        return f"no line has {' or '.join(map(repr, texts))}"
    lacking = [repr(text) for text in texts if text.encode() not in lines[place]]
    line = _cut(lines[place].decode(errors="replace"))
    return f"line {place + 1} comes nearest, {line!r}" + (f": it lacks {', '.join(lacking)}" if lacking else "")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def _first_match(tokens: Sequence[Token], count: int, lines: Sequence[bytes]) -> tuple[int, int] | None:
    """The place of the first line that the first `count` tokens match, and where the match ends."""
    form = re.compile(_regex((*tokens, Token(kind="blank", text="", start=0, stop=0)), count))
    matches = ((place, form.search(line)) for place, line in enumerate(lines))
    return next(((place, match.end()) for place, match in matches if match), None)


def _expected(pattern: LinePattern, count: int, place: int, end: int, lines: Sequence[bytes], is_named: bool) -> str:
    """What the pattern expects behind its first `count` tokens, which fit a line up to `end`, and what is there."""
    following, reached = pattern.tokens[count:], pattern.tokens[count - 1].stop
    stop = next((token.stop for token in following if token.kind in ("text", "field")), 0)
    text = f"line {place + 1} comes nearest, {_cut(lines[place].decode(errors='replace'))!r}: "
    rest = repr(_cut(lines[place][end:].decode(errors="replace"))) if lines[place][end:] else "nothing"
    if expected := pattern.text[reached:stop]:
        of = f" of {pattern.text!r}" if is_named else ""
        return f"{text}behind character {reached}{of} it expects {expected!r}, and the line has {rest}"
    last = pattern.names[-1]
    return f"{text}{{{last}}} could be another number of it, or goes on with {rest}: write the text beside {{{last}}}"
