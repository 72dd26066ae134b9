"""examples/ci: their commands exist; what they write is read by a JUnit parser, and is a comment and a page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import junitparser
import pytest
import yaml

from tests.sweeps import ROOT, with_checkout
from tests.unit.comparisons import FOUR, ONE, TWO, folder, times
from tests.unit.test_docs import OPTION, options_of

EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples" / "ci").glob("*.yml"))}


def scripts(name: str) -> list[str]:
    """The shell lines of an example, in their order."""
    content: dict[str, Any] = yaml.safe_load(EXAMPLES[name].read_text())
    if name == "gitlab":
        return [*content["scaling"]["script"], *content["scaling"]["after_script"]]
    (job,) = content["jobs"].values()
    return [line for step in job["steps"] for line in step.get("run", "").splitlines()]


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_commands_have_these_options(name: str) -> None:
    ours = [line.partition("#")[0].split() for line in scripts(name) if line.startswith("rankwise ")]
    assert [words[1] for words in ours] == ["sweep", "compare", "compare", "report"]
    for _, command, *words in ours:
        module = {"sweep": "hpc.sweep"}.get(command, f"parse.{command}")
        assert {*OPTION.findall(" ".join(words))} <= options_of(module), command


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "status", "failures"), [(1.0, 0, []), (0.9, 1, ["1n2g"])])
@pytest.mark.parametrize("name", EXAMPLES)
def test_what_it_writes_is_read(name: str, factor: float, status: int, failures: list[str], tmp_path: Path) -> None:
    """All of its lines, but for the measurement and the call over the network, as the shell of CI runs them."""
    before = folder(tmp_path / "before", (ONE, times(1)), (TWO, times(1.9)), (FOUR, times(3.1)))
    folder(tmp_path / "measured" / "traces", (ONE, times(1)), (TWO, times(1.9 * factor)), (FOUR, times(3.1)))
    (tmp_path / "bin").mkdir()
    for program, line in (
        ("rankwise", f'exec {sys.executable} -m rankwise "$@"'),
        ("gh", "exit 0"),
        ("curl", "exit 0"),
    ):
        (tmp_path / "bin" / program).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / program).chmod(0o755)
    env = with_checkout({**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"})
    env["GITHUB_STEP_SUMMARY"] = str(tmp_path / "step.md")

    def shell(line: str) -> int:
        return subprocess.run(["bash", "-ec", line], cwd=tmp_path, env=env, check=False).returncode

    assert shell(f"rankwise summarize {before} --format json --out baseline.json") == 0
    _, compare, *after = (line.replace("${{ github.event.number }}", "7") for line in scripts(name))
    assert shell(compare) == status
    assert shell("\n".join(after)) == 0
    suites = junitparser.JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    cases = [case for suite in suites for case in suite]
    failed = [case for case in cases if any(isinstance(each, junitparser.Failure) for each in case.result)]
    assert len(cases) == 3 and [case.name.split()[0] for case in failed] == failures
    assert all("slower" in case.result[0].message for case in failed)
    assert ("slower" in (tmp_path / "comparison.md").read_text().partition("\n\n")[0]) is bool(failures)
    assert "<!DOCTYPE html>" in (tmp_path / "report.html").read_text()
