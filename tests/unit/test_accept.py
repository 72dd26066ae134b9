"""`hpc.sweep accept`: from a reference to a sweep, to a verdict, to files; without a scheduler."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hpc.model.findings import CheckFinding
from hpc.model.outcome import Outcome
from hpc.model.reference import ReferencePoint, known_references, read_reference
from hpc.model.spec import RunSpec, SpecError
from launch.doctor.command import DoctorError, Examination
from launch.jobs.options import LaunchOptions
from launch.jobs.site import Site
from launch.scheduler.protocol import Node
from launch.sweep import accept, submit
from launch.sweep.accept import RUNS_PER_NODE, on_every_node, sweeps_of
from launch.sweep.cli import main as hpc_sweep
from launch.sweep.cli import read_arguments
from launch.sweep.prepare import Prepared, prepare
from launch.sweep.request import Request
from launch.sweep.spec import SweepSpec
from parse.comparison.pairs import compare_with_reference, read_measurement
from parse.comparison.types import ComparisonVerdict
from parse.history import main as history
from tests.unit.traces import make_run, make_trace, put, put_exit_record, put_plan, repeats

Capture = pytest.CaptureFixture[str]
SPEEDS = {1: 100.0, 2: 190.0}
REFERENCE = """\
title = "two simulated nodes"
tolerance = "5%"

[settings]
backend = "mpi"
workload = "delay"
on = "CPU"
"option.compute_ms" = "3"
warmup_steps = 5
measured_steps = 10

[[point]]
speed = 100.0
source = "by hand"
settings = { case = "1n1g" }

[[point]]
speed = 190.0
source = "by hand"
tolerance = "10%"
settings = { case = "2n1g", batch_size = 8 }
"""


class Machine:
    """Ends every run at once with the speed of its number of nodes, times a factor; `failing` numbers of nodes end
    otherwise."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.failing: dict[int, Outcome | None] = {}
        self.plans: list[tuple[RunSpec, ...]] = []
        self.looked: list[Examination] = []
        self.findings = [CheckFinding(name="time", text="clocks differ by 2 s", fix="chronyd")]

    def run_prepared(self, prepared: Prepared) -> int:
        traces = prepared.folders.traces
        for folder in (traces, prepared.folders.jobs / "runs"):
            folder.mkdir(parents=True, exist_ok=True)
        prepared.write()
        self.plans.append(prepared.plan.runs)
        for at, run in enumerate(prepared.plan.runs):
            outcome = Outcome.OK if run.diagnostic else self.failing.get(run.nodes, Outcome.OK)
            if list(traces.glob(f"{run.run_id}.*.exit.json")) or outcome is None:
                continue
            if outcome is Outcome.OK and not run.diagnostic:
                put(traces, make_trace(run, speed=SPEEDS[run.nodes] * self.factor * (1 + at % 5 / 1000)))
            put_exit_record(traces, run, outcome if not run.diagnostic else Outcome.RANK_FAIL)
        return 0

    def examine(self, request: Examination) -> list[CheckFinding]:
        self.looked.append(request)
        return self.findings


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(submit, "run_prepared", made.run_prepared)
    monkeypatch.setattr(accept, "examine", made.examine)
    return made


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    path = tmp_path / "machine.toml"
    path.write_text(REFERENCE)
    return ["accept", "--cluster", "local", "--reference", str(path), "--out", str(tmp_path)]


def folders(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "acceptance").iterdir())


def junit(path: Path) -> dict[str, str]:
    """The result of each case: passed, failure, error, skipped."""
    suite = ElementTree.parse(path).getroot()[0]
    cases = {case.attrib["name"]: case[0].tag if len(case) else "passed" for case in suite.iter("testcase")}
    counted = [suite.attrib[name] for name in ("tests", "failures", "errors", "skipped")]
    results = [*cases.values()]
    assert counted == [str(len(cases)), *(str(results.count(tag)) for tag in ("failure", "error", "skipped"))]
    return cases


