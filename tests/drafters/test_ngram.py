"""Prompt lookup against a brute-force search."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.drafters.ngram import NgramDrafter, Settings
from breakeven.errors import ConfigError
from helpers.models import TableModel

TARGET = TableModel(4)


def brute_force(tokens: list[int], k: int, max_ngram: int, min_ngram: int, match: str) -> list[int]:
    for n in range(max_ngram, min_ngram - 1, -1):
        suffix = tokens[len(tokens) - n :]
        # Occurrences that end before the end of the text: something follows them.
        found = [i for i in range(len(tokens) - n) if tokens[i : i + n] == suffix] if n < len(tokens) else []
        if found:
            start = (found[-1] if match == "most_recent" else found[0]) + n
            return tokens[start : start + k]
    return []


def make(max_ngram: int, min_ngram: int, match: str) -> NgramDrafter:
    drafter = NgramDrafter(TARGET, max_ngram, min_ngram, match)
    drafter.begin([], TARGET.new_cache(1))
    return drafter


@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=25),
    cuts=st.lists(st.integers(1, 25), max_size=5),
    k=st.integers(0, 6),
    max_ngram=st.integers(1, 4),
    min_ngram=st.integers(1, 4),
    match=st.sampled_from(["most_recent", "leftmost"]),
)
def test_equals_brute_force_while_the_text_grows(
    tokens: list[int], cuts: list[int], k: int, max_ngram: int, min_ngram: int, match: str
) -> None:
    min_ngram = min(min_ngram, max_ngram)
    drafter = make(max_ngram, min_ngram, match)
    for length in sorted({min(c, len(tokens)) for c in cuts} | {len(tokens)}):
        text = tokens[:length]
        draft = drafter.propose(text, k, 1.0, [])
        assert draft.tokens == brute_force(text, k, max_ngram, min_ngram, match)
        assert draft.q is None  # nothing is drawn: q is one-hot


def test_longest_suffix_wins_over_a_more_recent_shorter_one() -> None:
    assert make(3, 1, "most_recent").propose([1, 2, 3, 0, 3, 1, 1, 2, 3], 2, 0.0, []).tokens == [0, 3]


def test_the_suffix_never_matches_itself() -> None:
    assert make(2, 1, "most_recent").propose([0, 1, 2, 3], 4, 0.0, []).tokens == []


def test_matches_may_overlap_the_suffix_and_end_with_the_text() -> None:
    assert make(2, 1, "most_recent").propose([1, 1, 1], 4, 0.0, []).tokens == [1]
    assert make(2, 1, "leftmost").propose([1, 1, 1, 1], 4, 0.0, []).tokens == [1, 1]


def test_a_new_request_forgets_the_last_one() -> None:
    drafter = make(2, 1, "leftmost")
    assert drafter.propose([0, 1, 2, 0], 1, 0.0, []).tokens == [1]
    drafter.begin([], TARGET.new_cache(1))
    assert drafter.propose([3, 0, 2, 0], 1, 0.0, []).tokens == [2]


def test_proposal_is_a_copy_of_the_text() -> None:
    tokens = [0, 1, 2, 0]
    make(2, 1, "leftmost").propose(tokens, 3, 0.0, []).tokens.append(9)
    assert tokens == [0, 1, 2, 0]


@pytest.mark.parametrize(
    "settings",
    [{"max_ngram": []}, {"max_ngram": [2], "min_ngram": 3}, {"min_ngram": 0, "max_ngram": [2]}, {"match": "rightmost"}],
)
def test_impossible_settings_are_refused(settings: dict) -> None:
    with pytest.raises(ConfigError, match=r"drafter\.ngram"):
        Settings(**settings)


def test_candidates_are_one_per_length_without_repeats() -> None:
    candidates = Settings(max_ngram=[4, 2, 2], match="leftmost").candidates(30)
    assert candidates == [{"max_ngram": n, "min_ngram": 1, "match": "leftmost"} for n in (2, 4)]
