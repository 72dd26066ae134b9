"""hpc.model.findings: written, read, shown."""

import json

import pytest

from hpc.model.findings import CheckFinding, Severity, State, as_text, read_finding

BUSY = CheckFinding(
    name="load", text="4.0 cores are busy", figures={"busy_cores": 4.0}, fix="take the nodes\nexclusively"
)
FINE = CheckFinding(name="same_driver", text="driver 535 on all nodes", state=State.OK, severity=Severity.FATAL)


@pytest.mark.parametrize("finding", [BUSY, FINE])
def test_a_finding_is_read_as_it_was_written(finding):
    assert read_finding(json.loads(json.dumps(finding.to_json()))) == finding


@pytest.mark.parametrize(
    "change",
    [
        {"severity": "deadly"},
        {"state": 3},
        {"text": None, "name": None},
        {"figures": 3},
        {"severity": None},
        {"fix": None},
    ],
)
def test_what_is_no_finding_is_refused(change):
    values = {name: value for name, value in (BUSY.to_json() | change).items() if value is not None}
    with pytest.raises(ValueError, match="not a finding"):
        read_finding(values)


def test_findings_are_shown_in_columns():
    unread = CheckFinding(name="x", text="unread", state=State.UNKNOWN)
    assert as_text([BUSY, FINE, unread], {"alarm": "CHANGE"}) == [
        "CHANGE   load         4.0 cores are busy",
        "                      → take the nodes",
        "                      → exclusively",
        "ok       same_driver  driver 535 on all nodes",
        "unknown  x            unread",
    ]
    assert "\x1b" not in as_text([CheckFinding(name="\x1b[2J", text="\x1b[2J", fix="\x1b[2J")])[0]
    assert as_text([]) == []
