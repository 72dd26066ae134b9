"""Requests of jobs against the nodes that Slurm has; scontrol is a fake script that prints one answer."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from launch.jobs.plan import JobPlan, PlanError, plan_jobs
from launch.jobs.site import Site
from launch.scheduler.partitions import SiteNodes
from launch.scheduler.protocol import SubmitError
from launch.scheduler.slurm import Slurm
from launch.scheduler.slurm_nodes import minutes_of, read_partitions
from tests.unit.fake_commands import Fake, fake_in
from tests.unit.traces import make_run

RUN = make_run()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("SBATCH_PARTITION", raising=False)
    return fake_in(tmp_path)


def rows(names: str, partition: str = "main", cpus: int = 8, gpus: int = 8, **more: str) -> str:
    """What scontrol shows of these nodes and their partition; main is the default one."""
    limits = {name: more.pop(name, "UNLIMITED") for name in ("MaxTime", "MaxNodes", "MaxCPUsPerNode")}
    of_partition = {"PartitionName": partition, "Default": "YES" if partition == "main" else "NO", **limits}
    gres = f"gpu:{gpus}" if gpus else "(null)"
    of_nodes = {"CPUTot": str(cpus), "Gres": gres, "State": "IDLE", "AvailableFeatures": "(null)"} | more
    of_nodes["Partitions"] = partition
    lines = [of_partition, *({"NodeName": name, **of_nodes} for name in names.split())]
    return "".join(" ".join(f"{name}={value}" for name, value in line.items()) + "\n" for line in lines)


def prints(text: str) -> str:
    """The shell text that prints these lines, each once."""
    return "cat <<'END'\n" + "".join(dict.fromkeys(text.splitlines(keepends=True))) + "END"


def jobs(site: Site | None = None, minutes: int = 10, **sizes: Any) -> list[JobPlan]:
    return plan_jobs([dataclasses.replace(RUN, **sizes)], site or Site(name="s"), minutes, None)


FOUR = rows("n1 n2 n3 n4")


@pytest.mark.parametrize(
    ("printed", "sizes", "words"),
    [
        (FOUR, {"nodes": 16, "ranks_per_node": 8, "gpus_per_node": 8},
         ["job 16n can never start", "requests 16 nodes of 8 CPUs (8 ranks of 1) and 8 GPUs",
          "Slurm has 4 nodes of 8 CPUs and 8 GPUs in partition main", "largest case that fits is 4n8g; lower --no"]),
        (FOUR, {"ranks_per_node": 64}, ["largest case that fits is 4n8g; lower --ranks-per-node or --cpus-per-rank"]),
        (FOUR, {"ranks_per_node": 2, "cpus_per_rank": 8},
         ["requests 1 node of 16 CPUs (2 ranks of 8)", "largest case that fits is 4n1g"]),
        (FOUR, {"cpus_per_rank": 9}, ["no node has the CPUs for one rank; lower --cpus-per-rank"]),
        (rows("a b", gpus=2), {"ranks_per_node": 4, "gpus_per_node": 4}, ["2n2g; lower --ranks-per-node or --gpus-p"]),
        (rows("a b", gpus=0), {"ranks_per_node": 2, "gpus_per_node": 2}, ["no node has the GPU for one rank"]),
        # Partitions of different nodes: those count that are large enough.
        (rows("a b c") + rows("d", cpus=64), {"nodes": 2, "ranks_per_node": 16},
         ["Slurm has 3 nodes of 8 CPUs and 8 GPUs, 1 node of 64 CPUs and 8 GPUs", "1n16g; lower --nodes"]),
        (rows("a b", MaxNodes="1"), {"nodes": 2}, ["and lets a job have 1 node", "1n1g; lower --nodes"]),
        (rows("a b", MaxCPUsPerNode="4"), {"ranks_per_node": 8}, ["Slurm has 2 nodes of 4 CPUs", "2n4g"]),
        (rows("a", MaxTime="5:00"), {}, ["requests 10 min; partition main gives a job 5 min at most: --time 5 splits"]),
        # No partition was named, so the default one counts; another one would do.
        (rows("a") + rows("b c", "big"), {"nodes": 2}, ["it fits in --partition big"]),
    ],
)  # fmt: skip
def test_a_job_that_can_never_start_is_refused(
    fake: Fake, printed: str, sizes: dict[str, int], words: list[str]
) -> None:
    fake("scontrol", prints(printed))
    with pytest.raises(PlanError) as refused:
        SiteNodes(Site(name="s"), Slurm()).check(jobs(**sizes))
    assert all(part in str(refused.value) for part in words)


@pytest.mark.parametrize(
    ("printed", "sizes"),
    [
        (FOUR, {"nodes": 4, "ranks_per_node": 8, "gpus_per_node": 8}),
        (rows("a b") + rows("c", cpus=64), {"ranks_per_node": 64}),
        (rows("a", MaxTime="10:00"), {}),
        (rows("a", MaxTime="1-00:00:00", MaxNodes="4"), {}),
        (rows("a", gpus=0), {"ranks_per_node": 8}),
    ],
)
def test_a_job_that_fits_is_accepted(fake: Fake, printed: str, sizes: dict[str, int]) -> None:
    fake("scontrol", prints(printed))
    assert SiteNodes(Site(name="s"), Slurm()).check(jobs(**sizes)) == []


@pytest.mark.parametrize(
    "state",
    [
        "DOWN",
        "DOWN*",
        "IDLE+DRAIN",
        "MIXED+DRAIN",
        "IDLE*+CLOUD",
        "DOWN+CLOUD+NOT_RESPONDING",
        "IDLE+MAINTENANCE",
        "IDLE+NOT_RESPONDING",
        "IDLE+FAIL",
        "IDLE+INVALID_REG",
        "FUTURE",
    ],
)
def test_nodes_that_are_down_cause_a_warning(fake: Fake, state: str) -> None:
    fake("scontrol", prints(rows("a b") + rows("c", State=state)))
    assert SiteNodes(Site(name="s"), Slurm()).check(jobs(nodes=2)) == []
    assert SiteNodes(Site(name="s"), Slurm()).check(jobs(nodes=3)) == [
        "job 3n requests 3 nodes and waits until more are up: of the 3 in partition main that are large enough 2 are "
        "up now"
    ]


@pytest.mark.parametrize(
    "state",
    [
        "MIXED",
        "ALLOCATED+COMPLETING",
        "IDLE+PLANNED",
        "IDLE+CLOUD+POWERED_DOWN",
        "IDLE+RESERVED",
        "IDLE+CLOUD+POWERING_UP+NOT_RESPONDING",
    ],
)
def test_nodes_that_take_jobs_are_up(fake: Fake, state: str) -> None:
    fake("scontrol", prints(rows("a b", State=state)))
    assert SiteNodes(Site(name="s"), Slurm()).check(jobs(nodes=2)) == []


def test_excluded_nodes_do_not_count(fake: Fake) -> None:
    shown = prints(rows("n1 n2 n3", AvailableFeatures="fast,ib") + rows("n4"))
    fake("scontrol", f'[ "$*" = "show hostnames n[1-2]" ] && printf "n1\\nn2\\n" || {shown}')

    def check(site: Site, nodes: int) -> None:
        assert SiteNodes(site, Slurm()).check(jobs(site, nodes=nodes)) == []
        with pytest.raises(PlanError, match=rf"largest case that fits is {nodes}n1g"):
            SiteNodes(site, Slurm()).check(jobs(site, nodes=nodes + 1))

    check(Site(name="s", exclude="n[1-2]"), 2)
    check(Site(name="s", constraint="ib"), 3)
    check(Site(name="s", constraint="ib", exclude="n[1-2]"), 1)
    check(Site(name="s", constraint="ib|slow"), 4)  # more than one word: what it means is not known here
    with pytest.raises(PlanError, match="exclude and constraint leave no node"):
        SiteNodes(Site(name="s", constraint="slow"), Slurm()).check(jobs(Site(name="s", constraint="slow")))


def test_one_of_several_named_partitions_must_fit(fake: Fake) -> None:
    shown = rows("a", "a") + rows("b c", "b") + rows("d e f", "other")
    fake("scontrol", f'[ "$1" = -a ] || exit 1  # a named one may be hidden\n{prints(shown)}')
    site = Site(name="s", partition="a,b")
    assert SiteNodes(site, Slurm()).check(jobs(site, nodes=2)) == []
    with pytest.raises(PlanError, match="requests 3 nodes"):
        SiteNodes(site, Slurm()).check(jobs(site, nodes=3))


def test_the_partition_of_a_reservation_is_not_known(fake: Fake) -> None:
    fake("scontrol", "exit 1")
    assert SiteNodes(Site(name="s", reservation="r"), Slurm()).check(jobs(nodes=99)) == []


def test_the_nodes_are_shown_once(fake: Fake, tmp_path: Path) -> None:
    fake("scontrol", f"echo $* >>{tmp_path}/calls\n{prints(FOUR)}")
    nodes = SiteNodes(Site(name="s"), Slurm())
    nodes.check(jobs())
    assert (nodes.per_node, (tmp_path / "calls").read_text()) == ((8, 8), "-o show partition\n-o show node\n")


def test_a_failing_or_empty_scontrol_is_an_error(fake: Fake) -> None:
    site = Site(name="s", partition="gpu")
    fake("scontrol", "echo 'slurm_load_partitions: down' >&2; exit 1")
    with pytest.raises(SubmitError, match="the nodes of partition gpu: scontrol: slurm_load_partitions: down"):
        SiteNodes(site, Slurm()).check(jobs(site))
    fake("scontrol", prints(FOUR + rows("", "gpu")))
    with pytest.raises(SubmitError, match="Slurm knows no node of partition gpu"):
        SiteNodes(site, Slurm()).check(jobs(site))


@pytest.mark.parametrize(
    ("printed", "per_node"),
    [
        (rows("a b") + rows("c", "old", cpus=4, gpus=2), (8, 8)),
        (rows("a").replace("gpu:8", "gpu:a100:4(S:0-1)"), (4, 8)),
        (rows("a").replace("gpu:8", "gpu:a100:4(S:0-1),gpu:v100:2"), (6, 8)),
        (rows("a").replace("gpu:8", "gpu:mi250x:8(S:0-3)"), (8, 8)),
        (rows("a").replace("CPUTot=8", "CPUTot=8 CPUEfctv=6"), (8, 6)),
        (rows("a", gpus=4).replace("Partitions", "Comment=CPUTot=1,Gres=gpu:1 Partitions"), (4, 8)),
        (rows("a", gpus=0), (None, 8)),
        (rows("a") + rows("b", cpus=4, gpus=4), (None, None)),
        (rows("a", "one") + rows("b", "two", cpus=4), (8, None)),
    ],
)
def test_sizes_of_a_node(fake: Fake, printed: str, per_node: tuple[int | None, int | None]) -> None:
    fake("scontrol", prints(printed))
    assert SiteNodes(Site(name="s"), Slurm()).per_node == per_node


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("1-00:30:00", 1470), ("2:00:00", 120), ("02:00:00", 120), ("30:00", 30), ("00:00:30", 0),
     ("UNLIMITED", None), ("n/a", None), ("", None)],
)  # fmt: skip
def test_slurms_time_limits_in_minutes(text: str, minutes: int | None) -> None:
    assert minutes_of(text) == minutes


def test_lines_that_are_no_nodes_are_skipped() -> None:
    assert read_partitions("warning: something\n", "No nodes in the system\n") == ()
    shown = rows("a").replace("CPUTot=8", "CPUTot=?")
    [partition] = read_partitions(shown, shown)
    assert partition.nodes[0].cpus is None
