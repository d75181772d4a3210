"""The costs stage: measure, plan, measure what was planned."""

from __future__ import annotations

from typing import Any

import pandas as pd

from breakeven.config import Config
from breakeven.costs.measure import Case, CostBench
from breakeven.costs.plan import StepCosts, choose
from breakeven.costs.timing import Probe
from breakeven.drafters import registry
from breakeven.drafters.base import Drafter
from breakeven.models.adapter import LayeredModel


def measure_costs(
    config: Config,
    calibration: dict[str, Any],
    target: LayeredModel,
    draft_model: LayeredModel | None,
    text: list[int],
) -> tuple[pd.DataFrame, dict[str, Any], dict[str, Drafter]]:
    """Time everything behind every context length and choose each drafter's setting and k.

    The plan rests on the first context length of `costs.context_tokens`. A second pass then times the planned
    settings themselves, next to the target passes that they are compared with.

    Returns:
        Raw samples, the plan (data/plan.json), and the planned drafters.
    """
    ks = sorted(config.calibrate.k_candidates)
    layers = [r["setting"]["layer"] for r in calibration["drafters"].get("early_exit", [])]
    plan: dict[str, Any] = {}
    drafters: dict[str, Drafter] = {}
    tables = []
    for context in config.costs.context_tokens:
        bench = CostBench(target, text, context, config.costs.max_m)
        probes = bench.base_probes(layers)
        for name, records in calibration["drafters"].items():
            # An exit's draft cost depends on its layer: the `exit` probes time every one.
            if name != "early_exit":
                setting = records[-1]["setting"]
                drafter = registry.build(name, target, setting, draft_model)
                probes |= bench.drafter_probes(drafter, registry.setting_id(setting), ks)
        first = bench.time(probes, repeats=config.costs.repeats, warmup=config.costs.warmup, seed=config.measure.seed)
        if not plan:
            plan = choose(StepCosts.from_samples(first, target.n_layers), calibration)
            drafters = {n: registry.build(n, target, p["setting"], draft_model) for n, p in plan["drafters"].items()}
        tables += [first, _planned(bench, config, plan, drafters)]
    return pd.concat(tables, ignore_index=True), plan, drafters


def _planned(bench: CostBench, config: Config, plan: dict[str, Any], drafters: dict[str, Drafter]) -> pd.DataFrame:
    """Time the planned drafters at the shortest, the planned and the longest k, with target passes beside them."""
    candidates = config.calibrate.k_candidates
    probes: dict[Case, Probe] = {}
    for name, drafter in drafters.items():
        planned = plan["drafters"][name]
        ks = sorted({min(candidates), planned["k"], max(candidates)})
        probes |= bench.drafter_probes(drafter, planned["setting_id"], ks)
    probes |= {case: probe for case, probe in bench.base_probes([]).items() if case.kind == "target"}
    table = bench.time(probes, repeats=config.costs.repeats, warmup=config.costs.warmup, seed=config.measure.seed + 1)
    # Rounds of the two passes must not be taken for one another where ratios are paired.
    table["repeat"] += config.costs.repeats
    return table
