"""AI-Rank's marks, `- AI-Rank-log <time> test_begin` and the like; they occur in logs of any format, or alone.

In practice the dash in front is missing, the time is a date or missing too, a mark has a blank for its underscore, and
what else a program prints behind the same prefix (steps, losses) is no mark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, LogPattern, fact

MAX_TEXT = 200
"""Maximum of characters stored of a value."""
MARKS = (
    "load_data", "test_begin", "warmup_begin", "warmup_finish", "eval_accuracy", "target_quality_time", "test_finish",
    "total_use_time", "avg_ips", "total_epoch_cnt",
)  # fmt: skip
"""The kinds of lines; the first one on a line is its kind. Only `total_epoch_cnt` marks the end of an epoch."""
SPELT = {"test_end": "test_finish", "total_used_time": "total_use_time"}
"""Other names of one of them; inference's logs end with test_end."""
NUMBERS = ("eval_accuracy", "target_quality_time", "total_use_time", "avg_ips", "total_epoch_cnt", "warmup_samples")

_SPELLINGS = "|".join(name.replace("test_", "test[ _]") for name in (*MARKS, *SPELT))
_PREFIX = (
    r"AI[-_]Rank[-_ ]?[Ll]og\b[ \t:\-]*+"
    r"(?:(?P<time>\d{9,10}(?:\.\d+)?|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)[ \t:,\-]++)?"
)
_NAME = re.compile(rf"\b(?:{_SPELLINGS})\b")
_VALUE = re.compile(
    rf"\b(?P<name>{'|'.join((*NUMBERS, 'total_used_time'))})"
    r"\s*[:：=]?\s*(?P<number>[+-]?\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?P<unit>[A-Za-z]+(?:/[A-Za-z]+)?)?"
)
_CHECKSUM = r"checksum\s*(?::|：|=)\s*"


def _mark(match: re.Match[bytes]) -> Mapping[str, str]:
    text = match["text"].decode(errors="replace")
    names = _NAME.search(text)
    if names is None:
        raise ValueError("no mark")
    values = {"mark": _name(names[0])}
    if (printed := names[0]) != values["mark"]:
        values["printed"] = printed
    if match["time"] is None:
        values["untimed"] = "yes"
    for value in _VALUE.finditer(text):
        values.setdefault(_name(value["name"]), value["number"].replace(",", "")[:MAX_TEXT])
        if value["unit"] and _name(value["name"]) == values["mark"]:
            values["unit"] = value["unit"][:MAX_TEXT]
    if checksum := re.search(_CHECKSUM + r"(\S+)", text):
        values["checksum"] = checksum[1][:MAX_TEXT]
    return values


def _name(printed: str) -> str:
    name = printed.replace(" ", "_")
    return SPELT.get(name, name)


PATTERNS = (
    LogPattern("mark", b"AI-Rank", rf"{_PREFIX}(?P<text>[^\r\n]*?\b(?:{_SPELLINGS})\b[^\r\n]*)".encode(), _mark),
    fact(b"AI-Rank", rf"{_PREFIX}[^\r\n]*?{_CHECKSUM}(?P<checksum>[^\s,]{{1,{MAX_TEXT}}})".encode()),
)

AI_RANK = LogFormat(name="ai-rank", title="AI-Rank marks alone", steps=(), patterns=PATTERNS)
