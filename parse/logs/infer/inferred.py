"""A log of no declared format, read by inference: its step lines, what of them is believed, and the pattern for it."""

from __future__ import annotations

import dataclasses
import shlex
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpc.system.text import plural
from parse.logs.engine.log_format import LogFormat
from parse.logs.engine.reader import ANSI, pieces
from parse.logs.infer.agreement import TOLERANCE, FieldAgreement, agreement_of, series_of, shown
from parse.logs.infer.columns import Heading
from parse.logs.infer.forms import JOINT, MAX_LINE, CountingLine, StepForm, forms_of, joined, line_of, lines_of, sample
from parse.logs.infer.pattern_text import candidate, pattern_of, plain
from parse.logs.infer.refusals import decimal_commas, falls, printed_batch, value_of, why_nothing_counts
from parse.logs.infer.vocabulary import STEP
from parse.logs.infer.words import WordReader
from parse.logs.line_pattern import CONTINUED, LINES, LinePattern, pattern_format
from parse.logs.line_pattern import RATE as PRINTED_RATE
from parse.logs.window import Reading

NAME, TITLE = "inferred", "lines whose fields confirm one another"
WINDOW_BYTES, WINDOW_LINES = 1 << 24, 20_000
"""Of a window so much is held against itself."""
MAX_LISTED = 4
MIN_SHARE = 0.2
"""A form of line that makes up less of the step lines than this is no other training."""
TOGETHER = 0.8
"""So many of the lines of one program have steps of those around them."""


@dataclass(frozen=True, kw_only=True)
class Inference:
    """How a log is read: the `pattern`, in the words of --pattern; `checks` says what confirms it, `unknown` what the
    log does not say, `scope` what a printed rate is of by its words, `batch` a batch size that is printed as `bs 64`,
    `beside` is a remark on the step lines of another program;
    `step` is the name of its step, `per_step` what one takes in by a rate and a time, `heading` what names the columns
    of a table."""

    pattern: LinePattern
    checks: str
    unknown: tuple[str, ...]
    scope: str
    step: str
    per_step: float | None
    heading: Heading | None
    beside: str
    batch: str = ""

    @property
    def log_format(self) -> LogFormat:
        """That of --pattern, under another name."""
        return dataclasses.replace(pattern_format((self.pattern,)), name=NAME, title=f"{TITLE}: {self.checks}")

    def sentence(self, reading: Reading) -> str:
        """The remark that stands beside the number of that reading."""
        missing = f"; not known: {', '.join(self.unknown)}" if self.unknown else ""
        return (
            f"inferred, not declared: {_figures(reading)}{self.checks}{missing}; to confirm or correct: "
            f"--pattern {quoted(self.pattern.text)}"
        )

    def refusal(self, doubt: str) -> str:
        """Why there is no number, for a reason that the window shows."""
        return (
            f"no declared format reads it; its lines are of the form --pattern {quoted(self.pattern.text)}, but {doubt}"
        )

    @property
    def is_rated(self) -> bool:
        """Whether a printed rate makes the number."""
        return any(field.kind == PRINTED_RATE for field in self.pattern.fields)


def _figures(reading: Reading) -> str:
    """The time of a step and the printed rate of the window, by the log's own numbers."""
    window = reading.window or reading.short_window
    if window is None:
        return ""
    step_s = window.seconds / window.steps if window.seconds and window.steps else window.duration_s
    figures = [f"{step_s:.4g} s a step"] if step_s else []
    if window.rate:
        scope = " a device" if reading.log_format.rates == "rank" else ""
        figures.append(f"{window.rate:.6g} {reading.log_format.unit}/s{scope}")
    return f"{', '.join(figures)}: " if figures else ""


def quoted(text: str) -> str:
    """A pattern as a shell takes it."""
    return f'"{text}"' if "'" in text and not set('"$`!\\').intersection(text.replace(LINES, "")) else shlex.quote(text)


