"""Workloads for backend `mpi` that fail or end in ways that nobody thinks of."""

import atexit
import os
import sys
import threading
import time
from pathlib import Path

from hpc.run import rank_state
from tests.mpi.ranks.user_workloads import Line

WAITS_S = 7200
SCRIPT = Path(sys.argv[sys.argv.index("--script") + 1])


class TheirOwn(BaseException):
    """No Exception."""


class Unspeakable(Exception):
    def __str__(self):
        raise TheirOwn

    __repr__ = __str__


class Fails(Line):
    """Rank 1 fails in step 7."""

    def fail(self): ...

    def forward(self, batch):
        if self.rank == 1 and self.step == 7:
            self.fail()
        return super().forward(batch)


class RaisesKeyboardInterrupt(Fails):
    def fail(self):
        raise KeyboardInterrupt


class RaisesTheirOwn(Fails):
    def fail(self):
        raise TheirOwn("not an Exception")


class RaisesUnspeakable(Fails):
    def fail(self):
        raise Unspeakable


class UsesUpFiles(Fails):
    """Opens files until there are none left, and fails by that."""

    def fail(self):
        self.files = []
        while True:
            self.files.append(os.open(os.devnull, os.O_RDONLY))


class Unlosable:
    def __float__(self):
        raise Unspeakable


class LosesItsLosses(Line):
    """On rank 1 the losses of the last block cannot be had; so a collective call follows that only rank 0 makes."""

    def forward(self, batch):
        loss = super().forward(batch)
        return Unlosable() if self.rank == 1 and self.step > 6 else loss


class HasSomethingInjected(Line):
    """Its own attribute has a name of ours, on one rank."""

    def __init__(self, run, device, rank):
        super().__init__(run, device, rank)
        if rank == 1:
            self.injected_ns = [1, 2, 3]


class RemovesItsScript(Line):
    """Somebody renames the job script while the run goes on."""

    def forward(self, batch):
        if self.rank == 0 and self.step == 3:
            SCRIPT.rename(SCRIPT.with_name("renamed"))
        return super().forward(batch)


class BreaksWhatDescribes(Line):
    """What describes the machine, stops telemetry and says how copies went raises at the end."""

    def forward(self, batch):
        if self.step == 9:
            self.breaks()
        return super().forward(batch)

    def breaks(self):
        from hpc.node_agent.agent import NodeAgent
        from hpc.run import gather

        def fails(*args):
            raise RuntimeError("out of order")

        for name in ("describe_project", "describe_job", "in_common"):
            setattr(gather, name, fails)
        for name in ("stop_telemetry", "copy_facts"):
            setattr(NodeAgent, name, fails)


class CannotBeStored(Line):
    """HDF5 refuses the trace as long as it has an environment."""

    def forward(self, batch):
        from hpc.model import trace_file

        if self.step == 9:
            write = trace_file._write

            def refuse(raw, trace):
                if trace.environment:
                    raise RuntimeError("can't write this")
                write(raw, trace)

            trace_file._write = refuse
        return super().forward(batch)


class FillsItsNode(Line):
    """The header of the journal cannot be written any more."""

    def forward(self, batch):
        from hpc.recovery.journal import Journal

        def full(*args, **facts):
            raise OSError(28, "No space left on device")

        Journal.note = full  # type: ignore[method-assign]
        return super().forward(batch)


class HasAnEnd(Line):
    """Rank 1 does not end by itself, within a limit made short here."""

    def __init__(self, run, device, rank):
        super().__init__(run, device, rank)
        rank_state.EXIT_LIMIT_S = 20.0
        # A rank that was held up shows its stacks, too.
        rank_state._RANK_0_ENDS_S, rank_state._OTHERS_END_S = 20.0, 35.0
        if rank == 1:
            self.prepare()

    def prepare(self): ...


class LeavesAThread(HasAnEnd):
    def prepare(self):
        threading.Thread(target=time.sleep, args=(WAITS_S,), daemon=False).start()


class HangsInAnExitHandler(HasAnEnd):
    def prepare(self):
        atexit.register(time.sleep, WAITS_S)


class HangsInFinalize(HasAnEnd):
    def prepare(self):
        from mpi4py import MPI

        MPI.Finalize = lambda: time.sleep(WAITS_S)


class CannotLeave(HasAnEnd):
    """The backend cannot leave its group."""

    def prepare(self):
        from hpc.backends.mpi import MPIAllreduce

        def fails(backend):
            raise RuntimeError("group is gone")

        MPIAllreduce.leave = fails  # type: ignore[method-assign]
