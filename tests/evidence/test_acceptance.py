"""Traps of acceptance metrics: one word for six quantities, and counters that miscount.

Truth comes from simulation (rounds drawn one by one), from brute force (token by token over an event list) and from
identities between definitions. The same checks must fail on estimators with planted bugs.
"""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
import pytest
from tests.synthetic import DrafterTruth, Truth, fabricate

from breakeven.evidence import acceptance
from breakeven.evidence.acceptance import by_name, by_position, estimate
from breakeven.evidence.intervals import standard_error
from breakeven.speculative.rounds import n_tested

ARGS = {"resamples": 300, "confidence": 0.95, "seed": 11}


def simulate(alphas, *, k=None, prompts=20, rounds_each=100, draft_rate=1.0, temperature=1.0, seed=0):
    """Rounds far from any end; `alphas` is [K] by position, or [prompts, K]."""
    generator = np.random.default_rng(seed)
    table = np.broadcast_to(np.asarray(alphas, dtype=float), (prompts, np.shape(alphas)[-1]))
    k = k or table.shape[1]
    rows = []
    for prompt in range(prompts):
        for number in range(rounds_each):
            drafted = k if generator.random() < draft_rate else 0
            passed = generator.random(drafted) < table[prompt, :drafted]
            accepted = drafted if passed.all() else int(np.argmin(passed))
            reason = "no_draft" if not drafted else "full" if accepted == drafted else "reject"
            mass = table[prompt, : accepted + (reason == "reject")].tolist()
            rows.append({"prompt_id": f"p{prompt}", "round": number, "temperature": temperature, "k_planned": k,
                         "n_drafted": drafted, "n_accepted": accepted, "n_emitted": accepted + 1,
                         "end_reason": reason, "sum_min": mass, "p_draft": mass})  # fmt: skip
    return pd.DataFrame(rows)


def brute_force(rounds):
    """Every definition, token by token."""
    events, n_rounds, emitted, drafted = [], 0, 0, 0
    for row in rounds.to_dict("records"):
        n_rounds += 1
        emitted += row["n_emitted"]
        drafted += row["n_drafted"]
        events += [(i, True) for i in range(1, row["n_accepted"] + 1)]
        if row["end_reason"] == "reject":
            events.append((row["n_accepted"] + 1, False))
    accepted = sum(hit for _, hit in events)
    result = {
        "tau": emitted / n_rounds,
        "accepted_per_round": accepted / n_rounds,
        "accepted_per_drafted": accepted / drafted,
        "alpha_mle": accepted / len(events),
    }
    for position in range(1, rounds["k_planned"].max() + 1):
        hits = [hit for i, hit in events if i == position]
        result["unconditional", position] = sum(hits) / n_rounds
        if hits:
            result["conditional", position] = sum(hits) / len(hits)
    return result


@pytest.mark.parametrize("seed", range(3))
def test_every_definition_equals_brute_force_on_a_whole_log(seed):
    truth = Truth(categories=("qa", "math"), ks=(4,), eos_rate=0.8, calibrated=False, alpha_spread=0.2)
    rounds = fabricate(truth, seed=seed).rounds
    rounds = rounds[rounds["drafter"] != "plain"]
    for (_drafter, _temperature), group in rounds.groupby(["drafter", "temperature"]):
        expected, estimates = brute_force(group), estimate(group, **ARGS)
        found = {(e.definition, e.position) if e.position else e.definition: e.interval.value for e in estimates}
        for key, value in expected.items():
            assert found[key] == pytest.approx(value), key


def test_known_alpha_is_found():
    rounds = simulate([0.7] * 5)
    values = by_name(estimate(rounds, **ARGS))
    assert values["alpha_mle"].value == pytest.approx(0.7, abs=0.015)
    assert values["tau"].value == pytest.approx((1 - 0.7**6) / 0.3, rel=0.02)
    assert values["alpha_mle"].low < 0.7 < values["alpha_mle"].high


@pytest.mark.parametrize("k", [1, 2, 4, 12])
def test_mle_does_not_depend_on_k_and_accepted_per_drafted_does(k):
    values = by_name(estimate(simulate([0.6] * k, seed=k), **ARGS))
    assert values["alpha_mle"].value == pytest.approx(0.6, abs=0.02)
    tau = (1 - 0.6 ** (k + 1)) / 0.4
    assert values["accepted_per_drafted"].value == pytest.approx((tau - 1) / k, abs=0.02)


