from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hpc.model.spec import Plan, SpecError, Target
from launch.jobs.site import SITES, Site, SiteError, find_site, known_sites, read_site
from launch.jobs.slurm_options import shell_lines
from launch.sweep.prepare import Prepared, TargetError
from launch.sweep.request import Request
from tests.unit.fake_commands import write_program
from tests.unit.traces import make_run


def site_file(tmp_path: Path, text: str, name: str = "here") -> Path:
    path = tmp_path / f"{name}.toml"
    path.write_text(text)
    return path


def test_sites_that_come_with_the_project_can_be_read() -> None:
    assert known_sites()
    for path in known_sites().values():
        assert read_site(path).name == path.stem


def test_a_site_is_known_by_host_name_name_or_file(tmp_path: Path) -> None:
    path = site_file(tmp_path, 'hostname_pattern = "login[0-9]+"\npartition = "gpu"\nmpi = "pmi2"')
    assert find_site(None, hostname="login12", folder=tmp_path) == read_site(path)
    assert find_site(None, hostname="laptop", folder=tmp_path) is None
    assert find_site("here", folder=tmp_path) == find_site(str(path), folder=SITES) == read_site(path)
    assert read_site(path).partition == "gpu"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partitoin = 'x'", "unknown key partitoin; valid keys: name, hostname_pattern, partition"),
        ("launcher = 'orterun'", "launcher 'orterun' is not one of srun, mpirun"),
        (
            "launcher = 'srun'\nmpi = 'openmpi'",
            "mpi 'openmpi' is not one of pmix, pmi2, those of srun",
        ),
        ("container = 'docker'", "not one of apptainer, singularity, podman-hpc, shifter, pyxis, ce"),
        ("container = 'pyxis'", r"needs an \[images\] table"),
        ("gpus_per_node = 'eight'", "gpus_per_node is 'eight', not a whole number"),
        ("cpus_per_node = 0", "must be at least 1"),
        ("gpus_per_node = true", "not a whole number"),
        ("modules = 'CUDA'", "modules must be a list, not"),
        ("env = 'A=1'", "env must be a table"),
        ("env = {A = true}", "env.A is True, not a text"),
        ("env = 3", r"env must be a table \(a line \[env\], then KEY = VALUE\), not 3"),
        ("hostname_pattern = '['", r"hostname_pattern '\[' is no regular expression"),
        ("hostname = 'x'", r"unknown key hostname; .*Did you mean hostname_pattern\?"),
        ("gpus_per_node = -1", r"here.toml: gpus_per_node is -1; it must be at least 0"),
        ("env = {'A B' = '1'}", "env: 'A B' is no name of an environment variable"),
        ("preflight = 'load'", "preflight must be a table"),
        ("[preflight]\nlaod = 'fatal'", r"\[preflight\]: unknown check 'laod'; known: mpi_size"),
        ("network = 'fast'", "network must be a table"),
        ("[network]\nlatency = 3", r"\[network\]: unknown 'latency'; known: bandwidth_gbit: Gbit/s of a node"),
        ("[network]\nlatency_us = 'low'", "latency_us is 'low', not a number"),
        ("[network]\nbandwidth_gbit = 0", "bandwidth_gbit is 0; it must be above 0"),
        ("expect_transport = '--ib'", "'--ib' is no name of a network; say ib"),
        ("expect_transport = 1", "expect_transport is 1, not a text"),
        ("exclusive = 1", "exclusive is 1, not true or false"),
        ("[env]\nHF_TOKEN = 'x'", "env HF_TOKEN looks like a secret"),
        ("container_args = ['--env', 'HF_TOKEN=x']", "container_args looks like a secret"),
        ("container = 'pyxis'\nimages = {torch = 'docker://me:hush@host/x'}", "image torch looks like a secret"),
        ("a = [", "not TOML"),
    ],
)
def test_an_invalid_site_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = site_file(tmp_path, text)
    with pytest.raises(SiteError, match=message) as error:
        read_site(path)
    assert str(path) in str(error.value)


def test_missing_sites_are_named(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"unknown site 'there'; known sites: here"):
        site_file(tmp_path, "")
        find_site("there", folder=tmp_path)
    with pytest.raises(SiteError, match="No such file"):
        find_site(str(tmp_path / "no.toml"))


