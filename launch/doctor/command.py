"""Looks at a cluster as a whole before anything is measured on it, and says in plain words what to change.

    rankwise doctor --site mysite
    rankwise doctor --site mysite.toml --nodes all --format json
    rankwise doctor --cluster local
    rankwise doctor --format site                    # a site file made of what Slurm says; starts no job

One small job: the shell of every node looks at the shared folder, local storage, modules and interpreters; then ranks
look at themselves, as every run begins.

Exit status 0: nothing to change; 1: something is, or the cluster cannot be looked at; 2: usage; 130: Ctrl-C, and the
job is cancelled. docs/cluster.md says what is looked at.
"""

from __future__ import annotations

import argparse
import dataclasses
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc.model.findings import CheckFinding
from hpc.model.output_option import OutputFolder
from hpc.model.spec import RunSpec, SpecError
from hpc.system.command_line import called, text_width
from hpc.system.command_parser import CommandParser
from hpc.system.regular_file import read_text
from hpc.system.sanitize import deny_world_writing, plain
from hpc.system.tool import Failure, run_tool
from hpc.system.version import with_version
from launch.doctor.diagnosis import as_json, as_text, change, of_job, of_site, to_change
from launch.doctor.job import DoctorJob, JobFacts
from launch.jobs.options import LaunchOptions, assignments, option_rows, read_request
from launch.jobs.plan import PlanError, WrittenJob, plan_jobs
from launch.jobs.script import Folders
from launch.jobs.site import Site, find_site
from launch.scheduler.local import GpuCountError, cpus_here, gpus_here, launcher, ranks_env, what_is_missing
from launch.scheduler.protocol import ClusterFacts, JobScheduler, JobState, SubmitError, TransientSubmitError
from launch.scheduler.table import chosen_site, site_scheduler

MINUTES = 5
"""The time limit of the job: its parts take seconds, or are ended."""
WAIT_MIN = 10
"""Minutes that the job may wait for its nodes, unless --wait says otherwise."""
LATE_S = 10.0
"""The longest delay in seconds until a file written by a node is visible here."""


class DoctorError(Exception):
    """The cluster cannot be examined; the text has the reason and what to do."""


FAILURES = (SpecError, PlanError, SubmitError, DoctorError)


