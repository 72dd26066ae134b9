"""Sites with options of their own, lines before the runs, and other values by size, on a real Slurm."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hpc.model.trace_file import read_trace
from tests.slurm.conftest import Command
from tests.sweeps import outcomes, sweep_argv, with_checkout
from tools.devcluster.cluster import DevCluster

TINY = ("--backend", "mpi", "--workload", "delay", "--option", "compute_ms=1", "--steps", "8", "--warmup", "5",
        "--ranks-per-node", "2", "--cpus-per-rank", "1", "--repeats", "1")  # fmt: skip


@pytest.fixture
def site(cluster: DevCluster, tmp_path: Path) -> Path:
    return tmp_path / "site.toml"


def write(site: Path, cluster: DevCluster, keys: str, tables: str) -> None:
    """The cluster's own site file with these keys above its tables and these tables below."""
    site.write_text(f"{keys}\n{cluster.site_file.read_text()}\n{tables}\n")


def test_options_lines_and_sizes_of_a_site_reach_its_jobs_and_points(
    tmp_path: Path, cluster: DevCluster, sweep: Command, command: Command, site: Path
) -> None:
    keys = """
setup = ['export FROM_SETUP="$SLURM_JOB_NUM_NODES nodes"', 'echo ready']
rank_prefix = ["env", "NCCL_FROM_PREFIX=yes"]
cpu_bind = "none"
gpu_request = "none"
"""
    tables = """
[sbatch]
comment = "two words; $(touch pwned)"
mem = 1500
wait-all-nodes = 1
[srun]
network = "single_node_vni"
[by_nodes.1]
env = { NCCL_NET = "Socket" }
[by_nodes."2-"]
env = { NCCL_NET = "OFI" }
sbatch = { mem = 1600 }
"""
    write(site, cluster, keys, tables)
    done = sweep("--nodes", "1,2", *TINY, "--sbatch", "hint=nomultithread", site=site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(outcomes(tmp_path).values()) == ["ok"] * 3
    for nodes, memory in ((1, "1500M"), (2, "1600M")):
        script = (tmp_path / "jobs" / f"{nodes}n.sh").read_text()
        assert f"#SBATCH --mem={memory[:-1]}\n" in script and "#SBATCH --hint=nomultithread\n" in script
        assert "#SBATCH --comment='two words; $(touch pwned)'\n" in script
        [submitted] = [
            path for path in (tmp_path / "jobs" / "logs").glob("*_submission.sh") if path.read_text() == script
        ]
        shown = command("scontrol", "show", "job", submitted.name.split("_")[0]).stdout
        assert f"MinMemoryNode={memory}" in shown and "Comment=two words; $(touch pwned)" in shown, shown
    assert not list(tmp_path.rglob("pwned"))
    runs = {path.name[:4]: read_trace(path) for path in (tmp_path / "traces").glob("*.h5")}
    for case, network, memory in (("1n1g", "Socket", "1500"), ("2n2g", "OFI", "1600")):
        run, variables = runs[case].run, runs[case].environment["variables"]
        assert run.env["NCCL_NET"] == variables["NCCL_NET"] == network
        assert run.job_options["sbatch.mem"] == memory and run.job_options["srun.network"] == "single_node_vni"
        assert "sbatch.comment" not in run.job_options
        assert set(run.by_nodes) == {"env.NCCL_NET", "sbatch.mem"}
        assert variables["NCCL_FROM_PREFIX"] == "yes"
    summary = command(sys.executable, "-m", "parse.summarize", "traces", "--format", "json")
    points = {point["case"]: point for point in json.loads(summary.stdout)["results"]}
    assert points["2n2g"]["speedup"] is not None, summary.stdout  # what differs by size leaves them one setting


def test_a_line_that_fails_ends_the_job_before_any_run(
    tmp_path: Path, cluster: DevCluster, sweep: Command, site: Path
) -> None:
    write(site, cluster, """setup = ["true", "cat /no/such/profile", "touch after"]""", "")
    done = sweep("--nodes", "1", *TINY, site=site)
    assert done.returncode == 1
    assert set(outcomes(tmp_path).values()) == {"launch_fail"}, done.stdout
    assert "a line of the site failed, before any run: cat /no/such/profile" in done.stdout, done.stdout
    assert not list(tmp_path.rglob("after")) and not list((tmp_path / "traces").glob("*.h5"))


def test_what_the_shell_says_to_slurm_is_in_the_script_or_refused(
    tmp_path: Path, cluster: DevCluster, site: Path
) -> None:
    import subprocess

    def start(**variables: str) -> subprocess.CompletedProcess[str]:
        argv = sweep_argv("--site", str(cluster.site_file), "--nodes", "1", *TINY, "--sbatch", "mem=300", "--dry-run")
        env = {**with_checkout(cluster.environ), **variables}
        return subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    done = start(SBATCH_REQ_SWITCH="1", SLURM_NETWORK="x")
    assert done.returncode == 0, done.stderr
    assert "SBATCH_REQ_SWITCH of this shell: jobs have --switches=1" in done.stdout
    assert "#SBATCH --switches=1" in done.stdout and "--network=x" in done.stdout
    refused = start(SBATCH_MEM_PER_NODE="777")
    assert refused.returncode == 2
    assert "SBATCH_MEM_PER_NODE=777 in this shell would change jobs: unset it" in refused.stderr


def test_a_launcher_of_its_own_and_the_values_of_a_partition(
    tmp_path: Path, cluster: DevCluster, sweep: Command, command: Command, site: Path
) -> None:
    keys = """
partition = "main"
launcher_command = ["mpirun", "-n", "{ranks}", "--map-by", "ppr:{ranks_per_node}:node", "--bind-to", "none"]
max_running = 1
"""
    tables = """
[by_partition.main]
max_node_minutes = 40
setup = ["export FROM_PARTITION=main"]
env = { NCCL_ALGO = "Ring" }
[by_partition.other]
env = { NCCL_ALGO = "Tree" }
"""
    write(site, cluster, keys, tables)
    text = site.read_text().replace('mpi = "pmix"', 'mpi = "openmpi"').replace('launcher = "srun"', "")
    site.write_text(text)
    done = sweep("--nodes", "1,2", *TINY, "--no-baseline", site=site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(outcomes(tmp_path).values()) == ["ok"] * 2
    assert "1 at the same time" not in done.stderr
    for path in (tmp_path / "traces").glob("*.h5"):
        run = read_trace(path).run
        assert run.env["NCCL_ALGO"] == "Ring" and run.job_options == {"setup": "export FROM_PARTITION=main"}
    refused = sweep("--nodes", "5", *TINY, "--no-baseline", site=site)
    assert refused.returncode != 0 and "a job of 5 nodes may take 8 min" in refused.stderr, refused.stderr
