"""What a family hears in a few lines of text."""

from __future__ import annotations

from parse.logs.engine.reader import batches


def read(log_format, tmp_path, *lines):
    """Steps and sayings of a log of these lines."""
    path = tmp_path / "x.log"
    path.write_text("\n".join(lines) + "\n")
    found = list(batches(path, log_format))
    return found[0].steps, found[0].records


def values(said, kind):
    """The values of what is said of that kind."""
    return [dict(one.values) for one in said if one.kind == kind]