_SHARED = [row for row in option_rows(LaunchOptions) if row.is_assigned or row.name in ("site", "partition", "account")]
"""The options of a sweep that choose a place on Slurm, for the doctor as well."""


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What is looked at: where, how many nodes (`all`; empty: 2, or as many as there are), how many ranks on each, and
    for how many minutes the job may wait for its nodes."""

    launch: LaunchOptions
    nodes: str = ""
    ranks_per_node: int | None = None
    wait: float | None = None


def examine(request: Examination) -> list[CheckFinding]:
    """What the doctor finds. Raises FAILURES where it cannot look."""
    launch = request.launch
    named = None if launch.cluster == "local" else find_site(launch.site)
    of_site = [*launch.of_slurm, *(["--wait"] if request.wait is not None else [])]
    site = chosen_site(launch, named, of_site)
    return _local(request) if site is None else _slurm(request, site)


def main(argv: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    deny_world_writing()
    signal.signal(
        signal.SIGTERM, lambda number, _: sys.exit(128 + number)
    )  # so that the job is cancelled and the folder removed
    try:
        if args.format == "site":
            print(site_scheduler().site_file(socket.gethostname()), end="")
            return 0
        findings = examine(read_examination(args))
    except FAILURES as error:
        print(f"{called('launch.doctor')}: {plain(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, SpecError) else 1
    except KeyboardInterrupt:
        print(f"{called('launch.doctor')}: stopped, and its job cancelled", file=sys.stderr)
        return 130
    print(as_json(findings) if args.format == "json" else as_text(findings, text_width()))
    return int(any(map(to_change, findings)))


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser(prog="rankwise doctor", description=__doc__)
    add = parser.add_argument
    add("--cluster", choices=("auto", "slurm", "local"), default="auto",
        help="auto (the default): Slurm where a site is named or Slurm is installed, else this machine")  # fmt: skip
    for row in _SHARED:
        add(row.flag, action="append" if row.is_assigned else "store", metavar=row.metavar, help=row.help)
    add("--nodes", metavar="N|all",
        help="how many nodes to look at; default: 2, or 1 where there are no more; simulated on this machine"
    )  # fmt: skip
    add("--ranks-per-node", type=int, metavar="N", help="default: a rank per GPU, else 2")
    add("--wait", type=float, metavar="MIN",
        help=f"how long the job may wait for its nodes until it is cancelled; default: {WAIT_MIN}")  # fmt: skip
    add("--out", action=OutputFolder, default=".", metavar="DIR",
        help="a folder that the nodes share, as a sweep's; default: this one")  # fmt: skip
    add("--format", choices=("text", "json", "site"), default="text",
        help="site: a site file made of what Slurm says, to be read and corrected")  # fmt: skip
    return with_version(parser)


def read_examination(args: argparse.Namespace) -> Examination:
    """The request of a command line. Raises SpecError."""
    values = {name: getattr(args, name) for name in ("cluster", "out", *(row.name for row in _SHARED))}
    values |= {row.name: assignments(row.name, values[row.name] or ()) for row in _SHARED if row.is_assigned}
    launch = read_request(LaunchOptions, values)
    return Examination(launch=launch, nodes=args.nodes or "", ranks_per_node=args.ranks_per_node, wait=args.wait)


def _slurm(request: Examination, site: Site) -> list[CheckFinding]:
    if reason := site_scheduler().unreachable():
        raise SubmitError(f"no Slurm controller answers here, and site {site.name} is a Slurm site: {reason}")
    cluster = site_scheduler().facts(site.at().partition)
    findings = of_site(site.at(), cluster)
    if not cluster.partition:
        return findings  # no job could be made
    doctor_job = _sized_job(request, site, cluster)
    try:
        return [*findings, *_queued(request, doctor_job)]
    except SubmitError as error:
        return [*findings, change("job", str(error))]
    finally:
        shutil.rmtree(doctor_job.folder, ignore_errors=True)


def _sized_job(request: Examination, site: Site, cluster: ClusterFacts) -> DoctorJob:
    """The sizes of the job, limited to the available nodes and devices even if the site's are larger."""
    nodes = cluster.nodes if request.nodes == "all" else _number(request.nodes or str(min(2, cluster.nodes)))
    if nodes > cluster.nodes:
        raise DoctorError(f"{nodes} nodes requested; {cluster.partition['PartitionName']} has {cluster.nodes}")
    site = site.at(nodes)
    gpus = (max(cluster.gpus) if cluster.gpus else 0) if site.gpus_per_node is None else site.gpus_per_node
    gpus = min(gpus, max(cluster.gpus)) if cluster.gpus else gpus
    cpus = min(cluster.cpus, default=site.cpus_per_node or 1)
    ranks = request.ranks_per_node or gpus or min(2, cpus)
    return _prepared(request, site, nodes=nodes, ranks=ranks, gpus=min(gpus, ranks), cpus=max(1, cpus // ranks))


def _local(request: Examination) -> list[CheckFinding]:
    if missing := what_is_missing():
        return [change("mpi", line, line.rpartition(": ")[2]) for line in missing]
    nodes = 1 if request.nodes == "all" else _number(request.nodes or "2")
    site = Site(name="local", exclusive=False, env=ranks_env())
    findings = []
    try:
        gpus = gpus_here() // nodes
    except GpuCountError as error:
        gpus = 0
        findings.append(change("nvidia-smi", f"{error}: a sweep is refused", "--gpus-per-node 0, for runs on CPUs"))
    ranks = request.ranks_per_node or gpus or 2
    cpus = max(1, cpus_here() // (nodes * ranks))
    doctor_job = _prepared(request, site, nodes=nodes, ranks=ranks, gpus=min(gpus, ranks), cpus=cpus, here=True)
    try:
        script = doctor_job.folder / "doctor.sh"
        script.write_text(doctor_job.local_script(launcher()), encoding="utf-8", errors="surrogateescape")
        answer = run_tool(["bash", str(script)], timeout_s=60 * MINUTES)
        if answer.failure is Failure.HANGING:
            raise DoctorError(f"this machine did not answer within {MINUTES} min")
        if answer.exit_status is None:
            raise DoctorError(answer.describe())
        return [*findings, *of_job(site, doctor_job.read(answer.stderr.strip()))]
    finally:
        shutil.rmtree(doctor_job.folder, ignore_errors=True)


def _prepared(
    request: Examination, site: Site, *, nodes: int, ranks: int, gpus: int, cpus: int, here: bool = False
) -> DoctorJob:
    # Only one container image is checked: the check is of the node.
    image = (site.images.get("default") or next(iter(site.images.values()), "")) if site.container else ""
    run = RunSpec(
        nodes=nodes, ranks_per_node=ranks, gpus_per_node=gpus, cpus_per_rank=cpus, backend="mpi", workload="delay",
        batch_size=1, precision="fp32", scaling="weak", warmup_steps=5, measured_steps=1, repeat=1, seed=0,
        site=site.name, env=site.env, job_options=site.job_options, container=image,
    )  # fmt: skip
    out = request.launch.out.absolute()
    if out.exists() and not out.is_dir():
        raise DoctorError(f"--out {out} is a file: name a folder, as sweeps use one")
    try:
        out.mkdir(parents=True, exist_ok=True)  # as a sweep does
        folder = Path(tempfile.mkdtemp(prefix="doctor-", dir=out))
    except OSError as error:
        raise DoctorError(
            f"--out {out} takes no files ({error.strerror}): name a folder that you may write to"
        ) from None
    doctor_job = DoctorJob(run=run, site=site, folder=folder, token=secrets.token_hex(8), here=here)
    doctor_job.prepare()
    return doctor_job


def _queued(request: Examination, doctor_job: DoctorJob) -> list[CheckFinding]:
    folders = Folders(jobs=doctor_job.folder, traces=doctor_job.folder)
    folders.logs.mkdir()
    minutes = min(MINUTES, doctor_job.site.limit_min(doctor_job.run.nodes) or MINUTES)
    (plan,) = plan_jobs([doctor_job.run], doctor_job.site, minutes, None)
    plan = dataclasses.replace(plan, name="doctor", request={**plan.request, "job_name": "rankwise-doctor"})
    scheduler = site_scheduler()
    scheduler.submits = doctor_job.site.submit_command or scheduler.submits
    text = doctor_job.script(scheduler.header(plan, folders).text)
    script = doctor_job.folder / "doctor.sh"
    script.write_text(text, encoding="utf-8", errors="surrogateescape")
    try:
        job_id = scheduler.submit(WrittenJob(plan=plan, script=script, text=text))
    except TransientSubmitError as error:
        raise SubmitError(f"not now: {error}") from None
    if sys.stderr.isatty():
        print(f"job {job_id}: {doctor_job.run.ranks} ranks on {doctor_job.run.nodes} nodes", file=sys.stderr)
    ended = False
    try:
        waited = _wait(scheduler, job_id, doctor_job, 60 * (WAIT_MIN if request.wait is None else request.wait))
        ended = not waited
    finally:
        if not ended:
            scheduler.cancel([job_id])
    if waited:
        return [change("job", waited, "--wait MIN, --nodes or --partition")]
    job = _arrived(doctor_job, folders.logs)
    if not (job.ended or job.nodes or job.printed):
        text = f"the job has ended and left no file in {doctor_job.folder.parent}: the nodes probably do not share it"
        return [change("shared folder", text, "--out FOLDER, one that all nodes mount")]
    cut_short = f"it was ended early: {job.printed or 'it printed no reason'}"
    return [*of_job(doctor_job.site, job), *([] if job.ended else [change("job", cut_short)])]


def _wait(scheduler: JobScheduler, job_id: str, doctor_job: DoctorJob, patience_s: float) -> str:
    """Waits until the job has ended; empty then, else why the wait was given up."""
    limit, began, polled_s = time.monotonic() + patience_s, False, -scheduler.poll_s
    while not (doctor_job.folder / "end").exists():
        if time.monotonic() < polled_s + scheduler.poll_s:
            time.sleep(0.2)
            continue
        polled_s = time.monotonic()
        state = scheduler.states([job_id])[job_id]
        if state in (JobState.ENDED, JobState.UNKNOWN):
            return ""
        if state is JobState.RUNNING and not began:
            began, limit = True, time.monotonic() + 60 * (MINUTES + 1)
        if polled_s > limit:
            reason = scheduler.reasons.get(job_id, "the scheduler does not say why")
            return f"job {job_id} was {state} for {patience_s / 60:g} min and was cancelled ({reason})"
    return ""


def _arrived(doctor_job: DoctorJob, logs: Path) -> JobFacts:
    """The job's results, once all of them are visible here: a shared file system may be late."""
    limit = time.monotonic() + LATE_S
    while True:
        (doctor_job.folder / "visited").touch()  # a write makes an NFS client refresh its view of a folder
        printed = " ".join(" ".join(read_text(path, errors="replace").split()) for path in logs.glob("doctor.*.err"))
        job = doctor_job.read(printed[-500:])
        if (job.ended and len(job.arrived) >= len(job.nodes)) or time.monotonic() > limit:
            return job
        time.sleep(0.2)


def _number(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise SpecError(f"--nodes {text!r} is neither a count from 1 nor `all`")
    return int(text)