def test_images_and_interpreters_per_framework(tmp_path: Path) -> None:
    text = 'container = "apptainer"\n[images]\ntorch = "t.sif"\n[interpreter]\ndefault = "/opt/python"'
    site = read_site(site_file(tmp_path, text))
    assert site.image("torch") == "t.sif"
    assert site.python("torch", "/here") == "/opt/python"
    with pytest.raises(SiteError, match="no container image for paddle"):
        site.image("paddle")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mpi = 'a b'", "mpi: 'a b' is no word of `srun --mpi=list`"),
        ("gpu_request = 'gpus'", "gpu_request 'gpus' is not one of gpus-per-node, gres, gpus-per-task, none"),
        ("gpu_request = 'none'\ngpu_type = 'a100'", "gpu_type: gpu_request requests no GPU"),
        ("modules = ['use /appl/x']", "modules: 'use /appl/x' is no module: module_purge, module_use, or a line"),
        ("module_purge = 'yes'", "module_purge 'yes' is not one of purge, force, reset"),
        ('setup = ["a\\nb"]', "setup: 'a.nb' is not one line"),
        ("[env]\nA = '$HOME/x'", r"env: A = '\$HOME/x' would reach the runs as it stands here: use setup = "),
        ("[env]\nSLURM_CPU_BIND = 'none'", "SLURM_CPU_BIND is for the launcher, .* program: use cpu_bind"),
        ("[env]\nSLURM_NETWORK = 'x'", r"SLURM_NETWORK is for the launcher, .*: use \[srun\] network"),
        ("[env]\nSBATCH_MEM_PER_NODE = '1'", r"SBATCH_MEM_PER_NODE is for the launcher, .*: use \[sbatch\] mem"),
        ("[env]\nSBATCH_QOS = '1'", "SBATCH_QOS is for the launcher, .*: use qos"),
        ("[sbatch]\nnodes = 3", r"\[sbatch\] nodes is set by the toolkit: use --nodes"),
        ("[sbatch]\nsignal = 'USR2'", r"\[sbatch\] signal is set by the toolkit$"),
        ("[sbatch]\nqos = 'a'", r"\[sbatch\] qos is a key or an option of its own: qos = 'a'"),
        ("[srun]\ngres = 'tmpfs:1G,gpu:4'", r"\[srun\] gres = 'tmpfs:1G,gpu:4' requests GPUs: use gpu_request"),
        ("[sbatch]\nS = 8", r"\[sbatch\] 'S' is no long name of an option"),
        ("[sbatch]\nspread-job = false", r"sbatch.spread-job is False, not a text"),
        ('[sbatch]\ncomment = "a\\nb"', r"\[sbatch\] comment = 'a.nb': give a text of one line"),
        ("[srun]\ncpu-bind = 'none'", r"\[srun\] cpu-bind is set by the toolkit: use cpu_bind"),
        ("[srun]\npartition = 'x'", r"\[srun\] partition is set by the toolkit: use partition, of the job"),
        ("launcher = 'mpirun'\ncpu_bind = 'none'", "cpu_bind: of srun, and the launcher is another one"),
        ("launcher_command = ['ibrun']", "launcher_command names neither {ranks} nor {ranks_per_node}"),
        ("launcher_command = ['x', '{rank}', '{ranks}']", "launcher_command: {rank} is not one of nodes, ranks, "),
        ("submit_command = 'a b'", "submit_command: 'a b' is no command"),
        ("container = 'pyxis'\ncontainer_args = ['--container-env=A']\nimages = {a = 'b'}", "use container_env"),
        ("container = 'apptainer'\ncontainer_args = ['--cleanenv']\nimages = {a = 'b'}", "each would be alone"),
        ("max_node_minutes = 0", "max_node_minutes is 0; it must be at least 1"),
        ("[by_nodes.x]\nqos = 'a'", r"\[by_nodes.x\]: 'x' is no number of nodes: 1, 2-8 or 65-"),
        ("[by_nodes.1]\ngpus_per_node = 4", r"\[by_nodes.1\]: gpus_per_node is decided once for all jobs"),
        ("[by_nodes.1]\nqso = 'a'", r"\[by_nodes.1\]: unknown key qso; .*Did you mean qos"),
        ("[by_partition.p]\ncpu_bind = 3", r"\[by_partition.p\]: cpu_bind is 3, not a text"),
        ("launcher = 'mpirun'\n[by_partition.p]\ncpu_bind = 'none'", r"\[by_partition.p\]: cpu_bind: of srun"),
        ("by_nodes = 3", "by_nodes must be a table"),
    ],
)  # fmt: skip
def test_what_would_not_reach_where_it_should_is_refused_with_the_key_to_use(
    tmp_path: Path, text: str, message: str
) -> None:
    path = site_file(tmp_path, text)
    with pytest.raises(SiteError, match=message) as error:
        read_site(path)
    assert str(error.value).startswith(f"site file {path}: ")


BY_SIZE = """
partition = "small"
qos = "debug"
env = { A = "1", NCCL_NET = "OFI" }
sbatch = { mem = 0, comment = "hello", spread-job = true }
[by_nodes.1]
env = { NCCL_NET = "Socket" }
[by_nodes."4-"]
partition = "large"
sbatch = { segment = 4 }
max_node_minutes = 90
[by_partition.small]
time_limit_min = 30
[by_partition.large]
time_limit_min = 60
account = "big"
"""


