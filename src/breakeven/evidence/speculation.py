"""Rows of reports/metrics/speculative.json and acceptance.json from the tables of the measuring stages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pandas as pd

from breakeven.config import Config
from breakeven.costs import predictors
from breakeven.evidence.acceptance import Estimate, by_name, estimate
from breakeven.evidence.costtable import CostTable
from breakeven.evidence.intervals import BootstrapSettings, Interval
from breakeven.evidence.pairing import GROUP_KEY, PLAIN, Speedup, speedup
from breakeven.results import SCHEMA_VERSION, AcceptanceRow, SpeculativeRow

ALL = "all"


@dataclass(frozen=True)
class Group:
    """What one row is made of: one drafter, setting, k and temperature, one category or all."""

    category: str
    pairs: pd.DataFrame
    rounds: pd.DataFrame
    plain_rounds: pd.DataFrame  # of the same prompts; empty if plain rounds were not logged
    divergences: pd.DataFrame


@dataclass(frozen=True)
class RoundCosts:
    """What a round cost, in target passes over one token, and what a plain step cost beside that pass.

    Attributes:
        c: cost of drafting one token; None if the drafter was not timed.
        n_draft: tokens drafted a round.
        v_verify: mean of v over the verified lengths; None if no target pass was timed.
        overhead: everything else in a round.
        overhead_plain: everything else in a plain step: it belongs to the plain side of the speedup.
    """

    c: Interval | None
    n_draft: float
    v_verify: float | None
    overhead: float | None
    overhead_plain: float


def groups(
    pairs: pd.DataFrame, rounds: pd.DataFrame, divergences: pd.DataFrame, *, by_category: bool = True
) -> Iterator[Group]:
    """Yield the groups of rows that belong together, `all` first, then its categories.

    Args:
        pairs: rows of `pairing.pair`.
        rounds: a valid round log.
        divergences: data/divergences.parquet.
        by_category: also yield every category alone.
    """
    plain = rounds[rounds["drafter"] == PLAIN]
    own_rounds = dict(iter(rounds[rounds["drafter"] != PLAIN].groupby(GROUP_KEY, sort=False)))
    for key, table in pairs.groupby(GROUP_KEY, sort=True):
        drafter, setting, k, _calibrated, temperature = key
        logged = own_rounds.get(key, rounds.iloc[:0])
        beside = plain[plain["temperature"] == temperature]
        same = (divergences["drafter"] == drafter) & (divergences["setting"] == setting) & (divergences["k"] == k)
        known = divergences[same] if temperature == 0 else divergences.iloc[:0]
        categories = [ALL, *sorted(table["category"].unique())] if by_category else [ALL]
        for category in categories:
            own = table if category == ALL else table[table["category"] == category]
            prompts = set(own["prompt_id"])
            parts = [part[part["prompt_id"].isin(prompts)] for part in (logged, beside, known)]
            yield Group(category, own, *parts)


def group_estimates(group: Group, config: Config) -> list[Estimate]:
    """Estimate every definition of acceptance from the rounds of a group."""
    return estimate(group.rounds, **_bootstrap(config)) if len(group.rounds) else []


def speculative_row(
    group: Group, estimates: list[Estimate], costs: CostTable, config: Config, kv_bytes_per_token: int
) -> SpeculativeRow | None:
    """Build one row; None if no request of the group decoded a second token.

    The three predictions answer for `speedup_total`, the ratio of all tokens over all seconds: they predict means, and
    a median over prompts is another quantity where prompts differ much.
    """
    rates = speedup(group.pairs, **_bootstrap(config))
    if rates is None or not estimates:
        return None
    first = group.pairs.iloc[0]
    values = by_name(estimates)
    cost = round_costs(group, costs)
    predicted = predictions(values, int(first["k"]), cost)
    cost_aware = predicted["cost_aware"]
    greedy = float(first["temperature"]) == 0.0
    row = {
        "schema_version": SCHEMA_VERSION,
        "model": first["model"],
        "machine": first["machine"],
        "hardware": config.hardware.name,
        "dtype": config.hardware.dtype,
        "workload": first["workload"],
        "category": group.category,
        "drafter": first["drafter"],
        "setting": first["setting"],
        "k": int(first["k"]),
        "calibrated": bool(first["calibrated"]),
        "temperature": float(first["temperature"]),
        "lossless": bool(group.pairs["lossless"].all()) if "lossless" in group.pairs else True,
        "n_prompts": int(group.pairs["prompt_id"].nunique()),
        "n_rounds": len(group.rounds),
        "n_tokens": int(group.pairs["new_tokens"].sum()),
        **_acceptance_fields(values),
        **_cost_fields(cost),
        **_speedup_fields(rates),
        **{f"predicted_{name}": value for name, value in predicted.items()},
        "residual_cost_aware": None if cost_aware is None else cost_aware / rates.total - 1.0,
        "kv_bytes_per_token": kv_bytes_per_token,
        "drafter_bytes": int(group.pairs["drafter_bytes"].max()),
        "peak_memory_bytes": int(group.pairs["peak_memory_bytes"].max()),
        "n_divergences": len(group.divergences) if greedy else None,
        "n_divergences_near_tie": int((group.divergences["verdict"] == "near_tie").sum()) if greedy else None,
    }
    return cast(SpeculativeRow, {name: _or_none(value) for name, value in row.items()})


def acceptance_rows(group: Group, estimates: list[Estimate]) -> list[AcceptanceRow]:
    """Build one row a definition (and position); definitions that the rounds do not define are left out."""
    first = group.pairs.iloc[0]
    shown = [e for e in estimates if e.definition != "draft_rate" and not math.isnan(e.interval.value)]
    return [_acceptance_row(e, first, group.category) for e in shown]


def round_costs(group: Group, costs: CostTable) -> RoundCosts:
    """Look up what the rounds of a group cost on this machine; overheads are measured in the run itself."""
    first, rounds = group.pairs.iloc[0], group.rounds
    drafter, setting = str(first["drafter"]), str(first["setting"])
    context = float(rounds["ctx_len"].mean())
    verify = costs.verify(drafter, setting, rounds["n_drafted"] + 1, rounds["ctx_len"])
    plain = group.plain_rounds
    if len(plain):
        forward, plain_other = float(plain["t_verify_s"].mean()), float(plain["t_other_s"].mean())
    else:
        # Without plain rounds the plain step cannot be split: all of it counts as the forward pass.
        work = group.pairs.drop_duplicates(["prompt_id", "repeat"])
        forward, plain_other = float(work["decode_s_plain"].sum() / (work["new_tokens_plain"] - 1).sum()), 0.0
    return RoundCosts(
        c=costs.draft(drafter, setting, int(first["k"]), context),
        n_draft=float(rounds["n_drafted"].mean()),
        v_verify=None if verify is None else float(verify.mean()),
        overhead=float(rounds["t_other_s"].mean()) / forward,
        overhead_plain=plain_other / forward,
    )


def predictions(values: dict[str, Interval], k: int, cost: RoundCosts) -> dict[str, float | None]:
    """Predict the speedup three ways: `post`, `leviathan`, `cost_aware`; None where an input is not known."""
    result: dict[str, float | None] = {"post": None, "leviathan": None, "cost_aware": None}
    if cost.c is None:
        return result
    c, drafted, alpha = cost.c.value, values["accepted_per_drafted"].value, values["alpha_mle"].value
    if not math.isnan(drafted):
        result["post"] = predictors.post_speedup(drafted, k, c)
        result["leviathan"] = predictors.leviathan_speedup(alpha, k, c)
    if cost.v_verify is not None and cost.overhead is not None:
        gain = predictors.cost_aware_speedup(values["tau"].value, cost.n_draft, c, cost.v_verify, cost.overhead)
        # The plain step that a round is compared with carries an overhead too.
        result["cost_aware"] = gain * (1.0 + cost.overhead_plain)
    return result


def _bootstrap(config: Config) -> BootstrapSettings:
    measure = config.measure
    return {"resamples": measure.bootstrap_resamples, "confidence": measure.confidence, "seed": measure.seed}


def _acceptance_fields(values: dict[str, Interval]) -> dict[str, float]:
    return {
        "tau": values["tau"].value,
        "tau_low": values["tau"].low,
        "tau_high": values["tau"].high,
        "alpha": values["alpha_mle"].value,
        "alpha_low": values["alpha_mle"].low,
        "alpha_high": values["alpha_mle"].high,
        "alpha_accepted_per_drafted": values["accepted_per_drafted"].value,
        "alpha_sum_min": values["sum_min"].value,
        "accepted_per_round": values["accepted_per_round"].value,
        "draft_rate": values["draft_rate"].value,
    }


def _cost_fields(cost: RoundCosts) -> dict[str, float | None]:
    return {
        "c": cost.c.value if cost.c else None,
        "c_low": cost.c.low if cost.c else None,
        "c_high": cost.c.high if cost.c else None,
        "v_verify": cost.v_verify,
        "overhead": cost.overhead,
    }


def _speedup_fields(rates: Speedup) -> dict[str, float]:
    return {
        "speedup": rates.paired.value,
        "speedup_low": rates.paired.low,
        "speedup_high": rates.paired.high,
        "speedup_total": rates.total,
        "speedup_end_to_end": rates.end_to_end,
        "tokens_per_s": rates.tokens_per_s,
        "tokens_per_s_plain": rates.tokens_per_s_plain,
    }


def _acceptance_row(one: Estimate, first: pd.Series, category: str) -> AcceptanceRow:
    return {
        "schema_version": SCHEMA_VERSION,
        "model": first["model"],
        "drafter": first["drafter"],
        "setting": first["setting"],
        "k": int(first["k"]),
        "temperature": float(first["temperature"]),
        "category": category,
        "definition": one.definition,
        "position": one.position,
        "value": one.interval.value,
        "value_low": _or_none(one.interval.low),
        "value_high": _or_none(one.interval.high),
        "n": one.interval.n,
    }


def _or_none(value: Any) -> Any:
    """Return the value, null in place of NaN: result files know no NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value
