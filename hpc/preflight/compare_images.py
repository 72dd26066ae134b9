"""The check of the images that a run trains on: pure, as those in hpc.preflight.compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpc.model.data_source import WEBDATASET, data_source, steps_per_epoch
from hpc.model.spec import RunSpec
from hpc.preflight.result import CheckResult, failed, numbers, ok, some
from hpc.preflight.types import ImagesSeen, Seen
from hpc.system.text import first_of, plural
from hpc.workloads import WORKLOADS

MAX_PARTS_NAMED = 3


class Part(NamedTuple):
    """What images lie in: in a sentence, several of them, and on the disk."""

    name: str
    plural: str
    place: str


PARTS = {WEBDATASET: Part("shard", "shards", "shard")}
"""By kind of files; others have class folders."""
CLASSES = Part("class", "classes", "class folder")


def images(seen: Seen) -> CheckResult | None:
    """Compares what ranks find at the path, and its size with that of a step; None for a run that reads no files."""
    source = data_source(seen.run.data)
    listings = [(rank.hostname, rank.images) for rank in seen.ranks if rank.images is not None]
    if source is None or not listings:
        return None
    if problems := [*_problems(seen)]:
        return failed(some(problems))
    held_out = [(host, listing.evaluation) for host, listing in listings if listing.evaluation is not None]
    part = PARTS.get(source.kind, CLASSES)
    for compared, name in ((listings, "images"), (held_out, "held-out images")):
        if any(listing.sha256 != compared[0][1].sha256 for _, listing in compared):
            return failed(
                f"not all ranks find the same {name} in {source.path}: {some([*_differences(compared, part)])}"
            )
    _, first = listings[0]
    if misfit := _misfit(seen.run, source.path, first, part):
        return misfit
    text = f"{plural(first.images, 'image')} in {first.parts} {part.plural if first.parts != 1 else part.name}"
    text += f", {held_out[0][1].images} to evaluate on" if held_out else ""
    return ok(f"{text}, the same on all ranks")


def _misfit(run: RunSpec, path: str, first: ImagesSeen, part: Part) -> CheckResult | None:
    """The reason why the run cannot train on as many images and classes as there are."""
    if first.images < run.global_batch_size:
        return failed(
            f"{path} has {plural(first.images, 'training image')}; a step takes {run.global_batch_size}, "
            f"{run.local_batch_size} for each of {plural(run.devices, 'device')}: no batch would be whole",
            "take more images, or a smaller --batch-size",
        )
    max_classes = WORKLOADS[run.workload].max_classes
    if part is CLASSES and first.parts > max_classes:
        return failed(
            f"{path} has {first.parts} classes; {run.workload} tells {max_classes} apart",
            f"take an image set with at most {max_classes} class folders",
        )
    if run.epochs and run.steps > (in_epoch := steps_per_epoch(run, first.images)):
        return failed(
            f"the measured steps must lie in one epoch: with the warm-up the run has {run.steps} steps, and an epoch "
            f"of the {plural(first.images, 'image')} in {path} has {in_epoch}, {run.global_batch_size} a step",
            f"take --steps {in_epoch} or fewer, a smaller --batch-size, or more images",
        )
    return None


def _problems(seen: Seen) -> Iterator[str]:
    ranks_by_problem: dict[tuple[str, str], list[int]] = {}
    for rank in seen.ranks:
        for listing in (rank.images, rank.images and rank.images.evaluation):
            if listing is not None and listing.problem:
                ranks_by_problem.setdefault((rank.hostname, listing.problem), []).append(rank.rank)
    for (host, problem), ranks in ranks_by_problem.items():
        yield f"rank {numbers(ranks)} on {host}: {problem}"


def _differences(listings: Sequence[tuple[str, ImagesSeen]], part: Part) -> Iterator[str]:
    """A text for each node that finds others than rank 0's, with the class folders or shards that only one has."""
    host, first = listings[0]
    by_part = first.by_part or {}
    for hostname, here in listings:
        if here.by_part is None or here.sha256 == first.sha256:
            continue
        text = f"{hostname} finds {here.images} in {here.parts} {part.plural}, {host} {first.images}"
        text += f" in {first.parts}"
        for name, more, less in ((hostname, here.by_part, by_part), (host, by_part, here.by_part)):
            if only := sorted({*more} - {*less}):
                text += f", {part.place} {first_of(only, MAX_PARTS_NAMED)} on {name} only"
        if counts := [name for name, count in here.by_part.items() if by_part.get(name, count) != count]:
            text += f", different numbers of images in {part.place} {first_of(counts, MAX_PARTS_NAMED)}"
        yield text
