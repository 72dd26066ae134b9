"""What makes reading fast: the marker index, shapes, fields. Each gives what a plain way of doing the same gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parse.logs.engine.fields import LARGEST, MAX_WIDTH, columns, field_of, seconds_of
from parse.logs.engine.log_format import LogFormat, LogPattern, StepLine
from parse.logs.engine.reader import MAX_KNOWN, MAX_SHAPES, MarkerIndex, Shapes, batches, marked_lines
from parse.logs.formats import FORMATS
from tests.cases import GOLDEN

LETTERS = st.sampled_from(list(b"aeZ_ :1")).map(lambda letter: bytes([letter]))
TEXTS = st.lists(LETTERS, min_size=1, max_size=12).map(b"".join)


@given(texts=st.lists(TEXTS, min_size=1, max_size=80), around=st.tuples(TEXTS, TEXTS), which=st.integers(0, 79))
def test_the_marker_index_finds_every_marker(texts, around, which):
    text = texts[which % len(texts)]
    whole = around[0] + text + around[1]
    whole += b" " * (len(whole) % 2)
    places = MarkerIndex(tuple(texts)).passes(np.frombuffer(whole, np.uint8))
    assert any(len(around[0]) - 1 <= place <= len(around[0]) + len(text) for place in places.tolist())


def test_the_marker_index_finds_little_else():
    texts = (b"train.total_ips : ", b" - PARAMETER ", b":::MLLOG ", b"AI-Rank")
    other = b"libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0\n"
    assert not len(MarkerIndex(texts).passes(np.frombuffer(other * 100, np.uint8)))


def test_the_index_of_all_formats_finds_little_else():
    texts = tuple({form.marker for known in FORMATS.values() for form in known.steps})
    prose = b"".join(path.read_bytes() for path in sorted((GOLDEN.parents[1] / "docs").glob("*.md"))) + b"\n\n"
    starts, ends, which = marked_lines(np.frombuffer(prose, np.uint8), len(prose) - 1, MarkerIndex(texts))
    marked = sum(any(text in prose[starts[at] : ends[at]] for text in texts) for at in which.tolist())
    assert len(texts) > 64
    assert len(which) - marked < len(starts) / 20


WHOLE = st.integers(0, 10**15 - 1).map(str)
NUMBERS = st.one_of(
    WHOLE,
    st.tuples(st.integers(0, 10**9), st.text("0123456789", max_size=16)).map(lambda both: f"{both[0]}.{both[1]}"),
    st.sampled_from(["1e3", "2.5e-07", "-3.5", "nan", "inf", "1e300", "00012.50", "0.0", ".5", "5.", "9" * 16 + ".5"]),
)


def read_columns(text, starts, kinds, fields):
    letters = np.frombuffer(text + b"x" * MAX_WIDTH, np.uint8)
    return columns(letters, np.array(starts), np.array(kinds), fields)


@given(numbers=st.lists(NUMBERS, min_size=1, max_size=20), indent=st.integers(0, 9))
def test_a_number_is_the_one_that_float_reads(numbers, indent):
    text, starts, fields = b"", [], []
    for number in numbers:
        starts.append(len(text))
        written = b" " * indent + number.encode()
        field = field_of("rate", written, indent, len(written))
        fields.append({"rate": field} if field else {})
        text += written
    read = read_columns(text, starts, range(len(starts)), fields)["rate"]
    for number, got in zip(numbers, read.tolist(), strict=True):
        wanted = float(number)
        if abs(wanted) <= LARGEST:
            assert got == pytest.approx(wanted, rel=4e-16)
        else:
            assert np.isnan(got)


@given(number=st.integers(0, 10**15 - 1), indent=st.integers(0, 9))
def test_a_whole_number_is_exact(number, indent):
    text = b"7" * indent + b"%d" % number
    field = field_of("step", text, indent, len(text))
    assert read_columns(text, [0], [0], [{"step": field}])["step"].tolist() == [number]


def test_times_of_several_forms_at_once():
    texts = [b"2021-03-23 10:16:49.131815", b"2021-03-23 10:16:50,131", b"Fri Apr  9 10:16:49 2021", b"1597933942.98"]
    starts = [sum(map(len, texts[:at])) for at in range(len(texts))]
    fields = [{"time": field_of("time", text, 0, len(text))} for text in texts]
    read = read_columns(b"".join(texts), starts, range(len(texts)), fields)["time_s"]
    assert read.tolist() == [seconds_of(text) for text in texts]


STEP = StepLine(marker=b"step ", expression=rb"step (?P<step>\d+) took (?P<duration_s>[\d.]+) s")
FORMAT = LogFormat(
    name="made-up", title="made up", steps=(STEP,),
    patterns=(
        LogPattern(kind="pause", marker=b"Test: [", expression=rb"(?P<reason>Test): \[ *\d+/"),
        LogPattern(
            kind="facts", marker=b"THE_PRECISION is fp16", expression=rb"THE_PRECISION is (?P<type>fp16)"
        ),
    ),
)  # fmt: skip


def read(tmp_path, text):
    path = tmp_path / "x.log"
    path.write_bytes(text)
    read_batches = list(batches(path, FORMAT, 1 << 16))
    steps = [step for batch in read_batches for step in batch.steps.step.tolist()]
    return steps, [record for batch in read_batches for record in batch.records]


def test_only_the_first_of_pauses_in_a_row_is_read(tmp_path):
    tests = b"".join(b"Test: [%03d/196]\tTime  0.%d\n" % (number, number % 10) for number in range(100))
    step = b"step 1 took 0.5 s\n"
    _, records = read(tmp_path, step + tests + step + tests + step)
    assert [record.offset for record in records] == [len(step), 2 * len(step) + len(tests)]
    assert all(record.values == {"reason": "Test"} for record in records)


def test_a_second_step_behind_lines_of_a_known_shape_is_read(tmp_path):
    plain = b"step 1 took 0.5 s, and then some more that says nothing at all\n"
    glued = b"step 2 took 0.5 s, and then step 3 took 0.5 s, which is a lot.\n"
    assert len(plain) == len(glued)
    assert read(tmp_path, plain * 20 + glued + plain)[0] == [1] * 20 + [2, 3, 1]
    assert read(tmp_path, plain + plain.replace(b"more", b"step") + glued)[0] == [1, 1, 2, 3]


def test_digits_that_a_marker_asks_for_are_not_taken_for_others(tmp_path):
    other, rare = b"THE_PRECISION is fp32\n", b"THE_PRECISION is fp16\n"
    records = read(tmp_path, other * 50 + rare + other * 50)[1]
    assert [record.values for record in records] == [{"type": "fp16"}]


def test_what_is_at_the_end_of_some_lines_alone_is_read_where_it_is(tmp_path):
    form = StepLine(marker=b"step ", expression=rb"step (?P<step>\d+)(?: took (?P<duration_s>[\d.]+) s)?")
    path = tmp_path / "x.log"
    path.write_bytes(b"step 1 was too long\nstep 2 took 0.5 s !\n" * 20)
    (batch,) = batches(path, LogFormat(name="ends", title="ends", steps=(form,)))
    assert np.isnan(batch.steps.duration_s[::2]).all()
    assert batch.steps.duration_s[1::2].tolist() == [0.5] * 20


def test_what_is_known_of_shapes_is_bounded():
    shapes = Shapes(FORMAT)
    for _ in range(2):
        lines = [b"x" * (number % 50) + b"-%b" % bytes([97 + number % 26] * (number // 50)) for number in range(6000)]
        lines.append(b"x" * (MAX_KNOWN + 1))
        ends = np.cumsum([len(line) for line in lines]).tolist()
        numbers = shapes.numbers(b"".join(lines), [0, *ends[:-1]], ends)
        assert len(set(numbers.tolist())) == len(shapes.shapes) == len(set(lines)) > MAX_SHAPES
        assert max(map(len, shapes._known)) <= MAX_KNOWN
    shapes.numbers(b"step 1 took 0.5 s", [0], [17])
    assert len(shapes.shapes) == len(shapes._known) == 1
