"""A failing tool is not treated as absent: the plan must not shrink or move to another machine because of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.model.spec import SpecError
from launch.jobs.site import Site
from launch.scheduler.local import what_is_missing
from launch.scheduler.partitions import SiteNodes
from launch.scheduler.slurm import Slurm
from launch.sweep.prepare import decide_target
from launch.sweep.spec import SweepSpec
from tests.sweeps import sweep_argv
from tests.unit.fake_commands import write_program
from tests.unit.sweep_command import plan_of, sweep
from tests.unprivileged import without_rights

NODES_DRY_RUN = ("--nodes", "1,2,4,8", "--ranks-per-node", "8", "--dry-run")
LOCAL = ("--nodes", "1,2", "--repeats", "1", "--cluster", "local", "--dry-run")
MISMATCH = (
    "echo 'Failed to initialize NVML: Driver/library version mismatch'; echo 'NVML library version: 535.1'; exit 18"
)


def nothing_was_planned(folder: Path, done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (1, "", False), done.stderr
    for part in parts:
        assert part in done.stderr
    assert not (folder / "traces").exists()


@pytest.mark.parametrize(
    ("scontrol", "words"),
    [
        ("echo 'Slurmctld(primary) at head is DOWN'; exit 1", "Slurmctld(primary) at head is DOWN"),
        ("echo 'Slurmctld(primary) at head is DOWN'", "Slurmctld(primary) at head is DOWN"),
        (
            "echo 'scontrol: fatal: Could not establish a configuration source' >&2; exit 1",
            "fatal: Could not establish",
        ),
    ],
)
def test_a_controller_that_is_down_is_not_taken_for_no_slurm(tmp_path: Path, scontrol: str, words: str) -> None:
    tools = tmp_path / "bin"
    write_program(tools, "scontrol", scontrol)
    write_program(tools, "sbatch", "exit 1")
    done = sweep(tmp_path, *NODES_DRY_RUN, path=str(tools))
    nothing_was_planned(
        tmp_path, done, "neither --site nor --cluster is named", "scontrol ping: ", words, "--cluster local"
    )
    assert sweep(tmp_path, *NODES_DRY_RUN, "--cluster", "local", "--repeats", "1", path=str(tools)).returncode == 0


def test_a_machine_without_slurm_plans_for_itself(tmp_path: Path) -> None:
    done = sweep(tmp_path, "--nodes", "1,2", "--dry-run", "--repeats", "1", path=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert plan_of(tmp_path)["target"]["site"] == "local"


@pytest.mark.parametrize(
    ("body", "mode", "words"),
    [
        (MISMATCH, 0o755, "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch NVML library"),
        ("exit 18", 0o755, "nvidia-smi: exit status 18"),
        ("true", 0o644, "nvidia-smi cannot be run: {path}: Permission denied"),
    ],
)
def test_a_failing_nvidia_smi_is_not_taken_for_no_gpus(tmp_path: Path, body: str, mode: int, words: str) -> None:
    path = write_program(tmp_path / "bin", "nvidia-smi", body, mode)
    done = sweep(tmp_path, *LOCAL, path=f"{tmp_path}/bin")
    nothing_was_planned(tmp_path, done, words.format(path=path), "--gpus-per-node 0")
    assert sweep(tmp_path, *LOCAL, "--gpus-per-node", "0", path=f"{tmp_path}/bin").returncode == 0


def test_an_unreadable_path_folder_is_skipped_when_a_tool_is_missing(tmp_path: Path) -> None:
    """`make demo` by a user without rights died of `[Errno 13] Permission denied: 'nvidia-smi'`."""
    (closed := tmp_path / "closed").mkdir()
    (tools := tmp_path / "tools").mkdir()
    argv = sweep_argv("--nodes", "1,2", "--repeats", "1", "--dry-run")[1:]
    doctor = ["-m", "launch.doctor", "--format", "json", "--nodes", "1", "--out", str(tmp_path)]
    closed.chmod(0)
    try:
        done = without_rights(closed, *argv, path=f"{closed}:{tools}", cwd=tmp_path)
        looked = without_rights(closed, *doctor, path=f"{closed}:{tools}:/usr/bin:/bin", cwd=tmp_path)
        local = without_rights(
            closed, *doctor, "--cluster", "local", path=f"{closed}:{tools}:/usr/bin:/bin", cwd=tmp_path
        )
    finally:
        closed.chmod(0o700)
    assert done.returncode == 0, done.stderr
    assert plan_of(tmp_path)["target"] | {"site": "local", "gpus_per_node": 0} == plan_of(tmp_path)["target"]
    for each in (looked, local):
        assert "Traceback" not in each.stderr, each.stderr
    assert json.loads(local.stdout)["findings"], local.stderr


def test_the_doctor_reports_a_failing_nvidia_smi(tmp_path: Path) -> None:
    write_program(tmp_path / "bin", "nvidia-smi", MISMATCH)
    argv = [sys.executable, "-m", "launch.doctor", "--cluster", "local", "--nodes", "1", "--format", "json"]
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    [finding] = [each for each in json.loads(done.stdout)["findings"] if each["name"] == "nvidia-smi"]
    assert (finding["state"], "Driver/library version mismatch" in finding["text"]) == ("failed", True)


def test_a_sweep_larger_than_its_cluster_is_refused_before_submission(tmp_path: Path) -> None:
    """Slurm would queue it for ever with reason PartitionConfig or BadConstraints."""
    tools = tmp_path / "bin"
    write_program(tools, "sbatch", f": >{tmp_path}/submitted; echo Submitted batch job 1")
    shown = ["Slurmctld(primary) at head is UP", "PartitionName=main Default=YES MaxTime=1:00:00"]
    shown += [f"NodeName=n{at} CPUTot=8 State={'DOWN' if at > 2 else 'IDLE'} Partitions=main" for at in range(1, 5)]
    write_program(tools, "scontrol", "\n".join(f"echo '{line}'" for line in shown))
    argv = ("--backend", "mpi", "--workload", "delay", "--gpus-per-node", "0", "--repeats", "1")
    for dry in ((), ("--dry-run",)):
        done = sweep(tmp_path, "--nodes", "1,8", *argv, *dry, path=str(tools))
        nothing_was_planned(tmp_path, done, "job 8n can never start", "the largest case that fits is 4n1g")
    done = sweep(tmp_path, "--nodes", "1,2", *argv, "--time", "90", "--minutes-per-run", "90", path=str(tools))
    nothing_was_planned(tmp_path, done, "requests 90 min; partition main gives a job 60 min at most: --time 60")
    done = sweep(tmp_path, "--nodes", "1,4", *argv, "--dry-run", path=str(tools))
    assert done.returncode == 0, done.stderr
    assert "warning: job 4n requests 4 nodes and waits until more are up: of the 4 in" in done.stdout
    assert not (tmp_path / "submitted").exists()


def test_an_mpiexec_that_cannot_be_executed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_program(tmp_path / "bin", "mpiexec", "true", mode=0o644)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    monkeypatch.setattr(sys, "executable", f"{tmp_path}/python")  # an environment without the MPI wheel
    assert what_is_missing() == [f"mpiexec cannot be run: {path}: Permission denied"]
    path.unlink()
    assert what_is_missing()[0].startswith("no MPI on this machine")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (False, r"no Slurm controller answers here \(scontrol ping: .* is DOWN\)"),
        (True, "Slurm does not say; state it with"),
    ],
)
def test_an_unknown_gpu_count_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool, message: str
) -> None:
    # Fakes of a cluster whose controller is away, and of one that shows no GPUs.
    shown = "PartitionName=main Default=YES\nNodeName=n1 CPUTot=8 State=IDLE Partitions=main" if answers else ""
    fakes = {
        "scontrol": f"echo 'Slurmctld(primary) at head is {'UP' if answers else 'DOWN'}\n{shown}'",
        "sbatch": "exit 1",
    }
    for name, body in fakes.items():
        write_program(tmp_path, name, body)
    monkeypatch.setenv("PATH", str(tmp_path))
    site = Site(name="jumbo")
    with pytest.raises(SpecError, match=message):
        decide_target(SweepSpec.from_mapping({"nodes": "1"}), site, SiteNodes(site, Slurm()))
    on_cpus = SweepSpec.from_mapping({"nodes": "1", "gpus_per_node": "0"})
    decided = decide_target(on_cpus, site, SiteNodes(site, Slurm()))
    assert (decided.gpus_per_node, decided.cpus_per_node) == (0, 8 if answers else None)
