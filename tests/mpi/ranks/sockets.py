"""Who of a run listens where, as JSON of rank 0: `sockets.py MARK [hpc.rank's arguments…]`; without those, MPI alone.

Everything of the run has MARK in its environment: ranks, helpers, launcher.
"""

import json
import sys
from pathlib import Path

LISTENS = "0A"


def listening():
    """Inode of every listening TCP socket of this network namespace → its address, as the kernel writes it."""
    result = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS:
                result[fields[9]] = fields[1].partition(":")[0]
    return result


def address(kernels):
    """0100007F is 127.0.0.1: words of the host's byte order."""
    argv = [bytes.fromhex(kernels[at : at + 8])[::-1] for at in range(0, len(kernels), 8)]
    if len(argv) == 1:
        return ".".join(str(byte) for byte in argv[0])
    mapped = argv[:3] == [bytes(4), bytes(4), b"\0\0\xff\xff"]
    return address(kernels[24:]) if mapped else ":".join(argument.hex() for argument in argv)


def sockets(mark):
    """[process, address] of every listening socket of the run's processes."""
    addresses, result = listening(), []
    for process in Path("/proc").iterdir():
        try:
            if not process.name.isdigit() or mark.encode() not in (process / "environ").read_bytes():
                continue
            argv = (process / "cmdline").read_bytes().split(b"\0")
            links = [target(link) for link in (process / "fd").iterdir()]
        except OSError:  # it ended, or is another user's
            continue
        inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
        result += [[role(argv), address(addresses[inode])] for inode in inodes & addresses.keys()]
    return sorted(result)


def target(link):
    try:
        return str(link.readlink())
    except OSError:  # closed meanwhile: the one that lists this folder is
        return ""


def role(argv):
    if any(argument.endswith(b"sockets.py") for argument in argv):
        return "launcher" if b"mpi" in argv[0] or b"prte" in argv[0] else "rank"
    return b" ".join(argv[:4]).decode(errors="replace")


def show(comm, mark):
    comm.Barrier()
    if comm.rank == 0:
        print(json.dumps(sockets(mark)), flush=True)
    comm.Barrier()


def main(mark, *arguments):
    if not arguments:
        from mpi4py import MPI

        show(MPI.COMM_WORLD, mark)
        return 0
    import hpc.run.train
    from hpc.rank import main as rank

    train = hpc.run.train.train

    def shown(*given):
        from mpi4py import MPI

        blocks = train(*given)
        show(MPI.COMM_WORLD, mark)
        return blocks

    hpc.run.train.train = shown
    return rank(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
