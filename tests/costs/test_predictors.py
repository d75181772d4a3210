"""Traps of the speedup formulas: published tables that their own law misses, 0 / 0 at alpha = 1, silent drafters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.costs import predictors

RATE = st.floats(0.0, 1.0)
DRAFT_LENGTH = st.integers(1, 16)


def _simulated_round(alphas, rounds, seed):
    """Draw rounds one by one: the oracle of every closed form."""
    generator, emitted = np.random.default_rng(seed), 0
    for _ in range(rounds):
        emitted += 1
        for alpha in alphas:
            if generator.random() >= alpha:
                break
            emitted += 1
    return emitted / rounds


@pytest.mark.parametrize(("alpha", "k"), [(0.0, 3), (0.5, 1), (0.7, 4), (0.95, 8), (1.0, 5)])
def test_leviathan_tau_is_the_mean_of_simulated_rounds(alpha, k):
    assert predictors.leviathan_tau(alpha, k) == pytest.approx(_simulated_round([alpha] * k, 20_000, 1), rel=0.03)


def test_tau_from_conditional_is_the_mean_of_simulated_rounds():
    alphas = [0.9, 0.5, 0.8, 0.1]
    assert predictors.tau_from_conditional(alphas) == pytest.approx(_simulated_round(alphas, 20_000, 2), rel=0.02)


@given(RATE, DRAFT_LENGTH)
def test_equal_conditional_rates_are_leviathans_case(alpha, k):
    assert predictors.tau_from_conditional([alpha] * k) == pytest.approx(predictors.leviathan_tau(alpha, k))


@given(st.floats(0.0, 0.99), DRAFT_LENGTH, st.floats(0.0, 2.0))
def test_leviathan_is_the_published_quotient(alpha, k, c):
    published = (1 - alpha ** (k + 1)) / ((1 - alpha) * (k * c + 1))
    assert predictors.leviathan_speedup(alpha, k, c) == pytest.approx(published)


@given(RATE, DRAFT_LENGTH, st.floats(0.0, 2.0))
def test_post_never_promises_less_than_leviathan_with_the_same_alpha(alpha, k, c):
    assert predictors.post_speedup(alpha, k, c) >= predictors.leviathan_speedup(alpha, k, c) - 1e-12


@pytest.mark.parametrize(("alpha", "k", "ratio"), [(0.5, 5, 1.78), (0.6, 3, 1.29), (0.8, 5, 1.36), (0.9, 8, 1.34)])
def test_how_much_the_post_overstates(alpha, k, ratio):
    """Hand-checked ratios of (1 + k alpha) to the true tokens a round."""
    overstated = predictors.post_speedup(alpha, k, 0.0) / predictors.leviathan_speedup(alpha, k, 0.0)
    assert overstated == pytest.approx(ratio, abs=0.006)


@pytest.mark.parametrize(
    ("c", "alpha", "k", "formula"),
    [(0.08, 0.04, 1, 0.96), (0.08, 0.04, 3, 0.90), (0.25, 0.12, 1, 0.90), (0.25, 0.12, 3, 0.78),
     (0.83, 0.29, 1, 0.70), (0.83, 0.29, 3, 0.54)],
)  # fmt: skip
def test_post_law_at_the_published_costs_and_rates(c, alpha, k, formula):
    assert predictors.post_speedup(alpha, k, c) == pytest.approx(formula, abs=0.006)


@given(st.lists(RATE, min_size=1, max_size=8), st.floats(0.0, 1.0))
def test_cost_aware_with_free_verification_and_equal_rates_is_leviathan(alphas, c):
    k, alpha = len(alphas), alphas[0]
    tau = predictors.leviathan_tau(alpha, k)
    assert predictors.cost_aware_speedup(tau, k, c, 1.0, 0.0) == pytest.approx(
        predictors.leviathan_speedup(alpha, k, c)
    )


@pytest.mark.parametrize(
    ("c", "alpha", "k", "speedup"),
    [(0.05, 0.5, 3, 1.63), (0.05, 0.8, 8, 3.09), (0.1, 0.7, 4, 1.98), (0.5, 0.8, 2, 1.22)],
)
def test_best_k_of_the_known_table(c, alpha, k, speedup):
    """Flat v, i.i.d. acceptance: hand-checked optima."""
    choice = predictors.best_k([alpha] * 16, c, lambda m: 1.0, 0.0, range(1, 17))
    assert choice.k == k and choice.speedup == pytest.approx(speedup, abs=0.006)


def test_best_k_with_a_verify_slope():
    choice = predictors.best_k([0.7] * 16, 0.0, lambda m: 1 + 0.15 * (m - 1), 0.0, range(1, 17))
    assert choice.k == 3 and choice.speedup == pytest.approx(1.75, abs=0.006)


def test_best_k_knows_nothing_beyond_the_measured_positions():
    assert predictors.best_k([0.99] * 2, 0.0, lambda m: 1.0, 0.0, [1, 2, 12]).k == 2
    with pytest.raises(ValueError, match=r"1\.\.2"):
        predictors.best_k([0.99] * 2, 0.0, lambda m: 1.0, 0.0, [3])


def test_silent_drafter_gains_and_costs_nothing():
    choice = predictors.best_k([0.9] * 4, 0.3, lambda m: 1.0 + 0.1 * (m - 1), 0.0, [4], draft_rate=0.0)
    assert choice.speedup == pytest.approx(1.0)


def test_draft_rate_scales_gain_and_cost():
    """Half of the rounds draft 2 tokens, always accepted: 2 tokens a round for half of (2 c + v(3)) + half a step."""
    choice = predictors.best_k([1.0, 1.0], 0.1, lambda m: 1.0 + 0.2 * (m - 1), 0.05, [2], draft_rate=0.5)
    assert choice.speedup == pytest.approx(2.0 / (0.5 * (0.2 + 1.4) + 0.5 + 0.05))


@given(st.floats(1.0, 9.0), st.floats(0.5, 8.0), st.floats(1.0, 2.0), st.floats(0.0, 0.5))
def test_break_even_c_is_where_speedup_is_one(tau, n_draft, v_verify, overhead):
    c = predictors.break_even_c(tau, n_draft, v_verify, overhead)
    if c >= 0:
        assert predictors.cost_aware_speedup(tau, n_draft, c, v_verify, overhead) == pytest.approx(1.0)
    else:
        assert predictors.cost_aware_speedup(tau, n_draft, 0.0, v_verify, overhead) < 1.0 + 1e-9


@given(DRAFT_LENGTH, st.floats(0.0, 1.0), st.floats(1.0, 3.0), st.floats(0.0, 0.5))
def test_break_even_alpha_is_where_speedup_is_one(k, c, v_verify, overhead):
    alpha = predictors.break_even_alpha(k, c, v_verify, overhead)
    cost = k * c + v_verify + overhead
    if alpha is None:
        assert predictors.leviathan_tau(1.0, k) < cost
    else:
        assert predictors.leviathan_tau(alpha, k) == pytest.approx(max(cost, 1.0))


@pytest.mark.parametrize(
    "call",
    [
        lambda: predictors.post_speedup(1.2, 2, 0.1),
        lambda: predictors.leviathan_speedup(-0.1, 2, 0.1),
        lambda: predictors.leviathan_tau(0.5, -1),
        lambda: predictors.post_speedup(0.5, 2, -0.1),
        lambda: predictors.cost_aware_speedup(1.0, 0.0, 0.0, 0.0, 0.0),
        lambda: predictors.break_even_c(2.0, 0.0, 1.0, 0.0),
        lambda: predictors.break_even_alpha(0, 0.1, 1.0, 0.0),
    ],
)
def test_out_of_range_is_refused(call):
    with pytest.raises(ValueError):
        call()
