"""launch.doctor: from the facts of a cluster and its nodes to findings. Slurm's answers are as it prints them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from hpc.model.findings import CheckFinding, State
from launch.doctor.command import DoctorError, Examination, _prepared, _sized_job, main, make_parser, read_examination
from launch.doctor.diagnosis import as_json, as_text, change, note, of_job, of_site
from launch.doctor.job import AllocatedNode, JobFacts, Start, read_nodes
from launch.jobs.options import LaunchOptions
from launch.jobs.site import Site
from launch.jobs.slurm_options import IN_SBATCH
from launch.scheduler.protocol import ClusterFacts
from launch.scheduler.slurm_nodes import read_cluster, show
from tests.unit.fake_commands import fake_in

HEALTHY = {
    "PreemptType": "preempt/none", "PreemptMode": "OFF", "KillWait": "30 sec",
}  # fmt: skip
MAIN = {"PartitionName": "main", "State": "UP", "MaxTime": "UNLIMITED", "PreemptMode": "OFF"}


SHARED = "--out FOLDER, one that all nodes mount"


def cluster(settings: dict[str, str] | None = None, partition: dict[str, str] | None = None, **facts) -> ClusterFacts:
    usual = {"nodes": 4, "gpus": (8,), "cpus": (64,), "pmis": ("pmix", "pmi2")}
    return ClusterFacts(settings=HEALTHY | (settings or {}), partition=MAIN | (partition or {}), **(usual | facts))


def site(**settings) -> Site:
    return Site(**({"name": "here", "gpus_per_node": 8, "cpus_per_node": 64} | settings))


def changes(findings: list[CheckFinding], name: str) -> list[tuple[str, str]]:
    labels = {"alarm": "change"}
    return [(labels.get(each.label, each.label), each.fix) for each in findings if each.name == name]


def node(name: str = "n0", **facts) -> AllocatedNode:
    usual = {"free_bytes": {"/dev/shm": 1 << 33}, "pythons": {"/py": "3.11.7"}, "mpi4py": {"/py": "4.1.0"}}
    return AllocatedNode(name=name, **(usual | facts))


def check(name: str, state: str, severity: str = "fatal") -> dict[str, str]:
    return {
        "name": name,
        "state": state,
        "severity": severity,
        "text": f"{name} is {state}",
        "figures": {},
        "fix": f"fix of {name}",
    }


def start(mpi: str = "pmix", *checks: dict[str, str], connected: bool = True, **facts) -> Start:
    launched = {"size": 4, "library": "Open MPI v5, x"}
    report = {"launched": launched, "ranks": [{}] if connected else [], "findings": [*checks]}
    return Start(**({"launcher": "srun", "mpi": mpi, "status": 0, "report": report} | facts))


def job(*nodes: AllocatedNode, starts: tuple[Start, ...] = (start(),), **facts) -> JobFacts:
    usual = {"ended": True, "arrived": frozenset(each.name for each in nodes), "setup": {}}
    return JobFacts(nodes=nodes, starts=starts, **(usual | facts))


def test_a_healthy_cluster_has_nothing_to_change() -> None:
    findings = [*of_site(site(), cluster()), *of_job(site(), job(node(), node("n1")))]
    assert {finding.state for finding in findings} == {State.OK}
    assert as_text(findings).startswith("nothing to change\n")


def test_advice_does_not_stand_beside_nothing_to_change() -> None:
    advised = [note("cores", "2 ranks share a core", "start fewer ranks"), note("KillWait", "5 s")]
    assert as_text(advised).startswith("nothing must be changed; 1 note with advice\n")
    both = [*advised, change("mpi", "no ranks", 'mpi = "pmix"')]
    assert as_text(both).startswith("1 to change; 1 note with advice\n")


@pytest.mark.parametrize(
    ("facts", "name", "expected"),
    [
        ((site(gpus_per_node=4), cluster()), "gpus_per_node", ("change", "gpus_per_node = 8")),
        ((site(gpus_per_node=None), cluster()), "gpus_per_node", ("ok", "")),
        ((site(gpus_per_node=0), cluster()), "gpus_per_node", ("ok", "")),
        ((site(gpus_per_node=None), cluster(gpus=(4, 8))), "gpus_per_node", ("change", "gpus_per_node = 8")),
        ((site(gpus_per_node=None), cluster(gpus=())), "gpus_per_node", ("change", "gpus_per_node = 0")),
        ((site(gpus_per_node=8), cluster(gpus=())), "gpus_per_node", ("unknown", "")),
        ((site(cpus_per_node=128), cluster()), "cpus_per_node", ("change", "cpus_per_node = 64")),
        ((site(cpus_per_node=None), cluster(cpus=(32, 64))), "cpus_per_node", ("change", "cpus_per_node = 32")),
        ((site(), cluster(cpus=())), "cpus_per_node", ("unknown", "")),
        ((site(mpi="pmi2"), cluster(pmis=("pmix",))), "srun --mpi", ("change", 'mpi = "pmix"')),
        ((site(), cluster(pmis=())), "srun --mpi", ("unknown", "")),
        ((site(mpi=""), cluster({"MpiDefault": "cray_shasta"})), "srun --mpi", ("ok", "")),
        ((site(mpi=""), cluster({"MpiDefault": "none"})), "srun --mpi", ("change", 'mpi = "pmix"')),
        ((site(), cluster(partition={"MaxTime": "1-00:30:00"})), "time limit", ("change", "time_limit_min = 1470")),
        ((site(time_limit_min=60), cluster(partition={"MaxTime": "02:00:00"})), "time limit", ("ok", "")),
        ((site(), cluster(partition={"State": "DRAIN"})), "partition", ("change", 'partition = "…"')),
        ((site(), cluster({"KillWait": "5 sec"})), "KillWait", ("note", "")),
        ((site(), cluster({"PreemptType": "preempt/qos"}, {"PreemptMode": "CANCEL"})), "preemption", ("note", "")),
        ((site(), cluster({"PreemptType": "preempt/qos"}, {"PreemptMode": "REQUEUE"})), "preemption", ("ok", "")),
    ],
)
def test_a_site_is_compared_with_the_cluster(
    facts: tuple[Site, ClusterFacts], name: str, expected: tuple[str, str]
) -> None:
    assert changes(of_site(*facts), name) == [expected]


@pytest.mark.parametrize(
    ("facts", "name", "expected"),
    [
        (job(node(read_error="cat: token: No such file")), "shared folder", ("change", SHARED)),
        (job(node(), arrived=frozenset()), "shared folder", ("change", SHARED)),
        (job(node(free_bytes={}, unwritable={"/dev/shm": "read-only"})), "local storage",
         ("change", '[env] TMPDIR = "…"')),
        (job(node(free_bytes={"/tmp": 1 << 33})), "local storage", ("note", "")),
        (job(node(free_bytes={"/dev/shm": 1 << 20})), "local storage", ("change", "empty it")),
        (job(node(mpi4py={"/py": "No module"})), "python", ("change", "/py -m pip install mpi4py h5py")),
        (job(node(mpi4py={"/py": "No module"}), starts=(start(connected=False),)), "mpi", ("unknown", "")),
        (job(node(), node("n1", pythons={"/py": "3.9.1"})), "python",
         ("change", '[interpreter] default = "…", one that all nodes have')),
        (job(node(), setup={"module load X": "unknown"}), "setup", ("change", "setup, module_use or modules")),
        (job(node(), starts=(start("pmi2", connected=False), start("pmix"))), "mpi", ("change", 'mpi = "pmix"')),
        (job(node(), starts=(start(connected=False), start("openmpi", launcher="mpirun"))), "mpi",
         ("change", 'launcher = "mpirun"\nmpi = "openmpi"')),
        (job(node(), starts=(start("pmix", check("load", "failed", "alarm")),)), "load", ("note", "fix of load")),
        (job(node(), starts=(start("pmix", check("cores", "failed")),)), "cores", ("change", "fix of cores")),
        (job(node(), starts=(start("pmix", check("same_driver", "unknown")),)), "same_driver", ("unknown", "")),
        (job(node(ports=("mlx5_0 4: ACTIVE",))), "expect_transport", ("note", 'expect_transport = "ib"')),
        (job(node(ports=("mlx5_0 4: ACTIVE",)), node("n1")), "adapters", ("change", 'exclude = "n1"')),
        (job(), "nodes", ("unknown", "")),
    ],
)  # fmt: skip
def test_results_of_nodes_and_ranks_become_findings(facts: JobFacts, name: str, expected: tuple[str, str]) -> None:
    assert changes(of_job(site(), facts), name) == [expected]


def test_every_failed_way_to_start_ranks_is_listed() -> None:
    never = (
        start(connected=False, report={}, status=124),
        start("pmi2", connected=False, report={}, status=1, error="no PMI here"),
        start("", connected=False, report={}, status=1, error="no PMI either"),
    )
    (mpi,) = [each for each in of_job(site(), job(node(), starts=never)) if each.name == "mpi"]
    assert mpi.label == "alarm"
    assert (
        "srun --mpi=pmix: no answer in time; srun --mpi=pmi2: no PMI here; srun without --mpi: no PMI either"
        in mpi.text
    )


def test_facts_come_from_slurms_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labelled stand-ins for the commands; the answers are those of Slurm 22.05."""
    partitions = "PartitionName=a Default=NO State=UP\\nPartitionName=b Default=YES State=UP MaxTime=UNLIMITED"
    of_b = "CPUTot=64 State=IDLE Partitions=b"
    nodes = f"NodeName=n1 Gres=gpu:a100:4(S:0-1) {of_b}\\nNodeName=n2 Gres=gpu:a100:8 {of_b}"
    settings = "KillWait                = 30 sec\\nPreemptMode = OFF"
    pmis = "MPI plugin types are...\n\tpmix\n\tcray_shasta\n\tpmi2\nspecific pmix plugin versions available: pmix_v4"
    answers = {
        "scontrol": f'case "$*" in *config*) printf "{settings}\\n";; *node*) printf "{nodes}\\n";;'
        f' *) printf "{partitions}\\n";; esac',
        "srun": f'echo "{pmis}" >&2',
    }
    fake = fake_in(tmp_path)
    for name, body in answers.items():
        fake(name, body)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    facts = read_cluster("")
    assert facts.settings == {"KillWait": "30 sec", "PreemptMode": "OFF"}
    assert (facts.partition["PartitionName"], facts.nodes) == ("b", 2)
    assert (facts.gpus, facts.cpus, facts.pmis) == ((4, 8), (64,), ("pmi2", "pmix", "cray_shasta", "pmix_v4"))
    assert not facts.unread
    fake("scontrol", f'case "$*" in *node*) echo unreachable >&2; exit 1;; *) printf "{partitions}\\n";; esac')
    (tmp_path / "srun").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = read_cluster("")
    assert sorted(facts.unread) == [" ".join(show("node", "")), "srun --mpi=list"]
    assert changes(of_site(site(), facts), "cpus_per_node") == [("unknown", "")]


