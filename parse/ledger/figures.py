"""Figures and reasons as text: times, intervals, ranks, shares; causes of a loss; the network; symptoms and advice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpc.system.text import capitalized, inflect, plural
from parse import stats
from parse.ledger.causes import Cause
from parse.ledger.host_bound import HostPace
from parse.ledger.network import Basis, Fault, Network, NetworkFinding, Unknown
from parse.ledger.types import (
    CANNOT_TELL,
    Ledger,
    Mean,
    Merged,
    NoLoss,
    Pacer,
    Paces,
    RunLedger,
    StampErrors,
    Term,
    Unseen,
    Verdict,
    WithoutStraggler,
)

SMALL = 0.05
"""Losses below this share of the whole, and a median closer to the mean than this, are left out."""
NAMED = 5
"""As many steps of a transient straggler, or ranks that do not follow on one another, are named."""
SHORT_MS = 10
"""Steps below this are written to the microsecond, others to the hundredth of a millisecond."""
MICROSECONDS_BELOW_MS = 0.1
"""Bounds below this are written in microseconds."""


def numbers(ranks: Sequence[int]) -> str:
    """`0 to 7`, `2, 5`, `1, 4, 6, 7, 9, … (12)`."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    more = f", … ({len(ranks)})" if len(ranks) > NAMED else ""
    return f"{', '.join(map(str, ranks[:NAMED]))}{more}"


def small_time(ms: float) -> str:
    """A small time: in microseconds below MICROSECONDS_BELOW_MS."""
    return f"{ms * 1e3:.1f} µs" if ms < MICROSECONDS_BELOW_MS else f"{ms:.2f} ms"


def share(term: Term) -> str:
    """` (62 %)` of the whole loss, where both are larger than their intervals; else empty."""
    return "" if term.share is None or term.loss is None or not term.loss.resolved else f" ({term.share * 100:.0f} %)"


def coverage_text(coverage: float | None) -> str:
    """What an interval covers: `95 %`."""
    return "" if coverage is None else f"{coverage * 100:.3g} %"


class Figures:
    """Writes milliseconds, all figures of these ledgers with as many decimals."""

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self.decimals = 3 if min((ledger.step.value for ledger in ledgers), default=SHORT_MS) < SHORT_MS else 2

    def bare(self, value: float, sign: str = "") -> str:
        """Without a unit; `sign` `+` shows it. Never a minus before a zero."""
        return f"{round(value, self.decimals) + 0.0:{sign}.{self.decimals}f}"

    def ms(self, value: float, sign: str = "") -> str:
        return f"{self.bare(value, sign)} ms"

    def interval(self, mean: Mean, factor: float = 1) -> str:
        """`[11.80, 12.40]`; empty where there is none."""
        if mean.low is None or mean.high is None:
            return ""
        low, high = sorted((mean.low * factor, mean.high * factor))
        return f"[{self.bare(low)}, {self.bare(high)}]"

    def margin(self, mean: Mean) -> str:
        """`±0.30`; an interval whose middle is another value in full, and empty where there is none."""
        if mean.low is None or mean.high is None:
            return ""
        below, above = self.bare(mean.value - mean.low), self.bare(mean.high - mean.value)
        return f"±{above}" if below == above else self.interval(mean)

    def change(self, mean: Mean) -> str:
        """With its sign and unit; with its interval where 0 is in it."""
        interval = self.interval(mean)
        covered = f" {interval} (covers {coverage_text(mean.coverage)})" if interval and not mean.resolved else ""
        return f"{self.ms(mean.value, '+')}{covered}"


