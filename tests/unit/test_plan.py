from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from pathlib import Path

import pytest

from hpc.model.spec import COLLECTIVES, Plan, RunSpec, Target
from launch.jobs.plan import PlanError, WrittenJob, describe_nested, plan_jobs, refuse_pairs_that_hang, write_sweep
from launch.jobs.script import Folders
from launch.jobs.site import Site
from tests.unit.test_damaged import nobody
from tests.unit.traces import make_run

RUN = make_run(ranks_per_node=2, gpus_per_node=2, cpus_per_rank=4, backend="torch-ddp", workload="mlp")
RUNS = tuple(dataclasses.replace(RUN, nodes=n, repeat=r) for r in range(1, 6) for n in (1, 2, 4))
SITE = Site(name="s")
PLAN = Plan(target=Target(site="s", gpus_per_node=2), runs=(RUN,))


def write(out: Path, text: str) -> WrittenJob:
    """The only job of PLAN, written with this text as its script."""
    [job] = write_sweep(PLAN, [(job, text) for job in plan_jobs(PLAN.runs, SITE, 10, None)], Folders.under(out))
    return job


def test_one_job_per_node_count() -> None:
    jobs = plan_jobs(RUNS, SITE, minutes_per_run=10, time_min=None)
    assert [(job.name, len(job.runs), job.time_min) for job in jobs] == [("1n", 5, 50), ("2n", 5, 50), ("4n", 5, 50)]
    assert [run.repeat for run in jobs[2].runs] == [1, 2, 3, 4, 5]
    assert sum(job.node_hours for job in jobs) == pytest.approx(7 * 50 / 60)


def test_jobs_are_split_by_the_time_limit_of_the_site() -> None:
    jobs = plan_jobs(RUNS, Site(name="s", time_limit_min=25), minutes_per_run=10, time_min=None)
    assert [(job.name, len(job.runs), job.time_min) for job in jobs[:3]] == [
        ("1n", 2, 20), ("1n-part2", 2, 20), ("1n-part3", 1, 10),
    ]  # fmt: skip
    assert sorted(run.run_id for job in jobs for run in job.runs) == sorted(run.run_id for run in RUNS)


def test_a_chosen_time_is_the_time_of_every_job() -> None:
    assert {job.time_min for job in plan_jobs(RUNS, SITE, minutes_per_run=10, time_min=90)} == {90}
    assert len(plan_jobs(RUNS, SITE, minutes_per_run=10, time_min=20)) == 9


def test_a_time_limit_too_short_for_one_run_is_refused() -> None:
    with pytest.raises(PlanError, match="may take 5 min and a run is allowed 10 min"):
        plan_jobs(RUNS, Site(name="s", time_limit_min=5), minutes_per_run=10, time_min=None)


def test_the_request_is_the_largest_of_its_runs() -> None:
    runs = (RUN, dataclasses.replace(RUN, ranks_per_node=8, gpus_per_node=8))
    [job] = plan_jobs(runs, Site(name="s", qos="q", exclusive=False), 10, None)
    assert job.request == {
        "job_name": "rankwise-mlp-1n", "nodes": 1, "ntasks_per_node": 8, "cpus_per_task": 4, "time": 20,
        "gpus_per_node": "8", "qos": "q",
    }  # fmt: skip


def test_a_line_break_in_the_request_is_refused() -> None:
    with pytest.raises(PlanError, match="holds a line break"):
        plan_jobs(RUNS, Site(name="s", account="a\n#SBATCH --wrap=x"), 10, None)


def test_files_are_written_once_and_a_script_is_never_overwritten(tmp_path: Path) -> None:
    folders = Folders.under(tmp_path)
    names = {"1": "1n.sh", "2": f"1n.{PLAN.sweep_id}.sh", "3": f"1n.{PLAN.sweep_id}-2.sh"}
    for text, name in [*names.items(), *names.items()]:
        assert write(tmp_path, text).script == folders.jobs / name
    assert [path.read_text() for path in sorted(folders.jobs.glob("*.sh"))] == ["3", "2", "1"]
    assert RunSpec.from_json(json.loads(folders.run_file(RUN).read_text())) == RUN
    stored = json.loads((folders.traces / f"plan.{PLAN.sweep_id}.json").read_text())
    assert [run["run_id"] for run in stored["runs"]] == [RUN.run_id]


