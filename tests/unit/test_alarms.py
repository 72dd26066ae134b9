"""parse.alarms on traces: each rule raises its alarm once, with its figures, and is silent once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.model.outcome import ExitRecord, Outcome
from hpc.model.spec import COLLECTIVES
from parse.alarms.table import RULES, SENTENCES, sentence
from parse.report.notices import all_notices
from parse.report.summary import Summary
from parse.runs.result import Result
from tests.unit.alarm_figures import figures, same
from tests.unit.comparisons import FIVE, times
from tests.unit.traces import ended, judged, make_ranks, make_run, make_trace, point, repeats


def scaled(**speeds: Sequence[float]) -> tuple[Result, ...]:
    """Points 1n<N>g with those speeds: `scaled(g1=[…], g8=[…])`."""
    runs = {name: make_run(ranks_per_node=int(name[1:])) for name in speeds}
    return judged([trace for name, run in runs.items() for trace in point(run, speeds[name])])


def trace(run: Any = None, **changes: Any) -> tuple[Result, ...]:
    return judged([make_trace(run, **changes)])


def backend(**facts: Any) -> tuple[Result, ...]:
    """A trace with these facts of its backend."""
    software = {"numpy": "2.0", "torch": "2.13.0+cpu", "horovod": "0.28.1"}
    return trace(environment={"software": software, "backend": {"transport": "mpi", **facts}})


def sixth_run(**facts: Any) -> tuple[Result, ...]:
    """Five runs on one machine, and a sixth on another."""
    run = make_run(gpus_per_node=1)
    other = make_trace(dataclasses.replace(run, repeat=6), ranks=make_ranks(run, **facts))
    return judged([*point(run, FIVE), other])


def joining(*joined: bool | None) -> tuple[Result, ...]:
    """Ranks of a script, of which each is in a process group, or not, or this is not known."""
    run = make_run(ranks_per_node=len(joined))
    ranks = make_ranks(run)
    for rank, its in zip(ranks, joined, strict=True):
        rank["script"] = {"facts": {} if its is None else {"joined": its}}
    return trace(run, ranks=ranks)


TWO, TWO_NODES = make_run(ranks_per_node=2), make_run(nodes=2)
# The published 1n8g row: packed jobs among the runs, median 2802.14, average 2014.63.
PACKED = [2833.72, 688.8, 2808.11, 2806.66, 701.07, 2800.71, 2803.56, 674.42]
NOTE = "the loss is not finite on 1 of 1 ranks, first in step 3"
OLD_HOROVOD = {"torch": "2.12.0+cpu", "tensorflow": "2.20.0"}
ODD_BASELINE = make_trace(TWO_NODES.baseline(), ranks=make_ranks(TWO_NODES.baseline(), nvidia_driver="535.0"))
OTHER_DRIVER = make_ranks(TWO_NODES, nvidia_driver="535.0")[1]
TWICE = [make_trace(step_s=0.2, attempt=3), make_trace(step_s=0.1, attempt=1)]


def recorded(wall_s: int, duration_ms: int) -> tuple[Result, ...]:
    """An attempt with a record of both clocks."""
    record = ExitRecord(
        run_id=make_run().run_id, attempt=1, outcome=Outcome.OOM, exit_status=1, job_id="7", begin_unix_s=10**9,
        end_unix_s=10**9 + wall_s, duration_ms=duration_ms,
    )  # fmt: skip
    return judged([], [make_run()], [dataclasses.replace(ended(make_run(), Outcome.OOM), record=record)])


def compared(shift_s: float) -> tuple[Result, ...]:
    """A trace in whose second comparison of clocks the wall clock is off by so much."""
    offset_ns = np.array([[10**18, 10**18 + round(shift_s * 1e9)]])
    return trace(unix_offset_ns=offset_ns, unix_bound_ns=np.zeros((1, 2), np.int64))


def bounded(bound_ns: float) -> tuple[Result, ...]:
    return trace(TWO_NODES, clock_bound_ns=np.full((2, 2), bound_ns))


def contradicting(**facts: object) -> tuple[Result, ...]:
    """Of rank 1."""
    ranks = make_ranks(TWO_NODES)
    return trace(TWO_NODES, ranks=[ranks[0], {**ranks[1], "script": {"clock_contradiction": facts}}])


JUMPED = {"steps": 37, "of_steps": 100, "jumps": 2, "off_ns": 130_200_000, "events": 200, "of_events": 700}


MACHINES: dict[str, dict[str, Any]] = {
    "device": {"device": {"kind": "gpu", "name": "A100", "uuid": "GPU-x"}}, "driver": {"nvidia_driver": "535.0"},
    "cpu": {"cpu_model": "Epyc"}, "numpy": {"software": {"numpy": "1.26"}},
}  # fmt: skip
"""Facts of another machine."""
CASES: list[tuple[str, tuple[Result, ...], tuple[Result, ...]]] = [
    ("superlinear", scaled(g1=FIVE, g2=times(2.2)), scaled(g1=FIVE, g2=times(2.02))),
    # PLSC's published rows: 1n8g 2545.3 (start-up averaged in), 2n8g 5953.84, of 397.78 on one device
    (
        "rising", scaled(g1=times(3.9778), g8=times(25.453), g16=times(59.5384)),
        scaled(g1=times(3.9778), g8=times(30), g16=times(60.5)),
    ),
    (
        "rising", scaled(g16=times(23.843), g32=times(55.5277)),
        judged([*point(make_run(ranks_per_node=2, env={"A": "slow"}), times(0.5)),
                *point(make_run(ranks_per_node=4, env={"A": "fast"}), times(4))]),
    ),
    # Paddle's DALI column: 6862.17 on 1n8g, 6018.46 on 2n8g
    (
        "falling", scaled(g1=times(8.8717), g8=times(68.6217), g16=times(60.1846)),
        scaled(g1=FIVE, g8=times(6.86), g16=times(6.83)),
    ),
    ("falling", scaled(g8=times(6.86), g16=times(6.0)), scaled(g8=[686], g16=[601])),
    ("average_and_median", scaled(g8=PACKED), scaled(g8=PACKED[:1] + PACKED[2:4])),
    ("disagreement", trace(TWO_NODES, ranks=[make_ranks(TWO_NODES)[0], OTHER_DRIVER]), trace(TWO_NODES)),
    (
        "baseline_elsewhere", judged([ODD_BASELINE, make_trace(TWO_NODES)]),
        judged([make_trace(TWO_NODES.baseline()), make_trace(TWO_NODES)]),
    ),
    ("outlying_runs", scaled(g1=[100.0, 100.5, 101.0, 99.5, 80.0]), scaled(g1=[100.0, 100.5, 101.0, 99.5, 98.5])),
    ("two_groups", scaled(g1=[1024, 1026, 1280, 1282]), scaled(g1=[1024, 1280])),
    ("two_groups", scaled(g1=[100.0, 100.5, 125.0, 126.0]), scaled(g1=[100.0, 107.0, 118.0, 126.0])),
    ("two_groups", scaled(g1=[100, 100.5, 115, 115.5, 130, 130.5]), scaled(g1=[100.0, 107.0, 118.0, 126.0, 133.0])),
    ("loose_clocks", bounded(2e7), bounded(2e6)),
    ("contradicting_clocks", contradicting(**JUMPED), contradicting(**(JUMPED | {"steps": "37"}))),
    ("wall_clock_set", recorded(3625, 25_200), recorded(26, 25_200)),
    ("wall_clock_set", recorded(-3575, 25_200), recorded(3625, -1)),
    ("wall_clock_set", compared(60), compared(1)),
    ("repeated", judged(TWICE), judged(TWICE[:1])),
    ("noted", trace(evidence=NOTE), trace()),
    ("apart", joining(False, False), joining(True, True)),
    ("apart", joining(True, False), joining(None, None)),
    ("oversubscribed", trace(TWO, ranks=make_ranks(TWO, affinity=[0])), trace(TWO)),
    ("nodes_simulated", trace(TWO_NODES, ranks=make_ranks(TWO_NODES, boot_id="one")), trace(TWO_NODES)),
    ("unfused", backend(fused=False), backend(fused=True)),
    ("synchronises", backend(synchronises_every_step=True), backend(synchronises_every_step=False)),
    (
        "built_otherwise", backend(horovod_built_against=OLD_HOROVOD),
        backend(horovod_built_against=OLD_HOROVOD | {"torch": "2.13.0+cpu"}),
    ),
    *((f"disagreement in {name}", sixth_run(**facts), sixth_run()) for name, facts in MACHINES.items()),
]  # fmt: skip


def test_rules_raise_one_alarm_with_its_figures_and_sentence(golden: Callable[[str, str], None]) -> None:
    """Each once, and in the other summary not."""
    text = ""
    for title, alarming, silent in CASES:
        name = title.split()[0]
        (alarm,) = (each for result in alarming for each in result.alarms if each.name == name)
        figures_of = {key: float(f"{its:.6g}") if isinstance(its, float) else its for key, its in alarm.figures.items()}
        text += f"{title}: {alarm.text}\n  {json.dumps(figures_of)}\n"
        assert figures(silent, name) == [], title
    golden("alarms.txt", text)


def test_a_clean_sweep_has_no_alarms():
    clean = scaled(g1=FIVE, g2=times(1.95), g4=times(3.8))
    assert [result.alarms for result in clean] == [(), (), ()]


@pytest.mark.parametrize("changes", [{"reduction": "off"}, {"workload": COLLECTIVES}])
def test_a_diagnostic_run_has_no_alarms_and_causes_none(changes):
    training, diagnostic = make_run(ranks_per_node=2), make_run(ranks_per_node=2, **changes)
    odd = {"evidence": "the loss is not finite", "ranks": make_ranks(training, affinity=[0])}
    single = judged(point(training, FIVE))
    both = judged([*point(training, FIVE), *point(diagnostic, times(9), **odd)])
    assert [result.alarms for result in both if result.run.diagnostic] == [()]
    assert [result.alarms for result in both if not result.run.diagnostic] == [single[0].alarms]
    assert judged(point(training, FIVE, **odd))[0].alarms


def test_one_run_has_no_interval_and_raises_no_scaling_alarm():
    single = scaled(g1=[100], g2=[300], g4=[900])
    assert figures(single, "superlinear") + figures(single, "rising") == []


def test_fewer_ok_runs_than_planned():
    runs = repeats(make_run(), 5)
    traces = [make_trace(run) for run in runs]
    traces[1] = dataclasses.replace(traces[1], outcome=Outcome.TIMEOUT)
    (actual,) = figures(judged(traces[:4], runs), "fewer_runs")
    assert same(actual, {"ok": 3, "runs": 5, "outcomes": {"missing": 1, "timeout": 1}, "source": "plan"})
    assert figures(judged([traces[0], *traces[2:]], [runs[0], *runs[2:]]), "fewer_runs") == []
    assert figures(judged(traces), "fewer_runs") == []


def test_evidence_that_all_runs_share_is_one_alarm_and_one_line_of_the_folder():
    runs = [*repeats(make_run(), 3), *repeats(TWO, 2)]
    summary = Summary(results=judged([make_trace(run, evidence=NOTE) for run in runs]))
    assert [figures([result], "noted") for result in summary.results] == [
        [{"runs": [1, 2, 3], "of": 3, "evidence": NOTE}], [{"runs": [1, 2], "of": 2, "evidence": NOTE}],
    ]  # fmt: skip
    assert [alarm.text for alarm in summary.results[0].alarms if alarm.name == "noted"] == [f"all 3 runs: {NOTE}"]
    (notice,) = (notice for notice in all_notices(summary) if NOTE in notice.text)
    assert (notice.text, notice.labels) == (f"all 5 runs: {NOTE}", ("1n1g", "1n2g"))


def test_evidence_of_some_runs_names_them_and_is_not_that_of_all():
    first, *others = repeats(make_run(), 5)
    traces = [make_trace(first), *(make_trace(run, evidence=NOTE) for run in others)]
    summary = Summary(results=judged([*traces, *(make_trace(run, evidence=NOTE) for run in repeats(TWO, 2))]))
    texts = [notice.line for notice in all_notices(summary) if NOTE in notice.text]
    assert texts == [f"1n1g: run 2-5: {NOTE}", f"1n2g: all 2 runs: {NOTE}"]


def test_runs_with_different_device_counts():
    # An attempt with one of two ranks and all samples.
    single = make_trace(make_run(repeat=6))
    other = dataclasses.replace(single, run=dataclasses.replace(TWO, repeat=6), run_id="r6", samples=2 * single.samples)
    odd = judged([*point(TWO, FIVE), other])
    assert figures(odd, "disagreement") == [{"fact": "ranks", "runs": {"2": [1, 2, 3, 4, 5], "1": [6]}}]
    (actual,) = figures(odd, "not_as_asked")
    assert same(
        actual, {"runs": [6], "of": 6, "ranks": 1, "requested_ranks": 2, "samples": 80, "requested_samples": 80}
    )


def test_fewer_samples_than_requested():
    trace = make_trace()
    short = trace.samples.copy()
    short[0, -1] = 1
    (actual,) = figures(judged([dataclasses.replace(trace, samples=short)]), "not_as_asked")
    assert same(actual, {"runs": [1], "of": 1, "ranks": 1, "steps": 10, "samples": 37, "requested_samples": 40})
    assert figures(judged([trace]), "not_as_asked") == []


def test_the_last_batch_of_an_epoch_of_files_is_smaller():
    trace = make_trace(make_run(data="imagefolder:/x"))
    for last, raised in ((1, 0), (4, 0), (5, 1)):
        samples = trace.samples.copy()
        samples[0, -1] = last
        assert len(figures(judged([dataclasses.replace(trace, samples=samples)]), "not_as_asked")) == raised


def test_one_rank_with_several_gpus_is_judged_by_its_devices():
    run = make_run(backend="torch-dp", gpus_per_node=4)
    scaling = judged([*point(run.baseline(), FIVE), *point(run, times(3.9))])
    assert [(result.run.case, result.run.ranks) for result in scaling] == [("1n1g", 1), ("1n4g", 1)]
    assert scaling[1].scaling_efficiency == pytest.approx(3.9 / 4)
    assert [result.alarms for result in scaling] == [(), ()]
    assert len(figures(judged([*point(run.baseline(), FIVE), *point(run, times(5))]), "superlinear")) == 1


# Preflight


def checked(name: str, state: str, severity: str = "alarm", text: str = "node0: 1.50 cores") -> dict[str, Any]:
    """A finding as traces have it."""
    finding = {"name": name, "severity": severity, "state": state, "text": text, "figures": {}, "fix": "wait"}
    return {"preflight": {name: finding}}


def test_a_failed_check_has_one_alarm_for_all_runs():
    runs = repeats(make_run(), 3)
    traces = [make_trace(runs[0]), *(make_trace(run, environment=checked("load", "failed")) for run in runs[1:])]
    (actual,) = figures(judged(traces), "preflight")
    assert actual == {"check": "load", "unknown": False, "text": "node0: 1.50 cores", "runs": [2, 3]}
    assert sentence("preflight", actual) == "load: node0: 1.50 cores (run 2; run 3 too)"


CROWDED = {"run": TWO, "ranks": make_ranks(TWO, affinity=[0])}
ODD_FINDINGS = {
    "preflight": {"load": {"severity": "deadly"}, "later": checked("later", "failed")["preflight"]["later"], "x": 3}
}


@pytest.mark.parametrize(
    ("changes", "checks"),
    [
        ({"environment": checked("load", "ok")}, []),
        ({"environment": checked("load", "unknown")}, []),
        ({"environment": checked("transport", "unknown", "fatal")}, ["transport"]),
        ({"environment": checked("load", "failed"), **CROWDED}, []),
        ({"environment": checked("host_memory", "failed"), **CROWDED}, ["host_memory"]),
        ({"environment": ODD_FINDINGS}, ["later"]),
    ],
)
def test_checks_with_an_alarm(changes, checks):
    assert [alarm["check"] for alarm in figures(trace(**changes), "preflight")] == checks


# Sentences


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_test_and_a_sentence(rule):
    tests = (
        "test_alarms.py",
        "test_alarms_logs.py",
        "test_alarms_windows.py",
        "test_placement.py",
        "test_tables_alarms.py",
    )
    assert any(f'"{rule}"' in Path(__file__).with_name(name).read_text(encoding="utf-8") for name in tests)
    assert any(form.split()[0] == rule for form in SENTENCES)
