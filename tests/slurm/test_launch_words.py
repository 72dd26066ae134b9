"""What a person reads where a job or its ranks cannot start, and where a dry run's script was submitted by hand."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.slurm.conftest import Command
from tests.slurm.jobs import TWO_RANKS, has_ended, submit, write_scripts
from tests.sweeps import outcomes, sweep_argv
from tests.waiting import until
from tools.devcluster.cluster import DevCluster

ONE_RUN = ("--nodes", "1", *TWO_RANKS, "--repeats", "1", "--workload", "delay", "--option", "compute_ms=1",
           "--steps", "8", "--warmup", "5")  # fmt: skip


def test_why_ranks_and_jobs_do_not_start(tmp_path: Path, cluster: DevCluster, sweep: Command) -> None:
    """Debian's Open MPI speaks no PMI-2, and there are no modules here."""
    site = cluster.site_file.read_text()
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(site.replace('mpi = "pmix"', 'mpi = "pmi2"'))
    done = sweep(*ONE_RUN, "--out", str(tmp_path / "pmi"), site=wrong)
    assert list(outcomes(tmp_path / "pmi").values()) == ["launch_fail"], done.stdout
    assert "launch_fail: standard error: OMPI was not built with SLURM's PMI support: the site's `mpi`" in done.stdout
    assert "rankwise doctor --site SITE" in done.stdout
    wrong.write_text(f'modules = ["CUDA/99"]\n{site}')
    done = sweep(*ONE_RUN, "--out", str(tmp_path / "modules"), site=wrong)
    assert list(outcomes(tmp_path / "modules").values()) == ["launch_fail"], done.stdout
    assert "a line of the site failed, before any run: module load CUDA/99" in done.stdout, done.stdout


def test_why_rank_0_cannot_start_is_on_all_nodes(cluster: DevCluster, command: Command) -> None:
    done = command("srun", "--mpi=none", "--nodes=2", "--ntasks-per-node=1", "env", "NCCL_SOCKET_IFNAME=none0",
                   sys.executable, "-m", "hpc.observe", "--", "train.py")  # fmt: skip
    assert done.returncode == 5, done.stderr
    assert "rankwise observe: interface none0 was requested" in done.stderr
    assert "rankwise observe: rank 0: interface none0 was requested" in done.stderr


def test_a_dry_run_submitted_by_hand_has_a_status(tmp_path: Path, cluster: DevCluster, command: Command) -> None:
    job_id = submit(cluster, write_scripts(cluster, tmp_path, *ONE_RUN) / "1n.sh")
    until(lambda: has_ended(cluster, job_id), "the job by hand ends")
    shown = command(*sweep_argv("status"))
    assert (shown.returncode, shown.stdout.count("  ok\n")) == (0, 1), shown.stdout + shown.stderr
