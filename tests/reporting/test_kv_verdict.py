"""The verdict on quantization: real bits, not names."""

from __future__ import annotations

from typing import Any

import pytest
from tests.synthetic_kv import kv_error_rows

from breakeven.reporting.kv_verdict import kv_lines


def rows(**scale: float) -> list[Any]:
    """Fabricated rows; `scale` multiplies fields by name."""
    return [
        {key: value * scale.get(key, 1.0) if key in scale else value for key, value in row.items()}
        for row in kv_error_rows("m")
    ]


def line(words: str, given: list[Any]) -> str:
    found = [text for text in kv_lines(given) if words in text]
    assert len(found) == 1, f"{words!r} in {kv_lines(given)}"
    return found[0]


def test_nothing_measured_nothing_said() -> None:
    assert kv_lines([]) == []


def test_the_posts_two_bits_are_shown_with_their_seven_levels_and_their_twin() -> None:
    text = line("The post's", rows())
    assert "“2 bits” have 7 levels" in text
    assert "uniform_symmetric at 3 bits" in text
    assert "(0.453 and 0.453)" in text


def test_a_quantizer_that_keeps_its_word_is_not_accused() -> None:
    honest = [{**row, "levels": 3} if row["scheme"] == "post_symmetric" else row for row in rows()]
    assert not [text for text in kv_lines(honest) if "The post's" in text]


def test_the_cheapest_scheme_counts_real_bits_and_the_upper_bound() -> None:
    base = [row for row in rows() if row["layer"] is None][:1][0]

    def one(scheme: str, bits: float, error: float, high: float | None) -> Any:
        return {
            **base, "scheme": scheme, "bits_nominal": 4, "bits_real": bits, "output_error_both": error,
            "output_error_both_low": error * 0.9, "output_error_both_high": high,
        }  # fmt: skip

    given = [one("cheap_but_unsure", 3.0, 0.09, 0.12), one("sure", 4.0, 0.09, 0.095), one("dear", 8.0, 0.01, 0.012)]
    assert "are 4.00 per element, with sure" in line("below 0.1 are", given)
    assert "are 8.00 per element, with dear" in line("below 0.02 are", given)
    assert "with cheap_but_unsure" in line("below 0.1 are", [one("cheap_but_unsure", 3.0, 0.09, None)])


def test_no_scheme_good_enough_is_said() -> None:
    assert "no scheme in this run keeps the output error below 0.1" in line(
        "no scheme", rows(output_error_both=50.0, output_error_both_high=50.0)
    )


@pytest.mark.parametrize(("factor", "word"), [(1.0, "smaller"), (3.0, "larger")])
def test_the_comparison_of_axes_says_which_way_it_goes(factor: float, word: str) -> None:
    given = [
        {**row, "attention_error": row["attention_error"] * (factor if row["k_axis"] == "channel" else 1.0)}
        for row in rows()
    ]
    assert f"times {word} than with one scale per token" in line("one scale per channel", given)


def test_the_comparison_needs_both_axes() -> None:
    only = [row for row in rows() if row["k_axis"] == "token"]
    assert not [text for text in kv_lines(only) if "one scale per channel" in text]


def test_rows_without_errors_are_left_out() -> None:
    assert kv_lines([{**row, "attention_error": None, "output_error_both": None} for row in rows()]) == []