def test_position_curve_is_found_by_position():
    curve = [0.9, 0.6, 0.8, 0.3]
    estimates = estimate(simulate(curve, prompts=40), **ARGS)
    conditional, unconditional = by_position(estimates, "conditional"), by_position(estimates, "unconditional")
    for i, alpha in enumerate(curve, start=1):
        assert conditional[i].value == pytest.approx(alpha, abs=0.04)
        assert unconditional[i].value == pytest.approx(np.prod(curve[:i]), abs=0.03)


def test_heterogeneous_prompts_break_the_iid_law_but_not_the_curve():
    """Half of the prompts at 0.4, half at 0.95: tau lies above the i.i.d. value, the position curve recovers it."""
    alphas = np.repeat([[0.4] * 8, [0.95] * 8], 20, axis=0)
    estimates = estimate(simulate(alphas, prompts=40), **ARGS)
    values, curve = by_name(estimates), by_position(estimates, "conditional")
    tau = values["tau"].value
    assert tau == pytest.approx(0.5 * (1 - 0.4**9) / 0.6 + 0.5 * (1 - 0.95**9) / 0.05, rel=0.02)
    mean = 0.675
    assert tau > 1.4 * (1 - mean**9) / (1 - mean)
    rebuilt, reached = 1.0, 1.0
    for i in range(1, 9):
        reached *= curve[i].value
        rebuilt += reached
    assert rebuilt == pytest.approx(tau)
    # Survivors are the easy prompts: the conditional rate climbs with the position.
    assert curve[8].value > curve[1].value + 0.2


def test_silent_rounds_lower_tau_but_not_alpha():
    values = by_name(estimate(simulate([0.8] * 3, draft_rate=0.3, prompts=40), **ARGS))
    assert values["alpha_mle"].value == pytest.approx(0.8, abs=0.02)
    assert values["draft_rate"].value == pytest.approx(0.3, abs=0.03)
    assert values["tau"].value == pytest.approx(1 + 0.3 * (0.8 + 0.64 + 0.512), rel=0.04)


def test_mle_and_sum_min_agree_within_three_standard_errors():
    values = by_name(estimate(simulate(np.random.default_rng(4).uniform(0.2, 0.9, (40, 4)), prompts=40), **ARGS))
    spread = standard_error(values["alpha_mle"], 0.95)
    assert abs(values["alpha_mle"].value - values["sum_min"].value) < 3 * spread


def test_match_probability_is_below_sum_min_for_a_drafter_that_draws():
    """E[sum p q] <= E[sum min(p, q)]: calling an exact-match sampler rejection sampling would overstate it."""
    truth = Truth(drafters={"lm": DrafterTruth({}, 0.7, 0.1, samples=True)}, ks=(3,), temperatures=(1.0,))
    rounds = fabricate(truth).rounds
    values = by_name(estimate(rounds[rounds["drafter"] != "plain"], **ARGS))
    assert values["match_probability"].value < values["sum_min"].value - 0.02


def test_match_probability_is_sum_min_for_a_one_hot_drafter():
    truth = Truth(drafters={"ngram": DrafterTruth({}, 0.7, 0.0)}, ks=(3,), temperatures=(1.0,))
    rounds = fabricate(truth).rounds
    values = by_name(estimate(rounds[rounds["drafter"] != "plain"], **ARGS))
    assert values["match_probability"].value == pytest.approx(values["sum_min"].value)


def test_match_probability_of_drawn_tokens_is_the_sum_of_p_times_q():
    """Two outcomes, q = (0.8, 0.2), p = (0.5, 0.5): sum p q = 0.5 whatever is drawn and accepted."""
    generator = np.random.default_rng(0)
    rows = []
    for i in range(6000):
        first = generator.random() < 0.8
        accepted = int(generator.random() < min(1.0, 0.5 / (0.8 if first else 0.2)))
        rows.append({"prompt_id": i % 20, "temperature": 1.0, "k_planned": 1, "n_drafted": 1, "n_accepted": accepted,
                     "n_emitted": accepted + 1, "end_reason": "full" if accepted else "reject",
                     "sum_min": [0.7], "p_draft": [0.5]})  # fmt: skip
    values = by_name(estimate(pd.DataFrame(rows), **ARGS))
    assert values["match_probability"].value == pytest.approx(0.5)
    assert values["alpha_mle"].value == pytest.approx(0.7, abs=0.02)


def test_top1_agreement_speaks_of_greedy_rounds_only():
    greedy = simulate([0.5] * 3, temperature=0.0, seed=1)
    greedy["p_draft"] = [
        [1.0] * a + [0.0] * (t - a) for a, t in zip(greedy["n_accepted"], n_tested(greedy), strict=True)
    ]
    values = by_name(estimate(greedy, **ARGS))
    assert values["top1_agreement"].value == pytest.approx(values["alpha_mle"].value)
    assert np.isnan(by_name(estimate(simulate([0.5] * 3), **ARGS))["top1_agreement"].value)


