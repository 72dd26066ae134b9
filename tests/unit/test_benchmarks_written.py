"""Figures of benches in docs/results.md: each is of a bench that is there, and replaced by its next run."""

from __future__ import annotations

import benchmarks.__main__ as benches

TEXT = f"a\n{benches.BEGIN}* `bench_gone` (then):\n  - old\n* `bench_start` (then):\n  - old\n{benches.END}b\n"


def test_a_run_replaces_the_lines_of_its_bench_and_drops_those_of_benches_that_are_gone() -> None:
    text = benches.written(TEXT, "start", ["new: 1.5", ""], "today")
    assert text == f"a\n{benches.BEGIN}* `bench_start` (today):\n  - new: 1.5\n{benches.END}b\n"


def test_the_results_have_no_figures_of_benches_that_are_gone() -> None:
    inside = benches.RESULTS.read_text().partition(benches.BEGIN)[2].partition(benches.END)[0]
    named = {match["name"] for match in benches._PART.finditer(inside)}
    assert named <= {*benches.benches()}
    assert "".join(match[0] for match in benches._PART.finditer(inside)) == inside
