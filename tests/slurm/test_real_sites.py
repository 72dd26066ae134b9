"""The site files of real systems on a Slurm that has their partitions, accounts, typed GPUs and a submit filter.

A copy differs from the file by what this machine cannot have: sizes, network interfaces, the kind of MPI, modules and
images (stand-ins), and the rights of root.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc.model.trace import Trace
from hpc.model.trace_file import read_trace
from launch.jobs.site import SITES
from tests.slurm.test_sites import TINY
from tests.sweeps import outcomes, sweep_argv, with_checkout
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import Shape
from tools.devcluster.daemons import missing_programs

ACCOUNTS = "ABC123,EUHPC_X,exalab,project_465000001,P"
QOS = "debug,boost_qos_dbg"
TYPED = ("batch", "standard-g", "boost_usr_prod", "booster", "a100")
"""Partitions of nodes 1 and 2, which have GPUs with a type, and less memory than CPUs would get by default."""
BARE = ("gpu_h100", "gh-dev")
"""Partitions of nodes 3 and 4, which have no GRES."""
FILTER = """\
function slurm_job_submit(job, partitions, user)
  if (job.partition == "a100" or job.partition == "boost_usr_prod") and not job.tres_per_node then
    slurm.log_user("please state --gres")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, user) return slurm.SUCCESS end
return slurm.SUCCESS
"""
SINGULARITY = """\
#!/bin/bash
shift
while case $1 in --bind) shift 2 ;; --*) shift ;; *) false ;; esac; do :; done
export IMAGE=$1; shift; exec "$@"
"""
IBRUN = """\
#!/bin/bash
ranks=$2; shift 2
export FROM_IBRUN=$IBRUN_TASKS_PER_NODE
exec mpirun -n $ranks --map-by ppr:$IBRUN_TASKS_PER_NODE:node --bind-to none "$@"
"""
MODULE = '() { echo "module $*" >>"$MODULES"; }'
ROOT = 'OMPI_ALLOW_RUN_AS_ROOT = "1"\nOMPI_ALLOW_RUN_AS_ROOT_CONFIRM = "1"\n'


class RealCluster(DevCluster):
    """A development cluster with the nodes and partitions above."""

    def _write_files(self) -> None:
        super()._write_files()
        for name in ("slurm.conf", "login.conf"):
            (self.root / name).write_text(_conf((self.root / name).read_text()))
        devices = f"NodeName=node[1-2] Name=gpu Type=a100 File={self.root}/dev/gpu[0-1]"
        (self.root / "gres.conf").write_text(f"AutoDetect=off\n{devices}\n")
        (self.root / "topology.conf").write_text("SwitchName=a Nodes=node[1-2]\nSwitchName=b Nodes=node[3-4]\n"
                                                 "SwitchName=top Switches=a,b\n")  # fmt: skip
        (self.root / "job_submit.lua").write_text(FILTER)


def _conf(text: str) -> str:
    text = re.sub(r"^(NodeName=node[12] .*) Gres=gpu:2", r"\1 Gres=gpu:a100:2 MemSpecLimit=1000 Feature=a100_80", text,
                  flags=re.MULTILINE)  # fmt: skip
    text = text.replace(" Gres=gpu:2 ", " ").replace(" State=UNKNOWN", " CpuBind=none State=UNKNOWN")
    text = re.sub(r"DefMemPerCPU=.*", "DefMemPerCPU=1000", text)
    text = text.replace("TaskPlugin=task/none", "TaskPlugin=task/affinity").replace(
        "MpiDefault=none", "MpiDefault=pmix"
    )
    partitions = [f"PartitionName={name} Nodes=node[1-2]" for name in TYPED]
    partitions += [f"PartitionName={name} Nodes=node[3-4]" for name in BARE]
    rules = ["TopologyPlugin=topology/tree", "JobSubmitPlugins=lua", "AccountingStorageEnforce=associations,qos",
             "AccountingStorageTRES=gres/gpu,gres/gpu:a100"]  # fmt: skip
    return "\n".join([text, *rules, *partitions, ""])


@pytest.fixture(scope="module")
def real(slurm_installed: None) -> Iterator[RealCluster]:
    if missing := missing_programs(accounting=True):
        pytest.skip(missing)
    folder = Path(tempfile.mkdtemp(prefix="rw-", dir="/var/tmp"))
    with RealCluster(folder, Shape(cpus=2, gpus=2, accounting=True)) as running:
        running.run("sacctmgr", "-i", "add", "account", ACCOUNTS)
        running.run("sacctmgr", "-i", "add", "qos", QOS)
        running.run("sacctmgr", "-i", "add", "user", running.host.user, f"account={ACCOUNTS}", "defaultaccount=exalab")
        running.run("sacctmgr", "-i", "modify", "user", running.host.user, "set", f"qos=normal,{QOS}")
        yield running
    shutil.rmtree(folder)


def run_site(
    real: RealCluster, folder: Path, name: str, *options: str, changes: dict[str, str] | None = None, add: str = ""
) -> subprocess.CompletedProcess[str]:
    """A sweep of one and two nodes on a copy of a site's file."""
    sizes = {r"^(gpus|cpus)_per_node = .*": r"\1_per_node = 2", r'IFNAME = "[\w,]*"': 'IFNAME = "lo"'}
    text = (SITES / "examples" / f"{name}.toml").read_text()
    for pattern, new in {**sizes, **(changes or {})}.items():
        text = re.sub(pattern, new, text, flags=re.MULTILINE)
    site = folder / f"{name}.toml"
    site.write_text(f"{text}\n{add}")
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for program, script in {"singularity": SINGULARITY, "ibrun": IBRUN}.items():
        (programs / program).write_text(script)
        (programs / program).chmod(0o755)
    env = with_checkout(real.environ)
    env |= {"PATH": f"{programs}:{env['PATH']}", "MODULES": f"{folder}/modules", "BASH_FUNC_module%%": MODULE}
    argv = sweep_argv("--site", str(site), "--nodes", "1,2", *TINY, *options)
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)


