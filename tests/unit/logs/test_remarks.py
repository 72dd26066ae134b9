"""parse.logs.window: the sentence of each oddity."""

from __future__ import annotations

import json
from collections.abc import Iterator

from parse.logs.window import SENTENCES, remark
from tests.cases import cases_of


def test_each_oddity_has_its_sentence(cases) -> None:
    def outcomes(lines: list[str]) -> Iterator[str]:
        name, figures = lines
        yield remark(name, **json.loads(figures)).text

    cases("log_remarks.txt", outcomes)
    assert {case.lines[0] for case in cases_of("log_remarks.txt")} == {*SENTENCES}
