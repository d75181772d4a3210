"""A differing greedy output is explained by its margins or it is a finding."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from breakeven.speculative.divergence import divergences, first_difference


def request(drafter: str, tokens: list[int], margins: list[float], **changes: Any) -> dict[str, Any]:
    row = {
        "drafter": drafter, "setting": "", "k": 0 if drafter == "plain" else 2, "repeat": 0, "prompt_id": "a",
        "temperature": 0.0, "output_ids": tokens, "margins": margins,
    }  # fmt: skip
    return row | changes


def test_equal_outputs_give_no_row() -> None:
    table = pd.DataFrame([request("plain", [1, 2], [1.0, 1.0]), request("ngram", [1, 2], [1.0, 1.0])])
    found = divergences(table)
    assert found.empty
    assert "verdict" in found.columns


@pytest.mark.parametrize(("margins", "verdict"), [((0.02, 0.02), "near_tie"), ((0.5, 0.5), "unexplained")])
def test_the_verdict_turns_on_the_margins_against_the_noise_of_the_run(
    margins: tuple[float, float], verdict: str
) -> None:
    # Agreed positions differ by 0.05 at most between the two paths.
    plain = request("plain", [1, 2, 3], [1.0, 2.0, margins[0]])
    spec = request("ngram", [1, 2, 4], [1.05, 2.0, margins[1]])
    found = divergences(pd.DataFrame([plain, spec]))
    assert found.loc[0, "position"] == 2
    assert found.loc[0, "verdict"] == verdict
    assert found.loc[0, "epsilon"] == pytest.approx(0.05)


def test_one_large_margin_is_enough_to_refuse_a_near_tie() -> None:
    plain = request("plain", [1, 3], [1.0, 0.01])
    spec = request("ngram", [1, 4], [1.05, 3.0])
    assert divergences(pd.DataFrame([plain, spec])).loc[0, "verdict"] == "unexplained"


def test_an_output_that_stops_early_is_never_a_near_tie() -> None:
    plain = request("plain", [1, 2, 3], [9.0, 9.0, 0.0])
    spec = request("ngram", [1, 2], [9.0, 9.0])
    found = divergences(pd.DataFrame([plain, spec]))
    assert found.loc[0, "verdict"] == "unexplained"
    assert pd.isna(found.loc[0, "spec_token"])


def test_margins_behind_the_first_difference_say_nothing_about_noise() -> None:
    # After position 1 the texts differ; a margin difference of 50 there is no rounding.
    plain = request("plain", [1, 2, 7], [1.0, 0.4, 60.0])
    spec = request("ngram", [1, 3, 7], [1.0, 0.4, 10.0])
    assert divergences(pd.DataFrame([plain, spec])).loc[0, "verdict"] == "unexplained"


def test_sampled_outputs_are_not_compared() -> None:
    plain = request("plain", [1], [1.0], temperature=1.0)
    spec = request("ngram", [2], [1.0], temperature=1.0)
    assert divergences(pd.DataFrame([plain, spec])).empty


def test_a_prefix_differs_where_the_shorter_one_ends() -> None:
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([1, 2], [1, 2]) is None