def checked(real: RealCluster, folder: Path, done: subprocess.CompletedProcess[str]) -> tuple[list[str], list[Trace]]:
    """What Slurm shows of the jobs of one and two nodes, and the traces of one rank, two, and two on two nodes."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(outcomes(folder).values()) == ["ok"] * 3
    ids = re.findall(r"submitted as (\d+)", done.stdout + done.stderr)
    shown = [real.run("scontrol", "show", "job", job) for job in ids]
    return shown, [read_trace(path) for path in sorted((folder / "traces").glob("*.h5"))]


def variables(traces: list[Trace], name: str) -> list[str | None]:
    return [trace.environment["variables"].get(name) for trace in traces]


def test_frontier_has_its_network_by_size_and_its_qos(tmp_path: Path, real: RealCluster) -> None:
    shown, traces = checked(real, tmp_path, run_site(real, tmp_path, "frontier"))
    for job in shown:
        assert "QOS=debug" in job and "Account=abc123" in job and "Network=disable_rdzv_get" in job, job
    assert variables(traces, "NCCL_NET") == ["Socket", "Socket", "OFI"]
    networks = [trace.run.job_options.get("srun.network") for trace in traces]
    assert networks == ["single_node_vni", "single_node_vni", None]
    assert "module load craype-accel-amd-gfx90a" in (tmp_path / "modules").read_text()


def test_lumi_binds_its_ranks_by_masks_in_a_container(tmp_path: Path, real: RealCluster) -> None:
    """A step of one rank too: it has the whole node, not the first CPUs of it."""
    (tmp_path / "image.sif").touch()
    changes = {
        r"mask_cpu:[\w,]*": "mask_cpu:0x2,0x1",
        '"pmi2"': '"pmix"',
        r"^default = .*": f'default = "{tmp_path}/image.sif"',
    }
    done = run_site(real, tmp_path, "lumi", changes=changes)
    _, traces = checked(real, tmp_path, done)
    assert variables(traces, "SLURM_CPU_BIND_LIST") == ["2,1"] * 3
    assert variables(traces, "SLURM_CPUS_ON_NODE") == ["2"] * 3
    modules = (tmp_path / "modules").read_text()
    assert modules.startswith("module use /appl/local/containers/ai-modules\nmodule load LUMI\n")


def test_leonardo_has_all_memory_of_a_node_that_keeps_some_and_the_qos_of_its_size(
    tmp_path: Path, real: RealCluster
) -> None:
    refused = run_site(real, tmp_path, "leonardo")
    assert refused.returncode == 1 and "please state --gres" in refused.stderr, refused.stderr
    shown, traces = checked(real, tmp_path, run_site(real, tmp_path, "leonardo", "--sbatch", "gres=gpu:2"))
    free = [int(each) for each in re.findall(r"RealMemory=(\d+)", real.run("scontrol", "show", "node", "node1"))]
    for nodes, job in enumerate(shown, 1):
        assert "QOS=boost_qos_dbg" in job and "Account=euhpc_x" in job and re.search("TresPerNode=gres.gpu:2", job), job
        assert f"mem={nodes * (free[0] - 1000)}M" in job, job
    assert [trace.run.env["PMIX_MCA_gds"] for trace in traces] == ["hash"] * 3


def test_jupiter_is_told_its_hint_and_binds_nothing(tmp_path: Path, real: RealCluster) -> None:
    done = run_site(real, tmp_path, "jupiter", changes={'"pspmix"': '"pmix"'})
    _, traces = checked(real, tmp_path, done)
    assert variables(traces, "SLURM_HINT") == ["nomultithread"] * 3
    assert variables(traces, "SLURM_CPU_BIND") == ["quiet,none"] * 3
    assert (tmp_path / "modules").read_text().startswith("module --force purge\nmodule load Stages/2026\n")


def test_alex_requests_its_type_of_gpu_and_starts_from_no_environment(tmp_path: Path, real: RealCluster) -> None:
    done = run_site(real, tmp_path, "alex", "--sbatch", "gres=gpu:a100:2", changes={r"^modules = .*": ""})
    shown, traces = checked(real, tmp_path, done)
    for nodes, job in enumerate(shown, 1):
        assert re.search("TresPerNode=gres.gpu:a100:2", job) and "Features=a100_80" in job, job
        assert f"gres/gpu:a100={2 * nodes}" in job, job
    assert variables(traces, "SLURM_GET_USER_ENV") == ["1"] * 3
    assert variables(traces, "SLURM_EXPORT_ENV") == [None] * 3
    assert variables(traces, "CUDA_VISIBLE_DEVICES") == ["0,1"] * 3


def test_snellius_and_vista_start_by_other_launchers_on_nodes_without_gres(tmp_path: Path, real: RealCluster) -> None:
    snellius, vista = tmp_path / "snellius", tmp_path / "vista"
    for folder in (snellius, vista):
        folder.mkdir()
    done = run_site(real, snellius, "snellius", changes={r"^modules = .*": ""}, add=f"[env]\n{ROOT}")
    shown, traces = checked(real, snellius, done)
    assert all("Partition=gpu_h100" in job and "gres" not in job for job in shown)
    assert variables(traces, "NCCL_SOCKET_IFNAME") == ["lo"] * 3
    assert variables(traces, "SLURM_GET_USER_ENV") == ["1"] * 3  # --export=NONE
    shown, traces = checked(real, vista, run_site(real, vista, "vista"))
    assert all("Partition=gh-dev" in job and "gres" not in job for job in shown)
    assert not any("OverSubscribe=NO" in job for job in shown), shown
