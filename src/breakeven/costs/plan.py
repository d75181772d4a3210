"""Choosing each drafter's setting and draft length by predicted speedup: pure arithmetic on measured tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from breakeven.costs.predictors import cost_aware_speedup
from breakeven.drafters.registry import setting_id


@dataclass(frozen=True)
class StepCosts:
    """Median seconds behind one context length, from the raw samples of `costs.measure`."""

    target_s: dict[int, float]  # m -> forward pass of m tokens
    head_s: dict[int, float]
    overhead_s: dict[int, float]
    exit_s: dict[int, float]  # layer -> early-exit draft step
    draft_s: dict[tuple[str, int], float]  # (drafter, k) -> proposing k tokens
    n_layers: int

    @classmethod
    def from_samples(cls, samples: pd.DataFrame, n_layers: int) -> StepCosts:
        """Read the medians of one context length."""

        def medians(kind: str, key: str) -> dict[int, float]:
            table = samples[samples["kind"] == kind].groupby(key)["seconds"].median()
            return dict(zip(table.index.astype(int).tolist(), table.tolist(), strict=True))

        drafts = samples[samples["kind"] == "draft"].groupby(["drafter", "m"])["seconds"].median()
        return cls(
            target_s=medians("target", "m"),
            head_s=medians("head", "m"),
            overhead_s=medians("overhead", "m"),
            exit_s=medians("exit", "layer"),
            draft_s=dict(zip(drafts.index.tolist(), drafts.tolist(), strict=True)),
            n_layers=n_layers,
        )

    def interpolate(self, table: Mapping[int, float], at: float) -> float:
        """Linear interpolation in a measured table; outside, the nearest end."""
        points = sorted(table)
        return float(np.interp(at, points, [table[p] for p in points]))

    def draft(self, name: str, setting: Mapping[str, Any], n: int) -> float:
        """Seconds of drafting n tokens."""
        if n == 0:
            return 0.0
        if name == "early_exit":
            return n * self.interpolate(self.exit_s, setting["layer"])
        per_k = {k: s for (drafter, k), s in self.draft_s.items() if drafter == name}
        return self.interpolate(per_k, n) if per_k else 0.0

    def verify(self, name: str, setting: Mapping[str, Any], m: int) -> float:
        """Seconds of the target pass over m tokens.

        An early exit already ran its layers for all but the last input: they are charged for one token (LayerSkip).
        """
        full = self.interpolate(self.target_s, m)
        if name != "early_exit":
            return full
        depth = float(setting["layer"]) / self.n_layers
        layers_m = full - self.interpolate(self.head_s, m)
        layers_1 = self.target_s[1] - self.head_s[1]
        return full - depth * layers_m + depth * layers_1


def predict(costs: StepCosts, name: str, record: Mapping[str, Any], k: int) -> float:
    """Predicted speedup of one calibrated setting at draft length k, over the rounds that calibration replayed."""
    rounds = {int(n): count for n, count in record["drafted_by_k"][str(k)].items()}
    total, setting = sum(rounds.values()), record["setting"]
    step = costs.target_s[1] + costs.overhead_s[1]
    draft = sum(count * costs.draft(name, setting, n) for n, count in rounds.items()) / total
    verify = sum(count * costs.verify(name, setting, n + 1) for n, count in rounds.items()) / total
    overhead = sum(count * costs.interpolate(costs.overhead_s, n + 1) for n, count in rounds.items()) / total
    return cost_aware_speedup(record["tau_by_k"][str(k)], 1.0, draft / step, verify / step, overhead / step)


def choose(costs: StepCosts, calibration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan: for every drafter its best setting and k, whether it is predicted to pay, and all others."""
    drafters = {}
    for name, records in sorted(calibration["drafters"].items()):
        options = [
            {"setting": record["setting"], "k": int(k), "predicted_speedup": predict(costs, name, record, int(k))}
            for record in records
            for k in record["tau_by_k"]
        ]
        # Ties go to the shorter draft.
        best = max(options, key=lambda option: (option["predicted_speedup"], -option["k"]))
        drafters[name] = {
            **best,
            "setting_id": setting_id(best["setting"]),
            "pays": best["predicted_speedup"] > 1.0,
            "alternatives": sorted(options, key=lambda option: -option["predicted_speedup"]),
        }
    return {"drafters": drafters}
