"""Every decision rule on both sides of its threshold: a verdict that cannot flip decides nothing."""

from __future__ import annotations

import pandas as pd
import pytest
from tests.synthetic import Truth, cost_row
from tests.synthetic_kv import kv_error_rows

from breakeven.evidence.claims import Facts, decide, load_claims
from breakeven.evidence.claims.cache import outlier_shares
from breakeven.evidence.costtable import CostTable

CLAIMS = {claim.id: claim for claim in load_claims()}
TARGET = {"name": "smollm2_135m", "source": {"kind": "wheel"}, "n_layers": 30,
          "files": {"model.safetensors": {"sha256": "0" * 64, "bytes": 269_000_000}}}  # fmt: skip


def row(drafter="ngram", speedup=1.5, spread=0.05, **changes):
    """One row of speculative.json whose law, by default, holds exactly."""
    fields = {
        "model": "smollm2_135m", "category": "all", "drafter": drafter, "setting": "{}", "k": 2, "calibrated": True,
        "temperature": 0.0, "lossless": True, "tau": 1.6, "alpha": 0.5, "alpha_low": 0.45, "alpha_high": 0.55,
        "alpha_accepted_per_drafted": 0.5, "draft_rate": 1.0, "c": 0.1, "v_verify": 1.05, "overhead": 0.02,
        "speedup": speedup, "speedup_low": speedup - spread, "speedup_high": speedup + spread,
        "speedup_total": speedup, "predicted_post": speedup, "residual_cost_aware": 0.01, "drafter_bytes": 0,
    }  # fmt: skip
    assert set(changes) <= set(fields), changes
    return {**fields, **changes}


def facts(**changes) -> Facts:
    base = {
        "speculative": [], "acceptance": [], "audits": [], "costs": CostTable([]), "kv_error": [],
        "kv_channels": pd.DataFrame({"layer": [], "kv_head": [], "channel": [], "which": [], "mean_abs": []}),
        "calibration": {"drafters": {}}, "hardware": {"device": "cpu", "cpu_model": "a CPU", "device_names": []},
        "lock": {"models": {"target": TARGET}},
    }  # fmt: skip
    return Facts(**{**base, **changes})


def verdict(claim_id: str, **changes) -> str:
    finding = decide(CLAIMS[claim_id], facts(**changes))
    assert finding.reason and finding.measured
    decided = finding.verdict in {"reproduced", "contradicted", "partly"}
    assert not decided or finding.artefact, "a decided claim names the file that shows it"
    return finding.verdict


# ---------------------------------------------------------------------------------------------------------------- SD1


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row(speedup=1.5), row(speedup=0.7, alpha_accepted_per_drafted=0.05)], "reproduced"),
        ([row(speedup=1.5, predicted_post=1.5 * 1.11)], "partly"),
        ([row(speedup=1.5, predicted_post=1.5 * 1.09)], "reproduced"),
        ([row(speedup=1.5, spread=0.3, predicted_post=1.5 * 1.11)], "reproduced"),
        ([row(speedup=1.5, c=0.6)], "contradicted"),
        ([row(speedup=0.7, alpha_accepted_per_drafted=0.5)], "partly"),
        ([row(speedup=1.0)], "partly"),
        ([row(speedup=1.5, speedup_low=None, speedup_high=None)], "partly"),
        ([row(predicted_post=None, c=None)], "pending"),
        ([], "pending"),
    ],
    ids=[
        "right", "off by 11 %", "off by 9 %", "off within noise", "gain without alpha > c", "alpha > c without gain",
        "interval holds 1", "one prompt", "not timed", "not run",
    ],
)  # fmt: skip
def test_sd1_law_against_measurement(rows, expected):
    assert verdict("SD1", speculative=rows) == expected


def test_sd1_looks_at_the_total_over_categories_only():
    rows = [row(speedup=1.5), row(speedup=1.5, category="code", c=0.6)]
    assert verdict("SD1", speculative=rows) == "reproduced"


# ---------------------------------------------------------------------------------------------------------- SD2 to SD4


@pytest.mark.parametrize("claim_id", ["SD2", "SD3", "SD4"])
def test_the_posts_law_misses_the_posts_table(claim_id):
    assert verdict(claim_id) == "contradicted"