def test_a_script_that_differs_in_the_code_that_wrote_it_alone_is_written_again(tmp_path: Path) -> None:
    line = "# A Rankwise 0.2.0+{} job: `sbatch THIS_FILE` runs what is pending\npoint1 ID\n"
    first, second = (write(tmp_path, line.format(digest)) for digest in ("0123456789ab", "ba9876543210"))
    assert second.script == first.script and second.passed_over == ()
    assert second.script.read_text() == second.text != first.text


def test_a_script_changed_by_hand_is_kept_and_named(tmp_path: Path) -> None:
    first = write(tmp_path, f"limit=1\npoint1 {RUN.run_id} \\\n    srun\n")
    assert first.passed_over == ()
    first.script.write_bytes(f"limit=2 # wie gewünscht\npoint1 {RUN.run_id} \\\n    srun\n".encode("latin-1"))
    second = write(tmp_path, first.text)
    assert (second.passed_over, second.script.read_text()) == ((first.script,), first.text)
    second.script.write_text("another sweep's")
    third = write(tmp_path, first.text)
    assert (third.passed_over, third.script.read_text()) == ((first.script,), first.text)
    assert b"limit=2" in first.script.read_bytes()


def test_a_plan_is_the_text_of_its_json(tmp_path: Path) -> None:
    plan = Plan(target=Target(site="s", gpus_per_node=2, env={"A": 'a\n "b'}), runs=RUNS, reduced=("ä",))
    for each in (plan, dataclasses.replace(plan, runs=())):
        write_sweep(each, [], Folders.under(tmp_path))
        text = (tmp_path / "traces" / f"plan.{each.sweep_id}.json").read_text()
        assert text == json.dumps(each.to_json(), indent=1) + "\n"


@pytest.mark.parametrize("closed", ["traces/plan.{0}.json", "jobs/runs/{1}.json", "jobs/1n.sh", "jobs/runs", "traces"])
def test_unreadable_files_are_named_with_their_owner_and_the_fix(closed: str) -> None:
    out = Path(tempfile.mkdtemp())  # no folder of pytest, which only root may enter
    try:
        out.chmod(0o755)
        write(out, "text")
        path = out / closed.format(PLAN.sweep_id, RUN.run_id)
        path.chmod(0o000)
        with nobody(), pytest.raises(PlanError) as error:
            write(out, "text")
        rights, owner, message = "rwx" if path.is_dir() else "r", path.owner(), str(error.value)
        assert f"{path} belongs to {owner} and has mode 0000. {owner} opens it by `chmod " in message
        assert f"+{rights} {path}`" in message and "or plan into another folder with --out" in message
        path.chmod(0o755)
        with nobody():
            assert write(out, "text").script == out / "jobs" / "1n.sh"
    finally:
        shutil.rmtree(out)


NESTED = tuple(dataclasses.replace(run, placement="nested") for run in RUNS)


def test_nested_runs_share_one_job_of_the_largest_size() -> None:
    gpus = dataclasses.replace(NESTED[0], ranks_per_node=8, gpus_per_node=8)
    [job] = plan_jobs((*NESTED, gpus), SITE, minutes_per_run=10, time_min=None)
    assert (job.name, job.nodes, job.time_min, len(job.runs)) == ("4n-nested", 4, 160, 16)
    assert (job.request["nodes"], job.request["ntasks_per_node"], job.request["gpus_per_node"]) == (4, 8, "8")


