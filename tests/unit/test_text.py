"""hpc.system.text."""

from __future__ import annotations

import pytest

from hpc.system.text import filled, first_of, inflect, natural, plural, ranges


@pytest.mark.parametrize(("number", "expected"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes")])
def test_a_noun_agrees_with_its_number(number: int, expected: str) -> None:
    assert plural(number, "node") == expected
    assert f"{number} {inflect(number, 'node')}" == expected


def test_whole_numbers_become_ranges() -> None:
    assert ranges([8, 3, 0, 2, 1]) == "0-3, 8"
    assert ranges([7]) == "7"
    assert ranges([]) == ""
    assert ranges(range(0, 8, 2), 3) == "0, 2, 4, …"
    assert ranges(range(0, 6, 2), 3) == "0, 2, 4"


def test_names_with_numbers_are_in_their_order() -> None:
    names = ["node1", "node2", "node10", "r1-n9", "r1-n10", "r10-n1"]
    assert sorted(sorted(names), key=natural) == names


def test_of_many_texts_the_first_are_shown() -> None:
    assert first_of(["a", "b"], 2) == "a, b"
    assert first_of(["a", "b", "c"], 1, "; ") == "a and 2 more"
    assert first_of(["a", "b", "c"], 2, "; ") == "a; b and 1 more"


def test_lines_are_filled_and_a_path_stays_whole() -> None:
    assert filled("not read: /a/very/long-path of two", 12) == ["not read:", "  /a/very/long-path", "  of two"]
    assert filled("  moved in by two", 12) == ["  moved in", "    by two"]
    assert filled("ok  name  text of it", 16, 10) == ["ok  name  text", "          of it"]
    assert filled("", 12) == [""]