def test_a_table_that_followed_from_the_law_would_be_reproduced():
    claim = CLAIMS["SD2"]
    numbers = {**claim.numbers, "speedup": {1: 0.96, 3: 0.90}}
    finding = decide(type(claim)(**{**vars(claim), "numbers": numbers}), facts())
    assert finding.verdict == "reproduced"


def test_published_formula_values_are_named():
    reason = decide(CLAIMS["SD2"], facts()).reason
    assert "0.96 at k=1 (published 0.68)" in reason and "0.90 at k=3 (published 0.44)" in reason


def test_the_same_relative_depth_is_shown_beside_the_table():
    truth = Truth()
    calibration = {"drafters": {"early_exit": [
        {"setting": {"layer": layer}, "conditional_alpha": [layer / 100]} for layer in range(1, 30)
    ]}}  # fmt: skip
    rows = [cost_row(truth, "v", 1.0, m=m, context_tokens=64) for m in (1, 2, 4)]
    rows += [cost_row(truth, "c", 0.3, m=1, context_tokens=64, drafter="early_exit", layer=25)]
    found = decide(CLAIMS["SD4"], facts(calibration=calibration, costs=CostTable(rows)))
    assert "layer 25 of 30" in found.measured and "alpha 25.0%" in found.measured and "c 0.30" in found.measured
    assert "0.96 at k=1" in found.measured  # (1 + 0.25) / (0.3 + 1)
    assert found.artefact == "data/calibration.json"


def test_the_published_model_speaks_for_itself():
    lock = {"models": {"target": {**TARGET, "name": "gpt2", "n_layers": 12}}}
    rows = [row("early_exit", 0.7, k=1, setting='{"layer":10}'), row("early_exit", 0.9, k=1, setting='{"layer":3}')]
    found = decide(CLAIMS["SD4"], facts(lock=lock, speculative=rows))
    assert "0.70x" in found.measured and "0.90x" not in found.measured
    assert found.artefact == "reports/metrics/speculative.json"


# ---------------------------------------------------------------------------------------------------------------- SD5


def _audits(failed=()):
    names = ("greedy_outputs_identical_or_explained", "no_unexplained_divergence", "acceptance_matches_sum_min")
    return [{"audit": name, "passed": name not in failed, "detail": "seen"} for name in names]


@pytest.mark.parametrize("failed", [a["audit"] for a in _audits()])
def test_sd5_flips_with_every_audit_of_losslessness(failed):
    rows = [row(), row(temperature=1.0)]
    assert verdict("SD5", speculative=rows, audits=_audits()) == "reproduced"
    assert verdict("SD5", speculative=rows, audits=_audits([failed])) == "contradicted"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_sd5_half_shown_is_partly(temperature):
    assert verdict("SD5", speculative=[row(temperature=temperature)], audits=_audits()) == "partly"


def test_sd5_says_nothing_of_lossy_drafters():
    assert verdict("SD5", speculative=[row(lossless=False)], audits=_audits()) == "pending"


# ---------------------------------------------------------------------------------------------------------------- SD6


FAMILIES = ("small_lm", "medusa", "eagle", "early_exit", "ngram")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row("ngram", 1.2), row("early_exit", 0.4)], "contradicted"),
        ([row("ngram", 2.0), row("early_exit", 0.4)], "partly"),
        ([row("ngram", 2.0)], "partly"),
        ([row("ngram", 1.7, spread=0.2)], "partly"),
        ([row("ngram", 1.7, spread=0.2), row("early_exit", 0.4)], "partly"),
        ([row("ngram", 1.7, spread=0.05)], "contradicted"),
        ([row("early_exit" if f == "early_exit" else f, 1.6 if f == "early_exit" else 2.3) for f in FAMILIES],
         "reproduced"),
        ([row("suffix", 2.0)], "pending"),
    ],
    ids=[
        "none", "one of two", "one of one", "interval meets range", "one open, one out", "interval misses range",
        "all five", "others",
    ],
)  # fmt: skip
def test_sd6_families_against_their_ranges(rows, expected):
    assert verdict("SD6", speculative=rows) == expected


