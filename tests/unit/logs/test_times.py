"""Time stamps: every form that logs use, against the standard library."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parse.logs.engine.fields import form_of, seconds_of

MOMENTS = st.datetimes(datetime(1970, 1, 2), datetime(2199, 12, 31))
FORMS = (
    "%Y-%m-%d %H:%M:%S.%f",
    "%Y-%m-%d %H:%M:%S,%f",
    "%Y-%m-%dT%H:%M:%S",
    "%Y/%m/%d %H:%M:%S",
    "%a %b %d %H:%M:%S %Y",
    "%d %b %Y %H:%M:%S",
)


def seconds(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize("form", FORMS)
@given(moments=st.lists(MOMENTS, min_size=1, max_size=20))
def test_reads_what_strftime_writes(form, moments):
    for moment in moments:
        wanted = seconds(moment if "%f" in form else moment.replace(microsecond=0))
        assert seconds_of(moment.strftime(form).encode()) == pytest.approx(wanted, abs=1e-6)


@given(moments=st.lists(MOMENTS, min_size=1, max_size=20))
def test_many_at_once_are_read_as_one_by_one(moments):
    texts = [moment.strftime("%Y-%m-%d %H:%M:%S.%f").encode() for moment in moments]
    rows = np.array([np.frombuffer(text, np.uint8) for text in texts])
    assert form_of(texts[0]).seconds(rows) == pytest.approx([seconds(moment) for moment in moments], abs=1e-6)


def test_without_a_year_differences_hold_over_the_end_of_february():
    before, after = seconds_of(b"0228 23:59:59.000000"), seconds_of(b"0301 00:00:00.000000")
    assert after - before == timedelta(days=1, seconds=1).total_seconds()


def test_unix_seconds_and_milliseconds():
    assert seconds_of(b"1597933942.9863544") == pytest.approx(1597933942.9863544, abs=1e-6)
    assert seconds_of(b"1594790175195") == pytest.approx(1594790175.195, abs=1e-6)


def test_a_clock_without_a_date():
    assert seconds_of(b"22:16:31") == 22 * 3600 + 16 * 60 + 31


@pytest.mark.parametrize(
    "text",
    [
        b"2020-13-01 00:00:00", b"2020-00-10 00:00:00", b"2020-01-32 00:00:00", b"2020-01-01 24:00:00",
        b"2020-01-01 00:60:00", b"2020-01-01 00:00:61", b"Fri Xyz  9 10:16:49 2021", b"yesterday", b"", b"12",
    ],
)  # fmt: skip
def test_impossible_times_are_none(text):
    assert seconds_of(text) is None
