"""The costs stage times what it plans, and its samples answer every question that summarize asks."""

from __future__ import annotations

from breakeven.calibration.calibrate import acceptance, write_outputs
from breakeven.config import CalibrateConfig, Config, CostsConfig, MeasureConfig
from breakeven.costs.rows import cost_rows
from breakeven.costs.stage import measure_costs
from helpers.drafting import DRAFTERS
from helpers.models import random_model

KS = [1, 2, 4]
SETTINGS = {
    "ngram": [{"max_ngram": 2, "min_ngram": 1, "match": "most_recent"}],
    "early_exit": [{"layer": 1}, {"layer": 3}],
    "small_lm": [{"draft_model": "draft"}],
}


def test_planned_settings_are_timed_next_to_the_passes_that_they_are_compared_with() -> None:
    target, draft = random_model("llama"), random_model("llama", layers=2)
    prompts = [(f"p{i}", [3 + i, 9, 3 + i, 9, 40]) for i in range(3)]
    texts = write_outputs(target, prompts, 12, frozenset(), seed=1)
    calibration = {
        "drafters": {name: acceptance(name, SETTINGS[name], target, draft, texts, KS, 12) for name in DRAFTERS}
    }
    config = Config(
        calibrate=CalibrateConfig(max_new_tokens=12, k_candidates=KS),
        costs=CostsConfig(max_m=5, context_tokens=[16, 24], repeats=3, warmup=1),
        measure=MeasureConfig(seed=1, trial=0, bootstrap_resamples=100, confidence=0.9),
    )
    samples, plan, drafters = measure_costs(config, calibration, target, draft, list(range(3, 60)))
    assert set(plan["drafters"]) == set(drafters) == set(DRAFTERS)
    for name, planned in plan["drafters"].items():
        assert planned["setting"] in SETTINGS[name]
        assert planned["k"] in KS
        timed = samples[(samples["kind"] == "draft") & (samples["setting"] == planned["setting_id"])]
        assert {1, planned["k"], 4} <= set(timed["m"])
        # a ratio needs its denominator from the same round
        steps = samples[(samples["kind"] == "target") & (samples["m"] == 1)]
        assert set(timed["repeat"]) <= set(steps["repeat"])
    rows = cost_rows(samples, config.measure, model="m", machine="x")
    for context in (16, 24):
        lengths = [r["m"] for r in rows if r["quantity"] == "v" and not r["drafter"] and r["context_tokens"] == context]
        assert lengths == [1, 2, 3, 4, 5]
        assert {r["layer"] for r in rows if r["quantity"] == "c" and r["layer"]} == {1, 3}
