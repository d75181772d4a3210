"""Greedy speculation replayed on text that the target already wrote: exact, and without a model in the loop.

At temperature 0 a draft is accepted exactly while it repeats the target's own text, so rounds can be counted from
the text alone (the idea of ArcticInference's simulator, here for every drafter).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from breakeven.drafters.base import Drafter

# (position in the output, draft length allowed) -> (drafted tokens, how many of them match the output)
Proposal = Callable[[int, int], tuple[int, int]]


@dataclass(frozen=True)
class ReplayedRound:
    """One round: tokens drafted, accepted and emitted (accepted plus the recovered or bonus token)."""

    n_drafted: int
    n_accepted: int
    n_emitted: int


def replay(n_output: int, limit: int, k: int, propose: Proposal) -> list[ReplayedRound]:
    """Count the rounds that speculation needs to write output[1:] (the first token comes out of the prefill).

    Args:
        n_output: tokens that the target wrote (fewer than `limit` if it ended the sequence).
        limit: max_new_tokens.
        k: planned draft length.
        propose: what the drafter would do at a position.
    """
    rounds: list[ReplayedRound] = []
    position = 1
    while position < n_output:
        drafted, accepted = propose(position, min(k, limit - position - 1))
        # An accepted end-of-sequence token is the last thing emitted: no bonus behind it.
        emitted = min(accepted + 1, n_output - position)
        rounds.append(ReplayedRound(drafted, accepted, emitted))
        position += emitted
    return rounds


def from_matches(matches: Sequence[bool]) -> Proposal:
    """Proposals of a drafter that always drafts; matches[j]: its token j, drafted behind the true text, is right."""

    def propose(position: int, k: int) -> tuple[int, int]:
        accepted = 0
        while accepted < min(k, len(matches) - position) and matches[position + accepted]:
            accepted += 1
        return k, accepted

    return propose


def from_drafter(drafter: Drafter, prompt: list[int], output: list[int]) -> Proposal:
    """Proposals of a drafter that needs only tokens (n-gram lookup); `drafter.begin` must have been called."""

    def propose(position: int, k: int) -> tuple[int, int]:
        draft = drafter.propose(prompt + output[:position], k, 0.0, []).tokens
        accepted = 0
        while accepted < min(len(draft), len(output) - position) and draft[accepted] == output[position + accepted]:
            accepted += 1
        return len(draft), accepted

    return propose


@dataclass(frozen=True)
class Curve:
    """Acceptance of one drafter setting over all calibration prompts."""

    conditional_alpha: list[float]  # position i: accepted_i / reached_i
    n_reached: list[int]
    draft_rate: float  # share of rounds with at least one drafted token
    tau: float
    drafted: dict[int, int]  # tokens drafted in a round -> rounds


def curve(rounds: Sequence[ReplayedRound], k: int) -> Curve:
    """Summarize rounds at draft length k.

    Position i was reached if i tokens were drafted and the i-1 before it accepted.
    """
    reached = [sum(r.n_drafted >= i and r.n_accepted >= i - 1 for r in rounds) for i in range(1, k + 1)]
    accepted = [sum(r.n_accepted >= i for r in rounds) for i in range(1, k + 1)]
    n = max(len(rounds), 1)
    return Curve(
        conditional_alpha=[a / r if r else 0.0 for a, r in zip(accepted, reached, strict=True)],
        n_reached=reached,
        draft_rate=sum(r.n_drafted > 0 for r in rounds) / n,
        tau=sum(r.n_emitted for r in rounds) / n,
        drafted=dict(Counter(r.n_drafted for r in rounds)),
    )