def infer(path: Path) -> Inference | str:
    """How the log of no declared format is read; where it has no number that two of its fields confirm, why not, with
    what its lines may mean; an empty text where none of them counts steps. Raises LogError where it cannot be read."""
    texts = list(sample(path))
    unconfirmed: list[StepForm] = []
    counting: list[CountingLine] = []
    for parts in (texts, [joined(part) for part in texts if CONTINUED.search(part)]):
        lines = lines_of(parts)
        counting = counting or [line for part in lines[:1] for line in part]
        forms = sorted(forms_of(lines), key=lambda form: -len(form.lines))
        confirmed = [form for form in forms if form.agreement.is_confirmed]
        if confirmed:
            inference = _inference(confirmed[0], forms, [line for part in lines for line in part])
            return (
                inference if isinstance(inference, str) else dataclasses.replace(inference, batch=printed_batch(texts))
            )
        unconfirmed += forms
    return _unconfirmed(unconfirmed) if unconfirmed else why_nothing_counts(b"".join(texts[:1]), counting)


def _inference(form: StepForm, forms: Sequence[StepForm], lines: Sequence[CountingLine]) -> Inference | str:
    """How the form is read, or why it is not: another form contradicts it, or no pattern reads it."""
    if commas := decimal_commas(form.lines):
        return commas
    if form.may_count_samples:
        return f"{_beginning(form)}, but these may be samples as well as steps: --pattern says which"
    if form.is_bare_bar:
        return (
            f"{_beginning(form)}, but its progress bars do not say what they count: --pattern says that these are steps"
        )
    others = [other for other in forms if other is not form and len(other.lines) >= MIN_SHARE * len(form.lines)]
    for other in others:
        if reason := _contradicts(form, other):
            return reason
    pattern = pattern_of(form, lines)
    if isinstance(pattern, str):
        return f"{_beginning(form)}, but no --pattern reads them: {pattern}"
    agreement = form.agreement
    scope = agreement.speed.column.role.scope if agreement.speed else ""
    unknown = []
    if agreement.speed is not None and scope == "":
        unknown.append("whether the rate is of all devices or of one")
    if agreement.speed is None and agreement.counter is None:
        unknown.append("what a step takes in")
    return Inference(
        pattern=pattern,
        checks=_checks(agreement),
        unknown=tuple(unknown),
        scope=scope,
        step=form.step,
        per_step=agreement.speed.per_step if agreement.speed else None,
        heading=form.lines[0].words.heading,
        beside=next(filter(None, (_beside(form, other) for other in others)), ""),
    )


def _beginning(form: StepForm) -> str:
    agreement = form.agreement
    if not agreement.readings:
        return f"its lines count {form.step or 'steps'!r}, and have no time, no rate and no time stamp beside it"
    return f"its lines count {form.step or 'steps'!r}, and make {'; '.join(agreement.readings[:MAX_LISTED])}"


def _unconfirmed(forms: Sequence[StepForm]) -> str:
    """Why nothing is believed, with the candidates."""
    forms = sorted(forms, key=lambda form: (not form.agreement.against, not form.agreement.readings, -len(form.lines)))
    form = forms[0]
    if commas := decimal_commas(form.lines):
        return commas
    text, back = _beginning(form), falls(form.lines, form.step)
    if not form.agreement.readings:
        return f"{text}{back}"
    if form.agreement.against:
        return f"{text}: they contradict each other ({'; '.join(form.agreement.against)}){back}"
    pattern = candidate(form)
    remedy = f": to read it so, --pattern {quoted(pattern)}" if pattern else ""
    times = [reading for reading in form.agreement.readings if " a step by " in reading]
    problem = "which do not agree" if len(times) > 1 else "which nothing in it confirms"
    problem = "which agree, and do not say whether they are in s or in ms" if form.agreement.is_unit_open else problem
    return f"{text}, {problem}{back}{remedy}"


