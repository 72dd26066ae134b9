"""`run_tool` with real programs: one that answers, is absent, forbidden, hangs, fails, sits behind a closed folder."""

import sys
from pathlib import Path

import pytest

from hpc.system.tool import Failure, find_tool, run_tool
from tests.processes import lives
from tests.unit.fake_commands import write_program
from tests.unprivileged import without_rights
from tests.waiting import until


def test_an_answer_has_both_streams_and_the_status(tmp_path: Path) -> None:
    answer = run_tool([str(write_program(tmp_path, "tool", "echo out; echo err >&2"))])
    assert (answer.ok, answer.stdout, answer.stderr, answer.exit_status) == (True, "out\n", "err\n", 0)
    assert answer.describe() == ""


def test_a_tool_that_nobody_has_is_absent() -> None:
    answer = run_tool(["no-such-tool-anywhere"])
    assert (answer.failure, answer.describe()) == (Failure.ABSENT, "no-such-tool-anywhere is not installed here")


def test_a_tool_that_may_not_be_executed_is_forbidden(tmp_path: Path) -> None:
    tool = write_program(tmp_path, "tool", "true", mode=0o644)
    answer = run_tool([str(tool)])
    assert answer.failure is Failure.FORBIDDEN
    assert str(tool) in answer.describe()


def test_a_file_that_may_not_be_executed_hides_no_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    first = write_program(tmp_path / "first", "tool", "echo first", mode=0o644)
    monkeypatch.setenv("PATH", f"{tmp_path}/first:{tmp_path}/second")
    answer = run_tool(["tool"])
    assert (answer.failure, find_tool("tool")) == (Failure.FORBIDDEN, first)
    assert answer.describe() == f"tool cannot be run: {first}: Permission denied"
    second = write_program(tmp_path / "second", "tool", "echo second")
    assert (run_tool(["tool"]).stdout, find_tool("tool")) == ("second\n", second)


def test_the_path_of_the_tools_own_environment_counts(tmp_path: Path) -> None:
    tool = write_program(tmp_path, "tool", "true", mode=0o644)
    answer = run_tool(["tool"], env={"PATH": str(tmp_path)})
    assert (answer.failure, find_tool("tool", {"PATH": str(tmp_path)})) == (Failure.FORBIDDEN, tool)
    assert find_tool("tool", {"PATH": "/nonexistent"}) is None


@pytest.mark.parametrize("below", ["", "/bin"])
def test_behind_a_closed_folder_of_path_a_tool_is_absent(tmp_path: Path, below: str) -> None:
    """execvp reports EACCES there, also where the tool is nowhere: `make demo` died of it for a user without rights."""
    (closed := tmp_path / "closed").mkdir()
    (folder := Path(f"{closed}{below}")).mkdir(exist_ok=True)  # of PATH: closed itself, or below what is closed
    write_program(folder, "hidden", "true")
    (tools := tmp_path / "tools").mkdir()
    forbidden = write_program(tools, "forbidden", "true", mode=0o644)
    code = (
        "import sys; from hpc.system.tool import run_tool; a = run_tool(sys.argv[1:]); print(a.failure, a.describe())"
    )

    def described(*argv: str) -> str:
        done = without_rights(closed, "-c", code, *argv, path=f"{folder}:{tools}", cwd=tmp_path)
        return done.stdout.strip() or done.stderr

    closed.chmod(0)
    try:
        absent = f"absent {{}} is not installed here (folders of PATH that may not be searched: {folder})"
        assert described("nowhere") == absent.format("nowhere")
        assert described("hidden") == absent.format("hidden")
        assert described("forbidden") == f"forbidden forbidden cannot be run: {forbidden}: Permission denied"
        assert described(f"{folder}/hidden") == f"forbidden hidden cannot be run: {folder}/hidden: Permission denied"
        write_program(tools, "nowhere", "true")
        assert described("nowhere") == "None"
    finally:
        closed.chmod(0o700)


def test_a_script_whose_interpreter_is_missing_is_not_absent(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/nonexistent/python\n")
    tool.chmod(0o755)
    answer = run_tool([str(tool)])
    assert answer.failure is Failure.FAILING
    assert answer.describe() == f"tool: {tool}: the interpreter that its first line names is not there"
    assert run_tool(["/nonexistent/python"]).describe() == (
        "python is not installed here (/nonexistent/python: No such file or directory)"
    )


def test_a_working_directory_that_is_not_there_is_no_absent_tool(tmp_path: Path) -> None:
    answer = run_tool(["true"], cwd=tmp_path / "gone")
    assert answer.failure is Failure.FAILING
    assert answer.describe() == f"true: {tmp_path / 'gone'}: No such file or directory"


def test_a_failure_on_standard_output_is_quoted(tmp_path: Path) -> None:
    """nvidia-smi reports a driver mismatch on standard output, `scontrol ping` a controller that is down."""
    body = (
        "echo 'Failed to initialize NVML: Driver/library version mismatch'; echo 'NVML library version: 535'; exit 18"
    )
    assert run_tool([str(write_program(tmp_path, "nvidia-smi", body))]).describe() == (
        "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch NVML library version: 535"
    )


def test_a_failing_tool_is_quoted_by_its_last_line() -> None:
    answer = run_tool([sys.executable, "-c", "import sys; print('first\\nlast', file=sys.stderr); sys.exit(18)"])
    assert (answer.failure, answer.exit_status) == (Failure.FAILING, 18)
    assert answer.describe().endswith(": last")


def test_a_silent_failing_tool_is_described_by_its_status(tmp_path: Path) -> None:
    assert run_tool([str(write_program(tmp_path, "tool", "exit 18"))]).describe() == "tool: exit status 18"


def test_a_hanging_tool_is_killed_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    tool = write_program(tmp_path, "tool", f"sleep 7200 & echo $! >{child}.new; mv {child}.new {child}; wait")
    timeout_s = 1
    while not child.exists():  # on a busy machine the tool may be killed before it has a child
        timeout_s *= 2
        answer = run_tool([str(tool)], timeout_s=timeout_s)
        assert answer.failure is Failure.HANGING
        assert answer.describe() == f"tool: no answer within {timeout_s} s"
    until(lambda: not lives(int(child.read_text())), "the child of the tool ends")


def test_a_tool_that_is_no_program_fails(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_bytes(b"\x00\x01")
    tool.chmod(0o755)
    answer = run_tool([str(tool)])
    assert answer.failure is Failure.FAILING
    assert "Exec format error" in answer.describe()


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    assert run_tool([str(write_program(tmp_path, "tool", r"printf '\377'"))]).stdout == "�"