def round_number(value: float) -> str:
    """Three significant digits and no less than the whole number."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def speed_text(speed: float) -> str:
    """`4,210`, `162.1`: four significant digits and no less than the whole number."""
    return f"{speed:,.0f}" if speed >= 1000 else f"{speed:.4g}"


def without_text(without: WithoutStraggler, unit: str) -> str:
    """`256.7 instead of 177.7 samples/s`; where ranks share cores, what it may be, too."""
    text = f"{speed_text(without.speed)} instead of {speed_text(without.recorded)} {unit}"
    if (possible := without.possible) is None:
        return text
    return f"{text} ({speed_text(possible.low)} to {speed_text(possible.high)}, since ranks share cores)"


def pace_text(paces: Paces | None, write: Figures) -> str:
    """`Its host is slow: Python and launches take 21.60 ms there, for which its device waits up to 9.80 ms (on the
    others 0.00)`; empty where nothing is known."""
    if paces is None:
        return ""
    usual = f"up to {write.ms(paces.idle)} (on the others {write.bare(paces.usual_idle)})"
    host = f"Python and launches take {write.ms(paces.host)} there, for which its device waits {usual}"
    match paces.pacer:
        case Pacer.HOST:
            return f"Its host is slow: {host}"
        case Pacer.DEVICE:
            waits = f"{write.ms(paces.idle)} at most (on the others {write.bare(paces.usual_idle)})"
            return f"Its device is slow: there it waits for its host {waits}"
        case Pacer.UNKNOWN:
            return f"Its host or its device is slow: {host}, unless a full queue holds the host back"


# Why there is no loss, no term, no straggler, and other enums of a ledger as text; the names of its nodes.


def no_loss_text(ledger: Ledger) -> str:
    """Why there is no loss; empty where there is one."""
    match ledger.no_loss:
        case None:
            return ""
        case NoLoss.IS_BASE:
            return "it is the base"
        case NoLoss.NO_BASE:
            return "it is the only case of its setting"
        case NoLoss.BASE_NOT_OK:
            return f"no run of its base, {ledger.result.base_case}, ended ok with a trace"
        case NoLoss.NO_SAMPLES:
            return "how many samples its steps take is not known, and so whether the base's do as much"


def merged_text(reasons: Sequence[Merged]) -> str:
    """Why terms are one: which time stamps are missing, or which collectives come before the gradients are complete."""
    return "; ".join(dict.fromkeys(reason for merged in reasons for reason in _merge_reasons(merged)))


def _merge_reasons(merged: Merged) -> Iterator[str]:
    for border, count, total in merged.missing:
        where = "any step" if count >= total else f"{count} of {total} (ranks × steps)"
        yield f"{border} was not recorded in {where}"
    if (its := merged.unsplit) is not None:
        yield (
            f"{its.steps} of {plural(its.of_steps, 'step')} lack {' or '.join(its.borders)} and are in no term: they "
            f"take {its.mean:.2f} ms, the others {its.others:.2f}"
        )
    if merged.not_reduced:
        yield "gradients are not reduced"
    if merged.ends_early:
        yield (
            f"a rank ends {plural(merged.ends_early, 'step')} before another has begun them: they do not wait for one "
            "another in each step, or a step ends before its result is there (JAX computes behind its host)"
        )
    if merged.early_collectives:
        yield f"ranks meet before their gradients are complete: {', '.join(merged.early_collectives)}"


def problem_texts(errors: StampErrors | None) -> list[str]:
    """Each kind of time stamps that cannot be right."""
    if errors is None:
        return []
    of = f"of {errors.total} (ranks × steps)"
    texts = {
        f"{errors.disordered} stamps {of} are earlier than one that must precede them": errors.disordered,
        f"{errors.gaps} steps {of} do not begin where the one before them ended": errors.gaps,
        f"in {errors.early} {of} the reduced gradients are there before the last rank has its own, by up to "
        f"{errors.early_ms:.3f} ms more than the clocks' bounds: the stamps or the clocks are wrong": errors.early,
    }
    return [text for text, count in texts.items() if count]


def ledger_problems(ledger: Ledger) -> list[str]:
    """The errors of the measurement, over all runs."""
    return [f"{run.run_id}: {problem}" for run in ledger.runs for problem in problem_texts(run.problems)]


def because_text(verdict: Verdict) -> str:
    """The basis of a verdict without a straggler; of one with, where ranks also meet unseen, or empty."""
    because = verdict.because
    if isinstance(because, Unseen):
        return unseen_text(because)
    return merged_text([because]) if isinstance(because, Merged) else because or ""


def unseen_text(unseen: Unseen) -> str:
    """`ranks also meet in shared memory (/dev/shm/x), mpi4py, which no hook sees`."""
    if unseen.ways:
        return f"ranks also meet in {', '.join(unseen.ways)}, which no hook sees"
    return f"a rank sleeps {unseen.asleep:.2f} ms of a step and no hook sees what for: it may wait for another"


def verdict_text(verdict: Verdict) -> str:
    """`persistent`, `rotating`, `transient`, `none`, `cannot tell (clock)`."""
    because = because_text(verdict)
    return f"{verdict.kind} ({because})" if verdict.kind == CANNOT_TELL and because else verdict.kind


def node_names(ledger: Ledger) -> list[str]:
    """The names of its nodes; those that are only groups of ranks on one machine with their number."""
    names = [node.name for node in ledger.nodes]
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name}:{place}" for place, name in enumerate(names)]


def host_of(ledger: Ledger, rank: int) -> str:
    """The name of the node that a rank is on; empty where it is not known."""
    named = zip(node_names(ledger), ledger.nodes, strict=True)
    return next((name for name, node in named if rank in node.ranks), "")


def repeat_of(run: RunLedger) -> str:
    """The number of the repeat, from the run's id."""
    return run.run_id.rpartition("_r")[2]


