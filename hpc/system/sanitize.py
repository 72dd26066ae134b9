"""Removes secrets and control characters from texts of others: exceptions, logs, host names, variables."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable

REDACTED = "(left out)"
"""Replaces a secret."""
MAX_EXCEPTION_CHARACTERS = 1 << 16
"""A longer text of an exception, which may hold a whole tensor, is cut."""

# Of names in upper snake case; a PKEY is a partition of InfiniBand, tokenizers are no tokens.
_STRONG = re.compile(
    r"PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL|AUTHORIZATION|BEARER|WEBHOOK|SSH_AUTH|AMZ_SIGNATURE|COOKIES?$"
    r"|(?:API|ACCESS|ACCOUNT|PRIVATE|STORAGE|SIGNING|ENCRYPTION)_?KEY|(?:API|ACCESS|AUTH|REFRESH|SESSION)_?TOKEN"
)
_WEAK = re.compile(r"(?:TOKEN|JWT|PWD|(?:^|_)(?:(?:SSH|PG|DB)?PASS|PAT|DSN|AUTH|PW))$")
_OF_TEXT = re.compile(
    r"(?:^|_)(?:ADD|AUDIO|BEGIN|BLANK|BOS|BOT|CLASS|CLS|CONTEXT|DECODER|DIST|DROP|ENCODER|END|EOD|EOS|EOT|EXTRA|FIM"
    r"|FIRST|FORCED|FORWARD|BACKWARD|GLOBAL|IGNORE|IMAGE|IMG|INPUT|LANG|LANGUAGE|LAST|MASK|MAX|MEMORY|MIN|N|NEXT|NUM"
    r"|OUTPUT|PAD|PATCH|PER|PREFIX|PROMPT|QUERY|REGISTER|SEP|SOS|SOT|SPECIAL|SPEECH|START|STOP|SUFFIX|TARGET|TEXT|TGT"
    r"|THINK|TOOL|UNK|VIDEO|VOCAB|WORD)_?(?:TOKEN|PASS)$"
)
_PLACE = re.compile(r"_(?:FILE|FILENAME|PATH|DIR|FOLDER|NAME|TYPE|LEN|LENGTH|DIM|ENV|VAR|MANAGER|BACKEND|PROVIDER)$")
_SUFFIX = re.compile(r"(?:_?\d+|_(?:VALUE|STR|STRING|B64|BASE64|HEX))$")
_WORKING_FOLDERS = frozenset({"PWD", "OLDPWD"})
_USERS = frozenset({"U", "USER", "PROXY_USER"})
_HARMLESS = frozenset({"", "0", "1", "true", "false", "on", "off", "yes", "no", "none", "null", "auto"})
# A reference to a variable, a place holder, a file.
_NO_VALUE = re.compile(
    r"\$\{[^}]*\}|\$[A-Z_][A-Z0-9_]*|<[^<>]*>|\[[A-Z_]+\]|\*+|(?:~|\.\.?)/.*"
    r"|[\w./~-]+\.(?:json|pem|key|txt|ya?ml|toml|ini|pub|crt)"
)
_NUMBER = re.compile(r"\d{1,3}|\d*\.\d+(?:[eE]-?\d+)?|\d+[eE]\d+|\d+[kKMBT]")
_RANDOM = re.compile(r"(?=(?:\D*\d){3})(?=.*[A-Za-z])[A-Za-z0-9+/=]{20,}")
_USER_AND_PASSWORD = re.compile(r"[^\s:/@]+:(?!\d+$)[^\s/]\S*")
_BY_ITSELF = re.compile(
    r"(?<=://)[^\s/:@'\"]*:[^\s/@'\"]+(?=@)|(?<=://)[\w-]{20,}(?=@)"  # https://user:password@host, https://token@host
    r"|(?<=[?&]sig=)[^\s&'\"]+"
    r"|\b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abp]-|A[KS]IA|AIza|nvapi-|gsk_|ya29\.|dckr_pat_)[\w-]{16,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|\b(?i:Bearer|Basic)\s+[\w.~+/=-]{12,}"
    r"|-----BEGIN[A-Z ]{0,20} PRIVATE KEY-----(?:.|\n)*?(?:-----END[A-Z ]{0,20} PRIVATE KEY-----|\Z)"
)
_NAMED = re.compile(
    r"(?P<quote>['\"]?)(?P<assigned>(?<![\w.-])-{0,2}[A-Za-z_][\w.-]*)"  # NAME=value, --name=value, 'NAME=a value'
    r"(?:=|[ \t]+=[ \t]*(?=['\"]))"
    r"|(?P<around>['\"])(?P<item>[A-Za-z_][\w.-]*)(?P=around)\s*:\s*"  # {'name': 'value'}
    r"|(?P<about>['\"])--?(?P<listed>[A-Za-z][\w.-]*)(?P=about)(?:\s*,\s*|[ \t]+)"  # ['--name', 'value']
    r"|(?<![\w-])--?(?P<flag>[A-Za-z][\w.-]*)(?:[ \t]|\\\n)+"  # --name value, but no prose
    r"(?!--|-[A-Za-z]\b|(?:is|are|was|must|may|and|or|needs?|takes?|has|to|in|for|if|not|with|without)\b)"
    r"|(?<![\w.-])(?P<field>[A-Za-z_][\w.-]*):(?:[ \t]+|(?=[^\s:/]))"  # Name: value
)
# One word of a shell: quoted and unquoted parts; an unclosed quote reaches to the end.
_SHELL_TOKEN = re.compile(r"(?:'[^']*(?:'|\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\Z)|\\.|[^\s'\"\\])*", re.DOTALL)
_VALUE = re.compile(r"'(?:[^'\\]|\\.)*(?:'|\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\Z)|[^\s,}\]]*", re.DOTALL)
_JUDGED = 256
"""Characters of a value that decide, so that the time is linear in a text's length."""
_LINE = re.compile(r"[^\n]*")
_LAST_WORD = re.compile(r"[^\s,}]+(?=[ \t]*(?:[,}\n]|\Z))")


