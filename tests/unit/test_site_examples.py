"""The site files of real systems: each job script beside the lines that the systems' documents have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launch.jobs.plan import plan_jobs
from launch.jobs.script import Folders, render_job
from launch.jobs.site import SITES, find_site, known_sites, read_site
from launch.scheduler.partitions import SiteNodes
from launch.scheduler.slurm import Slurm
from launch.sweep.expansion import expand
from launch.sweep.prepare import decide_target
from launch.sweep.spec import SweepSpec

EXAMPLES = sorted((SITES / "examples").glob("*.toml"))
MASK = "--cpu-bind=mask_cpu:fe000000000000,fe00000000000000,fe0000,fe000000,fe,fe00,fe00000000,fe0000000000"
NUMACTL = "numactl --membind=0-3"
NO_GPU = ("--gpus-per-node", "--gres=", "--gpus-per-task")
NO_MEMORY = ("--mem=", "--mem-per-cpu=")

LINES: dict[str, tuple[int, list[str], list[str]]] = {
    # nodes, words that are there, words that are not
    "alex": (2, ["#SBATCH --gres=gpu:a100:8", "#SBATCH --constraint=a100_80", "#SBATCH --export=NONE",
                 "before 'unset SLURM_EXPORT_ENV", "before 'module load python", "srun",
                 "--gres=gpu:a100:8"], ["--gpus-per-node"]),
    "aws": (2, ["#SBATCH --mem=0", "#SBATCH --wait-all-nodes=1", "#SBATCH --exclusive", "--cpu-bind=none",
                    "--mpi=pmix",
                "--container-image=/fsx/pytorch.sqsh", ",/fsx:/fsx", "FI_PROVIDER=efa", "LD_LIBRARY_PATH"], [*NO_GPU]),
    "azure": (2, ["#SBATCH --gpus-per-node=8", "--cpu-bind=mask_cpu:ffffff000000,", "--mem=0", "--mpi=pmix",
                  "NCCL_TOPO_FILE=/opt/microsoft/ndv5-topo.xml", "PYTHONUNBUFFERED,NCCL_IGNORE_CPU_AFFINITY,"],
              ["#SBATCH --mem"]),
    "clariden": (2, ["#SBATCH --partition=debug", "--environment=/users/me/edf.toml", "--network=disable_rdzv_get",
                     "--mpi=pmix", NUMACTL, "'NCCL_NET=AWS Libfabric'", "PMIX_MCA_psec=native"],
                 ["--container-image", "module load"]),
    "frontier": (2, ["#SBATCH --network=disable_rdzv_get", "#SBATCH --account=ABC123", "--gpu-bind=closest",
                     "--gpus-per-task=1", "--cpus-per-task=7",
                     "NCCL_NET=OFI", "FI_CXI_RDZV_PROTO=alt_read", "before 'module load rocm/7.1.1",
                     'export LD_LIBRARY_PATH="$CRAY_LD_LIBRARY_PATH:${LD_LIBRARY_PATH:-}"'],
                 ["--mpi=", "NCCL_NET=Socket", "single_node_vni"]),
    "frontier 1": (1, ["NCCL_NET=Socket", "--network=single_node_vni"], ["NCCL_NET=OFI", "--mpi="]),
    "gb200": (2, ["#SBATCH --segment=2", "#SBATCH --mem=0", "#SBATCH --exclusive", "NCCL_MNNVL_ENABLE=1",
                  "--no-container-mount-home", "--container-writable"], [*NO_GPU]),
    "gb200 1": (1, ["#SBATCH --mem=0"], ["--segment"]),
    "gb200 32": (32, ["#SBATCH --segment=16"], []),
    "gcp": (2, ["#SBATCH --mem=0", "#SBATCH --gpus-per-node=8", "source /var/lib/tcpxo/lib64/nccl-env-profile.sh",
                "--mpi=pmi2", ",LD_LIBRARY_PATH,", ",/var/tmp:/var/tmp,"], ["SLURM_PMIX_FENCE"]),
    "horeka": (2, ["#SBATCH --gres=gpu:4", "#SBATCH --account=hk-project-example", "#SBATCH --constraint=LSDF",
                   "--mpi=pmi2"], ["--gpus-per-node"]),
    "isambard": (2, ["#SBATCH --gpus-per-node=4", "--mpi=cray_shasta", "singularity exec --nv",
                    "/usr/lib64:/usr/lib64:ro", "NCCL_SOCKET_IFNAME=hsn"], ["apptainer", "single_node_vni"]),
    "isambard 1": (1, ["--network=single_node_vni"], []),
    "jupiter": (2, ["#SBATCH --gres=gpu:4", "#SBATCH --hint=nomultithread", "--cpu-bind=none", "--mpi=pspmix",
                    "before 'module --force purge", "before 'module load Stages/2026", "UCX_RC_TIMEOUT=4s"],
                ["--gpus-per-node", "SLURM_PMIX_FENCE"]),
    "juwels": (2, ["#SBATCH --gres=gpu:4", "#SBATCH --threads-per-core=1", "#SBATCH --partition=booster",
                   "--cpu-bind=sockets", "--mpi=pspmix", "apptainer exec --nv"], ["--gpus-per-node"]),
    "juwels 300": (300, ["#SBATCH --partition=largebooster"], []),
    "leonardo": (2, ["#SBATCH --gres=gpu:4", "#SBATCH --mem=0", "#SBATCH --qos=boost_qos_dbg",
                     "before 'module purge", "PMIX_MCA_gds=hash"], ["--gpus-per-node"]),
    "leonardo 128": (128, ["#SBATCH --qos=boost_qos_bprod"], ["boost_qos_dbg"]),
    "lumi": (2, ["#SBATCH --gpus-per-node=8", MASK, "before 'module use /appl/local/containers/ai-modules", "--rocm",
                 "singularity exec", "ROCR_VISIBLE_DEVICES=$SLURM_LOCALID", "MIOPEN_USER_DB_PATH",
                 "NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3", "--mpi=pmi2"], ["--nv", "apptainer"]),
    "mahti": (2, ["#SBATCH --gres=gpu:a100:4", "#SBATCH --mem=0",
                    "#SBATCH --partition=gpumedium"], ["--gpus-per-node"]),
    "mn5": (2, ["#SBATCH --gres=gpu:4", "#SBATCH --qos=acc_debug", "#SBATCH --export=None", "before 'module purge",
                "mpirun",
                "singularity exec --nv", "OMPI_MCA_pml=ucx"], ["--gpus-per-node", "srun", "--partition", *NO_MEMORY]),
    "perlmutter": (2, ["#SBATCH --account=m1234_g", "#SBATCH --constraint='gpu&hbm80g'", "--gpu-bind=none",
                    "--cpu-bind=cores",
                       "#SBATCH --licenses=scratch,cfs",
                       "shifter --image=nersc/pytorch:24.08.01 --module=gpu,nccl-2.18",
                       "#SBATCH --gpus-per-node=4"], [*NO_MEMORY]),
    "roihu": (2, ["#SBATCH --gres=gpu:gh200:4", "#SBATCH --time=10", "#SBATCH --partition=gputest"],
              ["--gpus-per-node", *NO_MEMORY]),
    "slinky": (2, ["#SBATCH --mem=0", "#SBATCH --exclusive", "--mpi=pmix", "SNCCLD_ENABLED=0"], ["module load"]),
    "snellius": (2, ["#SBATCH --gpus-per-node=4", "#SBATCH --export=NONE", "mpirun", "NCCL_SOCKET_IFNAME=eno2np0",
                     "before 'module load 2024"], ["srun", *NO_MEMORY]),
    "tinygpu": (2, ["`sbatch.tinygpu THIS_FILE`", "#SBATCH --gres=gpu:a100:4"], ["`sbatch THIS_FILE`"]),
    "vista": (2, ["#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=1", "#SBATCH --time=", "before 'module reset",
                  "IBRUN_TASKS_PER_NODE=1 ibrun -n 2"],
              [*NO_GPU, *NO_MEMORY, "--export", "mpirun", "srun", "--exclusive"]),
}  # fmt: skip
"""Each line once more where a site is another one for a number of nodes."""


def test_every_example_is_compared_says_its_source_and_is_taken_by_name_alone() -> None:
    names = [path.stem for path in EXAMPLES]
    assert names == sorted({case.split()[0] for case in LINES}) and len(names) >= 20
    for path in EXAMPLES:
        assert re.search(r"^# .*Source: https://", path.read_text()), path
        site = find_site(f"examples/{path.stem}")
        assert site == read_site(path) and not site.hostname_pattern
    assert {f"examples/{name}" for name in names} < known_sites().keys()


@pytest.mark.parametrize("case", LINES)
def test_a_script_has_the_documented_lines(case: str) -> None:
    nodes, wanted, unwanted = LINES[case]
    site = read_site(SITES / "examples" / f"{case.split(maxsplit=1)[0]}.toml")
    per_node = site.gpus_per_node or 1
    sweep = SweepSpec.from_mapping({"nodes": [nodes], "backend": ["torch-ddp"], "repeats": 1, "no_baseline": True})
    plan = expand(sweep, decide_target(sweep, site, SiteNodes(site, Slurm())))
    assert {run.ranks_per_node for run in plan.runs} == {per_node}
    [job] = plan_jobs(plan.runs, site, 10, None)
    folders = Folders(jobs=Path("/scratch/jobs"), traces=Path("/scratch/traces"))
    text = render_job(job.runs, Slurm().header(job, folders), site, folders, {"torch-ddp": "torch"})
    lines = [" ".join(line.split()) for line in text.replace("\\\n", " ").splitlines()]
    is_text = [line.startswith("#") and not line.startswith(("#SBATCH", "# A Rankwise")) for line in lines]
    body = "\n".join(line for line, drop in zip(lines, is_text, strict=True) if not drop)
    assert [words for words in wanted if words not in body] == [], text
    assert [words for words in unwanted if words in body] == [], text
