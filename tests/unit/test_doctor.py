"""launch.doctor: from what a cluster and its nodes say to what to change. Slurm's answers are as it prints them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from launch.cluster.partitions import minutes_of
from launch.doctor.__main__ import DoctorError, _look, _parser, main
from launch.doctor.advice import Advice, AdviceLevel, as_json, as_text
from launch.doctor.cluster_facts import ClusterFacts, read_cluster
from launch.doctor.diagnosis import of_site
from launch.doctor.diagnosis_nodes import of_job
from launch.doctor.look import JobFacts, NodeLook, Start, read_looks
from launch.jobs.site import Site

HEALTHY = {
    "PreemptType": "preempt/none", "PreemptMode": "OFF", "KillWait": "30 sec", "MinJobAge": "300 sec",
    "SlurmdTimeout": "300 sec", "AccountingStorageType": "accounting_storage/slurmdbd",
    "JobAcctGatherParams": "OverMemoryKill", "TaskPlugin": "task/cgroup",
}  # fmt: skip
MAIN = {"PartitionName": "main", "State": "UP", "MaxTime": "UNLIMITED", "PreemptMode": "OFF"}


FENCES = "for other programs: PMIxCollFence=ring in mpi.conf, or SLURM_PMIX_FENCE=ring"
SHARED = "--out FOLDER, one that all nodes mount"


def cluster(settings: dict[str, str] | None = None, partition: dict[str, str] | None = None, **facts) -> ClusterFacts:
    usual = {"nodes": 4, "gpus": (8,), "cpus": (64,), "pmis": ("pmix", "pmi2")}
    return ClusterFacts(settings=HEALTHY | (settings or {}), partition=MAIN | (partition or {}), **(usual | facts))


def site(**said) -> Site:
    return Site(**({"name": "here", "gpus_per_node": 8, "cpus_per_node": 64} | said))


def said(advice: list[Advice], name: str) -> list[tuple[str, str]]:
    return [(one.word, one.write) for one in advice if one.name == name]


def look(name: str = "n0", **facts) -> NodeLook:
    usual = {"free_bytes": {"/dev/shm": 1 << 33}, "pythons": {"/py": "3.11.7"}, "mpi4py": {"/py": "4.1.0"}}
    return NodeLook(name=name, **(usual | facts))


def finding(name: str, state: str, level: str = "fatal") -> dict[str, str]:
    return {"name": name, "state": state, "severity": level, "text": f"{name} is {state}", "fix": f"cure of {name}"}


def start(mpi: str = "pmix", *findings: dict[str, str], met: bool = True, **facts) -> Start:
    told = {"launched": {"size": 4, "library": "Open MPI v5, x"}, "ranks": [{}] if met else [], "findings": [*findings]}
    return Start(**({"launcher": "srun", "mpi": mpi, "status": 0, "report": told} | facts))


def job(*looks: NodeLook, starts: tuple[Start, ...] = (start(),), **facts) -> JobFacts:
    usual = {"ended": True, "arrived": frozenset(one.name for one in looks), "modules": {}}
    return JobFacts(looks=looks, starts=starts, **(usual | facts))


def test_nothing_is_said_against_a_cluster_where_all_is_well() -> None:
    advice = [*of_site(site(), cluster()), *of_job(site(), job(look(), look("n1")))]
    assert {one.word for one in advice} == {AdviceLevel.OK}
    assert as_text(advice).endswith("\nnothing to change")


@pytest.mark.parametrize(
    ("asked", "name", "told"),
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
        ((site(), cluster({"SLURM_VERSION": "22.05.8", "PMIxCollFence": "(null)"})), "PMIx fences", ("note", FENCES)),
        ((site(), cluster({"SLURM_VERSION": "25.11.0-rc1"})), "PMIx fences", ("note", FENCES)),
        ((site(), cluster({"SLURM_VERSION": "22.05.8", "PMIxCollFence": "ring"})), "PMIx fences", ("ok", "")),
        ((site(), cluster(partition={"MaxTime": "1-00:30:00"})), "time limit", ("change", "time_limit_min = 1470")),
        ((site(time_limit_min=60), cluster(partition={"MaxTime": "02:00:00"})), "time limit", ("ok", "")),
        ((site(), cluster(partition={"State": "DRAIN"})), "partition", ("change", 'partition = "…"')),
        ((site(), cluster({"KillWait": "5 sec"})), "KillWait", ("note", "")),
        ((site(), cluster({"JobRequeue": "0"})), "JobRequeue", ("ok", "")),
        ((site(), cluster({"SlurmdTimeout": "0 sec"})), "SlurmdTimeout", ("note", "")),
        ((site(), cluster({"AccountingStorageType": "(null)", "MinJobAge": "2 sec"})), "accounting", ("note", "")),
        ((site(), cluster({"AccountingStorageType": "(null)"})), "accounting", ("ok", "")),
        ((site(), cluster({"JobAcctGatherParams": "(null)"})), "memory", ("unknown", "")),
        ((site(), cluster({"JobAcctGatherParams": "", "TaskPlugin": "task/none"})), "memory", ("note", "")),
        ((site(), cluster({"PreemptType": "preempt/qos"}, {"PreemptMode": "CANCEL"})), "preemption", ("note", "")),
        ((site(), cluster({"PreemptType": "preempt/qos"}, {"PreemptMode": "REQUEUE"})), "preemption", ("ok", "")),
    ],
)
def test_a_site_is_held_against_the_cluster(asked: tuple[Site, ClusterFacts], name: str, told: tuple[str, str]) -> None:
    assert said(of_site(*asked), name) == [told]


@pytest.mark.parametrize("settings", [{"SLURM_VERSION": "20.02.7"}, {"SLURM_VERSION": ""}, {}])
def test_nothing_is_said_of_fences_where_they_are_whole_or_slurm_does_not_say_its_version(
    settings: dict[str, str],
) -> None:
    assert said(of_site(site(), cluster(settings)), "PMIx fences") == []
    assert said(of_site(site(mpi="pmi2"), cluster({"SLURM_VERSION": "23.02.1"})), "PMIx fences") == []


@pytest.mark.parametrize(
    ("found", "name", "told"),
    [
        (job(look(read="cat: token: No such file")), "shared folder", ("change", SHARED)),
        (job(look(), arrived=frozenset()), "shared folder", ("change", SHARED)),
        (job(look(free_bytes={}, closed={"/dev/shm": "read-only"})), "local storage", ("change", '[env] TMPDIR = "…"')),
        (job(look(free_bytes={"/tmp": 1 << 33})), "local storage", ("note", "")),
        (job(look(free_bytes={"/dev/shm": 1 << 20})), "local storage", ("change", "empty it")),
        (job(look(mpi4py={"/py": "No module"})), "python", ("change", "/py -m pip install mpi4py")),
        (job(look(mpi4py={"/py": "No module"}), starts=(start(met=False),)), "mpi", ("unknown", "")),
        (job(look(), look("n1", pythons={"/py": "3.9.1"})), "python",
         ("change", '[interpreter] default = "…", one that all nodes have')),
        (job(look(), modules={"CUDA/99": "unknown module"}), "modules", ("change", "modules = […]")),
        (job(look(), starts=(start("pmi2", met=False), start("pmix"))), "mpi", ("change", 'mpi = "pmix"')),
        (job(look(), starts=(start(met=False), start("openmpi", launcher="mpirun"))), "mpi",
         ("change", 'launcher = "mpirun"\nmpi = "openmpi"')),
        (job(look(), starts=(start("pmix", finding("load", "failed", "alarm")),)), "load", ("note", "cure of load")),
        (job(look(), starts=(start("pmix", finding("cores", "failed")),)), "cores", ("change", "cure of cores")),
        (job(look(), starts=(start("pmix", finding("same_driver", "unknown")),)), "same_driver", ("unknown", "")),
        (job(look(ports=("mlx5_0 4: ACTIVE",))), "expect_transport", ("note", 'expect_transport = "ib"')),
        (job(look(ports=("mlx5_0 4: ACTIVE",)), look("n1")), "adapters", ("change", 'exclude = "n1"')),
        (job(), "nodes", ("unknown", "")),
    ],
)  # fmt: skip
def test_nodes_and_ranks_are_heard(found: JobFacts, name: str, told: tuple[str, str]) -> None:
    assert said(of_job(site(), found), name) == [told]


def test_what_nothing_could_start_is_told_way_by_way() -> None:
    never = (
        start(met=False, report={}, status=124),
        start("pmi2", met=False, report={}, status=1, error="no PMI here"),
    )
    (one,) = [one for one in of_job(site(), job(look(), starts=never)) if one.name == "mpi"]
    assert one.word is AdviceLevel.CHANGE
    assert "srun --mpi=pmix: no answer in time; srun --mpi=pmi2: no PMI here" in one.text


@pytest.mark.parametrize(
    ("text", "minutes"), [("1-00:30:00", 1470), ("02:00:00", 120), ("00:00:30", 0), ("UNLIMITED", None), ("", None)]
)
def test_limits_are_read_as_slurm_writes_them(text: str, minutes: int | None) -> None:
    assert minutes_of(text) == minutes


def test_a_cluster_is_asked_by_its_own_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labelled stand-ins for the commands; the answers are those of Slurm 22.05."""
    partitions = "PartitionName=a Default=NO State=UP\\nPartitionName=b Default=YES State=UP MaxTime=UNLIMITED"
    settings = "KillWait                = 30 sec\\nPreemptMode = OFF"
    pmis = "MPI plugin types are...\n\tpmix\n\tcray_shasta\n\tpmi2\nspecific pmix plugin versions available: pmix_v4"
    answers = {
        "scontrol": f'case "$*" in *config*) printf "{settings}\\n";; *) printf "{partitions}\\n";; esac',
        "sinfo": 'printf "n1|gpu:a100:4(S:0-1)|64\\nn2|gpu:a100:8|64\\n"',
        "srun": f'echo "{pmis}" >&2',
    }
    for name, body in answers.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = read_cluster("")
    assert found.settings == {"KillWait": "30 sec", "PreemptMode": "OFF"}
    assert (found.partition["PartitionName"], found.nodes) == ("b", 2)
    assert (found.gpus, found.cpus, found.pmis) == ((4, 8), (64,), ("pmix", "pmi2"))
    assert not found.unread
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho sinfo: unreachable >&2; exit 1\n")
    (tmp_path / "srun").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    found = read_cluster("")
    assert sorted(found.unread) == ["sinfo -h -N -p b -o %N|%G|%c", "srun --mpi=list"]
    assert said(of_site(site(), found), "cpus_per_node") == [("unknown", "")]