def test_sd6_takes_the_calibrated_greedy_run():
    rows = [row("ngram", 2.0, temperature=1.0), row("ngram", 2.1, calibrated=False), row("ngram", 1.2)]
    assert verdict("SD6", speculative=rows) == "contradicted"


# ---------------------------------------------------------------------------------------------------------------- SD7


def _v(curve):
    return CostTable([cost_row(Truth(), "v", value, m=m, context_tokens=64) for m, value in curve.items()])


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ({1: 1.0, 2: 1.02, 8: 1.1, 16: 1.19}, "reproduced"),
        ({1: 1.0, 2: 1.02, 8: 1.1, 16: 1.21}, "partly"),
        ({1: 1.0, 2: 1.9, 8: 3.0}, "contradicted"),
        ({1: 1.0}, "pending"),
        ({}, "pending"),
    ],
)
def test_sd7_flatness_of_v(curve, expected):
    assert verdict("SD7", costs=_v(curve)) == expected


# ---------------------------------------------------------------------------------------------------------------- SD9


def _categories(code, math, others=(0.5, 0.6), half_width=0.02, drafter="ngram"):
    rows = [row(drafter)]
    named = {"code": code, "math": math, **{f"other{i}": alpha for i, alpha in enumerate(others)}}
    return rows + [
        row(drafter, category=name, alpha=alpha, alpha_low=alpha - half_width, alpha_high=alpha + half_width)
        for name, alpha in named.items()
    ]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (_categories(0.4, 0.3), "reproduced"),
        (_categories(0.7, 0.8), "contradicted"),
        (_categories(0.4, 0.8), "partly"),
        (_categories(0.4, 0.3, half_width=0.4), "partly"),
        (_categories(0.7, 0.56), "partly"),
        (_categories(0.4, 0.3) + _categories(0.7, 0.8, drafter="early_exit"), "partly"),
        ([row()], "pending"),
    ],
    ids=["both lower", "both higher", "mixed", "wide intervals", "one higher, one open", "drafters differ", "none"],
)
def test_sd9_code_and_mathematics_against_the_rest(rows, expected):
    assert verdict("SD9", speculative=rows) == expected


# ---------------------------------------------------------------------------------------------------------------- KV1


def test_kv1_scales_make_the_published_sizes_too_small():
    rows = kv_error_rows("smollm2_135m")
    assert verdict("KV1", kv_error=rows) == "partly"
    exact = [{**r, "bits_real": r["bits_nominal"] * 1.01} for r in rows]
    assert verdict("KV1", kv_error=exact) == "reproduced"
    assert verdict("KV1") == "reproduced"


def test_kv1_a_wrong_published_size_would_be_contradicted():
    claim = CLAIMS["KV1"]
    numbers = {**claim.numbers, "gigabytes": {**claim.numbers["gigabytes"], 4: 4.39}}
    assert decide(type(claim)(**{**vars(claim), "numbers": numbers}), facts()).verdict == "contradicted"


def test_kv1_the_posts_own_quantizer_is_no_witness():
    """Its rows are a bit wider than they say for another reason."""
    rows = [r for r in kv_error_rows("m") if r["scheme"] == "post_symmetric"]
    assert verdict("KV1", kv_error=rows) == "reproduced"


# ---------------------------------------------------------------------------------------------------------------- KV2


def _swap_axes(rows):
    return [{**r, "k_axis": "token" if r["k_axis"] == "channel" else "channel"} for r in rows]


def test_kv2_order_on_another_model_is_partly():
    rows = kv_error_rows("smollm2_135m")
    assert verdict("KV2", kv_error=rows) == "partly"
    assert verdict("KV2", kv_error=_swap_axes(rows)) == "contradicted"
    wide = [{**r, "attention_error_low": 0.0, "attention_error_high": 2.0} for r in rows]
    assert "undecided" in decide(CLAIMS["KV2"], facts(kv_error=wide)).reason
    one_text = [{**r, "attention_error_low": None, "attention_error_high": None} for r in _swap_axes(rows)]
    assert verdict("KV2", kv_error=one_text) == "partly"
    assert verdict("KV2", kv_error=[r for r in rows if r["scheme"] != "post_symmetric"]) == "pending"
    assert verdict("KV2", kv_error=[r for r in rows if r["k_axis"] == "token"]) == "pending"


