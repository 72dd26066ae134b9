"""The clock of a process: its name, and when processes began by it."""

import os
import subprocess
import sys
import time

import pytest

from hpc.system.host import began_ns, clock_domain


def make_proc(folder, boot: str | None, namespace: str | None):
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "self/ns").mkdir(parents=True)
    if boot is not None:
        (folder / "sys/kernel/random/boot_id").write_text(boot + "\n")
    if namespace is not None:
        (folder / "self/ns/time").symlink_to(namespace)
    return folder


@pytest.mark.parametrize("namespace", ["time:[1]", None])  # kernels without these have one clock a boot
def test_a_clock_is_named_by_boot_and_time_namespace(tmp_path, namespace):
    here = clock_domain(make_proc(tmp_path / "a", "boot-1", namespace))
    assert clock_domain(make_proc(tmp_path / "b", "boot-1", namespace)) == here
    assert clock_domain(make_proc(tmp_path / "c", "boot-1", "time:[2]")) != here
    assert clock_domain(make_proc(tmp_path / "d", "boot-2", namespace)) != here


def test_each_process_has_its_own_clock_if_nothing_names_it(tmp_path):
    assert clock_domain(make_proc(tmp_path, None, "time:[1]")).endswith(f"/{os.getpid()}")


def test_a_process_began_between_its_parents_looks_at_the_clock():
    tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
    before_ns = time.perf_counter_ns()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    after_ns = time.perf_counter_ns()
    began = began_ns(child.pid)
    child.communicate(b"\n")
    assert before_ns - 2 * tick_ns <= began <= after_ns + 2 * tick_ns


@pytest.mark.parametrize("stat", ["", "1 (a name) S 0", "1 (x) " + "y " * 50])
def test_a_process_that_does_not_say_began_at_no_known_moment(tmp_path, stat):
    assert began_ns(7, tmp_path) is None
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(stat)
    assert began_ns(7, tmp_path) is None
