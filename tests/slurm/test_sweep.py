"""The main job on a real Slurm of four nodes: through submitit, and by hand."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from hpc.backends import TRAINERS, missing_modules
from hpc.workloads import WORKLOADS
from tests.slurm.conftest import Command
from tests.slurm.jobs import has_ended, submit
from tests.sweeps import outcomes, sweep_argv
from tests.waiting import until
from tools.devcluster.cluster import DevCluster

TINY = ("--backend", "mpi", "--workload", "delay", "--option", "compute_ms=1", "--steps", "8", "--warmup", "5",
        "--ranks-per-node", "2", "--cpus-per-rank", "1")  # fmt: skip


def test_the_main_job(tmp_path: Path, cluster: DevCluster, command: Command, sweep: Command) -> None:
    options = ("--nodes", "1,2,4", "--repeats", "1", *TINY)
    done = sweep(*options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 ok" in done.stdout
    assert list(outcomes(tmp_path).values()) == ["ok"] * 4
    assert not list(tmp_path.rglob("*.pkl"))

    # What Slurm holds equals the file, byte for byte.
    submitted = {path.name.split("_")[0] for path in (tmp_path / "jobs" / "logs").glob("*_submission.sh")}
    assert len(submitted) == 3
    for job_id in submitted:
        name = (
            command("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%j")
            .stdout.strip()
            .removeprefix("rankwise-delay-")
            .rpartition("-")[0]
        )
        held = command("scontrol", "write", "batch_script", job_id, "-").stdout
        assert held == (tmp_path / "jobs" / f"{name}.sh").read_text()

    # The same again runs nothing.
    second = sweep(*options)
    assert second.returncode == 0
    assert second.stdout.count("every run is final, nothing to submit") == 3
    assert len(list((tmp_path / "traces").glob("*.begin.json"))) == 4

    # By hand, from another folder, everything is passed over; with --force everything is run, with the same result.
    script = tmp_path / "jobs" / "2n.sh"
    passed = submit(cluster, script)
    until(lambda: has_ended(cluster, passed), "the job by hand ends")
    printed = (tmp_path / "jobs" / "logs" / f"2n.{passed}.out").read_text()
    assert printed.count("is final, passed over") == 1
    forced = submit(cluster, script, "--force")
    until(lambda: has_ended(cluster, forced), "the job with --force ends")
    second_attempts = {name: outcome for name, outcome in outcomes(tmp_path).items() if name.endswith(".2")}
    assert [outcome for name, outcome in second_attempts.items() if name.startswith("2n")] == ["ok"]
    assert command("scontrol", "write", "batch_script", forced, "-").stdout == script.read_text()

    # One run's files deleted: one run is run.
    gone = next(name for name in outcomes(tmp_path) if name.startswith("4n2g"))
    for path in (tmp_path / "traces").glob(f"{gone}.*"):
        path.unlink()
    repaired = sweep(*options)
    assert repaired.returncode == 0, repaired.stdout + repaired.stderr
    assert repaired.stdout.count("nothing to submit") == 2
    assert "4n.sh: submitted" in repaired.stdout and "1 run to do" in repaired.stdout
    assert outcomes(tmp_path)[f"{gone[:-1]}2"] == "ok"  # the logs have the first attempt

    summary = command(sys.executable, "-m", "parse.summarize", "traces", "--format", "json")
    assert summary.returncode == 0, summary.stderr
    assert {"1n1g", "1n2g", "2n2g", "4n2g"} <= set(summary.stdout.replace('"', " ").split())


def test_an_unknown_number_of_gpus_is_an_error_that_says_how_to_state_it(command: Command) -> None:
    """The development cluster shows 8 GPUs: without its site they are taken from Slurm."""
    done = command(*sweep_argv("--nodes", "1", "--dry-run", "--cluster", "slurm"))
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --gpus-per-node=8" in done.stdout


def test_a_refusal_of_sbatch_is_shown(sweep: Command) -> None:
    done = sweep("--nodes", "1", *TINY, "--partition", "nowhere")
    assert done.returncode == 1
    assert "sbatch refused 1n.sh" in done.stderr
    assert "invalid partition specified: nowhere" in done.stderr
    assert "Traceback" not in done.stderr


def test_hostile_names_reach_slurm_whole(tmp_path: Path, sweep: Command) -> None:
    out = "a'; touch pwned #  $(touch pwned) 100%"
    done = sweep("--nodes", "1", "--no-baseline", "--repeats", "1", *TINY, "--env", "HOSTILE=x'; touch pwned #\n$(id)",
                 "--out", out)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / out / "traces").glob("*.h5"))
    assert list((tmp_path / out / "jobs" / "logs").glob("1n.*.out"))
    assert not list(tmp_path.rglob("pwned"))


TRAIN_MLP = [
    name
    for name, entry in TRAINERS.items()
    if entry.framework in WORKLOADS["mlp"].factories and not entry.one_rank_per_node  # that one wants GPUs
]
ONE_OF_EACH = [*{TRAINERS[name].framework: name for name in reversed(TRAIN_MLP)}.values()]


@pytest.mark.parametrize("names", [ONE_OF_EACH, pytest.param(TRAIN_MLP, marks=pytest.mark.all)])
def test_every_framework_runs_in_one_sweep_and_one_table(
    sweep: Command, command: Command, tmp_path: Path, names: list[str]
) -> None:
    if missing := [line for name in names for line in missing_modules(name)]:
        pytest.skip("; ".join(missing))
    done = sweep("--nodes", "2", "--ranks-per-node", "1", "--no-baseline", "--backend", ",".join(names), "--workload",
                 "mlp", "--steps", "8", "--warmup", "5", "--repeats", "1", "--gpus-per-node", "0", "--cpus-per-rank",
                 "1")  # fmt: skip
    by_backend = {name.split("_")[1]: outcome for name, outcome in outcomes(tmp_path).items()}
    assert by_backend == dict.fromkeys(names, "ok"), done.stdout + done.stderr
    assert done.returncode == 0
    summary = command(sys.executable, "-m", "parse.summarize", "traces", "--format", "json")
    points = {point["backend"]: point for point in json.loads(summary.stdout)["results"]}
    assert {name: point["case"] for name, point in points.items()} == dict.fromkeys(names, "2n1g")
    assert all(point["median_speed"] is not None for point in points.values())


def test_missing_nodes_are_refused_and_drained_nodes_cause_a_warning(
    tmp_path: Path, sweep: Command, command: Command
) -> None:
    """Slurm queues each of these for ever or refuses it after the others are queued."""
    options = ("--backend", "mpi", "--workload", "delay", "--gpus-per-node", "0", "--repeats", "1", "--no-baseline")
    every_job = ("squeue", "-h", "-t", "all", "-o", "%i")  # those of the tests before, too, which may not have ended
    before = command(*every_job).stdout
    for sizes, words in (
        (
            ("--nodes", "4,9"),
            "job 9n can never start: it requests 9 nodes of 8 CPUs (1 rank of 8); Slurm has 4 nodes",
        ),
        (("--nodes", "1", "--ranks-per-node", "9"), "the largest case that fits is 4n8g; lower --ranks-per-node"),
        (("--nodes", "1", "--cpus-per-rank", "9"), "no node has the CPUs for one rank; lower --cpus-per-rank"),
        (("--nodes", "4", "--sbatch", "exclude=node[2-3]"), "the largest case that fits is 2n1g; lower --nodes"),
    ):
        done = sweep(*sizes, *options)
        assert (done.returncode, words in done.stderr) == (1, True), done.stdout + done.stderr
    assert not (tmp_path / "traces").exists()
    assert sorted(command(*every_job).stdout.split()) == sorted(before.split())
    assert command("scontrol", "update", "nodename=node3", "state=drain", "reason=test").returncode == 0
    try:
        done = sweep("--nodes", "3,4", *options, "--dry-run")
    finally:
        command("scontrol", "update", "nodename=node3", "state=resume")
    assert done.returncode == 0, done.stderr
    warned = re.findall(
        r"^warning: job (\dn) requests . nodes and waits until more are up: of the 4 in partition main that are large "
        r"enough (\d) are up now$", done.stdout, re.MULTILINE,
    )  # fmt: skip
    # On a busy machine a node misses a ping now and then, and is not up until the next.
    up = int(warned[-1][1])
    assert up <= 3 and warned == [(f"{nodes}n", str(up)) for nodes in (3, 4) if up < nodes], done.stdout
    assert done.stdout.count("warning: job") == len(warned)