def _contradicts(form: StepForm, other: StepForm) -> str:
    """Why the other form's lines speak against this one's, as they contradict themselves or have another step; empty
    where they do not."""
    if other.agreement.against:
        return _unconfirmed([other])
    if other.is_of_program and (form.last < other.first or other.last < form.first):
        names = f"{form.step or 'steps'!r} and {other.step or 'steps'!r}"
        return (
            f"two kinds of lines count steps, {names}, one behind the other: it may be two programs in one file; "
            "--pattern says which counts"
        )
    if other.agreement.step_s is None or form.agreement.step_s is None:
        return ""
    if abs(other.agreement.step_s / form.agreement.step_s - 1) <= 2 * TOLERANCE:
        return ""
    return (
        f"two kinds of lines count steps: by one a step takes {form.agreement.step_s:.4g} s, by the other "
        f"{other.agreement.step_s:.4g} s: it may be two programs in one file; --pattern says which counts"
    )


def _beside(form: StepForm, other: StepForm) -> str:
    """A remark on the other form's lines, where their steps are not those of this one's around them."""
    steps = {line.number: step for line in form.lines if line.number and (step := value_of(line, STEP, form.step))}
    places, numbers = sorted(steps), [line.number for line in other.lines if line.number]
    near = float(np.nanmax(form.series.gaps, initial=1))
    apart = 0
    for line in other.lines if places else ():
        at, step = bisect(places, line.number), value_of(line, STEP, other.step)
        around = [steps[place] for place in places[max(at - 1, 0) : at + 1]]
        apart += line.number > 0 and step is not None and not min(around) - near <= step <= max(around) + near
    if apart <= (1 - TOGETHER) * len(numbers):
        return ""
    counted = plural(len(numbers), "line")
    return (
        f"at least {counted}, from line {numbers[0]} on, count {other.step or 'steps'!r} apart from these, as those of "
        "another program, or of parts of a step: they do not count"
    )


def _checks(agreement: FieldAgreement) -> str:
    times = agreement.times
    agreed = f"{' and '.join(shown(each.field) for each in times)} agree" if len(times) > 1 else ""
    speed = agreement.speed.how if agreement.speed else ""
    counter = agreement.counter
    counted = f"{shown(counter.name)} grows by as much in every step" if counter and not speed else ""
    return ", ".join(text for text in (agreed, speed, counted) if text)


# The window of the reading, held against itself.


def why_doubtful(path: Path, inference: Inference, reading: Reading) -> str:
    """Why the number of this reading is not believed: the lines of its window contradict each other, or say less than
    the looked-at ones; empty where they confirm it."""
    window = reading.window or reading.short_window
    if window is None:
        return ""
    reader, pattern = WordReader(inference.heading), inference.log_format.steps[0].pattern
    texts = _window_text(path, window.begin_offset, window.end_offset, goes_on=LINES in inference.pattern.text)
    rows = [
        dataclasses.replace(line, number=number)
        for number, text in texts
        if pattern.search(plain(text)) and (line := line_of(text, reader))
    ]
    back = falls(rows, inference.step)
    series = series_of([line.words for line in rows], inference.step)
    if len(series.steps) < 2:
        return "its window has no two steps to compare"
    agreement = agreement_of(series, trimmed=False, per_step=inference.per_step)
    if agreement.against:
        return f"in its window {'; '.join(agreement.against)}{back}"
    if not agreement.is_confirmed or (inference.is_rated and agreement.speed is None):
        return f"in its window nothing confirms {'; '.join(agreement.readings[:MAX_LISTED])}{back}"
    return ""


def _window_text(path: Path, begin: int, end: int, *, goes_on: bool) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, from one byte of the text to the one that begins at another; carriage returns are
    line ends."""
    count, number = 0, 1
    for buffer, size, offset in pieces(path):
        if offset > end:
            return
        number += buffer.count(b"\n", 0, min(size, max(begin - offset, 0)))
        if offset + size <= begin:
            continue
        text = bytes(memoryview(buffer)[max(begin - offset, 0) : size])
        text = CONTINUED.sub(JOINT, text) if goes_on else text
        place = max(begin, offset)
        for raw in text.split(b"\n"):
            if place > end or place - begin > WINDOW_BYTES or count >= WINDOW_LINES:
                return
            place += len(raw) + 1
            count += 1
            yield number, ANSI.sub(b"", raw[:MAX_LINE]).decode("latin-1")
            number += 1 + raw.count(JOINT)