# A device that waits for its host, as sentences.

HOST_BOUND = 0.05
"""A device whose host sets the pace for a smaller share of the step is no sentence."""
MAY_IDLE = 0.2
"""The same where events only leave open that the device waits: hosts that are not behind queue kernels, too."""
EVERY_STEP = 0.5
"""From so many waits for the device a step on, these are part of the advice."""


def host_bound_sentences(ledger: Ledger, write: Figures) -> Iterator[str]:
    """`The GPU of rank 1 (n0) idles in 31 % of the step because its host is behind: 4.00 ms of compute, 0.25 ms of the
    optimizer`, and what to do; nothing where hosts are hardly behind."""
    paces = {} if ledger.host_bound is None else dict(enumerate(ledger.host_bound.ranks))
    known = {rank: pace for rank, pace in paces.items() if pace is not None}
    if ledger.host_bound is None or not known:
        return
    step = ledger.step.value
    is_proven = max(pace.behind for pace in known.values()) >= HOST_BOUND * step
    behind = {rank: pace.behind if is_proven else pace.most_behind for rank, pace in known.items()}
    rank = max(behind, key=lambda each: behind[each])
    if behind[rank] < (HOST_BOUND if is_proven else MAY_IDLE) * step:
        return
    pace, whose = known[rank], "its host is"
    if len(ledger.ranks) == 1:
        who = "The GPU"
    elif behind[rank] - min(behind.values()) < HOST_BOUND * step:
        pace, who, whose = ledger.host_bound.mean, "Each GPU", "the hosts are"
    else:
        host = host_of(ledger, rank)
        who = f"The GPU of rank {rank}{f' ({host})' if host else ''}"
    yield _idles(pace, step, f"{who} {{}} of the step because {whose} behind", write, is_proven=is_proven)
    advice = "CUDA graphs or torch.compile, fewer small kernels"
    if pace.syncs is not None and pace.syncs >= EVERY_STEP:
        times = "once" if pace.syncs == 1 else f"{round_number(pace.syncs)} times"
        advice += f", no .item() in every step (the script waits for its device {times} in each)"
    yield f"To do: {advice}"


def _idles(pace: HostPace, step_ms: float, form: str, write: Figures, *, is_proven: bool) -> str:
    """In how much of the step, by phase; `form` has a place for how much."""
    names = {"compute": "compute", "reduction": "the reduction", "optimizer": "the optimizer"}
    parts = {name: getattr(pace, phase) for phase, name in names.items()}
    if not is_proven:
        parts = {name: (pace.at_most or {}).get(phase, 0.0) for phase, name in names.items()}
    up_to = "" if is_proven else "up to "
    listed = ", ".join(f"{up_to}{write.ms(ms)} of {name}" for name, ms in parts.items() if float(write.bare(ms)))
    share_text = f"{(pace.behind if is_proven else pace.most_behind) / step_ms * 100:.0f} %"
    text = form.format(f"idles in {share_text}" if is_proven else f"may idle in up to {share_text}")
    return f"{text}: {listed}" if is_proven else f"{text}, which its events leave open: {listed}"


