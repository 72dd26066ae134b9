"""Files that are huge, endless, or named to steer a terminal: bounded looks, refusals that say what was searched."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pytest

from parse import summarize
from parse.logs import formats
from parse.logs.engine import reader
from parse.logs.engine.fields import form_of, seconds_of
from parse.logs.engine.log_format import UnknownFormatError
from parse.logs.engine.reader import MAX_MARKERS, find_step, label, uncrowded
from parse.logs.formats import FORMATS, format_named, recognise
from tests.unit.logs import made

LOG = made.ngc_pytorch([0.4] * 5, batch=128)
MARK = "- AI-Rank-log 1618110628.249 test_begin\n"
BAR = " 10%|█         | 50/500 [00:10<01:40,  4.50it/s]\n"
NOISE = "of which nothing is a step\n"


@pytest.fixture
def small(monkeypatch):
    """Limits that a test can reach: 4 KiB of text from the beginning, 1 KiB from the end, 20 lines, pieces of 512 B."""
    monkeypatch.setattr(formats, "HEAD_BYTES", 1 << 12)
    monkeypatch.setattr(formats, "TAIL_BYTES", 1 << 10)
    monkeypatch.setattr(formats, "MAX_TRIED", 20)
    monkeypatch.setattr(formats, "pieces", lambda path, chunk_bytes=512: reader.pieces(path, chunk_bytes))


def recognised(tmp_path, text, name="x.log"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return recognise(path).name


def why_not(tmp_path, text, name="x.log"):
    with pytest.raises(UnknownFormatError) as error:
        recognised(tmp_path, text, name)
    return str(error.value)


def noise(size):
    return NOISE * (size // len(NOISE))


# How much of a file is looked at


def test_steps_near_the_beginning_or_the_end_are_seen(tmp_path, small):
    assert recognised(tmp_path, noise(3000) + LOG + noise(90_000)) == "ngc-pytorch"
    assert recognised(tmp_path, noise(90_000) + LOG) == "ngc-pytorch"


def test_steps_elsewhere_are_not_and_the_refusal_says_so(tmp_path, small):
    reason = why_not(tmp_path, noise(20_000) + LOG + noise(90_000))
    assert "no step line of a known system is in its first 0 and its last 0 MiB" in reason
    packed = gzip.compress((noise(90_000) + LOG).encode())
    assert "is in its first 0 MiB, where" in why_not(tmp_path, packed, "x.log.gz")


@pytest.mark.parametrize("shown", [MARK, f"  Num examples = 1,281\n{BAR}"], ids=["marks", "bars"])
def test_a_log_without_steps_so_far_is_searched_to_its_end(tmp_path, small, shown):
    assert recognised(tmp_path, shown + noise(20_000) + LOG + noise(20_000)) == "ngc-pytorch"


def test_text_is_read_no_further_than_needed(tmp_path, small, monkeypatch):
    looked_at = 0
    pieces = vars(formats)["pieces"]

    def counted(*arguments):
        nonlocal looked_at
        for piece in pieces(*arguments):
            looked_at += piece[1]
            yield piece

    monkeypatch.setattr(formats, "pieces", counted)
    why_not(tmp_path, noise(200_000))
    assert 4096 <= looked_at < 4096 + 512
    why_not(tmp_path, gzip.compress(noise(2_000_000).encode()), "bomb.gz")
    assert looked_at < 2 * (4096 + 512)


def test_a_packed_bomb_is_refused_by_its_first_text(tmp_path):
    with gzip.open(tmp_path / "bomb.gz", "wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(bytes(1 << 20))
    assert "binary" in why_not(tmp_path, (tmp_path / "bomb.gz").read_bytes())


# How many lines are tried


@pytest.mark.parametrize("name", FORMATS)
def test_markers_on_every_line_are_tried_so_many_times(tmp_path, small, monkeypatch, name):
    forms = format_named(name).steps or format_named(name).patterns
    tried = 0

    def counted(form, text):
        nonlocal tried
        tried += 1
        return False

    monkeypatch.setattr(formats._Form, "may_match", counted)  # of a shape that is known it is not asked again
    monkeypatch.setattr(formats, "_known_shapes", lambda group, brought: {})
    text = (b"\n".join(form.marker for form in forms) + b"\n") * 500
    reason = why_not(tmp_path, text)
    assert "at most 20 lines that look like one are tried" in reason
    each = max(
        len(of_marker)
        for group in range(len(formats._forms(())))
        for of_marker in formats._by_marker(group, ()).values()
    )
    assert 0 < tried <= 2 * 20 * len(formats._forms(())) * each * 4


def test_bars_take_no_trials_from_steps(tmp_path, small):
    assert recognised(tmp_path, BAR * 60 + LOG) == "ngc-pytorch"


def test_a_long_line_counts_as_several(tmp_path, small):
    line = "train.total_ips : " + "x" * 600 + "\n"
    assert "at most 20 lines" in why_not(tmp_path, line * 20)


# Binary files


@pytest.mark.parametrize("text", ["\x1b[32mgreen\x1b[0m\b\b\b\r\n", "日本語のログ\n", "a\fb\vc\n"])
def test_texts_of_terminals_and_people_are_not(tmp_path, text):
    assert recognised(tmp_path, text * 1000 + LOG) == "ngc-pytorch"


# Time by the length of lines


def test_a_line_with_very_many_markers_is_searched_up_to_one_of_them():
    text = b"Summary: " * 1000
    assert uncrowded(text, b"Summary: ") == text[: (MAX_MARKERS - 1) * 9]
    assert uncrowded(text[:1000], b"Summary: ") == text[:1000]
    few = b"Summary: " + b"x" * 5000
    assert uncrowded(few, b"Summary: ") == few


def test_a_launcher_s_prefix_is_looked_for_at_the_beginning_of_a_line():
    assert label(b"[1,3]<stdout>:" + b"x" * 10_000) == {"rank": (3, 4)}
    assert label(b"x" * 10_000 + b"[1,3]<stdout>:") == {}


def test_escapes_without_an_end_are_text():
    assert reader.ANSI.sub(b"", b"\x1b]0;title\x07a\x1b]" * 3) == b"a\x1b]" * 3


def test_a_file_that_grows_is_read_as_long_as_it_was(tmp_path):
    path = tmp_path / "x.log"
    path.write_text(noise(200_000))
    total = 0
    for _, size, _ in reader.pieces(path, 1000):
        total += size
        with path.open("a") as file:
            file.write(noise(2000))
    assert total == len(noise(200_000))


# The parts that make it fast, against plain ones


@pytest.mark.parametrize(
    "text",
    [
        b"2020-09-15 14:28:53.498443", b"2020/2/29T23:59:60", b"Fri Apr  9 10:16:49 2021", b"0407 21:17:05.025709",
        b"14:28:53,123", b"1597933942.9863544", b"1594790175195", b"2021-13-01 00:00:00", b"2021-03-04 24:00:00",
    ],
)  # fmt: skip
def test_one_time_stamp_is_what_it_is_among_many(text):
    form = form_of(text)
    assert form
    many = form.seconds(np.frombuffer(text * 3, np.uint8).reshape(3, -1))
    seconds = seconds_of(text)
    assert seconds is None if np.isnan(many[0]) else many.tolist() == [seconds] * 3


def test_equal_lines_are_all_read(tmp_path):
    step = made.ngc_pytorch([0.4], batch=128).splitlines()[-1]
    fact = "DLL 2020-09-15 14:28:53.498443 - PARAMETER arch : resnet50  batch_size : 128"
    mark = MARK.strip()
    path = tmp_path / "x.log"
    path.write_text("\n".join([step, fact, mark, "train.total_ips : none"] * 100) + "\n")
    (batch,) = reader.batches(path, format_named("ngc-pytorch"))
    assert len(batch.steps.step) == 100
    kinds = [record.kind for record in batch.records]
    assert (kinds.count("facts"), kinds.count("mark"), len(kinds)) == (100, 100, 200)
    length = len(step + fact + mark + "train.total_ips : none") + 4
    marks = [record.offset for record in batch.records if record.kind == "mark"]
    assert marks == [len(step + fact) + 2 + length * number for number in range(100)]


def test_steps_of_a_line_that_has_many_are_all_read(tmp_path):
    line = made.ngc_pytorch([0.4] * 120, batch=128).split("\n", 1)[1].replace("\n", " ")
    path = tmp_path / "x.log"
    path.write_text(line + "\n")
    (batch,) = reader.batches(path, format_named("ngc-pytorch"))
    assert batch.steps.step.tolist() == list(range(1, 121))
    step = find_step(line.encode(), format_named("ngc-pytorch").steps)
    assert step and step.crowded


# Pipes, and names that steer a terminal

NAME = "a\x1b[31m\n\r\x07\u202e\x9b"


def shown(capsys, *arguments):
    status = summarize.main([*map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_a_pipe_is_refused_by_name_and_passed_over_in_folders(tmp_path, capsys):
    made.put(tmp_path, "1n1g/a.log", made.ngc_pytorch(made.steps(350.0, 128), batch=128))
    for name in ("pipe", "pipe.log", "pipe.h5", "x.1.exit.json"):
        os.mkfifo(tmp_path / name)
    for arguments in ([tmp_path], ["--kind", "logs", tmp_path], ["--verbose", tmp_path]):
        status, text = shown(capsys, *arguments)
        assert status == 0 and "350.00" in text
    pipe = tmp_path / "pipe"
    for arguments in ([pipe], ["--kind", "logs", pipe], ["--kind", "table", pipe], ["--explain", pipe]):
        status, text = shown(capsys, *arguments)
        assert status == 1 and "cannot be read (no regular file)" in text


@pytest.mark.parametrize(
    "options",
    [[], ["--verbose"], *(["--format", name] for name in ("markdown", "csv", "json", "dlperf"))],
)
def test_names_of_files_and_folders_steer_no_terminal(tmp_path, capsys, options):
    folder = f"{NAME}/1n1g"
    log = made.ngc_pytorch(made.steps(350.0, 128), batch=128)
    for name, text in {f"{NAME}.log": log, f"{NAME}": "x", f"{NAME}2.log": "x", f"{NAME}.h5": "x"}.items():
        made.put(tmp_path, f"{folder}/{name}", text)
    made.put(tmp_path, f"{folder}/{NAME}_b64_b32.log", log + "\n")
    os.mkfifo(tmp_path / f"{folder}/{NAME}p.log")
    _, text = shown(capsys, *options, tmp_path)
    assert not set(NAME) - {"a", "[", "3", "1", "m", "\n"} & set(text)
    assert text.strip()


def test_names_steer_no_terminal_where_they_are_explained_or_missing(tmp_path, capsys):
    log = made.ngc_pytorch(made.steps(350.0, 128), batch=128)
    path = made.put(tmp_path, f"{NAME}/1n1g/{NAME}_b64_b32_fp32_7_9.log", log)
    for arguments in (["--explain", path], ["--explain", tmp_path / f"{NAME}no"], [tmp_path / f"{NAME}no"]):
        _, text = shown(capsys, *arguments)
        assert "a\\x1b[31m\\n\\r\\x07\\u202e\\x9b" in text
        assert not set("\x1b\r\x07\u202e\x9b") & set(text)


def test_a_text_of_escapes_alone_shows_nothing(tmp_path):
    assert "no step line" in why_not(tmp_path, b"\x1b[0m\x1b[0m")
