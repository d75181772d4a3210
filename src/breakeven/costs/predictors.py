"""Predicted speedup of speculative decoding: the post's formula, Leviathan's and the cost-aware one.

All costs are in target steps (the time of one plain decoding step). Symbols: k draft tokens a round, alpha an
acceptance rate (each function says which one), c the cost of drafting one token, v(m) the cost of a target pass over m
tokens with v(1) = 1, o the overhead of a round, tau the tokens emitted per target pass.

Sources: Leviathan, Kalman and Matias 2023 (https://arxiv.org/abs/2211.17192), eq. 1 and theorem 3.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """A draft length and the speedup that it promises."""

    k: int
    speedup: float


def post_speedup(alpha: float, k: int, c: float) -> float:
    """Return (1 + k alpha) / (1 + k c), the post's law.

    Exact only if alpha is accepted / drafted at this very k and if verifying k + 1 tokens costs one step; with a
    per-token alpha it promises too much, and it never has a best k (it is monotone in k).

    Args:
        alpha: accepted per drafted tokens, in [0, 1].
        k: draft tokens a round.
        c: cost of drafting one token, in target steps.

    Returns:
        The predicted ratio of decoding rates.

    Raises:
        ValueError: an argument is out of range.
    """
    _require(alpha, k, c)
    return (1.0 + k * alpha) / (1.0 + k * c)


def leviathan_tau(alpha: float, k: int) -> float:
    """Return the tokens emitted per round (1 - alpha^(k+1)) / (1 - alpha), eq. 1: i.i.d. acceptance.

    Args:
        alpha: probability that a tested draft token is accepted, in [0, 1].
        k: draft tokens a round, 0 allowed.

    Returns:
        Expected tokens a round, in [1, k + 1].

    Raises:
        ValueError: an argument is out of range.
    """
    _require(alpha, k, 0.0)
    # The sum of the geometric series, term by term: exact at alpha = 1, where the quotient is 0 / 0.
    return sum(alpha**i for i in range(k + 1))


def leviathan_speedup(alpha: float, k: int, c: float) -> float:
    """Return (1 - alpha^(k+1)) / ((1 - alpha)(k c + 1)), theorem 3.8: i.i.d. acceptance, free verification.

    Args:
        alpha: probability that a tested draft token is accepted.
        k: draft tokens a round.
        c: cost of drafting one token, in target steps.

    Returns:
        The predicted ratio of decoding rates.

    Raises:
        ValueError: an argument is out of range.
    """
    _require(alpha, k, c)
    return leviathan_tau(alpha, k) / (1.0 + k * c)


def tau_from_conditional(alphas: Sequence[float]) -> float:
    """Return 1 + sum_i prod_{j<=i} alpha_j: tokens a round when acceptance differs by position.

    Args:
        alphas: [k] probability that position i is accepted given that it was reached.

    Returns:
        Expected tokens a round, in [1, k + 1].

    Raises:
        ValueError: a rate is outside [0, 1].
    """
    tau, reached = 1.0, 1.0
    for alpha in alphas:
        _require(alpha, 0, 0.0)
        reached *= alpha
        tau += reached
    return tau


def cost_aware_speedup(tau: float, n_draft: float, c: float, v_verify: float, overhead: float) -> float:
    """Return tau / (n_draft c + v_verify + overhead): what a round emits over what it costs.

    Args:
        tau: tokens emitted per target pass.
        n_draft: mean number of tokens drafted a round (below k where the drafter stops early or stays silent).
        c: cost of drafting one token, in target steps.
        v_verify: cost of the target pass that verifies them, in target steps.
        overhead: everything else in a round (sampling, cache bookkeeping), in target steps.

    Returns:
        The predicted ratio of decoding rates.

    Raises:
        ValueError: a cost is negative or a round would be free.
    """
    cost = n_draft * c + v_verify + overhead
    if min(n_draft, c, v_verify, overhead) < 0.0 or cost <= 0.0:
        raise ValueError(f"a round cannot cost {n_draft} * {c} + {v_verify} + {overhead} target steps")
    return tau / cost


def best_k(
    alphas: Sequence[float],
    c: float,
    v: Callable[[int], float],
    overhead: float,
    candidates: Iterable[int],
    *,
    draft_rate: float = 1.0,
) -> Choice:
    """Scan draft lengths for the best cost-aware prediction (no closed form exists).

    A silent drafter costs an ordinary step: with share f of rounds drafting, tau = 1 + f (tau_k - 1) and the cost is
    f (k c + v(k + 1)) + (1 - f) v(1) + o.

    Args:
        alphas: [K] conditional acceptance by position, measured where the drafter drafted.
        c: cost of drafting one token, in target steps.
        v: cost of a target pass over m tokens, in target steps.
        overhead: per round, in target steps.
        candidates: draft lengths to try; those above K are left out, since nothing is known about them.
        draft_rate: share f of rounds in which the drafter proposes anything.

    Returns:
        The best k with its predicted speedup; ties go to the shorter draft.

    Raises:
        ValueError: no candidate lies in 1..K.
    """
    tried = [k for k in sorted(set(candidates)) if 1 <= k <= len(alphas)]
    if not tried:
        raise ValueError(f"no candidate draft length lies in 1..{len(alphas)}")
    best: Choice | None = None
    for k in tried:
        tau = 1.0 + draft_rate * (tau_from_conditional(alphas[:k]) - 1.0)
        verify = draft_rate * v(k + 1) + (1.0 - draft_rate) * v(1)
        speedup = cost_aware_speedup(tau, draft_rate * k, c, verify, overhead)
        if best is None or speedup > best.speedup:
            best = Choice(k, speedup)
    assert best is not None
    return best


def break_even_c(tau: float, n_draft: float, v_verify: float, overhead: float) -> float:
    """Return the draft cost at which speculation neither gains nor loses: (tau - v - o) / n_draft.

    Args:
        tau: tokens emitted per target pass.
        n_draft: mean number of tokens drafted a round, above 0.
        v_verify: cost of verification, in target steps.
        overhead: per round, in target steps.

    Returns:
        The largest affordable c; negative if not even a free drafter would pay.

    Raises:
        ValueError: nothing is drafted.
    """
    if n_draft <= 0.0:
        raise ValueError("without drafts there is no break-even draft cost")
    return (tau - v_verify - overhead) / n_draft


def break_even_alpha(k: int, c: float, v_verify: float, overhead: float) -> float | None:
    """Return the i.i.d. acceptance at which speculation neither gains nor loses, by bisection.

    Args:
        k: draft tokens a round, at least 1.
        c: cost of drafting one token, in target steps.
        v_verify: cost of verifying k + 1 tokens, in target steps.
        overhead: per round, in target steps.

    Returns:
        The alpha with leviathan_tau(alpha, k) = k c + v + o; 0 if it pays at any acceptance, None if at none.

    Raises:
        ValueError: k is below 1.
    """
    if k < 1:
        raise ValueError("without drafts there is no break-even acceptance")
    cost = k * c + v_verify + overhead
    if cost <= 1.0:
        return 0.0
    if cost > k + 1:
        return None
    low, high = 0.0, 1.0
    # tau rises strictly in alpha; 60 halvings reach the resolution of a double.
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if leviathan_tau(middle, k) < cost else (low, middle)
    return high


def _require(alpha: float, k: int, c: float) -> None:
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha is {alpha}, outside [0, 1]")
    if k < 0:
        raise ValueError(f"k is {k}, below 0")
    if c < 0.0:
        raise ValueError(f"c is {c}, below 0")