def test_the_shell_of_a_node_reports_its_facts(tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[2] / "sbatch_templates" / "node.sh.j2"
    (tmp_path / "token").write_text("abc\n")
    python = shutil.which("python3")
    argv = ["sh", "-c", script.read_text(), "look", str(tmp_path), "abc", "/nowhere/python", str(python)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    (facts,) = read_nodes(done.stdout)
    assert (facts.read_error, facts.write_error) == ("", "")
    assert [path.name.removeprefix("node.") for path in tmp_path.glob("node.*")] == [facts.name]
    assert facts.free_bytes
    assert list(facts.missing) == ["/nowhere/python"] and facts.pythons[str(python)].startswith("3.")
    # Another folder's token is no shared folder.
    argv[-3] = "other"
    (facts,) = read_nodes(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    assert facts.read_error == "abc"


def test_control_characters_are_escaped_in_text() -> None:
    hostile = [CheckFinding(name="x", text="a\x1b[2Jb\nc", fix='mpi = "\x07"')]
    assert as_text(hostile) == '1 to change\nCHANGE  x  a\\x1b[2Jb\\nc\n           → mpi = "\\x07"'
    assert json.loads(as_json(hostile))["findings"][0]["text"] == "a\x1b[2Jb\nc"


@pytest.mark.parametrize(("available", "requested", "nodes"), [(4, "", 2), (1, "", 1), (4, "all", 4)])
def test_two_nodes_are_examined_or_as_many_as_there_are(
    tmp_path: Path, available: int, requested: str, nodes: int
) -> None:
    request = Examination(launch=LaunchOptions(out=tmp_path), nodes=requested)
    run = _sized_job(request, site(), cluster(nodes=available)).run
    assert (run.nodes, run.ranks_per_node, run.cpus_per_rank) == (nodes, 8, 8)


def test_too_many_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="9 nodes requested; main has 4"):
        _sized_job(Examination(launch=LaunchOptions(out=tmp_path), nodes="9"), site(), cluster())


def test_options_of_sbatch_are_those_of_a_sweep() -> None:
    argv = ["--partition", "a", "--account", "b", *(f"--sbatch={name}=x,y" for name in (*IN_SBATCH[2:], "mem"))]
    launch = read_examination(make_parser().parse_args(argv)).launch
    assert launch.site_overrides == {
        "partition": "a", "account": "b", **dict.fromkeys(IN_SBATCH[2:], "x,y"), "sbatch": {"mem": "x,y"}
    }  # fmt: skip


def test_a_node_count_that_is_no_number_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.doctor.command.what_is_missing", list)  # a machine without MPI says that first
    assert main(["--cluster", "local", "--nodes", "some"]) == 2
    assert "--nodes 'some' is neither a count from 1 nor `all`" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_made_and_a_file_is_refused(tmp_path: Path) -> None:
    def prepared(out: Path) -> Path:
        request = Examination(launch=LaunchOptions(out=out))
        return _prepared(request, Site(name="local"), nodes=1, ranks=1, gpus=0, cpus=1).folder

    assert prepared(tmp_path / "new" / "folder").parent == tmp_path / "new" / "folder"
    (tmp_path / "file").touch()
    with pytest.raises(DoctorError, match=r"--out .*/file is a file: name a folder"):
        prepared(tmp_path / "file")
    with pytest.raises(DoctorError, match=r"--out /proc/new takes no files .*: name a folder that you may write to"):
        prepared(Path("/proc/new"))
