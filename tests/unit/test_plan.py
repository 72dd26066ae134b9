from __future__ import annotations

import dataclasses
import errno
import json
import shutil
import tempfile
from pathlib import Path

import pytest

from hpc.model.spec import COLLECTIVES, Plan, RunSpec, Target
from launch.jobs.plan import JobPlan, PlanError, WrittenJob, describe_nested, plan_jobs, write_sweep
from launch.jobs.script import Folders
from launch.jobs.site import Site
from tests.unit.test_damaged import nobody

RUN = RunSpec(
    nodes=1, ranks_per_node=2, gpus_per_node=2, cpus_per_rank=4, backend="torch-ddp", workload="mlp", batch_size=8,
    precision="fp32", scaling="weak", warmup_steps=5, measured_steps=5, repeat=1, seed=0, site="s",
)  # fmt: skip
RUNS = tuple(dataclasses.replace(RUN, nodes=n, repeat=r) for r in range(1, 6) for n in (1, 2, 4))
SITE = Site(name="s")


def test_one_job_per_node_count() -> None:
    jobs = plan_jobs(RUNS, SITE, minutes_per_run=10, time_min=None)
    assert [(job.name, len(job.runs), job.time_min) for job in jobs] == [("1n", 5, 50), ("2n", 5, 50), ("4n", 5, 50)]
    assert [run.repeat for run in jobs[2].runs] == [1, 2, 3, 4, 5]
    assert sum(job.node_hours for job in jobs) == pytest.approx(7 * 50 / 60)


def test_split_where_the_site_would_not_let_it_run() -> None:
    jobs = plan_jobs(RUNS, Site(name="s", time_limit_min=25), minutes_per_run=10, time_min=None)
    assert [(job.name, len(job.runs), job.time_min) for job in jobs[:3]] == [
        ("1n", 2, 20), ("1n-part2", 2, 20), ("1n-part3", 1, 10),
    ]  # fmt: skip
    assert sorted(run.run_id for job in jobs for run in job.runs) == sorted(run.run_id for run in RUNS)


def test_a_persons_time_is_the_time_asked_for() -> None:
    assert {job.time_min for job in plan_jobs(RUNS, SITE, minutes_per_run=10, time_min=90)} == {90}
    assert len(plan_jobs(RUNS, SITE, minutes_per_run=10, time_min=20)) == 9


def test_a_limit_no_run_fits_is_refused() -> None:
    with pytest.raises(PlanError, match="may take 5 min and a run is allowed 10 min"):
        plan_jobs(RUNS, Site(name="s", time_limit_min=5), minutes_per_run=10, time_min=None)


def test_the_request_is_the_largest_of_its_runs() -> None:
    runs = (RUN, dataclasses.replace(RUN, ranks_per_node=8, gpus_per_node=8))
    [job] = plan_jobs(runs, Site(name="s", qos="q", exclusive=False), 10, None)
    assert job.request == {
        "job_name": "rankwise-1n", "nodes": 1, "ntasks_per_node": 8, "cpus_per_task": 4, "time": 20,
        "gpus_per_node": 8, "qos": "q",
    }  # fmt: skip


def test_a_line_break_in_the_request_is_refused() -> None:
    with pytest.raises(PlanError, match="holds a line break"):
        plan_jobs(RUNS, Site(name="s", account="a\n#SBATCH --wrap=x"), 10, None)


