"""The checks of ways between ranks: what the site promises against what is there, and what NCCL says that it took."""

from __future__ import annotations

from hpc.preflight.result import CheckResult, failed, numbers, ok, some, unknown
from hpc.preflight.transports import fits, goes_by_network
from hpc.preflight.types import Seen


def fabric(seen: Seen) -> CheckResult | None:
    """Checks the adapters before any transport is known: a node without an adapter cannot use the promised one."""
    if not seen.expect_transport.startswith("ib") or seen.run.nodes == 1 or seen.simulated:
        return None
    by_host = {rank.hostname: rank.about_node.fabrics for rank in seen.ranks if rank.about_node}
    if lacking := [host for host, adapters in by_host.items() if not adapters]:
        return failed(
            f"the site promises {seen.expect_transport}; no adapter with an active port is in /sys/class/infiniband of "
            f"{some(lacking)}"
        )
    return ok(f"every node has an adapter with an active port ({', '.join(next(iter(by_host.values()), ()))})")


def transport(seen: Seen) -> CheckResult | None:
    """Compares the transport between nodes: where the promised one fails, NCCL silently uses a slower one."""
    if not (seen.expect_transport and seen.run.gpus_per_node and seen.run.nodes > 1) or seen.simulated:
        return None
    wrong, taken, unread = [], set(), []
    for rank in seen.ranks:
        if rank.transports is None or rank.transports.unread:
            unread.append(f"rank {rank.rank}: {rank.transports.unread if rank.transports else 'not looked'}")
            continue
        names = [name for name in rank.transports.peers if name.startswith("NET/")]  # COLLNET is beside it
        taken.update(names)
        wrong += [
            f"rank {rank.rank} on {rank.hostname} goes by {name}"
            for name in names
            if not fits(name, seen.expect_transport)
        ]
    if wrong:
        return failed(f"the site promises {seen.expect_transport}; {some(wrong)}")
    if unread:
        return unknown(some(unread))
    if not taken:
        return unknown("NCCL says nothing of going from node to node")
    return ok(f"NCCL goes from node to node by {', '.join(sorted(taken))}")


def transport_in_node(seen: Seen) -> CheckResult | None:
    """Finds GPUs of one node that use host memory or the network where they could reach each other directly."""
    if not seen.run.gpus_per_node or seen.run.ranks_per_node == 1:
        return None
    slow, unread, taken = [], [], set()
    for rank in seen.ranks:
        if rank.transports is None or rank.transports.unread:
            unread.append(f"rank {rank.rank}: {rank.transports.unread if rank.transports else 'not looked'}")
            continue
        for name, peers in rank.transports.peers.items():
            if name.startswith("SHM") or (goes_by_network(name) and seen.run.nodes == 1):
                slow.append(f"rank {rank.rank} on {rank.hostname} goes by {name} to rank {numbers(peers)}")
            elif not goes_by_network(name):
                taken.add(name)
    if slow:
        return failed(some(slow))
    if unread:
        return unknown(some(unread))
    return ok(f"by {', '.join(sorted(taken))}") if taken else unknown("NCCL says nothing of going inside a node")