# The network of a point as text: sentences, and the lines below them.

BELOW_US = 0.1
"""Milliseconds below this are written in microseconds."""
MUTE = (Unknown.TWO_NODES, Unknown.NO_PAIRS, Unknown.FEW_SEGMENTS)
"""What a point without a fault lacks, too, is in the JSON only."""
ADVICE = {
    Fault.LATENCY: "fewer, larger reductions (--option bucket_cap_mb), a faster transport, nodes nearer to one another",
    Fault.BANDWIDTH: "see which interface is used (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, NCCL_IB_HCA) and its speed",
    Fault.LOSS: "see the error counters of cables and switch ports between these nodes, their MTU and duplex mode",
    Fault.SLOW_LINK: "see cable, port and link speed; leave it out meanwhile (`exclude` of the site)",
}
HOW = {
    Unknown.NO_COLLECTIVES: "no collectives of these ranks are here (hpc.sweep --collectives)",
    Unknown.NOT_THE_WAY: "small all-reduces take longer than their messages' way: cores or software, not the network",
    Unknown.OUTSIDE: "the collectives here did not measure as many bytes as the gradients have",
}
"""Reasons with what to do; others alone."""


def network_sentences(network: Network | None) -> Iterator[str]:
    """The findings as sentences without their full stops, each kind with what to do."""
    if network is None:
        return
    trip = median_trip(network)
    advised = set()
    for finding in network.findings:
        text = finding_text(finding, trip)
        yield capitalized(text)
        if finding.kind not in advised:
            yield f"To do: {ADVICE[finding.kind]}"
            advised.add(finding.kind)


def median_trip(network: Network) -> float | None:
    """ms there and back between the first node and another; None where it is not known."""
    trips = [trip.ms for trip in network.round_trips]
    return stats.median(trips) if trips else None


def network_notes(network: Network | None) -> Iterator[str]:
    """The figures behind the findings, and why a finding is not known."""
    if network is None:
        return
    if figures := [*_figures(network)]:
        yield f"network: {'; '.join(figures)}"
    for slow in network.noted:
        yield f"network: {finding_text(slow)}; it costs nothing today: what is exposed is too little to be its doing"
    reasons: dict[Unknown, list[str]] = {}
    for missing in network.unknown:
        if missing.reason not in MUTE:
            reasons.setdefault(missing.reason, []).append(missing.kind)
    for reason, kinds in reasons.items():
        yield f"network: {' and '.join(kinds)} not known: {HOW.get(reason, str(reason))}"


def finding_text(finding: NetworkFinding, trip_ms: float | None = None) -> str:
    """A finding with its figures; `trip_ms` is the round trip between two nodes."""
    explains = "" if finding.explains is None else f", {_ms(finding.explains)} of the exposed communication"
    match finding.kind, finding.basis:
        case Fault.LATENCY, Basis.CURVE:
            trip = "" if trip_ms is None else f"a round trip between nodes takes {_ms(trip_ms)}, "
            text = f"communication is bound by latency: {trip}the smallest all-reduce {_ms(finding.value)}{explains}"
        case Fault.LATENCY, Basis.ROUND_TRIPS:
            trip = f"a round trip between nodes takes {_ms(2 * finding.value)}"
            text = f"communication is bound by latency: {trip}, at least{explains[1:]}"
        case Fault.LATENCY, _:
            text = f"the network takes {_ms(finding.value)} one way, the site promises {_ms(finding.usual or 0)}"
        case Fault.BANDWIDTH, Basis.CURVE:
            link = "" if finding.usual is None else f" (its link has {_rate(finding.usual)})"
            text = f"communication is bound by bandwidth: a node sends {_rate(finding.value)}{link}{explains}"
        case Fault.BANDWIDTH, Basis.LINK_SPEED:
            carried = (
                f"node {finding.nodes[0]} carries {_rate(finding.value)} of its link's {_rate(finding.usual or 0)}"
            )
            text = f"communication is bound by bandwidth: {carried}"
        case Fault.BANDWIDTH, _:
            text = f"a node sends {_rate(finding.value)}, the site promises {_rate(finding.usual or 0)}"
        case Fault.LOSS, _:
            others = "" if finding.usual is None else f" (at other points {_percent(finding.usual)})"
            text = f"packets are lost: {_percent(finding.value)} of the TCP segments{others}"
        case _:
            text = _slow_link(finding)
    return text