def test_files_are_written_once_and_a_script_is_never_overwritten(tmp_path: Path) -> None:
    plan = Plan(target=Target(site="s", gpus_per_node=2), runs=(RUN,))
    folders = Folders.under(tmp_path)
    jobs = plan_jobs(plan.runs, SITE, 10, None)

    def write(text: str) -> Path:
        def render(job: JobPlan) -> str:
            return text

        return write_sweep(plan, jobs, folders, render)[0].script

    first = write("one")
    assert first == folders.jobs / "1n.sh"
    assert write("one") == first
    other = write("two")
    third = write("three")
    assert (third.name, third.read_text(), write("two")) == (f"1n.{plan.sweep_id}-2.sh", "three", other)
    assert (other.name, other.read_text(), first.read_text()) == (f"1n.{plan.sweep_id}.sh", "two", "one")
    assert RunSpec.from_json(json.loads(folders.run_file(RUN).read_text())) == RUN
    stored = json.loads((folders.traces / f"plan.{plan.sweep_id}.json").read_text())
    assert [run["run_id"] for run in stored["runs"]] == [RUN.run_id]


def test_a_script_changed_by_hand_is_kept_and_named(tmp_path: Path) -> None:
    plan = Plan(target=Target(site="s", gpus_per_node=2), runs=(RUN,))
    folders = Folders.under(tmp_path)
    jobs = plan_jobs(plan.runs, SITE, 10, None)

    def write(text: str) -> WrittenJob:
        return write_sweep(plan, jobs, folders, lambda job: text)[0]

    first = write(f"limit=1\nrun {RUN.run_id} \\\n    srun\n")
    assert first.passed_over == ()
    first.script.write_bytes(f"limit=2 # wie gewünscht\nrun {RUN.run_id} \\\n    srun\n".encode("latin-1"))
    second = write(first.text)
    assert (second.passed_over, second.script.read_text()) == ((first.script,), first.text)
    second.script.write_text("another sweep's")
    third = write(first.text)
    assert (third.passed_over, third.script.read_text()) == ((first.script,), first.text)
    assert b"limit=2" in first.script.read_bytes()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    plan = Plan(target=Target(site="s", gpus_per_node=2), runs=(RUN,))
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError, match=r"cannot be written: .*file/jobs"):
        write_sweep(plan, [], Folders.under(tmp_path / "file"), lambda job: "")


def test_a_plan_is_the_text_of_its_json(tmp_path: Path) -> None:
    plan = Plan(target=Target(site="s", gpus_per_node=2, env={"A": 'a\n "b'}), runs=RUNS, reduced=("ä",))
    for each in (plan, dataclasses.replace(plan, runs=())):
        write_sweep(each, [], Folders.under(tmp_path), lambda job: "")
        text = (tmp_path / "traces" / f"plan.{each.sweep_id}.json").read_text()
        assert text == json.dumps(each.to_json(), indent=1) + "\n"


@pytest.mark.parametrize("closed", ["traces/plan.{0}.json", "jobs/runs/{1}.json", "jobs/1n.sh", "jobs/runs", "traces"])
def test_files_of_a_colleague_that_cannot_be_read_are_named_with_the_owner_and_the_cure(closed: str) -> None:
    plan = Plan(target=Target(site="s", gpus_per_node=2), runs=(RUN,))
    jobs = plan_jobs(plan.runs, SITE, 10, None)
    out = Path(tempfile.mkdtemp())  # no folder of pytest, which only root may enter
    try:
        out.chmod(0o755)
        folders = Folders.under(out)
        write_sweep(plan, jobs, folders, lambda job: "text")
        path = out / closed.format(plan.sweep_id, RUN.run_id)
        path.chmod(0o000)
        with nobody(), pytest.raises(PlanError) as error:
            write_sweep(plan, jobs, folders, lambda job: "text")
        rights = "rwx" if path.is_dir() else "r"
        assert f"{path} belongs to {path.owner()} and has mode 0000. {path.owner()} opens it by `chmod " in str(
            error.value
        )
        assert f"+{rights} {path}`" in str(error.value) and "or plan into another folder with --out" in str(error.value)
        path.chmod(0o755)
        with nobody():
            assert write_sweep(plan, jobs, folders, lambda job: "text")[0].script == out / "jobs" / "1n.sh"
    finally:
        shutil.rmtree(out)