def test_nested_runs_use_some_nodes_of_the_larger_runs_of_their_block() -> None:
    runs = [dataclasses.replace(run, repeat=repeat) for repeat in range(1, 10) for run in NESTED[:3]]
    [job] = plan_jobs(runs, SITE, 1, None)
    first = []
    for repeat in range(1, 10):
        single, pair, every = (job.subsets[run.run_id] for run in runs if run.repeat == repeat)
        assert (len(single), len(pair), len(every)) == (1, 2, 4)
        assert set(single) < set(pair) < set(every) == {0, 1, 2, 3}
        first += single
    assert set(first[:4]) == set(first[4:8]) == {0, 1, 2, 3}  # each node comes first once in as many blocks
    other = [dataclasses.replace(run, seed=5) for run in runs]
    [elsewhere] = plan_jobs(other, SITE, 1, None)
    assert [*elsewhere.subsets.values()] != [*job.subsets.values()]


def test_collectives_use_the_nodes_of_their_block() -> None:
    runs = [dataclasses.replace(run, seed=5) for run in NESTED[:3]]
    collectives = dataclasses.replace(runs[1], workload=COLLECTIVES, seed=0)
    [job] = plan_jobs((collectives, *runs), SITE, 1, None)
    assert job.subsets[collectives.run_id] == job.subsets[runs[1].run_id]


def test_nested_jobs_are_split_between_blocks_with_a_note() -> None:
    jobs = plan_jobs(NESTED, Site(name="s", time_limit_min=70), minutes_per_run=10, time_min=None)
    assert [(job.name, job.nodes, job.time_min) for job in jobs] == [
        ("4n-nested", 4, 60), ("4n-nested-part2", 4, 60), ("4n-nested-part3", 4, 30),
    ]  # fmt: skip
    assert [sorted({run.repeat for run in job.runs}) for job in jobs] == [[1, 2], [3, 4], [5]]
    whole = plan_jobs(NESTED, SITE, minutes_per_run=10, time_min=None)[0].subsets
    assert {name: subset for job in jobs for name, subset in job.subsets.items()} == whole
    cost, split = describe_nested(jobs)
    assert "15 runs share allocations of 4 nodes, 10.0 node-hours at most; separate jobs would request 5.8" in cost
    assert "3 jobs" in split and "an allocation of its own" in split


def test_a_nested_block_too_long_for_any_job_is_refused() -> None:
    with pytest.raises(PlanError, match=r"a nested block has 3 runs, .* a job may take 20 min: not one block fits"):
        plan_jobs(NESTED, Site(name="s", time_limit_min=20), minutes_per_run=10, time_min=None)


@pytest.mark.parametrize(
    ("nodes", "repeats", "site", "hangs"),
    [
        ((1, 2, 4), 5, {}, "3 runs of 4n-nested on two nodes without the job's first hang under srun"),
        ((1, 2, 4), 5, {"mpi": ""}, "pmix .*, which may be the default of this site: name another one by mpi;"),
        ((1, 2, 4), 5, {"mpi": "pmi2"}, ""),
        ((1, 2, 4), 5, {"launcher": "mpirun", "mpi": "openmpi"}, ""),
        ((1, 2), 5, {}, ""),  # the pair is all of the job
        ((1, 3, 4), 5, {}, ""),  # of three nodes no two write to one another
    ],
)
def test_pairs_that_slurm_would_let_hang_are_refused(
    nodes: tuple[int, ...], repeats: int, site: dict[str, str], hangs: str
) -> None:
    used = Site(name="s", **site)  # type: ignore[arg-type]
    runs = [
        dataclasses.replace(NESTED[0], nodes=count, repeat=repeat)
        for repeat in range(1, repeats + 1)
        for count in nodes
    ]
    jobs = plan_jobs(runs, used, 10, None)
    if not hangs:
        refuse_pairs_that_hang(jobs, used)
        return
    with pytest.raises(PlanError, match=hangs):
        refuse_pairs_that_hang(jobs, used)


def test_separate_jobs_have_no_subsets_and_no_note() -> None:
    jobs = plan_jobs(RUNS, SITE, 10, None)
    assert [job.subsets for job in jobs] == [{}, {}, {}]
    assert describe_nested(jobs) == []
