"""parse.runs.explain: the explanation of a log can be checked by hand against its lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parse.logs.engine.log_format import LogError
from parse.logs.path_facts import place_of
from parse.runs.explain import MAX_TEXT, explain, lines_at
from parse.runs.load_logs import HowToRead, _read, explained
from tests.unit.logs import made
from tests.unit.logs.test_log_attempts import protocol_of


def test_explanations(tmp_path: Path, cases) -> None:
    """The first line is the path, the protocol and which speed is asked for, the others are the log."""

    def outcomes(lines: list[str]) -> list[str]:
        name, *options = lines[0].split(" ")
        speed = "protocol" if options[2:] else "wall-clock"
        path = made.put(tmp_path, name, "\n".join(lines[1:]) + "\n")
        how = HowToRead(protocol=protocol_of(options[:2]), speed=speed)
        return explained(path, how).replace(f"{tmp_path}/", "").splitlines()

    cases("log_explanations.txt", outcomes)


def test_a_log_that_is_gone_or_another_by_now(tmp_path: Path) -> None:
    path = made.put(tmp_path, "1n4g/r50_b32.log", made.ngc_pytorch([0.5] * 130, batch=32, devices=4))
    reading, attempt = _read(path, place_of(path), HowToRead())
    path.write_text("short\n")
    with pytest.raises(LogError, match=r"r50_b32\.log: ends before byte \d+"):
        explain(path, reading, attempt)
    path.unlink()
    with pytest.raises(LogError, match=r"r50_b32\.log: cannot be read"):
        explain(path, reading, attempt)


# Lines by their place


def test_lines_are_read_wherever_pieces_meet(tmp_path: Path) -> None:
    path = tmp_path / "large.log"
    lines = [f"line {number} {'x' * (number % 700)}\n".encode() for number in range(1, 9000)]
    path.write_bytes(b"".join(lines))
    assert path.stat().st_size > 2 * (1 << 20)
    offsets = np.concatenate([[0], np.cumsum([len(line) for line in lines])])[:-1].tolist()
    near = [at for at, begin in enumerate(offsets) if begin % (1 << 20) > (1 << 20) - 3000 or begin % (1 << 20) < 3000]
    wanted = {0, 4500, len(lines) - 1, *near}
    line_at = lines_at(path, [offsets[at] for at in wanted])
    for at in wanted:
        whole = lines[at].decode().rstrip("\n")
        line = line_at[offsets[at]]
        assert line.number == at + 1
        assert line.text == (whole if len(whole) <= MAX_TEXT else whole[: MAX_TEXT - 1] + "…")


def test_a_line_behind_carriage_returns_has_the_number_that_editors_show(tmp_path: Path) -> None:
    path = tmp_path / "bar.log"
    path.write_bytes(b"first\n10%\r20%\rstep 3\rmore\nlast \x1b[1mbold\xff")
    lines = lines_at(path, [14, 26])
    assert (lines[14].number, lines[14].text) == (2, "step 3")
    assert (lines[26].number, lines[26].text) == (3, "last ?[1mbold�")