def test_sum_of_unconditional_is_accepted_per_round_is_tau_minus_one():
    estimates = estimate(simulate([0.7, 0.5, 0.9], draft_rate=0.6), **ARGS)
    values = by_name(estimates)
    total = sum(interval.value for interval in by_position(estimates, "unconditional").values())
    assert total == pytest.approx(values["accepted_per_round"].value)
    assert total == pytest.approx(values["tau"].value - 1)


def test_a_drafter_that_never_drafts_has_tau_one_and_no_alpha():
    values = by_name(estimate(simulate([0.9] * 2, draft_rate=0.0), **ARGS))
    assert values["tau"].value == 1.0 and values["draft_rate"].value == 0.0
    for name in ("alpha_mle", "accepted_per_drafted", "sum_min", "match_probability"):
        assert np.isnan(values[name].value), name


def test_no_rounds_define_nothing():
    values = by_name(estimate(simulate([0.9] * 2).iloc[:0], **ARGS))
    assert all(np.isnan(interval.value) for interval in values.values())


def test_intervals_are_those_of_prompts_not_of_rounds():
    """Two kinds of prompts, 8 prompts, 4,000 rounds: the interval must span far more than binomial noise."""
    alphas = np.repeat([[0.2] * 2, [0.9] * 2], 4, axis=0)
    interval = by_name(estimate(simulate(alphas, prompts=8, rounds_each=500), **ARGS))["alpha_mle"]
    assert interval.high - interval.low > 0.2


def test_fast_enough_for_a_real_table():
    rounds = simulate([0.6] * 8, prompts=60, rounds_each=50)
    started = time.perf_counter()
    estimate(rounds, resamples=2000, confidence=0.95, seed=1)
    assert len(rounds) == 3000 and time.perf_counter() - started < 1.0


# ------------------------------------------------------------------ planted bugs: the checks above must catch each one


def _bonus_counts_as_accepted(rounds):
    return acceptance._counts(rounds, "n_emitted"), acceptance._tested(rounds)


def _untested_drafts_count_as_tested(rounds):
    return acceptance._counts(rounds, "n_accepted"), acceptance._counts(rounds, "n_drafted")


def _censored_rounds_count_as_rejections(rounds):
    return acceptance._counts(rounds, "n_accepted"), acceptance._counts(rounds, "n_accepted") + 1


def _rejections_forgotten(rounds):
    return acceptance._counts(rounds, "n_accepted"), np.maximum(acceptance._counts(rounds, "n_accepted"), 1)


def _pooled_positions(rounds, position):
    """Divide by rounds instead of by rounds that reached the position."""
    return (acceptance._counts(rounds, "n_accepted") >= position).astype(float), np.ones(len(rounds))


def _shifted_positions(rounds, position):
    return acceptance.conditional(rounds, position + 1)


def _drafted_counts_the_plan(rounds):
    return acceptance._counts(rounds, "n_accepted"), acceptance._counts(rounds, "k_planned")


def _tau_without_bonus(rounds):
    return acceptance._counts(rounds, "n_accepted"), np.ones(len(rounds))


@pytest.mark.parametrize(
    ("table", "name", "bug", "check"),
    [
        (acceptance.DEFINITIONS, "alpha_mle", _bonus_counts_as_accepted, test_known_alpha_is_found),
        (acceptance.DEFINITIONS, "alpha_mle", _untested_drafts_count_as_tested, test_known_alpha_is_found),
        (acceptance.DEFINITIONS, "alpha_mle", _censored_rounds_count_as_rejections, test_known_alpha_is_found),
        (acceptance.DEFINITIONS, "alpha_mle", _rejections_forgotten, test_known_alpha_is_found),
        (acceptance.DEFINITIONS, "tau", _tau_without_bonus, test_known_alpha_is_found),
        (acceptance.POSITIONAL, "conditional", _pooled_positions, test_position_curve_is_found_by_position),
        (acceptance.POSITIONAL, "conditional", _shifted_positions, test_position_curve_is_found_by_position),
        (acceptance.DEFINITIONS, "accepted_per_drafted", _drafted_counts_the_plan,
         lambda: test_every_definition_equals_brute_force_on_a_whole_log(0)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_planted_bug_is_caught(monkeypatch, table, name, bug, check):
    check()
    monkeypatch.setitem(table, name, bug)
    with pytest.raises(AssertionError):
        check()
