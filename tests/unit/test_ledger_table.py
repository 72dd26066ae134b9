"""parse.report.ledger: what a ledger looks like, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from hpc.model.outcome import Outcome
from parse.ledger.types import CANNOT_TELL, TERMS, Ledger, Place, Verdict
from parse.report.ledger import NOTHING, PLACES, ledger_text, worth_a_row
from parse.report.summary import Summary
from parse.report.table import FORMATS, text
from parse.text import PIPE_WIDTH, Page
from tests.unit.ledgers import CROWD, LATE, make_ledger, results_of, strong, two_nodes, weak
from tests.unit.traces import ended, judged, make_run, make_trace, repeats


@pytest.mark.parametrize(("form", "ending"), [("table", "txt"), ("markdown", "md"), ("json", "json")])
@pytest.mark.parametrize("summary", [weak, strong])
def test_the_formats_are_as_in_the_golden_files(golden, summary, form, ending):
    golden(f"ledger_{summary.__name__}.{ending}", FORMATS[form](summary()))


@pytest.mark.parametrize("form", ["table", "markdown"])
@pytest.mark.parametrize("summary", [weak, strong])
def test_lines_fit_a_terminal_and_steer_nothing(summary, form):
    written = FORMATS[form](summary())
    assert "\x1b" not in written
    assert form == "markdown" or max(map(len, written.splitlines())) <= PIPE_WIDTH


def test_without_the_question_there_is_no_ledger_and_without_traces_it_says_so():
    summary = weak()
    assert text(dataclasses.replace(summary, ledgers=None)) in text(summary)
    assert "ledgers" not in json.loads(FORMATS["json"](dataclasses.replace(summary, ledgers=None)))
    assert NOTHING in text(dataclasses.replace(summary, ledgers=()))


# Tables of places


def test_nodes_of_one_name_are_told_apart():
    ledger = two_nodes(verdict=LATE)
    simulated = dataclasses.replace(ledger, nodes=tuple(dataclasses.replace(one, name="vm") for one in ledger.nodes))
    lines = ledger_text(Summary(results=(ledger.result,), ledgers=(simulated,)), Page(width=200))
    assert any("rank 3 (vm:1) is late" in line for line in lines)
    assert [line.split()[0] for line in lines if line.startswith("    vm:")] == ["vm:0", "vm:1"]


def test_of_many_ranks_those_are_shown_that_come_last_most_and_the_one_that_waits_most():
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
    lines = ledger_text(Summary(results=(result,), ledgers=(dataclasses.replace(ledger, ranks=ranks),)), Page())
    assert "  by rank, ms (8 of 32: those that come last most, and the one that waits most):" in lines


def test_where_lateness_cannot_be_told_there_is_no_share_of_steps():
    ledger = two_nodes(verdict=Verdict(kind=CANNOT_TELL, because="clock"))
    ranks = tuple(dataclasses.replace(place, last=None) for place in ledger.ranks)
    lines = ledger_text(
        Summary(results=(ledger.result,), ledgers=(dataclasses.replace(ledger, ranks=ranks, nodes=()),)), Page()
    )
    row = next(line for line in lines if line.split()[:2] == ["0", "-"])
    assert row.split()[-1] == "-"


# JSON


def test_json_has_every_term_and_adds_up():
    ledgers = json.loads(FORMATS["json"](weak()))["ledgers"]
    assert [one["case"] for one in ledgers] == ["1n1g", "2n2g", "2n8g"]
    for one in ledgers:
        assert [term["name"] for term in one["terms"]] == list(TERMS)
        assert sum(term["mean"]["value"] for term in one["terms"]) == pytest.approx(one["step"]["value"])
        assert len(one["ranks"]) == {"1n1g": 1, "2n2g": 4, "2n8g": 16}[one["case"]]
    slow = ledgers[1]
    fields = {field.name for field in dataclasses.fields(Ledger)} - {"result"}
    assert fields <= slow.keys()
    assert slow["verdict"]["kind"] == "persistent" and slow["verdict"]["ranks"] == [3]
    assert slow["alone"]["hidden"] == pytest.approx(14.0)
    assert slow["sentence"].startswith("2n2g: a step takes 63.10 ms")
    assert slow["point_id"] in {one["point_id"] for one in json.loads(FORMATS["json"](weak()))["results"]}
    assert ledgers[0]["loss"] is None and ledgers[0]["no_loss"] == "it is the baseline"


def test_what_is_no_number_is_null_there():
    runs = tuple(dataclasses.replace(run, bound=float("inf")) for run in two_nodes().runs)
    ledger = two_nodes(runs=runs, median_step=float("nan"))
    written = json.loads(FORMATS["json"](Summary(results=(ledger.result,), ledgers=(ledger,))))["ledgers"][0]
    assert written["runs"][0]["bound"] is None and written["median_step"] is None


# Probes


def test_probes_stand_beside_the_points_and_nowhere_among_them():
    point = make_run(nodes=2, ranks_per_node=2)
    twin = dataclasses.replace(point, reduction="off")
    bench = dataclasses.replace(point, workload="collectives", batch_size=1)
    failed = [ended(repeats(twin, 2)[1], Outcome.RANK_FAIL, "boom\x1b[2J")]
    found = judged([make_trace(point), make_trace(twin), make_trace(bench)], [*repeats(twin, 2), bench], failed)
    summary = Summary(
        results=tuple(one for one in found if not one.run.diagnostic),
        probes=tuple(one for one in found if one.run.diagnostic),
    )
    written = text(summary)
    assert "beside the points: collectives of 2n2g 1/1 ok, no-sync of 2n2g 1/2 ok" in written
    assert "no-sync of 2n2g: run 2: rank_fail (boom\\x1b[2J)" in written
    assert len([line for line in written.splitlines() if line.startswith("2n2g ")]) == 1
    content = json.loads(FORMATS["json"](summary))
    assert [one["probe"] for one in content["probes"]] == ["collectives", "no-sync"]
    assert len(content["results"]) == 1
    assert "collectives" not in FORMATS["csv"](summary)


@pytest.mark.parametrize("form", ["table", "markdown", "json"])
def test_probes_alone_are_named(form):
    bench = make_run(nodes=2, workload="collectives", batch_size=1)
    written = FORMATS[form](Summary(results=(), probes=judged([make_trace(bench)], [bench]), ledgers=()))
    assert "collectives of 2n1g 1/1 ok" in written or json.loads(written)["probes"][0]["case"] == "2n1g"
