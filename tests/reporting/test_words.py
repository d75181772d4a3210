"""Numbers as words: nothing that was not measured may look like a number."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.reporting import words


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_absent_values_never_read_as_zero(value: float | None) -> None:
    texts = [words.number(value), words.ratio(value), words.with_interval(value, 1.0, 2.0), words.memory(value)]
    assert [*texts, words.percent(value)] == [words.NOT_MEASURED] * 5


@given(st.floats(-1e9, 1e9), st.integers(0, 4))
def test_number_reads_back_within_its_rounding(value: float, digits: int) -> None:
    text = words.number(value, digits).replace(",", "").replace("\N{MINUS SIGN}", "-")
    assert abs(float(text) - value) <= 0.5 * 10**-digits + abs(value) * 1e-12


def test_no_negative_zero() -> None:
    assert words.number(-0.001) == "0.00"


def test_interval_is_left_out_where_there_is_none() -> None:
    assert words.with_interval(1.5, 1.25, 1.75, unit="×") == "1.50× (1.25–1.75)"
    assert words.with_interval(1.5, None, 1.75) == "1.50"
    assert words.with_interval(1.5, math.nan, 1.75) == "1.50"


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (1024, "1.00 KiB"), (131072, "128.00 KiB"), (17.18e9, "16.00 GiB")],
)
def test_memory_uses_binary_units(n_bytes: float, text: str) -> None:
    assert words.memory(n_bytes) == text


def test_settings_read_as_prose_and_odd_ones_as_they_are() -> None:
    assert words.setting('{"layer":12,"min_ngram":1}') == "layer 12, min ngram 1"
    assert words.setting("{}") == ""
    assert words.setting(None) == ""
    assert words.setting("not json") == "not json"
    assert words.setting("[1]") == "[1]"


def test_lists_and_counts() -> None:
    assert [words.listed(list("abc")[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert words.counted(1, "prompt") == "1 prompt"
    assert words.counted(1200, "prompt") == "1,200 prompts"