def test_the_shell_of_a_node_tells_what_it_sees(tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[2] / "sbatch_templates" / "node.sh.j2"
    (tmp_path / "token").write_text("abc\n")
    python = shutil.which("python3")
    argv = ["sh", "-c", script.read_text(), "look", str(tmp_path), "abc", "/nowhere/python", str(python)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    (found,) = read_looks(done.stdout)
    assert (found.read, found.wrote) == ("", "")
    assert [path.name.removeprefix("node.") for path in tmp_path.glob("node.*")] == [found.name]
    assert found.cores and found.free_bytes
    assert list(found.missing) == ["/nowhere/python"] and found.pythons[str(python)].startswith("3.")
    # Another folder's token is no shared folder.
    argv[-3] = "other"
    (found,) = read_looks(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    assert found.read == "abc"


def test_what_comes_from_outside_steers_no_terminal() -> None:
    hostile = [Advice(name="x", word=AdviceLevel.CHANGE, text="a\x1b[2Jb\nc", write='mpi = "\x07"')]
    assert as_text(hostile) == 'CHANGE   x  a\\x1b[2Jb\\nc\n            → mpi = "\\x07"\n1 to change'
    assert json.loads(as_json(hostile))["advice"][0]["text"] == "a\x1b[2Jb\nc"


@pytest.mark.parametrize(("there", "words", "nodes"), [(4, [], 2), (1, [], 1), (4, ["--nodes", "all"], 4)])
def test_two_nodes_are_looked_at_or_what_is_there(tmp_path: Path, there: int, words: list[str], nodes: int) -> None:
    asked = _parser().parse_args([*words, "--out", str(tmp_path)])
    look = _look(asked, site(), cluster(nodes=there))
    assert (look.run.nodes, look.run.ranks_per_node, look.run.cpus_per_rank) == (nodes, 8, 8)


def test_more_nodes_than_are_there_are_not_looked_at(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="asked to look at 9 nodes; main has 4"):
        _look(_parser().parse_args(["--nodes", "9", "--out", str(tmp_path)]), site(), cluster())


def test_a_number_of_nodes_that_is_none_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.doctor.__main__.what_is_missing", list)  # a machine without MPI says that first
    assert main(["--cluster", "local", "--nodes", "some"]) == 2
    assert "--nodes 'some' is neither a count from 1 nor `all`" in capsys.readouterr().err
