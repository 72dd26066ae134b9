"""Whole trainings that lose their job or their node in the third epoch, and go on where they were."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from PIL import Image

from hpc.model.outcome import ExitRecord, Outcome, exit_records
from hpc.model.trace_file import read_trace
from hpc.model.training import TrainingHistory
from tests.slurm.jobs import new_cluster, state, submit, write_scripts
from tests.waiting import until
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import Shape

EPOCHS = 5
HELD = 2
"""Epochs done when a training is disturbed."""


def png(number: int) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (8, 8), (number * 2, 255 - number, 128)).save(content, "PNG")
    return content.getvalue()


class Held:
    """The script of a training of which an epoch cannot end before `feed` is called: one of its images is a pipe."""

    def __init__(self, cluster: DevCluster, folder: Path) -> None:
        self.cluster, self.folder, self.traces = cluster, folder, folder / "traces"
        for number in range(96):
            split = "train" if number < 80 else "val"
            path = folder / "images" / split / f"class{number % 3}" / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(number))
        self.pipe = folder / "images" / "train" / "class0" / "pipe.png"
        os.mkfifo(self.pipe)
        write_scripts(
            cluster, folder, "--cases", "1n2g", "--cpus-per-rank", "1", "--no-baseline", "--backend", "torch-ddp",
            "--workload", "mlp", "--data", f"imagefolder:{folder}/images", "--option", "workers=1", "--epochs",
            str(EPOCHS), "--batch-size", "4", "--steps", "8", "--warmup", "5", "--repeats", "1", "--copy-s", "1",
            "--telemetry", "off", "--hang-extra-s", "3600", "--minutes-per-run", "50",
        )  # fmt: skip
        self._ends = threading.Event()

    def feed(self) -> None:
        """Lets one epoch read its last image. Returns when it has."""
        with self.pipe.open("wb") as pipe:
            pipe.write(png(0))

    def feed_all(self) -> None:
        """Lets all further epochs go on."""

        def go_on() -> None:
            while not self._ends.is_set():
                with suppress(BrokenPipeError):  # the reader was killed just now
                    self.feed()

        threading.Thread(target=go_on, daemon=True).start()

    def stop(self) -> None:
        """Ends `feed_all`, which may wait for a reader."""
        self._ends.set()
        os.close(os.open(self.pipe, os.O_RDONLY | os.O_NONBLOCK))

    def printed(self) -> str:
        return "".join(path.read_text() for path in sorted((self.folder / "jobs" / "logs").glob("*")))

    def wait_for_epochs(self, done: int) -> None:
        until(lambda: f"total_epoch_cnt:{done}\n" in self.printed(), f"{done} epochs are done", self.printed)

    def wait_for(self, job_id: str, expected: str) -> None:
        until(lambda: state(self.cluster, job_id) == expected, f"job {job_id} is {expected}", self.printed)

    def wait_until_put_back(self, job_id: str) -> None:
        """Returns when the job has begun anew, or waits to."""

        def put_back() -> bool:
            restarts = self.cluster.run("squeue", "-h", "-t", "all", "-j", job_id, "--Format", "RestartCnt").strip()
            return restarts == "1" and state(self.cluster, job_id) in ("PENDING", "RUNNING")

        until(put_back, f"job {job_id} is put back", self.printed)

    def disturbed(self) -> str:
        """Submits it and returns the job's id, in its third epoch."""
        job_id = submit(self.cluster, self.folder / "jobs" / "1n.sh")
        for done in range(1, HELD + 1):
            self.feed()
            self.wait_for_epochs(done)
        return job_id

    @property
    def records(self) -> list[ExitRecord]:
        return [record for records in exit_records(self.traces).values() for record in records]

    def evidence(self, attempt: int) -> str:
        (record,) = (each for each in self.records if each.attempt == attempt)
        return " ".join(record.evidence)

    def history(self) -> TrainingHistory:
        records = self.records
        whole = [path for path in self.traces.glob("*.h5") if not read_trace(path).recovered]
        assert len(whole) == 1, (sorted(path.name for path in self.traces.iterdir()), records, self.printed())
        (path,) = whole
        history = read_trace(path).history
        assert history is not None
        return history


@pytest.fixture(scope="module")
def cluster(slurm_installed: None) -> Iterator[DevCluster]:
    with new_cluster(Shape(nodes=4, cpus=2, gpus=0)) as running:
        yield running


# Ranks of this machine show what becomes of a training that is killed, tests/mpi/test_training.py, and test_requeue.py
# what becomes of a job.
@pytest.mark.all
def test_trainings_go_on_after_their_job_or_their_node_was_lost(cluster: DevCluster, tmp_path: Path) -> None:
    trainings = {name: Held(cluster, tmp_path / name) for name in ("job", "node", "none")}
    jobs = {name: training.disturbed() for name, training in trainings.items()}
    node = cluster.run("squeue", "-h", "-j", jobs["node"], "-o", "%N").strip()
    cluster.run("scontrol", "requeue", jobs["job"])
    cluster.kill_node(node)
    try:
        for name in ("job", "node"):
            trainings[name].wait_until_put_back(jobs[name])
        for training in trainings.values():
            training.feed_all()
        for name, job_id in jobs.items():
            trainings[name].wait_for(job_id, "COMPLETED")
    finally:
        for training in trainings.values():
            training.stop()
        cluster.start_node(node)
    assert "left no record" in trainings["node"].evidence(1)  # nothing on a node acts on its loss of power
    undisturbed = trainings["none"].history()
    assert len(undisturbed.begun) == 1
    states = [epoch.state_sha256 for epoch in undisturbed.epochs]
    for name, training in trainings.items():
        history = training.history()
        assert [epoch.state_sha256 for epoch in history.epochs] == states, name
        assert training.records[-1].outcome == Outcome.OK
        assert not list(training.traces.glob("*.checkpoint"))
        if name != "none":
            assert [begun.epochs for begun in history.begun] == [0, HELD], name
            assert [epoch.attempt for epoch in history.epochs] == [1] * HELD + [2] * (EPOCHS - HELD), name
