"""parse.report.ledger: what a ledger looks like, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from hpc.model.outcome import Outcome
from parse.ledger.point import ledgers
from parse.ledger.types import Ledger, Place
from parse.ledger.verdict import Because, CannotTell
from parse.report.ledger import NOTHING, PLACES, ledger_text, worth_a_row
from parse.report.summary import Summary
from parse.report.table import FORMATS, text
from parse.runs.load import load
from parse.runs.result import results
from parse.term_kinds import TERMS
from parse.text import Page
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.ledgers import CROWD, LATE, in_groups, make_ledger, results_of, strong, two_nodes, weak
from tests.unit.traces import ended, judged, make_run, make_trace, put, repeats


@pytest.mark.parametrize(
    ("summary", "form", "ending"),
    [
        (strong, "table", "txt"),
        *[(summary, *form) for summary in (weak, in_groups)
          for form in (("table", "txt"), ("markdown", "md"), ("json", "json"))],
    ],
)  # fmt: skip
def test_the_formats_are_as_in_the_golden_files(golden, summary, form, ending):
    golden(f"ledger_{summary.__name__}.{ending}", FORMATS[form](summary()))


def test_a_base_of_several_ranks_as_in_the_golden_file(golden, tmp_path):
    """Of weak scaling against 1n2g, where a rank is late on the larger case; of strong scaling against 2n2g."""
    for repeat in (1, 2, 3):
        weak_run, strong_run = run_of(repeat=repeat), run_of(repeat=repeat, scaling="strong", batch_size=16)
        for run, how in (
            (dataclasses.replace(weak_run, nodes=1), {"communication": 1.0}),
            (weak_run, {"communication": 2.5, "forward": on(3, ms=4.0)}),
            (strong_run, {"communication": 2.0}),
            (dataclasses.replace(strong_run, nodes=4), {"communication": 3.0, "backward": on(*range(8), ms=-3.0)}),
        ):
            put(tmp_path, trace_of(run, noise=0.05, seed=repeat, **how))
    points = results(load([tmp_path]))
    summary = Summary(results=points, ledgers=ledgers(points))
    golden("ledger_base.txt", "\n".join([*ledger_text(summary, Page(width=100, verbose=True)), ""]))


def test_no_ledger_is_shown_unless_requested():
    summary = weak()
    whole = Page(verbose=True)
    assert text(dataclasses.replace(summary, ledgers=None), whole) in text(summary, whole)
    assert "ledgers" not in json.loads(FORMATS["json"](dataclasses.replace(summary, ledgers=None)))
    assert NOTHING in text(dataclasses.replace(summary, ledgers=()))


# Tables of places


def test_nodes_of_one_name_have_different_labels():
    ledger = two_nodes(verdict=LATE)
    simulated = dataclasses.replace(ledger, nodes=tuple(dataclasses.replace(node, name="vm") for node in ledger.nodes))
    lines = ledger_text(Summary(results=(ledger.result,), ledgers=(simulated,)), Page(width=200, verbose=True))
    assert any("Rank 3 (vm:1) computes" in line for line in lines)
    assert [line.split()[0] for line in lines if line.startswith("    vm:")] == ["vm:0", "vm:1"]


def test_of_many_ranks_the_most_often_last_and_the_longest_waiting_are_shown():
    result = results_of((4, 8))[0]
    ledger = make_ledger(result, CROWD, None, verdict=dataclasses.replace(LATE, ranks=(30,)))
    waits = dict.fromkeys(range(32), 22.5) | {17: 52.0}
    often = dict.fromkeys(range(32), 0.0) | {30: 0.3} | dict.fromkeys(range(7), 0.5)
    ranks = tuple(
        Place(name="", ranks=(rank,), terms=(1.0, 34.5, waits[rank], 4.1, 1.0), last=often[rank]) for rank in range(32)
    )
    shown = [place.ranks[0] for place in worth_a_row(ledger, ranks)]
    assert shown == [0, 1, 2, 3, 4, 5, 17, 30]
    assert len(shown) == PLACES
    lines = ledger_text(
        Summary(results=(result,), ledgers=(dataclasses.replace(ledger, ranks=ranks),)), Page(verbose=True)
    )
    assert "  by rank, ms (8 of 32: those that come last most, and the one that waits most):" in lines


def test_an_unknown_share_of_steps_is_a_dash():
    ledger = two_nodes(verdict=CannotTell(because=Because.CLOCK))
    ranks = tuple(dataclasses.replace(place, last=None) for place in ledger.ranks)
    lines = ledger_text(
        Summary(results=(ledger.result,), ledgers=(dataclasses.replace(ledger, ranks=ranks, nodes=()),)),
        Page(verbose=True),
    )
    row = next(line for line in lines if line.split()[:2] == ["0", "-"])
    assert row.split()[-1] == "-"


# JSON


def test_json_has_every_term_and_adds_up():
    content = json.loads(FORMATS["json"](weak()))
    for entry, (case, ranks) in zip(content["ledgers"], (("1n1g", 1), ("2n2g", 4), ("2n8g", 16)), strict=True):
        assert [term["name"] for term in entry["terms"]] == list(TERMS)
        assert sum(term["mean"]["value"] for term in entry["terms"]) == pytest.approx(entry["step"]["value"])
        assert (entry["case"], len(entry["ranks"])) == (case, ranks)
        assert entry["point_id"] in {result["point_id"] for result in content["results"]}
        absent = {"result", "host_bound", "dimensions", "roles"}
        assert {field.name for field in dataclasses.fields(Ledger)} - entry.keys() == absent


def test_what_is_no_number_is_null_there():
    runs = tuple(dataclasses.replace(run, bound=float("inf")) for run in two_nodes().runs)
    ledger = two_nodes(runs=runs, median_step=float("nan"))
    written = json.loads(FORMATS["json"](Summary(results=(ledger.result,), ledgers=(ledger,))))["ledgers"][0]
    assert written["runs"][0]["bound"] is None and written["median_step"] is None


# Diagnostic runs


def test_diagnostic_runs_stand_beside_the_points_and_nowhere_among_them():
    point = make_run(nodes=2, ranks_per_node=2)
    no_sync = dataclasses.replace(point, reduction="off")
    bench = dataclasses.replace(point, workload="collectives", batch_size=1)
    failed = [ended(repeats(no_sync, 2)[1], Outcome.RANK_FAIL, "boom\x1b[2J")]
    judged_results = judged(
        [make_trace(point), make_trace(no_sync), make_trace(bench)], [*repeats(no_sync, 2), bench], failed
    )
    summary = Summary(
        results=tuple(result for result in judged_results if not result.run.diagnostic),
        diagnostics=tuple(result for result in judged_results if result.run.diagnostic),
    )
    written = text(summary, Page(verbose=True))
    assert "beside the points: collectives of 2n2g 1/1 ok, no-sync of 2n2g 1/2 ok" in written
    assert "no-sync of 2n2g: run 2: rank_fail (boom\\x1b[2J)" in written
    assert len([line for line in written.splitlines() if line.startswith("2n2g ")]) == 1
    content = json.loads(FORMATS["json"](summary))
    assert [entry["diagnostic"] for entry in content["diagnostics"]] == ["collectives", "no-sync"]
    assert len(content["results"]) == 1
    assert "collectives" not in FORMATS["csv"](summary)


@pytest.mark.parametrize("form", ["table", "markdown", "json"])
def test_diagnostic_runs_alone_are_named(form):
    bench = make_run(nodes=2, workload="collectives", batch_size=1)
    written = FORMATS[form](Summary(results=(), diagnostics=judged([make_trace(bench)], [bench]), ledgers=()))
    assert "collectives of 2n1g 1/1 ok" in written or json.loads(written)["diagnostics"][0]["case"] == "2n1g"
