"""Replayed rounds against a brute-force speculative loop over the same text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.calibration.replay import ReplayedRound, curve, from_matches, replay


def brute_force(matches: list[bool], limit: int, k: int) -> list[tuple[int, int, int]]:
    """Token by token, with lists instead of arithmetic: (drafted, accepted, emitted) of each round."""
    rounds, written = [], [0]  # the first token comes out of the prefill
    while len(written) < len(matches):
        room = limit - len(written)
        drafted = list(range(len(written), len(written) + min(k, room - 1)))
        accepted = []
        for position in drafted:
            if position >= len(matches) or not matches[position]:
                break
            accepted.append(position)
        emitted = [*accepted]
        if len(written) + len(accepted) < len(matches):
            emitted.append(len(written) + len(accepted))  # recovered or bonus
        rounds.append((len(drafted), len(accepted), len(emitted)))
        written += emitted
    return rounds


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 9), st.integers(0, 5))
def test_replay_equals_a_token_by_token_loop(matches: list[bool], k: int, spare: int) -> None:
    limit = len(matches) + spare
    got = replay(len(matches), limit, k, from_matches(matches))
    assert [(r.n_drafted, r.n_accepted, r.n_emitted) for r in got] == brute_force(matches, limit, k)
    assert sum(r.n_emitted for r in got) == len(matches) - 1


def test_a_draft_never_reaches_past_the_last_token_that_fits() -> None:
    rounds = replay(5, 5, 8, from_matches([True] * 5))
    assert rounds == [ReplayedRound(3, 3, 4)]


def test_no_bonus_behind_an_accepted_end_of_sequence() -> None:
    # 3 tokens were written although 10 would have fitted: the third ended the sequence.
    rounds = replay(3, 10, 4, from_matches([True] * 3))
    assert rounds == [ReplayedRound(4, 2, 2)]


def test_conditional_acceptance_counts_only_reached_positions() -> None:
    rounds = [ReplayedRound(2, 2, 3), ReplayedRound(2, 0, 1), ReplayedRound(1, 1, 2), ReplayedRound(0, 0, 1)]
    found = curve(rounds, 2)
    assert found.n_reached == [3, 1]
    assert found.conditional_alpha == [pytest.approx(2 / 3), 1.0]
    assert found.draft_rate == 0.75
    assert found.tau == 7 / 4
    assert found.drafted == {2: 2, 1: 1, 0: 1}


def test_no_rounds_give_no_division_by_zero() -> None:
    assert curve([], 3).conditional_alpha == [0.0, 0.0, 0.0]
