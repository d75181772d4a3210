"""Fabricated `Results`: what the report is made from, with a known truth and without running a stage."""

from __future__ import annotations

import dataclasses
from typing import Any

import yaml
from omegaconf import OmegaConf
from tests import synthetic

from breakeven.config import Config, from_dictconfig
from breakeven.costs import predictors
from breakeven.reporting.data import Results

CLAIM_IDS = (
    *(f"SD{i}" for i in range(1, 11)),
    *(f"KV{i}" for i in range(1, 11)),
    *(f"TK{i}" for i in range(1, 5)),
    *(f"GD{i}" for i in range(1, 12)),
)
VERDICTS = ("reproduced", "contradicted", "partly", "not_testable_here", "pending")

_PARAMS = """
meta: {conf_digest: "0"}
experiment: default
hardware: {name: cpu_bf16, device: cpu, device_name_contains: "", dtype: bfloat16, threads: 0, max_ram_gib: 0,
  max_context_tokens: 4096}
model: {name: smollm2_135m, license: Apache-2.0, source: {kind: local, path: somewhere}}
workload: {name: builtin, kind: builtin, categories: [multi_turn, translation, summarization, qa, math, rag, code],
  calibration_prompts_per_category: 4}
kv: {post_symmetric: {}}
drafter: {ngram: {}, early_exit: {}}
capture: {texts: 8, tokens_per_text: 256, dtype: float32}
kv_error: {bits: [2, 3, 4, 8], axes: [{k: token, v: token}], skip_rows: 1}
calibrate: {max_new_tokens: 48, k_candidates: [1, 2]}
costs: {max_m: 16, context_tokens: [64, 512], repeats: 15, warmup: 3}
speculate: {k: [1, 2, 4, 8], include_calibrated: true, temperatures: [0.0, 1.0], max_new_tokens: 48,
  prompts_per_category: 4, sweep_prompts_per_category: 2, repeats: 1}
measure: {seed: 1234, trial: 0, bootstrap_resamples: 2000, confidence: 0.95}
track: {tracking_uri: null, experiment_prefix: breakeven}
"""


def config(**overrides: Any) -> Config:
    """A valid configuration; `overrides` are dotted keys with double underscores."""
    raw = OmegaConf.create(yaml.safe_load(_PARAMS))
    for key, value in overrides.items():
        OmegaConf.update(raw, key.replace("__", "."), value)
    return from_dictconfig(raw)


def speculative_row(truth: synthetic.Truth, name: str, k: int, **fields: Any) -> dict[str, Any]:
    """One row of speculative.json as the truth would have it; `fields` replace any of them."""
    drafter = truth.drafters[name]
    category = fields.get("category", "all")
    alpha = truth.alpha(name, category)
    rate = drafter.draft_rate
    tau = 1.0 + rate * sum(alpha**i for i in range(1, k + 1))
    verify = rate * truth.v(k + 1, name) + (1 - rate) * truth.v(1, name)
    predicted = predictors.cost_aware_speedup(tau, rate * k, drafter.c, verify, truth.overhead)
    speedup = predicted * 0.97
    row = {
        "schema_version": 1, "model": truth.model, "machine": synthetic.MACHINE, "hardware": truth.hardware,
        "dtype": "bfloat16", "workload": "builtin", "category": category, "drafter": name,
        "setting": synthetic.setting_id(drafter.setting), "k": k, "calibrated": False, "temperature": 0.0,
        "lossless": True, "n_prompts": 14, "n_rounds": 400, "n_tokens": 660, "tau": tau, "tau_low": tau * 0.96,
        "tau_high": tau * 1.04, "alpha": alpha, "alpha_low": alpha - 0.04, "alpha_high": alpha + 0.04,
        "alpha_accepted_per_drafted": (tau - 1) / (rate * k), "alpha_sum_min": alpha, "accepted_per_round": tau - 1,
        "draft_rate": rate, "c": drafter.c, "c_low": drafter.c * 0.95, "c_high": drafter.c * 1.05, "v_verify": verify,
        "overhead": truth.overhead, "speedup": speedup, "speedup_low": speedup * 0.92, "speedup_high": speedup * 1.09,
        "speedup_total": speedup * 0.99, "speedup_end_to_end": speedup * 0.9, "tokens_per_s": 40 * speedup,
        "tokens_per_s_plain": 40.0,
        "predicted_post": predictors.post_speedup(alpha, k, drafter.c),
        "predicted_leviathan": predictors.leviathan_speedup(alpha, k, drafter.c),
        "predicted_cost_aware": predicted, "residual_cost_aware": predicted / speedup - 1, "kv_bytes_per_token": 23040,
        "drafter_bytes": 0, "peak_memory_bytes": 900_000_000, "n_divergences": 0, "n_divergences_near_tie": 0,
    }  # fmt: skip
    return {**row, **fields}