def _slow_link(finding: NetworkFinding) -> str:
    of_bandwidth = finding.quantity is Fault.BANDWIDTH
    write = _rate if of_bandwidth else _ms
    small = "one way" if finding.basis is Basis.ROUND_TRIPS else "for a small message"
    figures = f"{write(finding.value)} {'each way' if of_bandwidth else small}"
    if finding.basis is Basis.CONNECTIONS:
        figures = f"{write(finding.value)} while data are on their way"
    figures += "" if finding.usual is None else f", others {write(finding.usual)}"
    figures += "" if finding.explains is None else f", which is {_ms(finding.explains)} of the exposed communication"
    if len(finding.nodes) > 1:
        return f"the link between {finding.nodes[0]} and {finding.nodes[1]} is slow: {figures}"
    if finding.basis is Basis.ROUND_TRIPS:
        return f"the link from the first node to {finding.nodes[0]} is slow: {figures}"
    return f"the links of node {finding.nodes[0]} are slow: {figures}"


def _figures(network: Network) -> Iterator[str]:
    if trips := [trip.ms for trip in network.round_trips]:
        low, high = _ms(min(trips)), _ms(max(trips))
        yield f"{inflect(len(trips), 'round trip')} from the first node {low if low == high else f'{low} to {high}'}"
    if (reduction := network.reduction) is not None:
        parts = f"{_ms(reduction.latency_ms)} of it latency, {_ms(reduction.bandwidth_ms)} bandwidth"
        yield f"one all-reduce of the gradients by itself {_ms(reduction.ms)}, {parts}"
    if network.bandwidth is not None:
        yield f"a node sends {_rate(network.bandwidth)} at least while communication is exposed"
    if rates := [1 / each.ms_per_mb for each in network.sent]:
        low, high = _rate(min(rates)), _rate(max(rates))
        both = low if low == high else f"{low} to {high}"
        yield f"TCP connections between nodes carry {both} while data are on their way"
    if (use := network.link_use) is not None:
        yield f"the busiest link (node {use.node}) carries {_rate(use.carried)} of {_rate(use.speed)}"
    if (segments := network.segments) is not None:
        needless = "" if segments.needless is None else f", {segments.needless:.0f} of them needlessly"
        resent = f"{segments.resent:.0f} of {segments.sent:.0f} TCP segments sent again{needless}"
        others = "" if network.usual_loss is None else f", other points {_percent(network.usual_loss)}"
        yield f"{resent}: {_percent(segments.share)} lost{others}"


def _ms(ms: float) -> str:
    return f"{ms * 1e3:.1f} µs" if 0 < ms < BELOW_US else f"{ms:.2f} ms"


def _rate(gigabytes: float) -> str:
    """GB/s as links are named."""
    mbit = gigabytes * 8e3
    return f"{mbit / 1e3:.3g} Gbit/s" if mbit >= 1e3 else f"{mbit:.3g} Mbit/s"


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %"


@dataclass(frozen=True)
class SymptomText:
    """A quantity of the telemetry as a clause about the straggler, with its value; what to do about it.

    `{}` is the value, `{detail:…}` what is behind it in place of the `%`, nothing where that is not known.
    """

    phrase: str
    advice: str = ""

    def clause(self, value: str, detail: str) -> str:
        """The clause with these."""
        return re.sub(
            r"\{detail:(.*?)\}", lambda match: match[1].replace("%", detail) if detail else "", self.phrase
        ).format(value)


