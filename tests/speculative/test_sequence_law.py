"""The law of sampled outputs with the real random streams: G-tests and the agreement of two acceptance estimates.

The exact laws are in test_lossless.py; what is added here are the streams themselves, across prompts and rounds.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from breakeven.drafters.base import Drafter
from breakeven.speculative import loop
from breakeven.speculative.loop import Request, generate
from helpers.drafting import DRAFTERS, broken_residual, decode, drafter_on_table
from helpers.models import TableModel

N_SAMPLES = {"small_lm": 20_000, "early_exit": 4_000, "ngram": 4_000}


def sample_counts(target: TableModel, drafter: Drafter | None, prompt: list[int], n: int) -> Counter:
    cache = target.new_cache(len(prompt) + 3)
    return Counter(
        tuple(generate(target, drafter, Request(prompt, f"p{i}", 2, 1.0, 3, frozenset(), 0), cache).tokens)
        for i in range(n)
    )


def g_test(counts: Counter, expected: dict[tuple[int, ...], float]) -> float:
    """p value of the likelihood-ratio test; cells that expect fewer than 5 are pooled."""
    n = sum(counts.values())
    pooled: dict[object, list[float]] = {}
    for outcome, probability in expected.items():
        cell = pooled.setdefault(outcome if n * probability >= 5 else "rest", [0.0, 0.0])
        cell[0] += counts[outcome]
        cell[1] += n * probability
    observed, model = np.array(list(pooled.values())).T
    assert observed.sum() == n
    return float(stats.power_divergence(observed, model, lambda_="log-likelihood").pvalue)


G_PROMPT = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 7, 0, 1, 4, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTERS)
def test_g_test_of_all_three_token_continuations(name: str) -> None:
    target = TableModel(8, seed=1)
    counts = sample_counts(target, drafter_on_table(name, target), G_PROMPT, N_SAMPLES[name])
    assert g_test(counts, target.law(G_PROMPT, 3, 1.0)) > 1e-4


def test_g_test_has_the_power_to_refuse_a_broken_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "verify_rejection", broken_residual)
    target = TableModel(8, seed=1)
    counts = sample_counts(target, drafter_on_table("small_lm", target), G_PROMPT, 2_000)
    assert g_test(counts, target.law(G_PROMPT, 3, 1.0)) < 1e-4


def alpha_mle(rounds: list[loop.Round]) -> tuple[float, int]:
    """Truncated-geometric maximum likelihood: accepted / tested, and how many were tested."""
    accepted = sum(r.n_accepted for r in rounds)
    tested = accepted + sum(r.end_reason == "reject" for r in rounds)
    return accepted / tested, tested


@pytest.mark.parametrize("name", DRAFTERS)
def test_alpha_mle_agrees_with_mean_sum_min_on_real_streams(name: str) -> None:
    target = TableModel(6, seed=4)
    prompt = [0, 1, 2, 3, 4, 5] * 2
    out = decode(target, drafter_on_table(name, target), prompt, max_new_tokens=3000, k=4, temperature=1.0)
    alpha, tested = alpha_mle(out.rounds)
    assert tested > 1500
    logged = np.concatenate([r.sum_min for r in out.rounds])
    assert len(logged) == tested
    standard_error = math.sqrt(alpha * (1 - alpha) / tested)
    assert 0.1 < alpha < 0.9
    assert abs(alpha - logged.mean()) < 4 * standard_error
