"""Brings what dead ranks left on this node to the traces, or removes it.

    rankwise hpc.recovery collect --stem STEM --to TRACES
    srun --nodes=N --ntasks-per-node=1 rankwise hpc.recovery clean
    rankwise hpc.recovery recover FOLDER

`collect` moves what the ranks of an attempt left, stamps and stacks to TRACES/STEM.partial/, a trace or a note that
could not be written to TRACES, and removes shared memory of theirs. The job script calls it on each node after a failed
attempt; by hand, once the attempt has ended, it fetches what the exit record names as `local_copies`, and
`recover` (rankwise sweep recover, too) makes a trace of it. `clean` removes what dead ranks of all attempts left
here, but no trace.
docs/outcomes.md has all of it.

Exit status 0: done, also where there was nothing; 1: the traces cannot be written, and all stays here; 2: usage.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpc.model.files import AttemptFiles, FolderReplaced, host_path
from hpc.recovery.collect import collect
from hpc.recovery.folders import BEGUN, attempt_folders, clean, remove_shared_memory
from hpc.system.command_line import run
from hpc.system.command_parser import CommandParser
from hpc.system.sanitize import deny_world_writing


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `rankwise hpc.recovery`."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["recover"]:
        from hpc.recovery import recover  # imported here: it takes numpy

        return recover.main(words[1:])
    parser = CommandParser(prog="rankwise hpc.recovery", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    collecting = actions.add_parser("collect", help="move this node's journals of an attempt to the traces")
    collecting.add_argument("--stem", required=True, help="<run_id>.<attempt>")
    collecting.add_argument("--to", required=True, type=Path, metavar="TRACES", help="folder of the traces")
    actions.add_parser("clean", help="remove this node's journals whose ranks are dead")
    actions.add_parser("recover", help="make traces of collected journals")
    arguments = parser.parse_args(words)
    deny_world_writing()
    if arguments.action == "clean":
        print(f"removed the journals of {clean()} dead ranks")
        return 0
    return _collect(arguments.to, arguments.stem)


def _collect(traces: Path, stem: str) -> int:
    """The command `collect`: prints what was moved and removed, and the places of files that could not be moved."""
    folders, since_ns = attempt_folders(traces, stem), []
    if not folders:
        print(f"{stem}: collected the journals of 0 ranks: {socket.gethostname()} keeps none of it for {traces}")
        return 0
    for folder in folders:
        with suppress(FileNotFoundError):  # its ranks died in the middle of making it, or it has just been collected
            since_ns.append((folder / BEGUN).stat().st_mtime_ns)
    failed = 0
    try:
        print(f"{stem}: collected the journals of {collect(traces, stem)} ranks")
    except OSError as error:
        print(f"{stem}: {traces} cannot be written ({error}): what the ranks left stays on this node", file=sys.stderr)
        folders = attempt_folders(traces, stem)
        trace_paths = [path for folder in folders for path in folder.glob("*.h5")]
        lines = [f"kept: {host_path(path)}" for path in trace_paths or folders]
        print(*lines, sep="\n", file=sys.stderr)
        if not isinstance(error, FolderReplaced):
            _add_lines(AttemptFiles.of_stem(traces, stem).local_copies, lines)
        failed = 1
    else:
        for folder in attempt_folders(traces, stem):
            for path in folder.glob("*.h5"):
                print(f"{stem}: another trace of it is there; kept: {host_path(path)}", file=sys.stderr)
    if since_ns and (removed := remove_shared_memory(min(since_ns))):
        print(f"{stem}: removed shared memory that dead ranks left on {socket.gethostname()}: {', '.join(removed)}")
    return failed


def _add_lines(path: Path, lines: Sequence[str]) -> None:
    """Adds the lines to the file, which the exit record is made from, if a few bytes can still be written."""
    with suppress(OSError):
        with path.open("a") as file:
            print(*lines, sep="\n", file=file)
        return
    with suppress(OSError):
        if not path.stat().st_size:
            path.unlink()


if __name__ == "__main__":
    sys.exit(run(main, "hpc.recovery", lost_output=1))