def test_kv2_names_both_flaws_of_the_table():
    reason = decide(CLAIMS["KV2"], facts(kv_error=kv_error_rows("m"))).reason
    assert "7 levels" in reason and "four rows are two" in reason


def test_kv2_errors_that_depend_on_values_are_not_called_two_rows():
    rows = [{**r, "attention_error": r["attention_error"] * (1.1 if r["v_axis"] == "token" else 1.0)}
            for r in kv_error_rows("m")]  # fmt: skip
    assert "four rows" not in decide(CLAIMS["KV2"], facts(kv_error=rows)).reason


def test_kv2_published_model_with_honest_bits_is_reproduced():
    published = {(2, "token"): 0.786, (4, "token"): 0.401, (2, "channel"): 0.623, (4, "channel"): 0.215}
    lock = {"models": {"target": {**TARGET, "name": "qwen2_5_0_5b"}}}
    rows = [
        {**r, "levels": 2 ** r["bits_nominal"], "attention_error": error, "attention_error_low": 0.95 * error,
         "attention_error_high": 1.05 * error}
        for r in kv_error_rows("qwen2_5_0_5b", bits=(2, 4))
        if r["k_axis"] == r["v_axis"] and (error := published[r["bits_nominal"], r["k_axis"]])
    ]  # fmt: skip
    assert verdict("KV2", kv_error=rows, lock=lock) == "reproduced"
    off = [{**r, "attention_error": r["attention_error"] * 1.2} for r in rows]
    assert verdict("KV2", kv_error=off, lock=lock) == "partly"


# ---------------------------------------------------------------------------------------------------------------- KV3


def _channels(key_outlier, value_outlier):
    rows = []
    for layer in range(4):
        for which, outlier in (("k_pre", key_outlier), ("k_post", key_outlier), ("v", value_outlier)):
            rows += [{"layer": layer, "kv_head": 0, "channel": channel, "which": which,
                      "mean_abs": outlier if channel == 3 else 1.0} for channel in range(16)]  # fmt: skip
    return pd.DataFrame(rows)


def test_kv3_flips_with_errors_and_with_outliers():
    rows = kv_error_rows("m", bits=(2, 3, 4))
    assert verdict("KV3", kv_error=rows, kv_channels=_channels(9, 1)) == "reproduced"
    assert verdict("KV3", kv_error=rows, kv_channels=_channels(2, 1)) == "partly"
    assert verdict("KV3", kv_error=rows, kv_channels=_channels(9, 9)) == "partly"
    assert verdict("KV3", kv_error=_swap_axes(rows), kv_channels=_channels(9, 1)) == "partly"
    assert verdict("KV3", kv_error=_swap_axes(rows), kv_channels=_channels(2, 1)) == "contradicted"
    assert verdict("KV3", kv_error=rows) == "pending"
    assert verdict("KV3", kv_channels=_channels(9, 1)) == "pending"


def test_kv3_wide_intervals_do_not_count_as_better():
    rows = [{**r, "attention_error_low": 0.0, "attention_error_high": 2.0} for r in kv_error_rows("m")]
    assert verdict("KV3", kv_error=rows, kv_channels=_channels(9, 1)) == "partly"


def test_outlier_shares_count_heads():
    shares = outlier_shares(pd.concat([_channels(9, 1), _channels(1, 1).assign(kv_head=1)]))
    assert shares == {"k_post": 0.5, "k_pre": 0.5, "v": 0.0}


# ----------------------------------------------------------------------------------------------------------------- TK


@pytest.mark.parametrize("claim_id", ["TK1", "TK2"])
def test_kernel_timings_need_a_gpu(claim_id):
    assert verdict(claim_id) == "not_testable_here"
    assert verdict(claim_id, hardware={"device": "cuda", "device_names": ["a GPU"]}) == "pending"


@pytest.mark.parametrize("claim_id", ["TK3", "TK4"])
def test_kernel_correctness_does_not(claim_id):
    assert verdict(claim_id) == "pending"


