"""parse.runs.log_attempt: from a reading and a place to a run and its numbers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hpc.model.outcome import Outcome
from parse.logs.engine.intervals import ExcludedInterval
from parse.logs.engine.log_format import LogFormat
from parse.logs.path_facts import PathFacts, case_of, place_of
from parse.logs.window import Protocol, Reading, Window, window_text
from parse.runs.log_attempt import _pauses, attempt_of, numbered_as

FORMAT = LogFormat(name="ngc-pytorch", title="", steps=())
HEADER = {"world_size": "8", "batch_size": "128", "precision": "fp32", "model": "resnet50"}
PATH = Path("/logs/1n8g/r50_b128_fp32_2.log")
PLACE = place_of(PATH)
NAMELESS = PathFacts()
PROTOCOL = Protocol()


def window(**changes) -> Window:
    """Steps 20 to 120 in 40 s: 2560 samples/s on 8 devices of 128."""
    fields = {
        "begin": 20, "end": 120, "begin_epoch": 0, "end_epoch": 0, "steps": 100, "seconds": 40.0,
        "resolution_s": 1e-3, "rate": 2570.0, "duration_s": None, "printed": 100, "printed_every": 1,
        "step_s": np.full(100, 0.4), "ranks": (), "begin_offset": 0, "end_offset": 9, "pauses": (),
    }  # fmt: skip
    return Window(**(fields | changes))


def reading(facts=None, log_window: Window | None = None, **changes) -> Reading:
    fields = {
        "log_format": FORMAT, "facts": HEADER if facts is None else facts, "facts_at": {},
        "window": log_window or window(), "reason": "", "remarks": (), "step_lines": 120, "last": (0, 130),
        "records": (),
    }  # fmt: skip
    return Reading(**(fields | changes))


def attempt(facts=None, place=PLACE, log_window: Window | None = None, *, options=None, protocol=PROTOCOL, **changes):
    return attempt_of(PATH, reading(facts, log_window, **changes), place, protocol, **(options or {}))


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in HEADER.items() if name not in names}


def remarks(result) -> str:
    return "\n".join(result.log.remarks)


# A log that says all


def test_a_log_that_states_everything():
    result = attempt()
    run = result.requested.run
    assert (result.requested.case, run.batch_size, run.precision, run.workload, run.backend, run.repeat) == (
        "1n8g", 128, "fp32", "resnet50", "ngc-pytorch", 2,
    )  # fmt: skip
    assert (run.warmup_steps, run.measured_steps) == (20, 100)
    assert result.counts and result.outcome is Outcome.OK
    assert result.measured.throughput == result.log.wall_clock == pytest.approx(2560)
    assert result.measured.mean_of_rates is None and result.log.printed == pytest.approx(2570)
    assert result.measured.samples == 1024 * 100
    assert result.measured.clock_share == pytest.approx(1e-3 / 40)
    assert (result.log.window, result.log.remarks, result.machine.ranks) == ("steps 20 to 120 of epoch 0", (), 8)
    assert result.run_id == "1n8g_ngc-pytorch_resnet50_b128_fp32_8ed54dbd8f_r2"  # as in every version


def test_unknown_fields_are_none_and_not_part_of_the_key():
    result = attempt().requested
    names = ("scaling", "seed", "site", "cpus_per_rank", "timing", "data", "ranks_per_node")
    assert {getattr(result.run, name) for name in names} == {None} and not {*names} & {*json.loads(result.point)[0]}


def test_points_differ_by_their_data():
    synthetic = attempt({**HEADER, "data": "synthetic"}).requested
    assert synthetic.run.data == "synthetic" and synthetic.point != attempt().requested.point


def test_versions_belong_to_the_machine_and_other_facts_do_not():
    result = attempt({**HEADER, "cuda": "11.1", "epochs": "90"})
    assert result.machine.facts == {"cuda": ("11.1",)}


def test_points_differ_by_their_protocol():
    plain, other, whole = (
        attempt(protocol=protocol).requested
        for protocol in (Protocol(), Protocol(warmup=2, total=9), Protocol(whole=True))
    )
    assert len({plain.point, other.point, whole.point}) == 3
    assert (other.extra, other.run.warmup_steps, other.run.measured_steps) == ({}, 2, 7)


# Sizes: header, names, command line


def test_sizes(cases) -> None:
    """By what a log says (first line) and its path (second)."""

    def outcomes(lines: list[str]) -> Iterator[str]:
        result = attempt(json.loads(lines[0]), place_of(Path("/", lines[1])), window(rate=None))
        run, measured = result.requested.run, result.measured
        of_step = f", {measured.samples / 100:g} a step" if measured else ""
        yield f"{result.requested.case}: {run.batch_size} on each device{of_step}"
        yield from result.log.remarks
        yield from [result.problem] if result.problem else []

    cases("log_sizes.txt", outcomes)


def test_a_size_without_end_is_none() -> None:
    assert attempt({"world_size": "9" * 5000}, place_of(Path("/1n8g/b64.log"))).requested.case == "1n8g"


def test_options_fill_in_unknown_sizes_only():
    otherwise = dataclasses.replace(case_of("2n8g"), batch_size=32)
    filled = attempt({}, NAMELESS, options={"otherwise": otherwise})
    assert (filled.requested.case, filled.requested.run.batch_size) == ("2n8g", 32)
    unchanged = attempt(HEADER, PLACE, options={"otherwise": otherwise})
    assert (unchanged.requested.case, unchanged.requested.run.batch_size, unchanged.log.remarks) == ("1n8g", 128, ())
    spread = attempt({}, PathFacts(devices=16), options={"otherwise": otherwise})
    assert spread.requested.case == "2n8g"
    other = attempt({}, PathFacts(devices=8), options={"otherwise": otherwise})
    assert other.requested.case == "8g"


def test_the_baseline_of_8_gpus_is_1_gpu_at_any_place():
    eight, single = attempt({}, PathFacts(devices=8)).requested, attempt({}, PathFacts(devices=1)).requested
    assert (eight.case, single.case) == ("8g", "1n1g")
    assert eight.setting == single.point
    assert eight.point != attempt({}, PLACE).requested.point
    assert eight.point != attempt({}, PathFacts(devices=16)).requested.point


def test_the_header_overrides_the_file_name_for_model_and_precision():
    result = attempt({**HEADER, "model": "resnet101", "precision": "amp-fp16"})
    assert (result.requested.run.workload, result.requested.run.precision) == ("resnet101", "amp-fp16")
    assert "it trains resnet101, its name says resnet50" in remarks(result)
    assert "it ran in amp-fp16, its name says fp32" in remarks(result)
    unusual = attempt({**HEADER, "precision": "int8"})
    assert unusual.requested.run.precision is None and "its precision int8 is none of" in remarks(unusual)


def test_the_workload_is_prefixed_with_its_task():
    log_format = dataclasses.replace(FORMAT, task="arcface", model="resnet50")
    facts = {"classes": "85742", "sample_ratio": "0.1", "model_parallel": "True"}
    result = attempt(facts, PathFacts(devices=8), log_format=log_format)
    assert result.requested.run.workload == "arcface_resnet50"
    assert result.requested.run.options == {"classes": "85742", "sample_ratio": "0.1", "model_parallel": "1"}
    other = attempt({**facts, "sample_ratio": "1.0"}, PathFacts(devices=8), log_format=log_format)
    assert other.requested.point != result.requested.point
    assert attempt({"classes": "1000"}, PathFacts(devices=8)).requested.run.options == {}
    unlike = attempt(facts, PathFacts(devices=8, options={"sample_ratio": "1.0"}), log_format=log_format)
    assert "sample_ratio 0.1, its name says 1.0" in remarks(unlike)


# Speeds


def test_the_printed_speed_is_used_on_request_or_without_time_stamps():
    assert attempt(options={"speed": "printed"}).measured.throughput == pytest.approx(2570)
    assert attempt(options={"speed": "protocol"}).measured.throughput == pytest.approx(2560)
    single = attempt(log_window=window(seconds=None, resolution_s=None))
    assert single.measured.throughput == pytest.approx(2570)
    assert (single.log.wall_clock, single.measured.clock_share) == (None, 0)


def test_durations_divide_the_batch():
    log_format = dataclasses.replace(FORMAT, printed="durations")
    result = attempt(log_window=window(rate=None, duration_s=0.5, seconds=None), log_format=log_format)
    assert result.log.printed == result.measured.throughput == pytest.approx(2048)
    both = attempt(log_window=window(rate=1.0, duration_s=0.5, seconds=None), log_format=log_format)
    assert both.log.printed == pytest.approx(2048)


@pytest.mark.parametrize("seconds", [40.0, None])
def test_a_mean_of_rates_counts_only_as_what_a_protocol_publishes(seconds):
    log_format = dataclasses.replace(FORMAT, publishes_mean=True)
    both = window(rate=2500.0, mean_of_rates=2700.0, seconds=seconds)
    for speed in ("wall-clock", "printed"):
        result = attempt(log_window=both, log_format=log_format, options={"speed": speed})
        assert result.measured.throughput in (result.log.printed, result.log.wall_clock)
        assert (result.measured.mean_of_rates, result.log.remarks) == (2700.0, ())
    result = attempt(log_window=both, log_format=log_format, options={"speed": "protocol"})
    assert result.measured.throughput == 2700.0 and result.log.printed == 2500.0
    assert remarks(result).startswith(
        "2700.00 samples/s is its protocol's arithmetic mean of rates; work over time is 2500.00 samples/s by the "
        "printed numbers"
    )
    plain = attempt(log_window=both, options={"speed": "protocol"})
    assert plain.measured.throughput == (plain.log.wall_clock or plain.log.printed) and not plain.log.remarks


@pytest.mark.parametrize(("duration_s", "is_odd"), [(0.1, True), (0.35, False), (None, False)])
def test_rates_and_times_of_the_same_lines_are_held_against_each_other(duration_s, is_odd):
    """2,570 samples/s beside steps of 1,024 samples in 0.1 s."""
    result = attempt(log_window=window(seconds=None, duration_s=duration_s))
    odd = "its printed rates make 2570.00 samples/s, and its printed times 10240.00: batch size"
    assert (odd in remarks(result)) == is_odd and result.measured.throughput == 2570


def test_a_printed_rate_of_0_makes_no_speed():
    result = attempt(log_window=window(rate=None, mean_of_rates=2500.0))
    assert result.log.printed is None and "it prints a rate of 0 in the window" in remarks(result)


def test_a_rank_rate_is_multiplied_by_the_devices():
    log_format = dataclasses.replace(FORMAT, rates="rank")
    result = attempt(log_window=window(rate=320.0), log_format=log_format)
    assert result.log.printed == pytest.approx(2560) and not result.log.remarks
    nobody = attempt({}, NAMELESS, window(rate=320.0), log_format=log_format)
    assert nobody.log.printed is None


@pytest.mark.parametrize(
    ("rates", "rate", "printed", "remark"),
    [
        ("all", 321.0, 2568.0, "that of one device: 321.00 is read as 2568.00"),
        ("rank", 2568.0, 2568.0, "that of all devices: 20544.00 is read as 2568.00"),
        ("all", 2000.0, 2000.0, ""),
        ("all", 1280.0, 1280.0, "0.5 times what its time stamps say"),
        ("all", 20600.0, 2575.0, "that of all devices"),
    ],
)
def test_the_meaning_of_a_rate_is_chosen_by_its_time_stamps(rates, rate, printed, remark):
    result = attempt(log_window=window(rate=rate), log_format=dataclasses.replace(FORMAT, rates=rates))
    assert result.log.printed == pytest.approx(printed)
    assert (remark in remarks(result)) if remark else not result.log.remarks
    assert result.measured.throughput == pytest.approx(2560)


@pytest.mark.parametrize("rate", [0.0, float("nan"), float("inf")])
def test_impossible_speeds_are_none(rate):
    result = attempt({}, PathFacts(devices=1), window(rate=rate, seconds=None))
    assert result.log.printed is None and result.measured is None and result.outcome is None
    assert result.problem


# No number


def test_a_log_that_ends_too_early_has_its_reason_and_no_number():
    result = attempt(window=None, reason="too short: the last printed step is 59")
    assert (result.outcome, result.measured, result.counts) == (None, None, False)
    assert result.problem == "too short: the last printed step is 59"
    assert (result.requested.case, result.log.window) == ("1n8g", "")


@pytest.mark.parametrize(
    ("facts", "log_window", "options", "problem"),
    [
        ({}, window(rate=None), {}, "neither the log nor its names say the batch size"),
        ({}, window(rate=None, seconds=None), {}, "neither time stamps nor rates"),
        (HEADER, window(rate=None), {"speed": "printed"}, "it prints no rates"),
    ],
)
def test_a_window_without_a_number_has_its_reason(facts, log_window, options, problem):
    result = attempt(facts, PathFacts(devices=8), log_window, options=options)
    assert problem in result.problem and result.measured is None


def test_a_log_with_unknown_devices_has_its_total_speed():
    result = attempt({}, NAMELESS)
    assert (result.requested.case, result.requested.run.devices) == ("?", None)
    assert result.measured.throughput == pytest.approx(2570)
    of_one = dataclasses.replace(FORMAT, rates="rank")
    result = attempt({}, NAMELESS, log_format=of_one)
    assert result.measured is None and "it prints 2570.00 samples/s of one device" in result.problem
    short = attempt({}, NAMELESS, window=None, reason="too short")
    assert short.requested.case == "?" and short.problem.startswith("too short")


def test_without_a_batch_size_printed_rates_still_count():
    result = attempt({}, PathFacts(devices=8))
    assert result.measured.throughput == pytest.approx(2570)
    assert result.requested.run.batch_size is None and "_b" not in result.run_id
    assert result.measured.samples == 0


def test_long_header_values_are_cut():
    endless = dict.fromkeys(("model", "data", "precision", "cuda", "sample_ratio"), "x" * 10**6)
    result = attempt({**HEADER, **endless})
    assert (
        len(result.requested.point) + len(remarks(result)) + len(result.run_id) + len(result.machine.facts["cuda"][0])
        < 2000
    )


# Words


def test_pauses_are_listed_with_their_length():
    pauses = (
        ExcludedInterval(reason="validation", from_step=30, to_step=40, seconds=2.5),
        ExcludedInterval(reason="validation", from_step=60, to_step=70, seconds=3.0),
        ExcludedInterval(reason="checkpoint", from_step=80, to_step=90, seconds=None),
    )
    text = remarks(attempt(log_window=window(pauses=pauses)))
    assert "2 intervals of 5.5 s in all kept out of the window: validation" in text
    assert "1 interval kept out of the window: checkpoint" in text


@pytest.mark.parametrize(
    ("epochs", "remark"),
    [
        ((-1, -1), "steps 20 to 120"),
        ((3, 3), "steps 20 to 120 of epoch 3"),
        ((0, 2), "step 20 of epoch 0 to step 120 of epoch 2"),
    ],
)
def test_window_text(epochs, remark):
    assert window_text(window(begin_epoch=epochs[0], end_epoch=epochs[1])) == remark


def test_numbered_as_another_repeat_of_a_campaign():
    result = attempt()
    other = numbered_as(result, folder="a/b", repeat=7, numbered=False)
    assert (other.requested.run.repeat, other.requested.extra, other.requested.run.is_numbered) == (
        7,
        {"folder": "a/b"},
        False,
    )
    assert other.run_id == other.requested.run_id and other.run_id.endswith("_r7")
    same = numbered_as(result, folder="", repeat=7, numbered=True)
    assert same.requested.point == result.requested.point and same.requested.key != result.requested.key
    renumbered = numbered_as(result, folder="", repeat=8, numbered=False).requested
    assert renumbered.point == same.requested.point and renumbered.key != same.requested.key


def test_ends_of_epochs_are_one_remark():
    """A training has as many as epochs: a line for each would bury what else is odd."""
    pauses = tuple(
        ExcludedInterval(reason=f"epoch {epoch} begins", from_step=5000, to_step=100, seconds=20.0)
        for epoch in range(1, 90)
    )
    assert list(_pauses(window(pauses=pauses))) == [
        "89 intervals of 1780.0 s in all kept out of the window: an epoch begins"
    ]
