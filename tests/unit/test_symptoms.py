"""What telemetry shows of a straggler, against the other ranks of the same runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from parse.ledger.point import ledgers
from parse.ledger.symptoms import compare_ranks
from parse.ledger.types import Ledger
from parse.ledger.what_if import with_what_ifs
from parse.runs.load import load
from parse.runs.result import results
from parse.say.paragraph import sentence
from tests.unit.ledger_traces import Change, on, per_rank, run_of, trace_of, with_telemetry
from tests.unit.ledgers import symptoms_of
from tests.unit.traces import put

QUEUED, FAULTS = "a rank ready to run waits for a core", "minor page faults of a rank"


def ledger_of(folder, series, runs: int = 2, **late: Change) -> Ledger:
    folder.mkdir(exist_ok=True)
    for repeat in range(1, runs + 1):
        run = run_of(repeat=repeat)
        put(folder, with_telemetry(trace_of(run, noise=0.05, seed=repeat, **late), series))
    (ledger,) = ledgers(results(load([folder])))
    return ledger


def test_a_rank_without_a_core_is_in_the_sentence_with_what_it_explains(tmp_path):
    series = per_rank("main_thread_queued_s", {3: 0.30}, usual=0.002)
    ledger = ledger_of(tmp_path, series, backward=on(3, ms=8.0))
    (symptom,) = symptoms_of(ledger)
    step = ledger.step.value
    assert (symptom.quantity, symptom.unit) == (QUEUED, "ms a step")
    assert (symptom.value, symptom.usual) == pytest.approx((0.30 * step, 0.002 * step))
    assert symptom.explains == pytest.approx(0.298 * step, rel=0.01)
    text = sentence(ledger, "2n2g")
    share = "78 % of its delay."
    assert f". It is ready to run but not running 6.31 ms a step (others 0.042): {share}" in text
    assert " To do: see what takes its core: a CPU quota, its own threads, another process (check `load`)." in text


def test_what_explains_a_small_part_of_the_delay_is_not_its_cause(tmp_path):
    for queued, named in ((0.02, False), (0.08, True)):
        series = per_rank("main_thread_queued_s", {3: queued}, usual=0.002)
        ledger = ledger_of(tmp_path / str(queued), series, backward=on(3, ms=8.0))
        assert ledger.verdict.ranks == (3,) and bool(symptoms_of(ledger)) is named


def test_no_more_than_the_whole_delay_is_explained(tmp_path):
    ledger = ledger_of(tmp_path, per_rank("main_thread_queued_s", {3: 0.9}, usual=0.0), backward=on(3, ms=8.0))
    assert symptoms_of(ledger)[0].explains == ledger.verdict.arrival_skew


def test_page_faults_are_named_without_a_share(tmp_path):
    ledger = ledger_of(tmp_path, per_rank("minor_faults", {1: 194_000.0}, usual=300.0), data=on(1, ms=6.0))
    assert [(each.quantity, each.explains) for each in symptoms_of(ledger)] == [(FAULTS, None)]
    assert ". It has 3686 page faults a step (others 5.7). To do: " in sentence(ledger, "2n2g")


def test_page_faults_explain_what_their_rank_is_longer_in_the_kernel(tmp_path):
    """At most the whole delay; no cause where the others are in the kernel as long."""
    faults = per_rank("minor_faults", {1: 194_000.0}, usual=300.0)
    beside = faults | per_rank("main_thread_kernel_s", {1: 0.1}, usual=0.4)
    assert not symptoms_of(ledger_of(tmp_path / "beside", beside, data=on(1, ms=6.0)))
    for kernel, usual, explains in ((0.32, 0.02, 0.3), (0.9, 0.0, None)):
        series = faults | per_rank("main_thread_kernel_s", {1: kernel}, usual=usual)
        ledger = ledger_of(tmp_path / str(kernel), series, data=on(1, ms=6.0))
        (symptom,) = symptoms_of(ledger)
        assert symptom.quantity == FAULTS
        expected = ledger.verdict.arrival_skew if explains is None else explains * ledger.step.value
        assert symptom.explains == pytest.approx(min(expected, ledger.verdict.arrival_skew), rel=0.01)


@pytest.mark.parametrize(
    ("faults", "usual"),
    [(400.0, 300.0), (1500.0, 1400.0)],  # below the floor; a little more than the others
)
def test_what_hardly_differs_is_no_symptom(tmp_path, faults, usual):
    assert not symptoms_of(ledger_of(tmp_path, per_rank("minor_faults", {1: faults}, usual), data=on(1, ms=6.0)))


def test_the_clock_of_a_gpu_is_that_of_its_rank(tmp_path):
    series = {
        f"gpu{place}.sm_clock_mhz": lambda node, s, place=place: 1400.0 if (node, place) == (1, 0) else 1980.0
        for place in (0, 1)
    }
    ledger = ledger_of(tmp_path, series, backward=on(2, ms=4.0))
    assert [each.quantity for each in symptoms_of(ledger)] == ["SM clock"]
    assert symptoms_of(ledger)[0].explains == pytest.approx(13 * (1 - 1400 / 1980), rel=0.05)  # of 13 ms compute


def test_of_a_node_its_own_figures_are_compared_with_those_of_other_nodes(tmp_path):
    series = {"memory.swapped_out_bytes": lambda node, s: 5e6 * s * node}
    ledger = ledger_of(tmp_path / "late", series, data=on(2, 3, ms=6.0))
    assert [(each.quantity, each.usual) for each in symptoms_of(ledger)] == [("swapped out", 0.0)]
    assert not symptoms_of(ledger_of(tmp_path / "other", series, data=on(0, 1, ms=6.0)))


def test_of_a_straggler_that_one_of_three_runs_shows_the_symptom_is_that_run_s(tmp_path):
    for repeat in (1, 2, 3):
        run = run_of(repeat=repeat)
        queued, late = (0.30, {"backward": on(3, ms=8.0)}) if repeat == 2 else (0.002, {})
        series = per_rank("main_thread_queued_s", {3: queued}, usual=0.002)
        put(tmp_path, with_telemetry(trace_of(run, noise=0.05, seed=repeat, **late), series))
    (ledger,) = ledgers(results(load([tmp_path])))
    assert (ledger.verdict.ranks, ledger.verdict.in_runs) == ((3,), 1)
    assert [(each.quantity, each.value) for each in symptoms_of(ledger)] == [
        (QUEUED, pytest.approx(0.30 * ledger.step.value))
    ]


def counters(still: dict[int, tuple[float, float]], run_s: float = 0.9) -> dict[str, Callable[[int, float], float]]:
    """The counters of four ranks that run, but from one second to another do not, by rank."""

    def ran(rank: int, s: float) -> float:
        begin, end = still.get(rank, (0.0, 0.0))
        return run_s * (s - max(0.0, min(s, end) - begin))

    return {
        f"local_rank{place}.{name}": lambda node, s, place=place, per_s=per_s: per_s * ran(2 * node + place, s)
        for place in (0, 1)
        for name, per_s in (
            ("cpu_s", 1.0), ("main_thread_voluntary_switches", 100.0), ("main_thread_involuntary_switches", 50.0),
            ("main_thread_queued_s", 0.05),
        )
    }  # fmt: skip


def test_a_rank_that_was_stopped_once_did_not_run(tmp_path):
    late = {"backward": lambda rank, step: 2000.0 * (rank == 1 and step == 20)}
    ledger = ledger_of(tmp_path, counters({1: (0.4, 2.2)}), **late)
    (symptom,) = symptoms_of(ledger)
    assert (symptom.quantity, symptom.unit, symptom.usual) == ("a rank does not run", "s", 0.0)
    assert symptom.value == pytest.approx(1.8, abs=0.11)
    assert symptom.explains == pytest.approx(1000 * symptom.value)


def test_a_rank_that_computed_for_two_seconds_ran(tmp_path):
    late = {"backward": lambda rank, step: 2000.0 * (rank == 1 and step == 20)}
    assert not symptoms_of(ledger_of(tmp_path, counters({}), **late))


def test_ranks_that_poll_while_they_wait_are_not_late_for_a_core(tmp_path):
    """Three ranks share a core and wait for the fourth most of the time; it waits for its core itself."""
    polling = per_rank("main_thread_involuntary_switches", {3: 20.0}, usual=20_000.0)
    series = per_rank("main_thread_queued_s", {3: 0.30}, usual=0.33) | polling
    ledger = ledger_of(tmp_path / "poll", series, backward=on(3, ms=8.0))
    step = ledger.step.value
    symptom = next(each for each in symptoms_of(ledger) if each.quantity == QUEUED)
    assert (symptom.value, symptom.usual) == pytest.approx((0.30 * step, max(0, 0.33 * step - (8 + 2))), abs=0.1)
    blocking = per_rank("main_thread_queued_s", {3: 0.30}, usual=0.33) | per_rank(
        "main_thread_involuntary_switches", {}, usual=20.0
    )
    assert not symptoms_of(ledger_of(tmp_path / "block", blocking, backward=on(3, ms=8.0)))


def test_what_telemetry_shows_of_a_delay_now_and_then_explains_no_share(tmp_path):
    series = per_rank("main_thread_queued_s", {3: 0.10}, usual=0.0)
    ledger = ledger_of(tmp_path, series, backward=on(3, ms=30.0, every=10))
    assert [(each.quantity, each.explains) for each in symptoms_of(ledger)] == [(QUEUED, None)]


def test_without_a_straggler_or_telemetry_there_are_no_symptoms(tmp_path):
    assert not symptoms_of(ledger_of(tmp_path, per_rank("minor_faults", {1: 194_000.0}, usual=300.0)))
    assert compare_ranks(trace_of(run_of()), [1], [0, 2, 3]) == {}


def test_too_few_samples_show_nothing():
    trace = with_telemetry(trace_of(run_of()), per_rank("minor_faults", {1: 9e9}, usual=0.0), every_s=0.4)
    assert compare_ranks(trace, [1], [0, 2, 3]) == {}


def test_a_trace_that_cannot_be_read_once_more_costs_the_explanation_alone(tmp_path, monkeypatch):
    """Numbers that only the comparison of ranks goes into, or a file that has changed since the first reading."""

    def fail(*_arguments, **_named):
        raise OverflowError("int too large to convert to float")

    monkeypatch.setattr("parse.ledger.symptoms.compare_ranks", fail)
    monkeypatch.setattr("parse.ledger.what_if.replayed_speeds", fail)
    ledger = with_what_ifs(ledger_of(tmp_path, per_rank("minor_faults", {1: 9e5}, usual=300.0), data=on(1, ms=6.0)))
    assert ledger.verdict.ranks == (1,) and not symptoms_of(ledger) and not ledger.what_ifs
    assert [remark.partition(":")[0] for remark in ledger.remarks] == [
        "not all is explained", "what changes would be worth is not known",
    ]  # fmt: skip
    assert all("goes beyond all range" in remark and str(tmp_path) in remark for remark in ledger.remarks)
