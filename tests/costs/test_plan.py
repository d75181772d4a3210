"""The plan picks what the arithmetic says, and says so when nothing pays."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from breakeven.costs.plan import StepCosts, choose, predict

COSTS = StepCosts(
    target_s={1: 1.0, 2: 1.0, 5: 1.2, 9: 2.0},
    head_s={1: 0.2, 9: 0.2},
    overhead_s={1: 0.0, 9: 0.0},
    exit_s={1: 0.3, 3: 0.7},
    draft_s={("small_lm", 1): 0.1, ("small_lm", 4): 0.4},
    n_layers=4,
)


def record(setting: dict[str, Any], tau: dict[int, float], drafted: dict[int, dict[int, int]]) -> dict[str, Any]:
    return {
        "setting": setting,
        "tau_by_k": {str(k): t for k, t in tau.items()},
        "drafted_by_k": {str(k): {str(n): c for n, c in d.items()} for k, d in drafted.items()},
    }


def test_prediction_is_emitted_over_spent() -> None:
    one = record({"draft_model": "d"}, {4: 3.0}, {4: {4: 10}})
    assert predict(COSTS, "small_lm", one, 4) == pytest.approx(3.0 / (0.4 + 1.2))


def test_a_silent_round_costs_an_ordinary_step_not_a_verification() -> None:
    half = record({"draft_model": "d"}, {4: 2.0}, {4: {4: 5, 0: 5}})
    assert predict(COSTS, "small_lm", half, 4) == pytest.approx(2.0 / (0.5 * 0.4 + 0.5 * 1.2 + 0.5 * 1.0))


def test_early_exit_is_not_charged_twice_for_the_layers_it_shares() -> None:
    # 8 drafted: full pass over 9 costs 2.0, of it 0.2 head; layer 2 of 4 ran half of the rest already, for 8 tokens.
    assert COSTS.verify("early_exit", {"layer": 2}, 9) == pytest.approx(0.2 + 0.5 * 1.8 + 0.5 * 0.8)
    assert COSTS.verify("ngram", {}, 9) == 2.0


def test_choice_is_the_best_option_and_ties_go_to_the_shorter_draft() -> None:
    records = [record({"draft_model": "d"}, {1: 1.5, 4: 2.0}, {1: {1: 1}, 4: {4: 1}})]
    plan = choose(COSTS, {"drafters": {"small_lm": records}})["drafters"]["small_lm"]
    assert plan["k"] == 1
    assert plan["predicted_speedup"] == pytest.approx(1.5 / 1.1)
    assert plan["pays"]
    assert [o["k"] for o in plan["alternatives"]] == [1, 4]


def test_a_drafter_that_cannot_pay_is_planned_and_marked() -> None:
    records = [record({"layer": 3}, {1: 1.1, 4: 1.1}, {1: {1: 1}, 4: {4: 1}})]
    plan = choose(COSTS, {"drafters": {"early_exit": records}})["drafters"]["early_exit"]
    assert not plan["pays"]
    assert plan["k"] == 1


def test_medians_are_read_by_kind() -> None:
    columns = ["kind", "drafter", "setting", "layer", "m", "context_tokens", "repeat", "seconds"]
    rows = [["target", "", "", 0, m, 64, r, m + 0.1 * r] for m in (1, 2) for r in range(3)]
    rows += [["exit", "early_exit", "", 2, 1, 64, r, 0.5] for r in range(3)]
    rows += [["draft", "ngram", "{}", 0, 4, 64, r, 0.01] for r in range(3)]
    rows += [[kind, "", "", 0, 1, 64, r, 0.2] for kind in ("head", "overhead") for r in range(3)]
    costs = StepCosts.from_samples(pd.DataFrame(rows, columns=columns), n_layers=4)
    assert costs.target_s == pytest.approx({1: 1.1, 2: 2.1})
    assert costs.exit_s == {2: 0.5}
    assert costs.draft("ngram", {}, 4) == 0.01
    assert costs.draft("ngram", {}, 0) == 0.0
