"""Every outcome, produced for real on a real Slurm, and recognised with the evidence that it was recognised by."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpc.model.outcome import ExitRecord
from tests.slurm.faults import Followed
from tests.slurm.jobs import limit_soon, new_cluster, save_state
from tests.waiting import until
from tools.devcluster.cluster import USABLE, DevCluster
from tools.devcluster.config import Shape

Start = Callable[..., Followed]


@pytest.fixture(scope="module")
def faulty(slurm_installed: None) -> Iterator[DevCluster]:
    """Three nodes, of which a silent one is given up after a few seconds."""
    with new_cluster(Shape(nodes=3, cpus=4, gpus=0, slurmd_timeout_s=5, message_timeout_s=5, grace_s=5)) as running:
        yield running


@pytest.fixture
def start(faulty: DevCluster, tmp_path: Path) -> Iterator[Start]:
    """Starts a sweep and waits until its run holds; afterwards no job is left and no node that lives is down."""
    sweeps: list[Followed] = []

    def begin(*args: str, cluster: DevCluster = faulty, **more: str) -> Followed:
        sweeps.append(Followed(cluster, tmp_path / f"sweep{len(sweeps)}", *args, **more))
        sweeps[-1].start()
        if "does" not in more:
            sweeps[-1].hold()
        return sweeps[-1]

    yield begin
    for sweep in sweeps:
        sweep.abandon()
    faulty.run("scancel", "-u", str(os.getuid()))
    until(lambda: faulty.run("squeue", "-h") == "" and not down(faulty), "all is as before")


def down(cluster: DevCluster) -> set[str]:
    """The nodes that live, and that Slurm has not taken back yet."""
    return {name for name, state in cluster.states().items() if state not in USABLE} & cluster.daemons()


def the_only(sweep: Followed) -> tuple[str, str]:
    """Outcome and evidence of a sweep's only attempt."""
    assert len(sweep.records) == 1, sweep.output
    (record,) = sweep.records
    return str(record.outcome), " | ".join(record.evidence)


def the_first(sweep: Followed) -> tuple[str, str]:
    """Outcome and evidence of the first attempt of a run whose job was lost to it: the sweep may have sent another."""
    until(lambda: sweep.records, "the attempt is closed", lambda: sweep.output)
    sweep.let_go()
    sweep.end()
    first, *others = sweep.records
    assert {record.outcome for record in others} <= {"ok"}, sweep.output
    assert all(record.job_id != first.job_id for record in others)
    return str(first.outcome), " | ".join(first.evidence)


def requested(sweep: Followed, record: ExitRecord) -> str:
    """The run's task, from its environment."""
    run = json.loads((sweep.folder / "jobs" / "runs" / f"{record.run_id}.json").read_text())
    return str(dict(run["env"])["DOES"])


def goes_on_after(sweep: Followed, outcome: str) -> ExitRecord:
    """The first attempt of a run whose job was put back into the queue: it ended so, and the next one ended ok."""
    sweep.let_go()
    assert sweep.end() == 0, sweep.output
    assert sweep.outcomes == [outcome, "ok"], sweep.output
    first, second = sweep.records
    assert first.job_id == second.job_id == sweep.job_id
    assert (first.restart_count, second.restart_count) == (0, 1)
    return first


def test_runs_that_end_themselves(start: Start) -> None:
    """All of them in one job: none takes another along."""
    sweep = start(does="well,raise,die,refuse,hoard", SBATCH_MEM_PER_NODE="1500M")
    assert sweep.end() == 1
    records = {requested(sweep, record): record for record in sweep.records}
    assert {does: str(record.outcome) for does, record in records.items()} == {
        "well": "ok", "raise": "rank_fail", "die": "rank_fail", "refuse": "launch_fail", "hoard": "oom",
    }, sweep.output  # fmt: skip
    first = {does: record.evidence[0] for does, record in records.items()}
    assert "rank 1 on node1 after step 2: ValueError: no" in first["raise"]
    assert "Killed" in first["die"]
    assert "before the first step: RuntimeError: no such thing here" in first["refuse"]
    assert "exceeded memory limit" in first["hoard"]
    assert "\x1b]0" not in sweep.printed


