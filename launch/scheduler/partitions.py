"""The partitions and nodes of a site, from its scheduler, and which jobs fit on them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from hpc.system.text import natural, plural
from launch.jobs.plan import JobPlan, PlanError
from launch.jobs.site import Site
from launch.scheduler.protocol import Node, Partition, SiteScheduler

_MAX_SIZES = 4


def _fits(job: JobPlan, node: Node, partition: Partition) -> bool:
    return partition.cpus_of(node) >= job.ranks_per_node * job.cpus_per_rank and node.gpus >= job.gpus_per_node


def _describe(job: JobPlan) -> str:
    """What a job requests: `16 nodes of 8 CPUs (8 ranks of 1) and 8 GPUs`."""
    gpus = f" and {plural(job.gpus_per_node, 'GPU')}" if job.gpus_per_node else ""
    ranks = f"{plural(job.ranks_per_node, 'rank')} of {job.cpus_per_rank}"
    return f"{plural(job.nodes, 'node')} of {plural(job.ranks_per_node * job.cpus_per_rank, 'CPU')} ({ranks}){gpus}"


class SiteNodes:
    """The nodes that a site's jobs can get; its scheduler is asked once, when a property is first read."""

    def __init__(self, site: Site, scheduler: SiteScheduler) -> None:
        self._site, self._scheduler = site, scheduler
        self._partition = site.partition

    @cached_property
    def unreachable(self) -> str:
        """Why the nodes cannot be queried and no job be submitted; empty if a controller answers."""
        return self._scheduler.unreachable()

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """The named partitions, else all. Raises SubmitError if the scheduler lists no node."""
        return self._scheduler.partitions(self._partition)

    @cached_property
    def candidates(self) -> tuple[Partition, ...]:
        """The partitions in which a job may run: those named, else the default one, else any."""
        defaults = tuple(each for each in self.partitions if each.default)
        return self.partitions if self._partition or not defaults else defaults

    @property
    def per_node(self) -> tuple[int | None, int | None]:
        """GPUs and CPUs of every node; None where nodes differ.

        Slurm does not distinguish a node without GPUs from one whose GPUs are not configured: None for both.
        """
        nodes = [node for partition in self.candidates for node in partition.nodes]
        gpus, cpus = {node.gpus for node in nodes}, {node.cpus for node in nodes}
        return (gpus.pop() if len(gpus) == 1 and gpus != {0} else None, cpus.pop() if len(cpus) == 1 else None)

    def check(self, jobs: Sequence[JobPlan]) -> list[str]:
        """Warnings about jobs that must wait for nodes to come back. Raises PlanError if a job can never start."""
        if self._site.reservation and not self._partition:
            return []  # the job runs in the reservation's partition, which only the controller can resolve
        allowed = [(partition, self._allowed(partition)) for partition in self.candidates]
        refusals, warnings = {}, []
        for job in jobs:
            reasons = [_refusal(job, partition, nodes) for partition, nodes in allowed]
            if all(reasons):
                refusals[job.name] = f"{reasons[0]}{self._elsewhere(job)}"
                continue
            running = [pair for pair, reason in zip(allowed, reasons, strict=True) if not reason]
            if shortage := min((_shortage(job, *pair) for pair in running), key=len):
                warnings.append(f"job {job.name} {shortage}")
        if refusals:
            name, reason = next(iter(refusals.items()))
            others = f" (jobs {', '.join(list(refusals)[1:])} do not fit, either)" if len(refusals) > 1 else ""
            raise PlanError(f"job {name} can never start: {reason}{others}")
        return warnings

    def up(self) -> tuple[Node, ...]:
        """The nodes that the site's jobs can get, without those that are down or drained, by name. Raises SubmitError
        where Slurm does not say."""
        named = self._hostnames("nodelist", self._site.nodelist)
        nodes = {node.name: node for partition in self.candidates for node in self._allowed(partition)}
        return tuple(nodes[name] for name in sorted(nodes, key=natural) if nodes[name].up and name in (named or nodes))

    def _allowed(self, partition: Partition) -> list[Node]:
        """Nodes that the site's `exclude` and `constraint` allow; a constraint with operators is not evaluated."""
        plain = re.fullmatch(r"\w+", self._site.constraint)
        return [
            node
            for node in partition.nodes
            if node.name not in self._excluded and (not plain or self._site.constraint in node.features)
        ]

    @cached_property
    def _excluded(self) -> frozenset[str]:
        return self._hostnames("exclude", self._site.exclude)

    def _hostnames(self, option: str, names: str) -> frozenset[str]:
        return self._scheduler.hostnames(option, names) if names else frozenset()

    def _elsewhere(self, job: JobPlan) -> str:
        others = [each for each in self.partitions if each not in self.candidates]
        names = [each.name for each in others if not _refusal(job, each, self._allowed(each))]
        return f"; it fits in --partition {' or '.join(names)}" if names else ""