def test_a_machine_as_fast_as_its_reference_passes(
    tmp_path: Path, machine: Machine, command: list[str], capsys: Capture
) -> None:
    xml = tmp_path / "out.xml"
    assert hpc_sweep([*command, "--junit", str(xml)]) == 0
    shown = capsys.readouterr().out
    assert "\npassed: 2 points within the tolerance\n" in shown and "scontrol" not in shown
    assert "clocks differ by 2 s" in shown and r"\n" not in shown
    alike = "backend=mpi workload=delay on=CPU option.compute_ms=3 warmup_steps=5 measured_steps=10"
    assert junit(xml) == {f"1n1g {alike}": "passed", f"2n1g {alike} batch_size=8": "passed", "doctor time": "skipped"}
    (folder,) = folders(tmp_path)
    assert (folder / "reference.toml").read_text() == REFERENCE
    content = json.loads((folder / "accept.json").read_text())
    assert (content["status"], content["verdict"]) == (0, "passed: 2 points within the tolerance")
    trainings = [(run.case, run.batch_size) for run in machine.plans[0] if not run.diagnostic]
    assert Counter(trainings) == {("1n1g", 4): 5, ("2n1g", 8): 5}
    assert machine.looked == [Examination(launch=LaunchOptions(cluster="local", out=folder), nodes="2")]


@pytest.mark.parametrize(
    ("factor", "failing", "verdict", "results"),
    [
        # 8 % slower: beyond 5 %, within 10 %
        (0.92, {}, "not accepted: 1 point slower than the tolerance", ["failure", "passed", "skipped"]),
        (1.0, {2: Outcome.OOM}, "could not be measured: 2n1g", ["passed", "error", "skipped"]),
    ],
)
def test_a_slower_machine_does_not_pass_and_one_that_fails_is_not_measured(
    tmp_path: Path, machine: Machine, command: list[str], capsys: Capture, factor: float,
    failing: dict[int, Outcome | None], verdict: str, results: list[str],
) -> None:  # fmt: skip
    machine.factor, machine.failing, xml, path = factor, failing, tmp_path / "out.xml", tmp_path / "next.toml"
    assert hpc_sweep([*command, "--junit", str(xml), "--update-reference", str(path)]) == (2 if failing else 1)
    shown = capsys.readouterr().out
    assert f"\n{verdict}" in shown and list(junit(xml).values()) == results
    if failing:
        assert "no run ended ok (5 oom)" in " ".join(shown.split())
    assert ("next.toml: not written" in shown, path.exists()) == (bool(failing), not failing)


def test_what_cannot_be_looked_at_is_not_measured(
    tmp_path: Path, machine: Machine, command: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: Examination) -> list[CheckFinding]:
        raise DoctorError("no <controller> answers")

    monkeypatch.setattr(accept, "examine", fail)
    xml = tmp_path / "out.xml"
    assert hpc_sweep([*command, "--junit", str(xml)]) == 2
    assert "could not be measured: the doctor cannot look: no <controller> answers" in capsys.readouterr().out
    assert junit(xml) == {"measurement": "error"}
    assert not machine.plans


def test_an_interrupted_test_goes_on_and_an_ended_one_does_not(
    tmp_path: Path, machine: Machine, command: list[str], capsys: Capture
) -> None:
    machine.failing = {2: None}
    assert hpc_sweep(command) == 2
    assert "5 runs of 2n still to be done (5 never ran): the same command goes on" in capsys.readouterr().out
    machine.failing = {}
    assert hpc_sweep(command) == 0
    assert "goes on, because it has no result yet" in capsys.readouterr().out
    (first,) = folders(tmp_path)
    first = first.rename(first.with_name("2026-01-02T03-04-05Z"))
    (first / "accept.json").unlink()  # an old one that was interrupted
    assert hpc_sweep(command) == 0
    latest = folders(tmp_path)[-1]
    latest.rename(latest.with_name("2026-01-03T03-04-05Z"))
    assert "goes on" not in capsys.readouterr().out and len(folders(tmp_path)) == 2
    assert hpc_sweep(command) == 0
    assert "goes on" not in capsys.readouterr().out and len(folders(tmp_path)) == 3