def is_secret(name: str, value: str | None = None) -> bool:
    """Whether a variable, an option or a key of that name may hold a secret; with its value, whether that does.

    The only judge of all that is stored or shown. What a model reads (`--max-token`, `--pad-token-id`, `--key-dim`),
    switches, files and references to variables are no secrets. The name `key` alone is one only of a variable, as in
    `WANDB_KEY`; otherwise its value has to look random.
    """
    text = value or ""
    if _BY_ITSELF.search(text):
        return True
    words = _SUFFIX.sub("", _upper_snake(name))
    if words in _USERS:
        return bool(_USER_AND_PASSWORD.fullmatch(text))
    no_secret = value is not None and (text.lower() in _HARMLESS or text == REDACTED or _NO_VALUE.fullmatch(text))
    if no_secret or words in _WORKING_FOLDERS or _PLACE.search(words):
        return False
    if _STRONG.search(words) or _OF_TEXT.search(words) or _NUMBER.fullmatch(text):
        return bool(_STRONG.search(words))
    is_random = re.search(r"(?:TOKEN|KEY)S?$", words) and _RANDOM.fullmatch(text)
    return bool(is_random or _WEAK.search(words) or (name.isupper() and words.endswith("_KEY")))


def without_secrets(text: str) -> str:
    """The text with REDACTED in place of every value that looks like a secret, by its name or by itself."""
    parts, at = [], 0
    for match in _NAMED.finditer(text):
        if match.start() >= at and (end := _end_of_secret(match, text)) is not None:
            parts += [text[at : match.end()], REDACTED]
            at = end
    return _BY_ITSELF.sub(REDACTED, "".join([*parts, text[at:]]))


def arguments_without_secrets(arguments: Iterable[str]) -> list[str]:
    """The arguments of a command, judged as one line: as `without_secrets`, where a value may be any text."""
    shown, name = [], ""
    for argument in arguments:
        is_option = re.fullmatch(r"--.*|-[A-Za-z]", argument, re.DOTALL)
        if name and not is_option and is_secret(name, argument):
            shown.append(REDACTED)
            name = name if name.endswith("s") else ""  # --api-keys takes several
            continue
        key, assigned, value = argument.partition("=")
        name = argument.lstrip("-") if argument.startswith("-") and not assigned else ""
        secret = value and re.fullmatch(r"[+~-]*[A-Za-z_][\w./@-]*", key) and is_secret(key.lstrip("+~-"), value)
        shown.append(f"{key}={REDACTED}" if secret else without_secrets(argument))
    return shown


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
    groups, at = match.groupdict(), match.end()
    if text.startswith(REDACTED, at):
        return None
    if name := groups["assigned"] or groups["flag"]:
        pattern = _SHELL_TOKEN
    elif name := groups["item"] or groups["listed"]:
        pattern = _VALUE
    else:
        return _end_of_field(groups["field"], match, text)
    closed = text.find(groups["quote"], at) if groups["quote"] else -1
    end = closed if closed >= 0 else _end(pattern, text, at, at + _JUDGED)
    judged = text[at : min(end, at + _JUDGED)]
    if not is_secret(name.lstrip("-"), judged if closed >= 0 else judged.rstrip(",;)]}").strip("'\"")):
        return None
    return _end(pattern, text, at if closed < 0 else closed + 1, len(text))


def _end_of_field(name: str, match: re.Match[str], text: str) -> int | None:
    """As _end_of_secret, of `Name: value`: to the end of the line, or of a weak name one word that is all its entry
    (a line of a log may say `token: the first of them`)."""
    strong, at = _STRONG.search(_upper_snake(name)), match.end()
    if name.endswith(("Error", "Exception", "Warning")) or not (strong or is_secret(name)):
        return None
    if text[at - 1] == ":" and ".py" in name:  # my_secrets.py:Factory
        return None
    if not strong and not re.search(r"(?:\A|[\n{,])[ \t]*\Z", text[max(0, match.start() - 99) : match.start()]):
        return None
    end = _end(_LINE if strong else _LAST_WORD, text, at, len(text))
    return end if end > at and is_secret(name, text[at : min(end, at + _JUDGED)].strip(" \t'\"")) else None


def _end(pattern: re.Pattern[str], text: str, at: int, stop: int) -> int:
    match = pattern.match(text, at, stop)
    return at if match is None else match.end()


def _upper_snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[.-]", "_", name).upper()
