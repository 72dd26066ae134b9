"""The check of the images that a run trains on: pure, as those in hpc.preflight.compare."""

from __future__ import annotations

from collections.abc import Iterator

from hpc.model.data_source import data_source
from hpc.preflight.result import CheckResult, failed, numbers, ok, some
from hpc.preflight.types import ImagesSeen, Seen
from hpc.system.text import first_of, plural
from hpc.workloads import WORKLOADS

MAX_CLASSES_NAMED = 3


def images(seen: Seen) -> CheckResult | None:
    """Compares what ranks find at the path, and its size with that of a step; None for a run that reads no files."""
    source, run = data_source(seen.run.data), seen.run
    listings = [rank.images for rank in seen.ranks if rank.images is not None]
    if source is None or not listings:
        return None
    if problems := [*_problems(seen)]:
        return failed(some(problems))
    first, max_classes = listings[0], WORKLOADS[run.workload].max_classes
    if any(listing.sha256 != first.sha256 for listing in listings):
        return failed(f"not all ranks find the same images in {source.path}: {some([*_differences(seen, first)])}")
    if first.images < run.global_batch_size:
        return failed(
            f"{source.path} has {plural(first.images, 'training image')}; a step takes {run.global_batch_size}, "
            f"{run.local_batch_size} for each of {plural(run.devices, 'device')}: no batch would be whole",
            "take more images, or a smaller --batch-size",
        )
    if first.classes > max_classes:
        return failed(
            f"{source.path} has {first.classes} classes; {run.workload} tells {max_classes} apart",
            f"take an image set with at most {max_classes} class folders",
        )
    return ok(f"{plural(first.images, 'image')} in {first.classes} classes, the same on all ranks")


def _problems(seen: Seen) -> Iterator[str]:
    ranks_by_problem: dict[tuple[str, str], list[int]] = {}
    for rank in seen.ranks:
        if rank.images is not None and rank.images.problem:
            ranks_by_problem.setdefault((rank.hostname, rank.images.problem), []).append(rank.rank)
    for (host, problem), ranks in ranks_by_problem.items():
        yield f"rank {numbers(ranks)} on {host}: {problem}"


def _differences(seen: Seen, first: ImagesSeen) -> Iterator[str]:
    """A text for each node that finds others than rank 0's, with the class folders that only one of the two has."""
    host, by_class = seen.ranks[0].hostname, first.by_class or {}
    for rank in seen.ranks:
        here = rank.images
        if here is None or here.by_class is None or here.sha256 == first.sha256:
            continue
        text = f"{rank.hostname} finds {here.images} in {here.classes} classes, {host} {first.images}"
        text += f" in {first.classes}"
        for name, more, less in ((rank.hostname, here.by_class, by_class), (host, by_class, here.by_class)):
            if only := sorted({*more} - {*less}):
                text += f", class folder {first_of(only, MAX_CLASSES_NAMED)} on {name} only"
        if counts := [name for name, count in here.by_class.items() if by_class.get(name, count) != count]:
            text += f", different numbers of images in class folder {first_of(counts, MAX_CLASSES_NAMED)}"
        yield text
