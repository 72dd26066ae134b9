"""Requests of jobs against the nodes that sinfo lists; sinfo and scontrol are fake scripts that print one answer."""

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


def rows(names: str, partition: str = "main*", cpus: int = 8, gpus: int = 8, **more: str) -> str:
    """Lines of sinfo for these nodes."""
    columns = {"state": "idle", "cpus": str(cpus), "time": "infinite", "sizes": "1-infinite", "max_cpus": "UNLIMITED"}
    columns |= {"gres": f"gpu:{gpus}" if gpus else "(null)", "features": "(null)"} | more
    return "".join(f"{name}|{partition}|{'|'.join(columns.values())}\n" for name in names.split())


def prints(text: str) -> str:
    return f"cat <<'END'\n{text}END"


def jobs(site: Site | None = None, minutes: int = 10, **sizes: Any) -> list[JobPlan]:
    return plan_jobs([dataclasses.replace(RUN, **sizes)], site or Site(name="s"), minutes, None)


FOUR = rows("n1 n2 n3 n4")


@pytest.mark.parametrize(
    ("printed", "sizes", "words"),
    [
        (FOUR, {"nodes": 16, "ranks_per_node": 8, "gpus_per_node": 8},
         ["job 16n can never start", "requests 16 nodes of 8 CPUs (8 ranks of 1) and 8 GPUs",
          "sinfo shows 4 nodes of 8 CPUs and 8 GPUs in partition main", "largest case that fits is 4n8g; lower --no"]),
        (FOUR, {"ranks_per_node": 64}, ["largest case that fits is 4n8g; lower --ranks-per-node or --cpus-per-rank"]),
        (FOUR, {"ranks_per_node": 2, "cpus_per_rank": 8},
         ["requests 1 node of 16 CPUs (2 ranks of 8)", "largest case that fits is 4n1g"]),
        (FOUR, {"cpus_per_rank": 9}, ["no node has the CPUs for one rank; lower --cpus-per-rank"]),
        (rows("a b", gpus=2), {"ranks_per_node": 4, "gpus_per_node": 4}, ["2n2g; lower --ranks-per-node or --gpus-p"]),
        (rows("a b", gpus=0), {"ranks_per_node": 2, "gpus_per_node": 2}, ["no node has the GPU for one rank"]),
        # Partitions of different nodes: those count that are large enough.
        (rows("a b c") + rows("d", cpus=64), {"nodes": 2, "ranks_per_node": 16},
         ["sinfo shows 3 nodes of 8 CPUs and 8 GPUs, 1 node of 64 CPUs and 8 GPUs", "1n16g; lower --nodes"]),
        (rows("a b", sizes="1-1"), {"nodes": 2}, ["and lets a job have 1 node", "1n1g; lower --nodes"]),
        (rows("a b", max_cpus="4"), {"ranks_per_node": 8}, ["sinfo shows 2 nodes of 4 CPUs", "2n4g"]),
        (rows("a", time="5:00"), {}, ["requests 10 min; partition main gives a job 5 min at most: --time 5 splits"]),
        # No partition was named, so the default one counts; another one would do.
        (rows("a") + rows("b c", "big"), {"nodes": 2}, ["it fits in --partition big"]),
    ],
)  # fmt: skip
def test_a_job_that_can_never_start_is_refused(
    fake: Fake, printed: str, sizes: dict[str, int], words: list[str]
) -> None:
    fake("sinfo", prints(printed))
    with pytest.raises(PlanError) as refused:
        SiteNodes(Site(name="s"), Slurm()).check(jobs(**sizes))
    assert all(part in str(refused.value) for part in words)


@pytest.mark.parametrize(
    ("printed", "sizes"),
    [
        (FOUR, {"nodes": 4, "ranks_per_node": 8, "gpus_per_node": 8}),
        (rows("a b") + rows("c", cpus=64), {"ranks_per_node": 64}),
        (rows("a", time="10:00"), {}),
        (rows("a", time="1-00:00:00", sizes="1-4"), {}),
        (rows("a", gpus=0), {"ranks_per_node": 8}),
    ],
)
def test_a_job_that_fits_is_accepted(fake: Fake, printed: str, sizes: dict[str, int]) -> None:
    fake("sinfo", prints(printed))
    assert SiteNodes(Site(name="s"), Slurm()).check(jobs(**sizes)) == []


