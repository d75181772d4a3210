"""The benchmark compares like with like, interleaved, and counts every token once."""

from __future__ import annotations

from typing import Any

import pytest

from breakeven.config import Config, MeasureConfig, SpeculateConfig, WorkloadConfig
from breakeven.speculative.benchmark import Benchmark, Task, Variant, repetition, variants
from breakeven.speculative.rounds import validate
from helpers.drafting import build
from helpers.models import random_model

PLAN: dict[str, Any] = {
    "drafters": {"early_exit": {"k": 2, "setting_id": "e"}, "ngram": {"k": 4, "setting_id": "n"}},
}


def speculate(**changes: Any) -> SpeculateConfig:
    fields: dict[str, Any] = {
        "k": [1, 4], "include_calibrated": True, "temperatures": [0.0, 1.0], "max_new_tokens": 8,
        "prompts_per_category": 2, "sweep_prompts_per_category": 1, "repeats": 2,
    }  # fmt: skip
    return SpeculateConfig(**(fields | changes))


def run(settings: SpeculateConfig) -> tuple[Any, Any]:
    target = random_model("llama")
    config = Config(speculate=settings, workload=WorkloadConfig(name="w"), measure=MeasureConfig(seed=3))
    drafters = {name: build(name, target) for name in ("ngram", "early_exit")}
    tasks = [Task(f"{c}{i}", c, [3 + i, 7, 5, 3 + i, 7]) for c in ("qa", "code") for i in range(2)]
    return Benchmark(config, "x", target, drafters).run(tasks, PLAN)


def test_every_prompt_has_its_own_baseline_at_every_temperature() -> None:
    requests, _ = run(speculate())
    keys = ["prompt_id", "temperature", "repeat"]
    plain = requests[requests["drafter"] == "plain"].groupby(keys).size()
    assert (plain == 1).all()
    others = requests[requests["drafter"] != "plain"]
    assert set(map(tuple, others[keys].to_numpy().tolist())) <= set(plain.index.tolist())


def test_repeats_mirror_the_order_so_that_no_variant_always_comes_first() -> None:
    requests, _ = run(speculate())
    first = requests[(requests["prompt_id"] == "qa0") & (requests["repeat"] == 0)].sort_values("order")
    second = requests[(requests["prompt_id"] == "qa0") & (requests["repeat"] == 1)].sort_values("order")
    names = ["drafter", "k", "temperature"]
    assert first[names].to_numpy().tolist() == second[names].to_numpy().tolist()[::-1]
    places = requests[requests["drafter"] == "plain"].groupby("prompt_id")["place"].first()
    assert places.nunique() > 1, "the baseline must not stand in the same place for every prompt"


def test_the_round_log_keeps_its_invariants_and_the_tokens_add_up() -> None:
    requests, rounds = run(speculate())
    validate(rounds)
    keys = ["prompt_id", "drafter", "k", "temperature", "repeat"]
    emitted = rounds.groupby(keys)["n_emitted"].sum()
    for row in requests.to_dict("records"):
        assert emitted.get(tuple(row[key] for key in keys), 0) + 1 == row["new_tokens"] == len(row["output_ids"])


def test_greedy_outputs_do_not_depend_on_the_drafter() -> None:
    requests, _ = run(speculate())
    greedy = requests[requests["temperature"] == 0.0]
    assert (greedy.groupby("prompt_id")["output_sha256"].nunique() == 1).all()


def test_the_sweep_runs_every_k_and_the_rest_only_the_planned_one() -> None:
    swept = variants(speculate(), PLAN, in_sweep=True)
    assert [(v.drafter, v.k) for v in swept if v.temperature == 0.0] == [
        ("plain", 0), ("early_exit", 1), ("early_exit", 2), ("early_exit", 4), ("ngram", 1), ("ngram", 4),
    ]  # fmt: skip
    assert [(v.drafter, v.k) for v in swept if v.temperature == 1.0] == [("plain", 0), ("early_exit", 2), ("ngram", 4)]
    rest = variants(speculate(), PLAN, in_sweep=False)
    assert rest == [
        Variant("plain", "", 0, False, 0.0),
        Variant("early_exit", "e", 2, True, 0.0),
        Variant("ngram", "n", 4, True, 0.0),
    ]


def test_without_the_calibrated_k_only_the_asked_ones_run() -> None:
    found = variants(speculate(include_calibrated=False, k=[1]), PLAN, in_sweep=False)
    assert {v.k for v in found if v.drafter != "plain"} == {1}


@pytest.mark.parametrize(("tokens", "share"), [([1, 2] * 10, 11 / 13), (list(range(20)), 0.0), ([1, 2, 3], 0.0)])
def test_repetition_is_the_share_of_8_grams_seen_before(tokens: list[int], share: float) -> None:
    assert repetition(tokens) == pytest.approx(share)