def test_a_disk_that_is_full_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(target=Target(site="s", gpus_per_node=2), runs=(RUN,))

    def full(path: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # as write() says it: without a name

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(PlanError, match=rf"written: {tmp_path}/traces/plan\.\w+\.json: No space left on device"):
        write_sweep(plan, [], Folders.under(tmp_path), lambda job: "")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


NESTED = tuple(dataclasses.replace(run, placement="nested") for run in RUNS)


def test_nested_runs_share_one_job_of_the_largest_size() -> None:
    gpus = dataclasses.replace(NESTED[0], ranks_per_node=8, gpus_per_node=8)
    [job] = plan_jobs((*NESTED, gpus), SITE, minutes_per_run=10, time_min=None)
    assert (job.name, job.nodes, job.time_min, len(job.runs)) == ("4n-nested", 4, 160, 16)
    assert (job.request["nodes"], job.request["ntasks_per_node"], job.request["gpus_per_node"]) == (4, 8, 8)


def test_nested_runs_are_on_some_of_the_nodes_of_their_blocks_larger_runs() -> None:
    runs = [dataclasses.replace(run, repeat=repeat) for repeat in range(1, 10) for run in NESTED[:3]]
    [job] = plan_jobs(runs, SITE, 1, None)
    alone = []
    for repeat in range(1, 10):
        one, two, four = (job.subsets[run.run_id] for run in runs if run.repeat == repeat)
        assert (len(one), len(two), len(four)) == (1, 2, 4)
        assert set(one) < set(two) < set(four) == {0, 1, 2, 3}
        alone += one
    assert set(alone[:4]) == set(alone[4:8]) == {0, 1, 2, 3}  # each node comes first once in as many blocks
    other = [dataclasses.replace(run, seed=5) for run in runs]
    [elsewhere] = plan_jobs(other, SITE, 1, None)
    assert [*elsewhere.subsets.values()] != [*job.subsets.values()]


def test_collectives_are_on_the_nodes_of_their_block_though_they_have_no_seed() -> None:
    runs = [dataclasses.replace(run, seed=5) for run in NESTED[:3]]
    alone = dataclasses.replace(runs[1], workload=COLLECTIVES, seed=0)
    [job] = plan_jobs((alone, *runs), SITE, 1, None)
    assert job.subsets[alone.run_id] == job.subsets[runs[1].run_id]


def test_nested_jobs_are_split_between_blocks_and_it_is_said() -> None:
    jobs = plan_jobs(NESTED, Site(name="s", time_limit_min=70), minutes_per_run=10, time_min=None)
    assert [(job.name, job.nodes, job.time_min) for job in jobs] == [
        ("4n-nested", 4, 60), ("4n-nested-part2", 4, 60), ("4n-nested-part3", 4, 30),
    ]  # fmt: skip
    assert [sorted({run.repeat for run in job.runs}) for job in jobs] == [[1, 2], [3, 4], [5]]
    whole = plan_jobs(NESTED, SITE, minutes_per_run=10, time_min=None)[0].subsets
    assert {name: subset for job in jobs for name, subset in job.subsets.items()} == whole
    cost, split = describe_nested(jobs)
    assert "15 runs share allocations of 4 nodes, 10.0 node-hours at most; separate jobs would ask for 5.8" in cost
    assert "3 jobs" in split and "an allocation of its own" in split


def test_a_nested_block_that_no_job_could_hold_is_refused() -> None:
    with pytest.raises(PlanError, match=r"a nested block has 3 runs, .* a job may take 20 min: not one block fits"):
        plan_jobs(NESTED, Site(name="s", time_limit_min=20), minutes_per_run=10, time_min=None)


def test_separate_jobs_have_no_subsets_and_nothing_is_said_of_them() -> None:
    jobs = plan_jobs(RUNS, SITE, 10, None)
    assert [job.subsets for job in jobs] == [{}, {}, {}]
    assert describe_nested(jobs) == []
