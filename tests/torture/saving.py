"""The script under torture: counts steps, notes each signal, and makes a checkpoint when one came; see docs/observe.md.

Ranks do not meet: each ends by itself. The account is the workload's (`truth/` beside this file), with
`<life>.got`, a line for each signal, and `<life>.saved`, how many steps the checkpoint has.
"""

import os
import signal
import struct
import time
from pathlib import Path

from hpc.observe import step

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
RECORD = struct.Struct("<qd")
SAVE_S = 1.0
"""A checkpoint takes so long: no sender that waits cuts it, one of ours that did not would."""

truth = Path(__file__).parent / "truth"
truth.mkdir(exist_ok=True)
life = f"{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_RESTART_COUNT', '0')}.{os.environ['RANK']}"
account = os.open(truth / f"{life}.steps", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
got = os.open(truth / f"{life}.got", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
for number in SIGNALS:
    signal.signal(number, lambda came, _: os.write(got, f"{signal.Signals(came).name}\n".encode()))
(truth / f"{life}.pid").write_text(f"{os.getpid()}\n")
made = 0
while not os.fstat(got).st_size:
    time.sleep(0.004)
    step()
    os.write(account, RECORD.pack(made, time.time()))
    made += 1
until = time.monotonic() + SAVE_S
while time.monotonic() < until:  # a signal ends a sleep, and must not shorten this
    time.sleep(0.05)
(truth / f"{life}.saved").write_text(str(made))