SYMPTOMS: Mapping[str, SymptomText] = {
    Cause.QUOTA: SymptomText(
        "a CPU quota holds it back {} ms a step",
        "raise the limit of its control group, or ask for more CPUs (--cpus-per-task, the container's limit)",
    ),
    Cause.STOPPED: SymptomText(
        "its process is stopped {} ms a step",
        "find what stops it: SIGSTOP of a scheduler or script, a debugger, a frozen container",
    ),
    Cause.STORAGE: SymptomText(
        "it waits for storage {} ms a step",
        "write less often (fsync, checkpoints, logs), in the background, or to faster storage",
    ),
    Cause.COMPUTE_THREADS: SymptomText(
        "its other compute threads{detail: (%)} take {} ms of processor time a step",
        "set OMP_NUM_THREADS or torch.set_num_threads to the number of cores that it may use",
    ),
    Cause.PYTHON_THREADS: SymptomText(
        "its Python thread{detail: %} takes {} ms of processor time a step",
        "a Python thread that computes holds the GIL: move its work to another process",
    ),
    Cause.OTHER_THREADS: SymptomText(
        "its other threads take {} ms of processor time a step",
        "set OMP_NUM_THREADS or torch.set_num_threads to the number of cores that it may use; a Python thread that "
        "computes holds the GIL: move its work to another process",
    ),
    Cause.CHILDREN: SymptomText(
        "processes that it started take {} ms of processor time a step",
        "give it more cores (--cpus-per-rank), or start fewer workers",
    ),
    Cause.NEIGHBOURS: SymptomText(
        "other ranks{detail: (%)} take {} ms a step of its cores", "bind every rank to cores of its own"
    ),
    Cause.OTHERS: SymptomText(
        "other processes{detail: (%)} take {} ms a step of its cores",
        "see the check `load`, bind ranks to cores, take nodes exclusively",
    ),
    Cause.GARBAGE: SymptomText(
        "in these steps Python collects its garbage for {} ms{detail:, %}",
        "call gc.freeze() once all is built; or gc.disable(), and gc.collect() in the same steps on all ranks",
    ),
    Cause.SAMPLES: SymptomText(
        "it trains on {} samples a step",
        "give every rank as many samples, or as long ones: see its batches and its share",
    ),
    Cause.COMPUTES: SymptomText(
        "its main thread takes {} ms of processor time a step",
        "compare its work with the others': batch size, lengths, tokens; if equal, its core is slower",
    ),
    Cause.SLEEPS: SymptomText(
        "its main thread sleeps {} ms a step longer in its own work",
        "find what it waits for: its loader, a lock, a file, the network, another process, a sleep",
    ),
    Cause.QUEUED: SymptomText(
        "it is ready to run but not running {} ms a step",
        "possible are a CPU quota, threads of its own, another process: see the check `load`, and how ranks are bound",
    ),
    "a rank loses its core": SymptomText("it loses its core {} times a step"),
    "minor page faults of a rank": SymptomText(
        "it has {} page faults a step",
        "memory is given back and mapped again while it trains: keep buffers, raise MALLOC_TRIM_THRESHOLD_ and "
        "MALLOC_MMAP_THRESHOLD_, or preload another allocator",
    ),
    "a rank does not run": SymptomText(
        "its process does not run for {} s",
        "it was stopped (SIGSTOP, a debugger, a container that is frozen), or waits for storage: see its node's log",
    ),
    "major page faults of a rank": SymptomText(
        "it reads {} pages a step from the disk",
        "too little memory on its node, or mapped files that the cache does not hold",
    ),
    "SM clock": SymptomText("its SM clock is {} MHz", "see its power limit, temperature and throttle reasons"),
    "GPU clock": SymptomText("its GPU clock is {} MHz", "see its power limit, temperature and throttle reasons"),
    "CPU frequency": SymptomText("its CPU frequency is {} MHz", "see the node's power settings and temperature"),
    "swapped out": SymptomText("its node swaps out {} MB a step", "too little memory on its node"),
    "the hypervisor takes from the ranks": SymptomText(
        "the hypervisor takes {} ms a step from its node", "the machine below the node is shared"
    ),
}
"""By the names of `parse.ledger.telemetry.QUANTITIES`; a phrase holds the unit that its quantity has in a step."""
