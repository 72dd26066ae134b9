"""The engine: whatever the shapes of lines, the sizes of pieces and the wrapping, it finds what a plain loop finds."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parse.logs.engine.log_format import LogError, LogFormat, LogPattern, StepLine
from parse.logs.engine.reader import MAX_KNOWN, batches, pieces
from parse.logs.formats import format_named

STEP = re.compile(
    rb"(?:(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+) - )?epoch (?P<epoch>\d+) step (?P<step>\d+) loss \S+ "
    rb"rate (?P<rate>-?[\d.]+(?:e[+-]\d+)?)"
)
FORMAT = LogFormat(
    name="made-up",
    title="made up for these tests",
    steps=(StepLine(marker=b" rate ", expression=STEP.pattern),),
    patterns=(
        LogPattern(kind="facts", marker=b"batch=", expression=rb"batch=(?P<batch_size>\d+)"),
        LogPattern(kind="pause", marker=b"saving", expression=rb"(?P<reason>saving)"),
    ),
)


def read(tmp_path, text, chunk_bytes=1 << 16, name="x.log"):
    path = tmp_path / name
    path.write_bytes(text)
    read_batches = list(batches(path, FORMAT, chunk_bytes))
    columns = {
        name: np.concatenate([getattr(batch.steps, name) for batch in read_batches]) if read_batches else np.empty(0)
        for name in ("offset", "time_s", "epoch", "step", "rank", "rate")
    }
    return columns, [record for batch in read_batches for record in batch.records]


STEPS = st.builds(
    lambda time, epoch, step, loss, rate: (
        (b"2021-03-23 10:44:35.971098 - " if time else b"")
        + b"epoch %d step %d loss %s rate %s img/s" % (epoch, step, loss, rate)
    ),
    st.booleans(),
    st.integers(0, 120),
    st.integers(0, 10**6),
    st.sampled_from([b"7.1", b"12.75", b"nan", b"-0.5"]),
    st.sampled_from([b"0.5", b"857.62", b"12345", b"1.5e+03", b"2e-1", b"9.", b"-3.5"]),
)
NOISE = st.one_of(
    st.sampled_from([b"", b"rate", b"epoch 1 step x loss 1 rate 5", b"batch=128", b"saving now", b"epoch 3 rate 17"]),
    st.binary(max_size=60).map(lambda text: re.sub(rb"[\n\r\x1b\x1f]", b"?", text)),
)


@settings(max_examples=300, deadline=None)
@given(lines=st.lists(st.one_of(STEPS, NOISE), max_size=60), chunk=st.sampled_from([256, 300, 1 << 10, 1 << 16]))
def test_equal_to_a_plain_loop(tmp_path_factory, lines, chunk):
    text = b"".join(line + b"\n" for line in lines)
    columns, records = read(tmp_path_factory.mktemp("logs"), text, chunk)
    offset, expected, facts = 0, [], 0
    for line in lines:
        match = STEP.search(line)
        if match:
            expected.append((offset, int(match["epoch"]), int(match["step"]), float(match["rate"])))
        facts += not match and b"batch=128" in line
        offset += len(line) + 1
    got = list(zip(*(columns[name].tolist() for name in ("offset", "epoch", "step", "rate")), strict=True))
    assert [row[:3] for row in got] == [row[:3] for row in expected]
    assert [row[3] for row in got] == pytest.approx([row[3] for row in expected], rel=1e-14)
    assert sum(record.kind == "facts" for record in records) == facts


@pytest.mark.parametrize(
    ("before", "rank", "time_s"),
    [
        (b"[1,3]<stdout>:", 3, None),
        (b"Fri Apr  9 10:16:49 2021[1,12]<stdout>:", 12, 1617963409.0),
        (b"[3]<stdout>:", 3, None),
        (b"3: ", 3, None),
        (b"  17: ", 17, None),
        (b"[2] ", 2, None),
        (b"pyxis: ", -1, None),
        (b"", -1, None),
    ],
)
def test_labels_of_launchers(tmp_path, before, rank, time_s):
    columns, records = read(tmp_path, before + b"epoch 0 step 1 loss 1 rate 5 \n" + before + b"batch=8\n")
    assert columns["rank"].tolist() == [rank]
    assert (None if np.isnan(columns["time_s"][0]) else columns["time_s"][0]) == time_s
    assert records[0].rank == (None if rank < 0 else rank) and records[0].time_s == time_s


def test_a_line_s_own_time_stamp_is_better_than_the_launcher_s(tmp_path):
    line = b"Fri Apr  9 10:16:49 2021[1,0]<stdout>:2021-04-09 10:16:49.131815 - epoch 0 step 1 loss 1 rate 5 \n"
    assert read(tmp_path, line)[0]["time_s"][0] == pytest.approx(1617963409.131815)


def test_carriage_returns_end_lines_and_offsets_stay(tmp_path):
    text = b"loading 10%\rloading 100%\repoch 0 step 1 loss 1 rate 5 \r\nepoch 0 step 2 loss 1 rate 6 \r\n"
    columns, _ = read(tmp_path, text)
    assert columns["step"].tolist() == [1, 2]
    assert [text[at : at + 5] for at in columns["offset"]] == [b"epoch", b"epoch"]


def test_colours_are_taken_out(tmp_path):
    text = b"\x1b[32mepoch\x1b[0m 0 step \x1b[1;31m1\x1b[0m loss 1 rate 5.5\x1b[0m\n\x1b]0;title\x07batch=8\n"
    columns, records = read(tmp_path, text)
    assert columns["step"].tolist() == [1] and columns["rate"].tolist() == [5.5]
    assert records[0].values == {"batch_size": "8"}


@pytest.mark.parametrize("launcher", [b"", b"[1,3]<stdout>:", b"\x1b[32m"])
def test_the_last_line_may_be_cut_off(tmp_path, launcher):
    """Its last number may lack digits: `rate 7` may have been 742."""
    text = b"epoch 0 step 1 loss 1 rate 5 \n" + launcher + b"epoch 0 step 2 loss 1 rate 7"
    columns, _ = read(tmp_path, text)
    assert columns["step"].tolist() == [1, 2]
    assert columns["rate"][0] == 5 and np.isnan(columns["rate"][1])
    assert read(tmp_path, text + b" ")[0]["rate"].tolist() == [5, 7]
    assert read(tmp_path, text + b"\n")[0]["rate"].tolist() == [5, 7]


@pytest.mark.parametrize(("line", "steps"), [(b"between steps 100 and 200", [200]), (b"between steps 100 and 20", [])])
def test_a_step_that_is_cut_off_is_seen_by_the_one_before_it(tmp_path, line, steps):
    text = b"TimeHistory: 6.46 seconds, 495.19 examples/second " + line
    path = tmp_path / "x.log"
    path.write_bytes(text)
    numbers = [step for batch in batches(path, format_named("tf2-official")) for step in batch.steps.step.tolist()]
    assert numbers == steps


def test_a_cut_off_line_states_no_facts(tmp_path):
    assert not read(tmp_path, b"epoch 0 step 1 loss 1 rate 5 \nbatch=12")[1]
    assert read(tmp_path, b"epoch 0 step 1 loss 1 rate 5 \nbatch=12\n")[1]


def test_numbers_beyond_what_a_number_can_be_make_no_step(tmp_path):
    text = b"epoch 0 step 1234567890123456789 loss 1 rate 5 \nepoch 0 step 1 loss 1 rate 1.2.3 \n"
    assert not len(read(tmp_path, text)[0]["step"])


@pytest.mark.parametrize("longer", [MAX_KNOWN, 1 << 17])
def test_lines_longer_than_what_is_taken_in_bulk(tmp_path, longer):
    text = b"epoch 0 step 1 loss 1 rate 5 " + b"x" * longer + b"\nepoch 0 step 2 loss 1 rate 6 \n"
    columns, _ = read(tmp_path, text, 1 << 12)
    assert columns["step"].tolist() == [1, 2]


def test_packed_and_plain_read_alike_and_offsets_are_those_of_the_text(tmp_path):
    text = b"".join(b"epoch 0 step %d loss 1 rate %d.5 \n" % (step, step) for step in range(1, 500))
    plain, packed = read(tmp_path, text, 1 << 12), read(tmp_path, gzip.compress(text), 1 << 12, "x.log.gz")
    for name in ("offset", "step", "rate"):
        assert plain[0][name].tolist() == packed[0][name].tolist()


def test_a_truncated_gz_is_read_as_far_as_it_goes(tmp_path):
    rng = np.random.default_rng(1)
    text = b"".join(b"epoch 0 step %d loss 1 rate %d.5 \n" % (step, rng.integers(1000)) for step in range(1, 5000))
    columns, records = read(tmp_path, gzip.compress(text)[:-4000], 1 << 12)
    assert 0 < len(columns["step"]) < 4999
    assert [record.kind for record in records] == ["remark"]
    assert "cannot be read beyond byte" in records[0].values["text"]


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(LogError, match=r"nowhere\.log: cannot be read"):
        list(batches(tmp_path / "nowhere.log", FORMAT))


@given(lines=st.lists(st.binary(max_size=200).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b""))))
def test_pieces_are_the_text(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("logs") / "x.log"
    text = b"\n".join(lines)
    path.write_bytes(text)
    if text[:2] == b"\x1f\x8b":
        return
    joined = b""
    for buffer, size, offset in pieces(path, 64):
        assert offset == len(joined)
        joined += bytes(buffer[:size])
    assert joined == (text if text.endswith(b"\n") or not text or joined == text else text + b"\n")


def test_a_block_is_read_in_part_at_most(tmp_path):
    for text in ("train_dataloader = dict(\n" + "    x=1,\n" * 2000 + "    batch_size=4)\n",
                 "train_dataloader = dict(\n    batch_siz"):  # fmt: skip
        (path := tmp_path / "x.log").write_text(text)
        assert not [record for batch in batches(path, format_named("mmengine")) for record in batch.records]