# ----------------------------------------------------------------------------------------------------------------- GD


def test_gd1_flips_with_the_measurement():
    right = row(k=4, c=0.1, alpha_accepted_per_drafted=0.5, speedup=0.5 * 4 / 1.1)
    assert verdict("GD1", speculative=[right]) == "reproduced"
    assert verdict("GD1", speculative=[{**right, "speedup_total": right["speedup_total"] * 0.85}]) == "contradicted"
    assert verdict("GD1") == "partly"
    assert verdict("GD1", speculative=[row(alpha_accepted_per_drafted=None)]) == "partly"


def test_gd1_names_what_the_example_leaves_out():
    reason = decide(CLAIMS["GD1"], facts()).reason
    assert "3.09" in reason and "2.43" in reason


def _curve(values, drafter="small_lm"):
    return [{"definition": "conditional", "category": "all", "position": i, "value": value, "drafter": drafter,
             "setting": "{}", "k": 2, "temperature": 0.0} for i, value in enumerate(values, start=1)]  # fmt: skip


@pytest.mark.parametrize(
    ("alpha", "curve", "expected"),
    [
        (0.85, [0.91, 0.86, 0.79], "reproduced"),
        (0.85, [0.79, 0.86, 0.91], "partly"),
        (0.50, [0.91, 0.86, 0.79], "partly"),
        (0.50, [0.5, 0.5, 0.5], "contradicted"),
    ],
)
def test_gd2_agreement_and_curve(alpha, curve, expected):
    small = row("small_lm", alpha=alpha, alpha_low=alpha - 0.03, alpha_high=alpha + 0.03)
    assert verdict("GD2", speculative=[small], acceptance=_curve(curve)) == expected


def test_gd2_without_a_draft_model_shows_the_other_curves_and_waits():
    found = decide(CLAIMS["GD2"], facts(speculative=[row("ngram")], acceptance=_curve([0.6, 0.5], "ngram")))
    assert found.verdict == "pending" and "ngram 0.60, 0.50" in found.measured


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row(speedup=1.5, alpha=0.5)], "contradicted"),
        ([row(speedup=1.5, alpha=0.8), row(speedup=0.6, alpha=0.4)], "reproduced"),
        ([row(speedup=0.6, alpha=0.4)], "partly"),
        ([row(speedup=1.0, alpha=0.4)], "partly"),
        ([row(speedup=0.9, alpha=0.8), row(speedup=0.6, alpha=0.4)], "partly"),
        ([row(alpha=None)], "pending"),
    ],
    ids=["gain below", "as claimed", "none above", "undecided", "loss above", "never drafted"],
)
def test_gd7_seventy_percent(rows, expected):
    assert verdict("GD7", speculative=rows) == expected


def test_gd7_states_the_measured_threshold():
    """k=1: 1 + alpha = c + v + o, so alpha = 0.17 at c 0.1, v 1.05, o 0.02."""
    assert "breaks even at alpha 17%" in decide(CLAIMS["GD7"], facts(speculative=[row(k=1)])).measured


def test_gd7_threshold_of_a_mostly_silent_drafter_is_that_of_its_drafting_rounds():
    """Half of the rounds draft, free of charge; a drafting round costs v 1.1 and two rounds' overhead of 0.02."""
    silent = row(k=1, c=0.0, draft_rate=0.5, v_verify=1.05, overhead=0.02)
    assert "breaks even at alpha 14%" in decide(CLAIMS["GD7"], facts(speculative=[silent])).measured


def test_gd10_flips_with_the_memory_of_the_drafter():
    assert verdict("GD10", speculative=[row("small_lm", drafter_bytes=100_000_000)]) == "reproduced"
    assert verdict("GD10", speculative=[row("small_lm", drafter_bytes=100_000_000), row("ngram")]) == "partly"
    assert verdict("GD10") == "pending"


def test_gd11_ranks_what_was_run_and_waits():
    found = decide(CLAIMS["GD11"], facts(speculative=[row("ngram", 1.5), row("early_exit", 0.5)]))
    assert found.verdict == "pending" and found.measured.index("ngram") < found.measured.index("early_exit")
