"""Removes secrets and control characters from texts of others: exceptions, logs, host names, variables."""

from __future__ import annotations

import os
import re
import unicodedata

REDACTED = "(left out)"
"""Replaces a secret."""
MAX_EXCEPTION_CHARACTERS = 1 << 16
"""A longer text of an exception, which may hold a whole tensor, is cut."""

# A PKEY is a partition of InfiniBand, tokenizers are no tokens.
_STRONG = re.compile(r"PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL|AUTHORIZATION|BEARER|COOKIE|WEBHOOK|API_?KEY")
_WEAK = re.compile(
    r"(?:TOKENS?|JWT|(?<!_P)KEYS?)(?![A-Z])|(?<![A-Z])(?:(?:SSH|PG)?PASS|PAT|DSN|AUTH)(?![A-Z])|PWD(?![A-Z])"
)
_NONE = frozenset({"PWD", "OLDPWD", "key", "keys"})
"""Where a shell is, and how Python sorts."""
_HARMLESS = frozenset({"", "0", "1", "true", "false", "on", "off", "yes", "no", "none"})
_BY_ITSELF = re.compile(
    r"(?<=://)[^\s/:@'\"]*:[^\s/@'\"]+(?=@)"  # https://user:password@host
    r"|\b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abp]-|AKIA|AIza)[\w-]{16,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|\b(?i:Bearer|Basic)\s+[\w.~+/=-]{12,}"
    r"|-----BEGIN[A-Z ]{0,20} PRIVATE KEY-----(?:.|\n)*?(?:-----END[A-Z ]{0,20} PRIVATE KEY-----|\Z)"
)
_NAMED = re.compile(
    r"(?P<quote>['\"]?)(?P<assigned>(?<![\w.-])[A-Za-z_][\w.-]*)="  # NAME=value, 'NAME=some value'
    r"|(?P<around>['\"])(?P<item>[A-Za-z_][\w.-]*)(?P=around)\s*:\s*"  # {'name': 'value'}
    r"|(?<![\w-])--?(?P<flag>[A-Za-z][\w-]*)[ \t]+(?!-)"  # --name value
    r"|(?<![\w.-])(?P<field>[A-Za-z_][\w.-]*):[ \t]+"  # Name: value
)
# One word of a shell: quoted and unquoted parts; an unclosed quote reaches to the end.
_SHELL_TOKEN = re.compile(r"(?:'[^']*(?:'|\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\Z)|\\.|[^\s'\"\\])*", re.DOTALL)
_VALUE = re.compile(r"'(?:[^'\\]|\\.)*(?:'|\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\Z)|[^\s,}\]]*", re.DOTALL)
_LINE = re.compile(r"[^\n]*")


def is_secret(name: str, value: str | None = None) -> bool:
    """Whether a variable of that name may hold a secret; with its value, whether that does."""
    if value is not None and _BY_ITSELF.search(value):
        return True
    if value is not None and value.lower() in _HARMLESS:
        return False
    normalised = _upper_snake(name)
    return name not in _NONE and bool(_STRONG.search(normalised) or _WEAK.search(normalised))


def without_secrets(text: str) -> str:
    """The text with REDACTED in place of every value that looks like a secret, by its name or by itself."""
    parts, at = [], 0
    for match in _NAMED.finditer(text):
        if match.start() >= at and (end := _end_of_secret(match, text)) is not None:
            parts += [text[at : match.end()], REDACTED]
            at = end
    return _BY_ITSELF.sub(REDACTED, "".join([*parts, text[at:]]))


def plain(text: str) -> str:
    """The text with every character that could steer a terminal, hide, or begin a line, as its escape."""
    if text.isprintable():
        return text
    return "".join(ascii(c)[1:-1] if unicodedata.category(c)[0] == "C" or c in "\u2028\u2029" else c for c in text)


def exception_text(error: BaseException) -> str:
    """The text of an exception, whatever its `__str__` does, cut to MAX_EXCEPTION_CHARACTERS."""
    try:
        return str(error)[:MAX_EXCEPTION_CHARACTERS]
    except BaseException as failure:  # noqa: BLE001 - a workload's own exception may raise anything here
        return f"(its text cannot be shown: __str__ raised {type(failure).__name__})"


def deny_world_writing() -> None:
    """Keeps files that this process or its children make from being writable by all users, whatever the umask was."""
    os.umask(os.umask(0o077) | 0o002)


def _end_of_secret(match: re.Match[str], text: str) -> int | None:
    """The end of the value behind a matched name; None where the value is no secret."""
    groups = match.groupdict()
    if name := groups["assigned"]:
        if not is_secret(name):
            return None
        closed = text.find(groups["quote"], match.end()) if groups["quote"] else -1
        value = _SHELL_TOKEN.match(text, match.end() if closed < 0 else closed + 1)
    elif name := groups["item"]:
        value = _VALUE.match(text, match.end()) if is_secret(name) else None
    elif name := groups["flag"]:
        value = _SHELL_TOKEN.match(text, match.end()) if is_secret(name) else None
    else:
        name = groups["field"]
        of_error = name.endswith(("Error", "Exception", "Warning"))
        value = _LINE.match(text, match.end()) if _STRONG.search(_upper_snake(name)) and not of_error else None
    return None if value is None else value.end()


def _upper_snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[.-]", "_", name).upper()