def speculative_rows(truth: synthetic.Truth) -> list[dict[str, Any]]:
    """speculative.json: the sweep and the calibrated run, all categories together and each alone."""
    rows = []
    for temperature in truth.temperatures:
        unlike = {} if temperature == 0 else {"n_divergences": None, "n_divergences_near_tie": None}
        for name, drafter in truth.drafters.items():
            runs = [(k, False, 14) for k in truth.ks] + [(drafter.calibrated_k, True, 28)] * truth.calibrated
            for k, calibrated, n in runs:
                for category in ("all", *truth.categories):
                    fields = {"calibrated": calibrated, "n_prompts": n if category == "all" else n // 7} | unlike
                    rows.append(speculative_row(truth, name, k, temperature=temperature, category=category, **fields))
    return rows


def acceptance_rows(truth: synthetic.Truth) -> list[dict[str, Any]]:
    """acceptance.json: every definition once, and positions 1..k."""
    rows = []
    for temperature in truth.temperatures:
        for name, drafter in truth.drafters.items():
            for k in sorted({*truth.ks, drafter.calibrated_k}):
                base = {
                    "schema_version": 1, "model": truth.model, "drafter": name,
                    "setting": synthetic.setting_id(drafter.setting), "k": k, "temperature": temperature,
                    "category": "all", "n": 400,
                }  # fmt: skip
                alpha = drafter.alpha
                scalars = {"tau": 1 + alpha, "alpha_mle": alpha, "accepted_per_drafted": alpha * 0.8}
                cells = [(definition, None, value) for definition, value in scalars.items()]
                for i in range(1, k + 1):
                    cells += [("conditional", i, alpha), ("unconditional", i, alpha**i)]
                rows += [
                    {**base, "definition": definition, "position": position, "value": value,
                     "value_low": value * 0.9, "value_high": min(value * 1.1, 1 + alpha)}
                    for definition, position, value in cells
                ]  # fmt: skip
    return rows


def claims() -> list[dict[str, Any]]:
    """claims.json: 35 rows, every verdict among them."""
    return [
        {
            "id": claim, "claim": f"what claim {claim} says, in a sentence of ordinary length with a number 0.786",
            "published": "0.786 per token and 0.623 per channel at 2 bits", "measured": "0.757 (0.731–0.780)",
            "verdict": VERDICTS[i % len(VERDICTS)], "reason": "since the quantizer has seven levels, not four",
            "artefact": "reports/metrics/kv_error.json" if i % 2 else None,
        }
        for i, claim in enumerate(CLAIM_IDS)
    ]  # fmt: skip


def results(truth: synthetic.Truth | None = None, **replaced: Any) -> Results:
    """Complete results of a fabricated run; `replaced` overrides any part."""
    truth = truth or synthetic.Truth()
    tables = synthetic.fabricate(truth)
    audits = [
        {
            "audit": "fresh_conversation_each_prompt",
            "passed": True,
            "detail": "every prompt starts from an empty cache",
        },
        {"audit": "alpha_mle_agrees_with_sum_min", "passed": True, "detail": "0.61 against 0.60, 0.8 standard errors"},
    ]
    whole = Results(
        config=config(), hardware=tables.hardware, lock=tables.lock,
        speculative=speculative_rows(truth), acceptance=acceptance_rows(truth), costs=tables.cost_rows,
        kv_error=tables.kv_error_rows, audits=audits, claims=claims(), channels=tables.kv_channels,
        calibration=tables.calibration, plan=tables.plan,
    )  # fmt: skip
    return dataclasses.replace(whole, **replaced)