def test_the_tests_are_a_history(tmp_path: Path, machine: Machine, command: list[str], capsys: Capture) -> None:
    for at in range(2):
        assert hpc_sweep(command) == 0
        latest = folders(tmp_path)[-1]
        latest.rename(latest.with_name(f"2026-01-0{at + 1}T03-04-05Z"))
    capsys.readouterr()
    assert history([str(path / "traces") for path in folders(tmp_path)]) == 2  # too few for a verdict
    assert "2 measurements" in capsys.readouterr().out


def test_the_next_reference_is_one(tmp_path: Path, machine: Machine, command: list[str]) -> None:
    machine.factor, path = 0.92, tmp_path / "next.toml"
    assert hpc_sweep([*command, "--update-reference", str(path)]) == 1
    before, after = read_reference(tmp_path / "machine.toml", 0.03), read_reference(path, 0.03)
    assert [point.speed for point in after.points] == pytest.approx([92.184, 175.15], rel=1e-3)
    for old, new in zip(before.points, after.points, strict=True):
        assert new == dataclasses.replace(old, speed=new.speed, source=new.source)
        assert f"median of 5 runs; expected before: {old.speed:g}" in new.source and " UTC by " in new.source
    text = path.read_text()
    assert 'torch = "2.13"' in text and 'cpu = "Xeon"' in text
    folders(tmp_path)[0].rename(tmp_path / "acceptance" / "2026-01-02T03-04-05Z")
    (tmp_path / "machine.toml").write_text(text)
    assert hpc_sweep(command) == 0  # against its own speeds


MAKE = ["accept", "--make-reference"]


def put_points(folder: Path, outcomes: dict[int, Outcome], repeats_: int = 5, **settings: object) -> None:
    """Traces of a sweep of these numbers of nodes, each with its outcome."""
    for nodes, outcome in outcomes.items():
        run = make_run(nodes=nodes, options={"compute_ms": "3"}, env={"A_B": "1"}, **settings)
        for at, repeat in enumerate(repeats(run, repeats_)):
            if outcome is Outcome.OK:
                put(folder, make_trace(repeat, speed=SPEEDS[nodes] * (1 + at / 1000)))
            put_exit_record(folder, repeat, outcome)
        put_plan(folder, repeats(run, repeats_))