def test_a_site_is_another_one_by_number_of_nodes_and_partition(tmp_path: Path) -> None:
    site = read_site(site_file(tmp_path, BY_SIZE))
    assert [site.at(nodes).env["NCCL_NET"] for nodes in (1, 2, 4)] == ["Socket", "OFI", "OFI"]
    assert [site.at(nodes).partition for nodes in (1, 3, 4, 999)] == ["small", "small", "large", "large"]
    assert [site.limit_min(nodes) for nodes in (1, 2, 4, 9)] == [30, 30, 22, 10]
    assert (site.at(1).account, site.at(4).account, site.at().env["A"]) == ("", "big", "1")
    assert site.at(2).job_options == {"sbatch.mem": "0", "sbatch.spread-job": "true"}  # a comment changes no speed
    assert site.varying == ("env.NCCL_NET", "sbatch.segment")
    chosen = site.with_values({"partition": "large", "sbatch": {"segment": "8", "hint": "nomultithread"}})
    assert [chosen.at(nodes).partition for nodes in (1, 4)] == ["large", "large"]
    assert chosen.at(1).account == "big" and chosen.at(1).env["NCCL_NET"] == "Socket"
    assert chosen.at(4).sbatch == {
        "mem": "0", "comment": "hello", "spread-job": "true", "segment": "8", "hint": "nomultithread"
    }  # fmt: skip


def test_what_a_shell_says_to_slurm_is_taken_in_and_shown(tmp_path: Path) -> None:
    site = read_site(site_file(tmp_path, 'qos = "debug"\nsbatch = { mem = 0 }'))
    shell = {"SBATCH_GRES": "tmpfs:1G", "SBATCH_REQ_SWITCH": "1", "SBATCH_PARTITION": "p", "SBATCH_QOS": "debug",
             "SLURM_CPU_BIND": "none", "SLURM_NETWORK": "x", "SBATCH_JOB_NAME": "mine", "PATH": "/bin",
             "SLURM_CONF": "/c"}  # fmt: skip
    fitted, lines = site.with_shell(shell), shell_lines(shell)
    assert fitted.at().sbatch == {"mem": "0", "gres": "tmpfs:1G", "switches": "1"}
    assert (fitted.partition, fitted.cpu_bind, fitted.srun) == ("p", "none", {"network": "x"})
    assert "SBATCH_GRES of this shell: jobs have --gres=tmpfs:1G" in lines and len(lines) == 6
    inside = {"SLURM_JOB_ID": "7", "SLURM_CPU_BIND": "none", "SLURM_NETWORK": "x"}
    assert site.with_shell(inside) == site and not shell_lines(inside)  # of that job
    for variable, reason in (
        ("SBATCH_QOS=high", "the sweep requests --qos=debug"), ("SBATCH_MEM_PER_NODE=777", "requests --mem=0"),
        ("SBATCH_TIMELIMIT=5", "use --time, or"), ("SBATCH_GPUS_PER_NODE=2", "use gpu_request"),
    ):  # fmt: skip
        name, _, value = variable.partition("=")
        with pytest.raises(SpecError, match=f"{variable} in this shell would change jobs: unset it .*{reason}"):
            site.with_shell({name: value})


def test_the_example_names_every_key_and_is_valid_without_its_comments(tmp_path: Path) -> None:
    lines = (SITES / "example.toml").read_text().splitlines()[2:]
    whole = "\n".join(line.removeprefix("# ") for line in lines if "launcher_command" not in line)
    values = vars(read_site(site_file(tmp_path, whole)))
    unset = {each.name for each in dataclasses.fields(Site) if values[each.name] in ("", (), {}, None)}
    assert unset == {"launcher_command"} and "# launcher_command" in (SITES / "example.toml").read_text()


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("""[ "$*" = "exec --bind /d:/d i.sif /opt/python -c import mpi4py, h5py" ]""", []),
        ("echo \"ModuleNotFoundError: No module named 'h5py'\" >&2; exit 1", "image i.sif: .*No module named 'h5py'"),
        ("echo FATAL: no user namespaces >&2; exit 255", ["image i.sif does not start here"]),
        (None, []),
    ],
)
def test_an_image_without_what_ranks_import_is_named_where_it_can_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str | None, answer: list[str] | str
) -> None:
    if body is not None:
        write_program(tmp_path / "bin", "apptainer", body)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    values: Any = {"container_mounts": ("/d:/d",), "interpreter": {"default": "/opt/python"}}
    site = Site(name="s", container="apptainer", images={"default": "i.sif"}, **values)
    runs = (make_run(container="i.sif", gpus_per_node=0),)
    prepared = Prepared(request=Request(), site=site, plan=Plan(target=Target(site="s", gpus_per_node=0), runs=runs))
    if isinstance(answer, str):
        with pytest.raises(TargetError, match=answer):
            prepared.check_images()
    else:
        warnings = prepared.check_images()
        assert len(warnings) == len(answer) and all(map(str.startswith, warnings, answer))
