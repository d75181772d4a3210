"""Acceptance under every definition in use, each by its own name, as queries on the round log.

The word "acceptance rate" names at least six quantities (vLLM #42508, #39359; speculators #1151). Notation: R rounds,
D drafted, A accepted, a position is *tested* if all drafts before it were accepted. Every definition is a ratio of two
sums over rounds, so that all share one bootstrap by prompt.

| name | definition | who means it |
|---|---|---|
| tau | emitted tokens / R | Spec-Bench, EAGLE, vLLM, SGLang |
| accepted_per_round | A / R | gpt-fast, llama.cpp |
| accepted_per_drafted | A / D; depends on k | vLLM, LayerSkip, SWIFT |
| alpha_mle | A / (A + rounds that ended in a rejection): truncated-geometric MLE | Leviathan's alpha, estimated |
| unconditional | rounds that accepted position i / R | vLLM, speculators |
| conditional | rounds that accepted position i / rounds that tested it | EAGLE's n-alpha, Model-Optimizer |
| sum_min | mean of sum_y min(p, q) over tested positions | Leviathan's theorem 3.5, low variance |
| match_probability | mean target probability of the drafted token over tested positions, E[sum_y p q] | mlx-lm |
| top1_agreement | share of tested positions whose draft is the target's best token, T = 0 | greedy systems |
| draft_rate | rounds with at least one draft / R | |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from breakeven.evidence.intervals import Interval, bootstrap_ratios
from breakeven.speculative.rounds import list_sums, n_tested

FloatArray = npt.NDArray[np.float64]
Fraction = tuple[FloatArray, FloatArray]


@dataclass(frozen=True)
class Estimate:
    """One definition with its value.

    Attributes:
        definition: name as in the module's table.
        position: 1-based draft position of `unconditional` and `conditional`, else None.
        interval: value, bounds and the number of observations (rounds, or tested or drafted tokens).
    """

    definition: str
    position: int | None
    interval: Interval


def tau(rounds: pd.DataFrame) -> Fraction:
    """Emitted tokens, rounds."""
    return _counts(rounds, "n_emitted"), np.ones(len(rounds))


def accepted_per_round(rounds: pd.DataFrame) -> Fraction:
    """Accepted drafts, rounds: the bonus and recovered tokens are not drafts."""
    return _counts(rounds, "n_accepted"), np.ones(len(rounds))


def accepted_per_drafted(rounds: pd.DataFrame) -> Fraction:
    """Accepted drafts, drafts that could have been emitted."""
    return _counts(rounds, "n_accepted"), _counts(rounds, "n_drafted")


def alpha_mle(rounds: pd.DataFrame) -> Fraction:
    """Accepted drafts, tested drafts: consistent for i.i.d. acceptance at any k and with early stops."""
    return _counts(rounds, "n_accepted"), _tested(rounds)


def unconditional(rounds: pd.DataFrame, position: int) -> Fraction:
    """Rounds that accepted this position, all rounds; summed over positions this is accepted_per_round."""
    return (_counts(rounds, "n_accepted") >= position).astype(np.float64), np.ones(len(rounds))


def conditional(rounds: pd.DataFrame, position: int) -> Fraction:
    """Rounds that accepted this position, rounds that tested it."""
    accepted = (_counts(rounds, "n_accepted") >= position).astype(np.float64)
    return accepted, (_tested(rounds) >= position).astype(np.float64)


def sum_min(rounds: pd.DataFrame) -> Fraction:
    """Sum over tested positions of sum_y min(p, q), tested positions."""
    return list_sums(rounds["sum_min"]), _tested(rounds)


def match_probability(rounds: pd.DataFrame) -> Fraction:
    """Sum over tested positions of p(drafted token), tested positions.

    The drafted token comes from q whatever happens to it later, so the mean is E[sum_y p(y) q(y)]: exactly if q is
    one-hot, in expectation if it was drawn.
    """
    return list_sums(rounds["p_draft"]), _tested(rounds)


def top1_agreement(rounds: pd.DataFrame) -> Fraction:
    """Tested positions of greedy rounds whose draft is the target's best token, tested positions of greedy rounds."""
    greedy = (rounds["temperature"] == 0.0).to_numpy(dtype=np.float64)
    return greedy * list_sums(rounds["p_draft"]), greedy * _tested(rounds)


def draft_rate(rounds: pd.DataFrame) -> Fraction:
    """Rounds with at least one draft, rounds."""
    return (_counts(rounds, "n_drafted") > 0).astype(np.float64), np.ones(len(rounds))


DEFINITIONS: dict[str, Callable[[pd.DataFrame], Fraction]] = {
    "tau": tau,
    "accepted_per_round": accepted_per_round,
    "accepted_per_drafted": accepted_per_drafted,
    "alpha_mle": alpha_mle,
    "sum_min": sum_min,
    "match_probability": match_probability,
    "top1_agreement": top1_agreement,
    "draft_rate": draft_rate,
}
POSITIONAL: dict[str, Callable[[pd.DataFrame, int], Fraction]] = {
    "unconditional": unconditional,
    "conditional": conditional,
}


def estimate(
    rounds: pd.DataFrame,
    *,
    resamples: int,
    confidence: float,
    seed: int,
    definitions: Iterable[str] = (*DEFINITIONS, *POSITIONAL),
) -> list[Estimate]:
    """Estimate definitions of acceptance from rounds that belong together (one drafter, setting, k, temperature).

    Args:
        rounds: [n] rows of a valid round log.
        resamples: bootstrap resamples of the prompts.
        confidence: coverage of the intervals.
        seed: seed of the resampling.
        definitions: names to estimate; positional ones run over positions 1..max(k_planned).

    Returns:
        One estimate a definition (and position); its value is NaN where the rounds do not define it.

    Raises:
        KeyError: an unknown definition.
    """
    names: list[tuple[str, int | None]] = []
    fractions: list[Fraction] = []
    longest = int(rounds["k_planned"].max()) if len(rounds) else 0
    for name in definitions:
        if name in POSITIONAL:
            for position in range(1, longest + 1):
                names.append((name, position))
                fractions.append(POSITIONAL[name](rounds, position))
        else:
            names.append((name, None))
            fractions.append(DEFINITIONS[name](rounds))
    if not fractions:
        return []
    tops = np.column_stack([top for top, _ in fractions])
    bottoms = np.column_stack([bottom for _, bottom in fractions])
    intervals = bootstrap_ratios(
        tops, bottoms, rounds["prompt_id"].to_numpy(), resamples=resamples, confidence=confidence, seed=seed
    )
    observations = bottoms.sum(axis=0)
    return [
        Estimate(name, position, _with_n(interval, round(float(total))))
        for (name, position), interval, total in zip(names, intervals, observations, strict=True)
    ]


def by_name(estimates: list[Estimate]) -> dict[str, Interval]:
    """Return the estimates without a position by their definition."""
    return {estimate.definition: estimate.interval for estimate in estimates if estimate.position is None}


def by_position(estimates: list[Estimate], definition: str) -> dict[int, Interval]:
    """Return the estimates of one positional definition by position."""
    return {e.position: e.interval for e in estimates if e.definition == definition and e.position is not None}


def _counts(rounds: pd.DataFrame, column: str) -> FloatArray:
    counts: FloatArray = rounds[column].to_numpy(dtype=np.float64)
    return counts


def _tested(rounds: pd.DataFrame) -> FloatArray:
    tested: FloatArray = n_tested(rounds).astype(np.float64)
    return tested


def _with_n(interval: Interval, n: int) -> Interval:
    return Interval(interval.value, interval.low, interval.high, n, interval.n_clusters)