def test_the_first_reference_is_made_of_traces_and_what_it_is_made_of_passes(
    traces: Path, tmp_path: Path, machine: Machine, capsys: Capture
) -> None:
    path = tmp_path / "machine.toml"
    put_points(traces, {1: Outcome.OK, 2: Outcome.OK})
    assert hpc_sweep([*MAKE, str(traces), "--reference", str(path), "--threshold", "4%"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") == 1 and "machine.toml: 2 points of" in shown and "tolerance 4 %" in shown
    reference = read_reference(path, 0.03)
    assert [(point.speed, point.tolerance) for point in reference.points] == [(100.2, 0.04), (190.38, 0.04)]
    assert reference.title == "mpi delay on 1n1g, 2n1g" and reference.devices == "Xeon"
    assert not {"site", "devices", "folder", "date"} & {*reference.points[0].settings}
    text = path.read_text()
    assert text.startswith("# Expected speeds") and "[settings]  # of all points" in text
    assert 'settings = { case = "2n1g" }' in text and not machine.plans and not machine.looked
    comparison = compare_with_reference(str(path), read_measurement(traces, "traces", {}).results, "traces", 0.03)
    assert comparison.status == 0 and not comparison.only_new
    assert [compared.verdict for compared in comparison.points] == [ComparisonVerdict.SAME, ComparisonVerdict.SAME]
    accepting = ["accept", "--cluster", "local", "--reference", str(path), "--out", str(tmp_path)]
    assert hpc_sweep(accepting) == 0 and len(machine.plans) == 1


def test_a_reference_of_few_runs_or_of_much_scatter_says_so(traces: Path, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "machine.toml"
    put_points(traces, OK_1, repeats_=3)
    for at, repeat in enumerate(repeats(make_run(nodes=2), 5)):
        put(traces, make_trace(repeat, speed=100.0 + 10 * at))
    assert hpc_sweep([*MAKE, str(traces), "--reference", str(path)]) == 0
    remarks = ["3 runs, too few for an interval: measure with --repeats 5 or more",
               "its median is known to [-16.7, +16.7] % (95 %) only, which the tolerance does not "
               "cover"]  # fmt: skip
    shown, text = capsys.readouterr().out, path.read_text()
    assert all(remark in shown and f"# {remark}" in text for remark in remarks)


OK_1 = {1: Outcome.OK}


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ([({1: Outcome.OK, 2: Outcome.OOM}, {})], "points without a speed: 2n1g: no run ended ok (5 oom)"),
        ([], "no point to compare"),
        ([(OK_1, {"site": "here"}), (OK_1, {"site": "there"})],
         "these differ in nothing that a sweep chooses: 1n1g site=here; 1n1g site=there"),
        ([(OK_1, {"arguments": ("--mine", "1")})], "no sweep can request arguments"),
    ],
)  # fmt: skip
def test_points_that_no_sweep_could_measure_make_no_reference(
    traces: Path, tmp_path: Path, capsys: Capture, measured: list[tuple[dict[int, Outcome], dict[str, Any]]],
    message: str,
) -> None:  # fmt: skip
    for outcomes, settings in measured:
        put_points(traces, outcomes, **settings)
    assert hpc_sweep([*MAKE, str(traces), "--reference", str(tmp_path / "machine.toml")]) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("no reference: ") and message in shown and not (tmp_path / "machine.toml").exists()


def test_a_reference_that_is_there_is_not_written_over(traces: Path, tmp_path: Path, capsys: Capture) -> None:
    put_points(traces, OK_1)
    (path := tmp_path / "machine.toml").write_text("by hand")
    assert hpc_sweep([*MAKE, str(traces), "--reference", str(path)]) == 2
    assert "machine.toml is there already: remove it" in capsys.readouterr().out and path.read_text() == "by hand"


def test_the_tables_of_a_recipe_are_no_points_to_measure(tmp_path: Path, capsys: Capture) -> None:
    recipe = known_references()["plsc-arcface"]
    assert hpc_sweep(["accept", "--reference", str(recipe), "--out", str(tmp_path)]) == 2
    assert "plsc-arcface.toml: it has no [[point]]" in capsys.readouterr().out and not list(tmp_path.iterdir())


def point(**settings: str) -> ReferencePoint:
    return ReferencePoint(settings=settings, speed=1, unit="samples/s", tolerance=0.03, source="")


def test_a_point_becomes_a_sweep_with_all_its_settings() -> None:
    settings = {"case": "2n4g", "backend": "torch-ddp", "workload": "resnet50", "batch_size": "64", "precision": "bf16",
                "scaling": "strong", "cpus_per_rank": "3", "warmup_steps": "20", "measured_steps": "100", "seed": "7",
                "timing": "step", "telemetry": "off", "block_steps": "50", "option.bucket_mb": "25",
                "env.NCCL_ALGO": "Ring,Tree", "site": "here"}  # fmt: skip
    (sweep,) = sweeps_of([point(**settings)], 5)
    assert sweep == SweepSpec(
        cases=((2, 4),), backend=("torch-ddp",), workload=("resnet50",), batch_size=(64,), precision=("bf16",),
        scaling=("strong",), cpus_per_rank=(3,), warmup=20, steps=120, seed=7, timing=("step",), telemetry=("off",),
        block_steps=50, option={"bucket_mb": ("25",)}, env={"NCCL_ALGO": ("Ring,Tree",)}, repeats=5, no_baseline=True,
        collectives=True,
    )  # fmt: skip
    (sweep,) = sweeps_of([point(nodes="1", ranks_per_node="1", on="CPU")], 6)
    assert (sweep.cases, sweep.gpus_per_node, sweep.collectives, sweep.repeats) == (((1, 1),), 0, False, 6)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([point(backend="mpi")], "point 1 (backend=mpi): it says neither case (2n8g) nor nodes and ranks_per_node"),
        ([point(case="1n1g", name="log")], "point 1 (1n1g name=log): no sweep can request name"),
        ([point(case="1n1g", measured_steps="5")], "measured_steps 5 needs warmup_steps beside it"),
        ([point(case="1n1g", batch_size="many")], "batch_size: 'many' is not a whole number"),
        ([point(case="1n1g", on="CPU"), point(case="2n1g")], "some points say on = CPU and others do not"),
    ],
)
def test_a_point_that_no_sweep_can_measure_is_refused(points: list[ReferencePoint], message: str) -> None:
    with pytest.raises(SpecError) as error:
        sweeps_of(points, 5)
    assert message in str(error.value)