def _refusal(job: JobPlan, partition: Partition, nodes: Sequence[Node]) -> str:
    """Why the job can never start in the partition: the request, the nodes, what to change; empty if it fits."""
    fitting = [node for node in nodes if _fits(job, node, partition)]
    limit = partition.max_nodes
    if len(fitting) < job.nodes or (limit is not None and limit < job.nodes):
        node_limit = "" if limit is None or limit >= job.nodes else f", and lets a job have {plural(limit, 'node')}"
        return (
            f"it requests {_describe(job)}; Slurm has {_sizes(nodes, partition)} in partition "
            f"{partition.name}{node_limit}: {_largest(job, partition, nodes)}"
        )
    if partition.max_time_min is not None and job.time_min > partition.max_time_min:
        return (
            f"it requests {job.time_min} min; partition {partition.name} gives a job {partition.max_time_min} min "
            f"at most: --time {partition.max_time_min} splits the plan into jobs that fit"
        )
    return ""


def _largest(job: JobPlan, partition: Partition, nodes: Sequence[Node]) -> str:
    """The largest case that fits, with the requested ranks per node if a node can hold them, and the flag to lower."""

    def ranks_on(node: Node) -> float:
        by_cpus = partition.cpus_of(node) // max(1, job.cpus_per_rank)
        by_gpus = node.gpus * job.ranks_per_node // job.gpus_per_node if job.gpus_per_node else by_cpus
        return min(by_cpus, by_gpus, job.ranks_per_node)

    if not nodes:
        return "exclude and constraint leave no node"
    ranks = max(ranks_on(node) for node in nodes)
    lacks_gpus = all(node.gpus < job.gpus_per_node for node in nodes)
    if ranks < 1:
        lacking, flag = ("GPU", "--gpus-per-node") if lacks_gpus else ("CPUs", "--cpus-per-rank")
        return f"no node has the {lacking} for one rank; lower {flag}"
    count = sum(ranks_on(node) >= ranks for node in nodes)
    count = min(count, partition.max_nodes or count)
    flags = ["--nodes"] if count < job.nodes else []
    if ranks < job.ranks_per_node:
        flags += ["--ranks-per-node", "--gpus-per-node" if lacks_gpus else "--cpus-per-rank"]
    return f"the largest case that fits is {count}n{int(ranks)}g; lower {' or '.join(flags)}"


def _shortage(job: JobPlan, partition: Partition, nodes: Sequence[Node]) -> str:
    fitting = [node for node in nodes if _fits(job, node, partition)]
    up = sum(node.up for node in fitting)
    if up >= job.nodes:
        return ""
    return (
        f"requests {plural(job.nodes, 'node')} and waits until more are up: of the {len(fitting)} in partition "
        f"{partition.name} that are large enough {up} are up now"
    )


def _sizes(nodes: Sequence[Node], partition: Partition) -> str:
    """`4 nodes of 8 CPUs and 8 GPUs`, the most frequent sizes first."""

    def size(node: Node) -> str:
        cpus = partition.cpus_of(node)
        gpus = f" and {plural(node.gpus, 'GPU')}" if node.gpus else ""
        return f"{plural(int(cpus), 'CPU') if cpus < float('inf') else 'unknown CPUs'}{gpus}"

    sizes = Counter(map(size, nodes)).most_common()
    shown = [f"{plural(number, 'node')} of {text}" for text, number in sizes[:_MAX_SIZES]]
    more = [f"{len(sizes) - _MAX_SIZES} more sizes"] if len(sizes) > _MAX_SIZES else []
    return ", ".join([*shown, *more]) or "no such node"