@pytest.mark.parametrize("state", ["down", "down*", "drained", "draining", "idle*", "DRAINED$", "maint", "fail"])
def test_nodes_that_are_down_cause_a_warning(fake: Fake, state: str) -> None:
    fake("sinfo", prints(rows("a b") + rows("c", state=state)))
    assert SiteNodes(Site(name="s"), Slurm()).check(jobs(nodes=2)) == []
    assert SiteNodes(Site(name="s"), Slurm()).check(jobs(nodes=3)) == [
        "job 3n requests 3 nodes and waits until more are up: of the 3 in partition main that are large enough 2 are "
        "up now"
    ]


@pytest.mark.parametrize("state", ["idle~", "mixed", "allocated+", "completing", "planned", "powering_up#", "reserved"])
def test_nodes_that_take_jobs_are_up(fake: Fake, state: str) -> None:
    fake("sinfo", prints(rows("a b", state=state)))
    assert SiteNodes(Site(name="s"), Slurm()).check(jobs(nodes=2)) == []


def test_excluded_nodes_do_not_count(fake: Fake) -> None:
    fake("sinfo", prints(rows("n1 n2 n3", features="fast,ib") + rows("n4")))
    fake("scontrol", '[ "$*" = "show hostnames n[1-2]" ] && printf "n1\\nn2\\n"')

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
    fake("sinfo", f'case "$*" in *"-p a,b"*) {prints(rows("a", "a") + rows("b c", "b"))}\n;; *) exit 1;; esac')
    site = Site(name="s", partition="a,b")
    assert SiteNodes(site, Slurm()).check(jobs(site, nodes=2)) == []
    with pytest.raises(PlanError, match="requests 3 nodes"):
        SiteNodes(site, Slurm()).check(jobs(site, nodes=3))


def test_the_partition_of_a_reservation_is_not_known(fake: Fake) -> None:
    fake("sinfo", "exit 1")
    assert SiteNodes(Site(name="s", reservation="r"), Slurm()).check(jobs(nodes=99)) == []


def test_sinfo_runs_once(fake: Fake, tmp_path: Path) -> None:
    fake("sinfo", f"echo called >>{tmp_path}/calls\n{prints(FOUR)}")
    nodes = SiteNodes(Site(name="s"), Slurm())
    nodes.check(jobs())
    assert (nodes.per_node, (tmp_path / "calls").read_text()) == ((8, 8), "called\n")


def test_a_failing_or_empty_sinfo_is_an_error(fake: Fake) -> None:
    site = Site(name="s", partition="gpu")
    fake("sinfo", "echo 'slurm_load_partitions: down' >&2; exit 1")
    with pytest.raises(SubmitError, match="the nodes of partition gpu: sinfo: slurm_load_partitions: down"):
        SiteNodes(site, Slurm()).check(jobs(site))
    fake("sinfo", "")
    with pytest.raises(SubmitError, match="sinfo knows no node of partition gpu"):
        SiteNodes(site, Slurm()).check(jobs(site))


@pytest.mark.parametrize(
    ("printed", "per_node"),
    [
        (rows("a b") + rows("c", "old", cpus=4, gpus=2), (8, 8)),
        (rows("a").replace("gpu:8", "gpu:a100:4(S:0-1)"), (4, 8)),
        (rows("a").replace("gpu:8", "gpu:a100:4(S:0-1),gpu:v100:2"), (6, 8)),
        (rows("a").replace("gpu:8", "gpu:mi250x:8(S:0-3)"), (8, 8)),
        (rows("a", gpus=0), (None, 8)),
        (rows("a") + rows("b", cpus=4, gpus=4), (None, None)),
        (rows("a", "one") + rows("b", "two", cpus=4), (8, None)),
    ],
)
def test_sizes_of_a_node(fake: Fake, printed: str, per_node: tuple[int | None, int | None]) -> None:
    fake("sinfo", prints(printed))
    assert SiteNodes(Site(name="s"), Slurm()).per_node == per_node


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("1-00:30:00", 1470), ("2:00:00", 120), ("02:00:00", 120), ("30:00", 30), ("00:00:30", 0), ("infinite", None),
     ("UNLIMITED", None), ("n/a", None), ("", None)],
)  # fmt: skip
def test_slurms_time_limits_in_minutes(text: str, minutes: int | None) -> None:
    assert minutes_of(text) == minutes


def test_lines_that_are_no_nodes_are_skipped() -> None:
    assert read_partitions("warning: something\n") == ()
    [partition] = read_partitions(rows("a").replace("|8|", "|?|"))
    assert partition.nodes[0].cpus is None
