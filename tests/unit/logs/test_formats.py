"""Which family a log is of: by its steps, whatever stands before them; by its marks where it has no steps."""

from __future__ import annotations

import pytest

from parse.logs.engine.log_format import FIELDS, IN_OTHER_UNITS, LogError
from parse.logs.engine.reader import find_step
from parse.logs.formats import FORMATS, format_named, recognise
from tests.cases import cases_of

MLLOG = ':::MLLOG {"namespace": "", "time_ms": 1594790175195, "key": "run_start", "value": null, "metadata": {}}\n'
MARK = "- AI-Rank-log 1618110628.249 test_begin\n"


def first_of(name):
    """The first log in the lines of the format that shows it."""
    cases = [case for case in cases_of(f"logs/{name}.txt") if case.expected != ["> nothing"]]
    shown = next((case for case in cases if case.expected[0].startswith("> step")), cases[0])
    return "\n".join([*shown.lines, ""])


STEPS = {**{name: first_of(name) for name in FORMATS}, "mllog": MLLOG, "ai-rank": MARK}


def log_format(tmp_path, text):
    path = tmp_path / "x.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return recognise(path).name


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "before",
    ["", "noise\n" * 1000, MARK, MLLOG, "x" * 3_000_000 + "\n"],
    ids=["nothing", "noise", "a mark", "MLLOG", "an endless line"],
)
def test_recognised_whatever_stands_before(tmp_path, name, before):
    expected = name if STEPS[name] not in (MLLOG, MARK) else ("mllog" if MLLOG in (before, STEPS[name]) else name)
    assert log_format(tmp_path, before + STEPS[name]) == expected


def test_the_format_with_more_steps_is_recognised(tmp_path):
    assert log_format(tmp_path, STEPS["oneflow"] + STEPS["paddle-resnet50"]) == "paddle-resnet50"
    assert log_format(tmp_path, STEPS["oneflow"] * 9 + STEPS["paddle-resnet50"]) == "oneflow"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing of interest\n", "no step line of a known system"),
        ("", "no step line of a known system"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 64, "binary"),
        ("grep -c :::MLLOG result_0.txt\nwe print :::MLLOG {json} lines\n", "no step line of a known system"),
        ("- AI-Rank-log 1558631910.424 here we go\n", "no step line of a known system"),
        ("Model: resnet50\nBatch size: 96\nNumber of GPUs: 8\n", "no step line of a known system"),
        ("Epoch: no numbers\nIteration: none  train.total_ips : many img/s\n", "no step line of a known system"),
    ],
)
def test_what_is_no_log_is_refused_with_the_reason(tmp_path, text, reason):
    with pytest.raises(LogError, match=reason):
        log_format(tmp_path, text)


@pytest.mark.parametrize("name", FORMATS)
def test_all_formats_read_marks(name):
    kinds = {log_pattern.kind for log_pattern in format_named(name).patterns}
    assert {"mllog", "mark"} <= kinds


@pytest.mark.parametrize("name", FORMATS)
def test_the_lines_of_all_formats_compile_and_name_known_fields(name):
    log_format = format_named(name)
    assert {group for form in log_format.steps for group in form.pattern.groupindex} <= {*FIELDS, *IN_OTHER_UNITS}
    assert all(log_pattern.marker and log_pattern.pattern.pattern for log_pattern in log_format.patterns)


PROTOCOLS = {"plsc": ("run", 50, 150, "all"), "tf2-official": ("run", 100, 600, "all")}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocols_of_their_own(name):
    known = FORMATS[name]
    assert (known.numbered, known.warmup, known.total, known.rates) == PROTOCOLS[name]


DLL = "DLL 2021-03-23 10:16:53.781815 - Epoch: 0 Iteration: 5  train.loss : 7.09304  train.total_ips : "
MEGATRON = " [2021-03-23 10:17:06] iteration 56/ 5000 | consumed samples: 57344 | elapsed time per iteration (ms): "
MMSEG = "2021-03-23 10:17:00,123 - mmseg - INFO - Iter [36/1800]\tlr: 9.653e-03, eta: 0:08:04, time: "
NANOCHAT = "step 00004/21400 (0.05%) | loss: 10.39 | lrm: 1.00 | dt: 310.00ms | tok/sec: "
PADDLE_NLP = (
    "[2021-03-23 10:17:18,581] [    INFO] - loss: 1.2, learning_rate: 2.9e-05, global_step: 95, interval_runtime: "
)
SSD = "Iteration: 60, Loss function: 5.1, Average Loss: 0.5, avg. samples / sec: "


@pytest.mark.parametrize(
    ("name", "field", "begin", "whole", "damaged"),
    [
        ("ngc-pytorch", "rate", DLL, "3303.23 img/s", ("33", "33a3.23 img/s", "330..23 img/s", "3303\x9923 img/s")),
        ("megatron", "duration_ms", MEGATRON, "310.0 | lr: 1", ("31", "31'.0 | lr: 1", "31050 | lr: 1", "310\xe50 |")),
        ("mmengine", "duration_s", MMSEG, "0.310, data_time: 0.05", ("0.[10, data_time: 0.05", "0", "0x310, data")),
        (
            "paddlenlp",
            "elapsed_s",
            PADDLE_NLP,
            "0.3100, interval_s",
            ("0", "0d3100, interval_s", "0-.3100, interval_s"),
        ),
        ("nanochat", "rate", NANOCHAT, "1,691,252 | mfu: 48.1", ("1,691(252 | mfu: 48.1", "1]691,252 | mfu: 48.1")),
        ("ngc-ssd", "rate", SSD, "3303.23", ("3", "3303423", "330\xe2.23", "33z3.23")),
    ],
)
def test_a_number_that_a_damaged_line_has_cut_is_none(name, field, begin, whole, damaged):
    def fields(end: str) -> set[str]:
        step = find_step((begin + end).encode("latin-1"), format_named(name).steps)
        return {*step.fields} if step else set()

    assert field in fields(whole)
    assert [end for end in damaged if field in fields(end)] == []


def test_an_unknown_format_is_refused():
    with pytest.raises(LogError, match="'caffe'; there are pytorch-imagenet"):
        format_named("caffe")
