"""The check of the images that a run trains on: pure, as those in hpc.preflight.compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc.model.data_source import data_source, steps_per_epoch
from hpc.model.spec import RunSpec
from hpc.preflight.result import CheckResult, failed, numbers, ok, some
from hpc.preflight.types import ImagesSeen, Seen
from hpc.system.text import first_of, inflect, plural
from hpc.workloads import WORKLOADS

MAX_NAMED = 3


def images(seen: Seen) -> CheckResult | None:
    """Compares what ranks find at the path, and its size with that of a step; None for a run that reads no files."""
    source = data_source(seen.run.data)
    listings = [(rank.hostname, rank.images) for rank in seen.ranks if rank.images is not None]
    if source is None or not listings:
        return None
    if problems := [*_problems(seen)]:
        return failed(some(problems))
    held_out = [(host, listing.evaluation) for host, listing in listings if listing.evaluation is not None]
    for compared, name in ((listings, "images"), (held_out, "held-out images")):
        if any(listing.sha256 != compared[0][1].sha256 for _, listing in compared):
            return failed(f"not all ranks find the same {name} in {source.path}: {some([*_differences(compared)])}")
    _, first = listings[0]
    if misfit := _misfit(seen.run, source.path, first):
        return misfit
    text = f"{plural(first.images, 'image')} in {_groups(first)}"
    text += f", {held_out[0][1].images} to evaluate on" if held_out else ""
    return ok(f"{text}, the same on all ranks")


def _misfit(run: RunSpec, path: str, first: ImagesSeen) -> CheckResult | None:
    """The reason why the run cannot train on as many images and classes as there are."""
    if first.images < run.global_batch_size:
        return failed(
            f"{path} has {plural(first.images, 'training image')}; a step takes {run.global_batch_size}, "
            f"{run.local_batch_size} for each of {plural(run.devices, 'device')}: no batch would be whole",
            "take more images, or a smaller --batch-size",
        )
    max_classes = WORKLOADS[run.workload].max_classes
    if first.group == "class" and first.groups > max_classes:
        return failed(
            f"{path} has {first.groups} classes; {run.workload} tells {max_classes} apart",
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


def _differences(listings: Sequence[tuple[str, ImagesSeen]]) -> Iterator[str]:
    """A text for each node that finds others than rank 0's, with the classes or files that only one of them has."""
    host, first = listings[0]
    by_group = first.by_group or {}
    noun = "class folder" if first.group == "class" else "file"
    for hostname, here in listings:
        if here.by_group is None or here.sha256 == first.sha256:
            continue
        text = f"{hostname} finds {here.images} in {_groups(here)}, {host} {first.images} in {first.groups}"
        for name, more, less in ((hostname, here.by_group, by_group), (host, by_group, here.by_group)):
            if only := sorted({*more} - {*less}):
                text += f", {noun} {first_of(only, MAX_NAMED)} on {name} only"
        if counts := [name for name, count in here.by_group.items() if by_group.get(name, count) != count]:
            text += f", different numbers of images in {noun} {first_of(counts, MAX_NAMED)}"
        yield text


def _groups(listing: ImagesSeen) -> str:
    """`2 classes` or `8 files`."""
    return f"{listing.groups} {'classes' if listing.group == 'class' else inflect(listing.groups, 'file')}"