def prepared_for(tmp_path: Path, nodes: int, **changes: str) -> Prepared:
    launch = LaunchOptions(cluster="local", out=tmp_path)
    sweep = SweepSpec(cases=((1, 1), (nodes, 1)), backend=("mpi",), workload=("delay",), repeats=5, gpus_per_node=0)
    local = prepare(Request(sweeps=(sweep,), launch=launch))
    return dataclasses.replace(local, site=Site(name="here", **changes))


def test_the_largest_point_of_one_node_runs_on_every_node(tmp_path: Path) -> None:
    nodes = [Node(name=f"n{at}", cpus=8, gpus=0) for at in range(3)]
    made = on_every_node(prepared_for(tmp_path, 2, partition="batch"), nodes)
    jobs = {job.name: (job.request.get("nodelist"), [(run.nodes, run.repeat) for run in job.runs]) for job in made.jobs}
    assert jobs == {
        "2n": (None, [(2, repeat) for repeat in range(1, 6)]),
        **{f"1n-n{at}": (f"n{at}", [(1, RUNS_PER_NODE * at + each) for each in (1, 2, 3)]) for at in range(3)},
    }
    assert made.jobs[1].request["job_name"] == "rankwise-1n-n0" and made.jobs[1].request["partition"] == "batch"
    assert sorted(run.run_id for run in made.plan.runs) == sorted(run.run_id for job in made.jobs for run in job.runs)
    assert len({run.run_id for run in made.plan.runs}) == 5 + 9


def test_without_nodes_to_compare_the_sweep_stays_as_it_is(tmp_path: Path) -> None:
    prepared = prepared_for(tmp_path, 2)
    assert on_every_node(prepared, [Node(name="n0", cpus=8, gpus=0)]) is prepared
    local = dataclasses.replace(prepared, site=None)
    assert on_every_node(local, [Node(name=f"n{at}", cpus=8, gpus=0) for at in (0, 1)]) is local


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no --reference FILE is named"),
        (["--make-reference", "traces"], "no --reference FILE is named"),
        (
            ["--reference", "r.toml", "--make-reference", "t", "--junit", "x", "--site", "s"],
            "leave out --junit, --site",
        ),
        (["--reference", "r.toml", "--repeats", "4"], "repeats: '4' is not a whole number from 5 to 100000"),
        (["--reference", "r.toml", "--nodes", "2"], "accept measures the points of its reference: leave out --nodes"),
    ],
)
def test_a_command_line_that_makes_no_test_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_arguments(["accept", *arguments])
