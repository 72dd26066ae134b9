"""Scripts write their stacks when the rank's process requests them, and none is harmed by the request."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpc.observe.stacks import STACK_SIGNAL, stacks_of
from tests.waiting import LIMIT_S, until

BEGIN = "import os, sys, time\nfrom pathlib import Path\nfrom hpc.observe.stacks import register\n"
REGISTER = "register(Path(sys.argv[1]))\n"
STUCK = "def stuck_here():\n    Path(sys.argv[1], 'ready').touch()\n    time.sleep(7200)\nstuck_here()\n"
SLEEPER = "import sys, time; from pathlib import Path; Path(sys.argv[1], 'ready').touch(); time.sleep(7200)"


@pytest.mark.parametrize(
    ("text", "stacks"),
    [
        (BEGIN + REGISTER + STUCK, 1),
        (BEGIN + REGISTER + f"os.execv(sys.executable, [sys.executable, '-c', {SLEEPER!r}, sys.argv[1]])", 0),
        (BEGIN + REGISTER + "os.closerange(3, 100)\nfile = open(sys.argv[1] + '/model.pt', 'w')\n" + STUCK, 0),
        (BEGIN + f"import signal\nsignal.signal({int(STACK_SIGNAL)}, lambda *_: os._exit(9))\n" + REGISTER + STUCK, 0),
    ],
    ids=["stuck", "replaced", "closed", "own handler"],
)
def test_a_script_writes_its_stacks_if_it_can(tmp_path: Path, text: str, stacks: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", text, str(tmp_path)])
    try:
        until(lambda: (tmp_path / "ready").exists() or process.poll() is not None, "the script starts")
        for _ in range(2):  # and again
            texts = stacks_of(tmp_path, patience_s=LIMIT_S)
            assert len(texts) == stacks
            assert all(text.count("stuck_here") == 1 for text in texts)
        assert process.poll() is None
        model = tmp_path / "model.pt"
        assert not model.exists() or model.read_text() == ""
    finally:
        process.kill()
        process.wait()


def test_a_script_that_has_ended_has_none(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", BEGIN + REGISTER, str(tmp_path)], check=True)
    assert len(list(tmp_path.iterdir())) == 1
    assert stacks_of(tmp_path, patience_s=LIMIT_S) == []