@pytest.mark.all
def test_ranks_that_each_believe_to_be_alone(start: Start, faulty: DevCluster, tmp_path: Path) -> None:
    """As in a container that does not let srun's variables in: every rank is rank 0 of 1, and all would end well."""
    python = tmp_path / "python"
    drop = 'unset $(env | grep -oE "^(PMIX|SLURM)_[A-Z0-9_]+")'
    python.write_text(f'#!/bin/sh\n{drop}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    site = tmp_path / "site.toml"
    site.write_text(f'{faulty.site_file.read_text()}\n[interpreter]\nnumpy = "{python}"\n')
    sweep = start("--site", str(site), does="well")
    assert sweep.end() == 1
    outcome, evidence = the_only(sweep)
    assert outcome == "invalid", sweep.output
    assert "rank" in evidence


@pytest.mark.all
def test_a_start_that_fails(start: Start) -> None:
    sweep = start("--env", "OMPI_MCA_btl=none-such", does="well")
    assert sweep.end() == 1
    assert the_only(sweep)[0] == "launch_fail", sweep.output


# test_requeue.py shows it.
@pytest.mark.all
def test_cancelled(start: Start, faulty: DevCluster) -> None:
    sweep = start()
    faulty.run("scancel", sweep.job_id)
    assert sweep.end() == 1
    outcome, evidence = the_only(sweep)
    assert outcome == "cancelled", sweep.output
    assert "CANCELLED" in evidence or "SIGTERM" in evidence


def test_near_the_time_limit(start: Start, faulty: DevCluster) -> None:
    """Slurm's warning is sent by hand, one to two minutes before the limit: a real one is a whole minute at least."""
    sweep = start("--repeats", "2")
    limit_soon(faulty, sweep.job_id)
    faulty.run("scancel", "--batch", "--signal=USR1", sweep.job_id)
    assert sweep.end() == 1
    outcome, evidence = the_only(sweep)
    assert outcome == "timeout", sweep.output
    assert "SIGUSR1" in evidence


@pytest.mark.all
def test_an_early_warning_is_no_time_limit(start: Start, faulty: DevCluster) -> None:
    sweep = start("--repeats", "2")
    faulty.run("scontrol", "update", f"JobId={sweep.job_id}", "TimeLimit=300")
    faulty.run("scancel", "--batch", "--signal=USR1", sweep.job_id)
    assert sweep.end() == 1
    outcome, evidence = the_only(sweep)
    assert outcome == "cancelled", sweep.output
    assert "min before the job's time limit: sent by a user" in evidence


def test_preempted_and_put_back(start: Start, faulty: DevCluster) -> None:
    sweep = start()
    node = sweep.node
    faulty.run("sbatch", "-p", "high", "-w", node, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    until(lambda: "preempted" in sweep.outcomes, "the attempt is closed", lambda: sweep.output)
    evidence = " ".join(goes_on_after(sweep, "preempted").evidence)
    # On a busy machine the job is asked for its state when it waits in the queue again.
    assert "PREEMPTED" in evidence or "the job went back to the queue" in evidence


@pytest.mark.all
def test_preempted_for_good(start: Start, faulty: DevCluster) -> None:
    sweep = start()
    faulty.run("scontrol", "update", "PartitionName=main", "PreemptMode=CANCEL", "GraceTime=0")
    try:
        faulty.run("sbatch", "-p", "high", "-w", sweep.node, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
        outcome, evidence = the_first(sweep)
    finally:
        faulty.run("scontrol", "update", "PartitionName=main", "PreemptMode=REQUEUE", "GraceTime=5")
    assert outcome == "preempted", sweep.output
    assert "PREEMPTED" in evidence
    assert sweep.outcomes == ["preempted", "ok"], sweep.output  # though the first job measured nothing


@dataclass(frozen=True, kw_only=True)
class Blackout:
    """Sweeps whose nodes lost their power at the same time, and one whose script was killed while nobody looked."""

    put_back: Followed
    given_up: Followed
    forgotten: Followed
    node: str


@pytest.fixture(scope="module")
def blackout(faulty: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blackout]:
    """All at once, because each takes the scheduler half a minute, and one job after the other would."""
    folder = tmp_path_factory.mktemp("blackout")
    # This controller forgets ended jobs at once, and nobody keeps accounts.
    with new_cluster(Shape(nodes=1, cpus=4, gpus=0, min_job_age_s=2)) as forgetful:
        clusters = {"put_back": faulty, "given_up": faulty, "forgotten": forgetful}
        sweeps = {name: Followed(cluster, folder / name) for name, cluster in clusters.items()}
        for sweep in sweeps.values():
            sweep.start()
            sweep.hold()
        blackout = Blackout(**sweeps, node=sweeps["put_back"].node)
        blackout.forgotten.signal(signal.SIGSTOP)
        blackout.forgotten.kill_script()
        faulty.run("scontrol", "update", f"JobId={blackout.given_up.job_id}", "Requeue=0")
        dark = (blackout.node, blackout.given_up.node)
        for name in dark:
            faulty.kill_node(name)
        for sweep in sweeps.values():
            sweep.let_go()
        until(lambda: not forgetful.run("squeue", "-h", "-t", "all"), "the job is forgotten")
        blackout.forgotten.signal(signal.SIGCONT)
        yield blackout
        for sweep in sweeps.values():
            sweep.abandon()
        for name in dark:
            faulty.start_node(name)


def test_a_power_cut_of_a_node_and_the_job_put_back(blackout: Blackout) -> None:
    record = goes_on_after(blackout.put_back, "node_fail")
    assert record.nodelist == blackout.node


def test_a_power_cut_of_a_node_and_the_job_given_up(blackout: Blackout) -> None:
    outcome, evidence = the_first(blackout.given_up)
    assert outcome == "node_fail", blackout.given_up.output
    assert "squeue: NODE_FAIL" in evidence and "Requeue=0, SlurmdTimeout=5 sec" in evidence


def test_a_job_that_the_scheduler_has_forgotten(blackout: Blackout) -> None:
    outcome, evidence = the_first(blackout.forgotten)
    assert outcome == "lost", blackout.forgotten.output
    assert "forgotten" in evidence


def test_a_squeue_that_answers_with_nothing_loses_no_job(start: Start, tmp_path: Path) -> None:
    """A caching wrapper, from the run's step on to the end of the sweep; for who follows and in the job alike."""
    (tmp_path / "bin").mkdir()
    wrapper, queries = tmp_path / "bin" / "squeue", tmp_path / "queries"
    wrapper.write_text(f'#!/bin/bash\n[ -e {queries} ] || exec {shutil.which("squeue")} "$@"\necho >>{queries}\n')
    wrapper.chmod(0o755)
    sweep = start(PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    queries.touch()
    until(lambda: queries.stat().st_size >= 6, "squeue was asked six times", lambda: sweep.output)
    assert sweep.records == []
    sweep.let_go()
    assert sweep.end() == 0, sweep.output
    (record,) = sweep.records
    assert (str(record.outcome), record.attempt, record.job_id) == ("ok", 1, sweep.job_id), sweep.output
    assert "submitted again" not in sweep.output
    assert [path.name for path in sweep.traces.glob("*.h5")] == [f"{record.stem}.h5"]


def with_srun(folder: Path, body: str) -> dict[str, str]:
    """Variables with which jobs find an srun that does `body`, where `$srun` is Slurm's own."""
    folder.mkdir()
    path = folder / "srun"
    path.write_text(f"#!/bin/bash\nsrun={shutil.which('srun')}\n{body}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.all
def test_a_controller_that_goes_in_the_instant_before_srun(start: Start, faulty: DevCluster, tmp_path: Path) -> None:
    """The first srun waits until the controller has been killed; the attempt goes on once it is back."""
    waits = f'if mkdir {tmp_path}/about; then until [ -e {tmp_path}/killed ]; do sleep 0.1; done; fi; exec $srun "$@"'
    sweep = start(does="well", **with_srun(tmp_path / "bin", waits))
    until((tmp_path / "about").exists, "srun is about to start", lambda: sweep.output)
    save_state(faulty, sweep.job_id)
    faulty.kill("slurmctld")
    try:
        (tmp_path / "killed").touch()
        until(lambda: "no step was created, tried again" in sweep.output, "srun has failed", lambda: sweep.output)
    finally:
        faulty.start_controller()
    assert sweep.end() == 0, sweep.output
    assert [(record.outcome, record.attempt) for record in sweep.records] == [("ok", 1)], sweep.output
    assert "Unable to confirm allocation for job" in sweep.output


@pytest.mark.all
def test_waiting_for_a_step_is_not_the_runs_time(start: Start, faulty: DevCluster, tmp_path: Path) -> None:
    """Behind the first run's step another one takes all cores of the job, until the watchdog has shown that the second
    run waits for its own. A controller that was killed believes in such steps, too."""
    done = tmp_path / "shown"
    blocks = f"""$srun "$@"; status=$?
    if [[ "$*" = *hpc.rank* ]] && mkdir {tmp_path}/blocked; then
        $srun --nodes=1 --ntasks=1 --cpus-per-task=$SLURM_CPUS_ON_NODE --mpi=none bash -c '
            touch {tmp_path}/blocks; until [ -e {done} ]; do sleep 0.1; done' </dev/null >/dev/null 2>&1 &
        until [ -e {tmp_path}/blocks ]; do sleep 0.1; done
    fi
    exit $status"""
    sweep = start("--start-limit-s", "40", "--copy-s", "1", does="well,hold", **with_srun(tmp_path / "bin", blocks))
    sweep.let_go()
    until(lambda: "against the run" in sweep.output, "the watchdog shows that it waits", lambda: sweep.output)
    done.touch()
    assert sweep.end() == 0, sweep.output
    assert sweep.outcomes == ["ok", "ok"], sweep.output
