"""Traps of speedups: unpaired ratios, ratios of mean rates, requests without a rate, prefill smuggled in."""

from __future__ import annotations

import pandas as pd
import pytest
from tests.synthetic import Truth, fabricate

from breakeven.errors import BreakevenError
from breakeven.evidence.pairing import pair, rated, speedup

ARGS = {"resamples": 300, "confidence": 0.95, "seed": 5}


def _requests(rows):
    """rows: (prompt, drafter, repeat, new_tokens, decode_s)."""
    return pd.DataFrame([
        {"model": "m", "machine": "x", "workload": "w", "prompt_id": prompt, "category": "qa", "drafter": drafter,
         "setting": "", "k": 0, "calibrated": False, "temperature": 0.0, "repeat": repeat, "order": i,
         "prompt_tokens": 10, "new_tokens": n, "end_reason": "max_len", "prefill_s": 1.0, "draft_prefill_s": 0.5,
         "decode_s": seconds, "target_passes": 1, "output_sha256": "", "output_ids": [1] * n,
         "repetition_8gram": 0.0, "drafter_bytes": 0, "peak_memory_bytes": 0}
        for i, (prompt, drafter, repeat, n, seconds) in enumerate(rows)
    ])  # fmt: skip


def test_speedup_is_the_median_of_paired_ratios():
    rows = [(f"p{i}", "plain", 0, 11, 10.0) for i in range(3)]
    rows += [(f"p{i}", "d", 0, 11, seconds) for i, seconds in enumerate((10.0, 5.0, 1.0))]
    result = speedup(pair(_requests(rows)), **ARGS)
    assert result.paired.value == pytest.approx(2.0)
    assert result.total == pytest.approx(30 / 16)


def test_rates_are_compared_per_token_when_lengths_differ():
    """Sampling may stop early: half of the tokens in half of the time is no gain."""
    result = speedup(pair(_requests([("p", "plain", 0, 21, 20.0), ("p", "d", 0, 11, 10.0)])), **ARGS)
    assert result.paired.value == pytest.approx(1.0) and result.total == pytest.approx(1.0)


def test_the_token_of_the_prefill_is_no_decoded_token():
    result = speedup(pair(_requests([("p", "plain", 0, 11, 10.0), ("p", "d", 0, 6, 2.5)])), **ARGS)
    assert result.tokens_per_s_plain == pytest.approx(1.0) and result.tokens_per_s == pytest.approx(2.0)


def test_end_to_end_counts_both_prefills():
    result = speedup(pair(_requests([("p", "plain", 0, 11, 10.0), ("p", "d", 0, 11, 5.0)])), **ARGS)
    assert result.end_to_end == pytest.approx((10 + 1) / (5 + 1 + 0.5))


def test_an_easy_prompt_does_not_speak_for_another():
    """Interchanging prompts would give every ratio 5.5 on average; each pair alone gains nothing."""
    rows = [("a", "plain", 0, 11, 1.0), ("a", "d", 0, 11, 1.0), ("b", "plain", 0, 11, 10.0), ("b", "d", 0, 11, 10.0)]
    assert speedup(pair(_requests(rows)), **ARGS).paired.value == pytest.approx(1.0)


def test_repeats_of_a_prompt_are_one_measurement():
    rows = [(p, d, r, 11, s) for p, s in (("a", 10.0), ("b", 10.0)) for d in ("plain", "d") for r in range(5)]
    result = speedup(pair(_requests(rows)), **ARGS)
    assert result.paired.n == 2


def test_outputs_of_one_token_have_no_rate():
    pairs = pair(_requests([("a", "plain", 0, 1, 0.0), ("a", "d", 0, 1, 0.0)]))
    assert rated(pairs).empty and speedup(pairs, **ARGS) is None


def test_a_request_without_partner_is_refused():
    with pytest.raises(BreakevenError, match="no plain partner"):
        pair(_requests([("a", "plain", 0, 5, 1.0), ("b", "d", 0, 5, 1.0)]))


def test_two_baselines_for_one_request_are_refused():
    with pytest.raises(BreakevenError, match="several plain"):
        pair(_requests([("a", "plain", 0, 5, 1.0), ("a", "plain", 0, 5, 2.0), ("a", "d", 0, 5, 1.0)]))


def test_no_baseline_is_refused():
    with pytest.raises(BreakevenError, match="no plain decoding"):
        pair(_requests([("a", "d", 0, 5, 1.0)]))


def test_missing_columns_are_named():
    with pytest.raises(BreakevenError, match="decode_s"):
        pair(_requests([("a", "plain", 0, 5, 1.0)]).drop(columns="decode_s"))


def test_fabricated_speedup_is_found():
    truth = Truth(eos_rate=0.0, max_new_tokens=120, categories=("qa", "code"), prompts_per_category=10,
                  sweep_prompts_per_category=10, ks=(2,), temperatures=(0.0,))  # fmt: skip
    pairs = pair(fabricate(truth).requests)
    for (drafter, k), group in pairs.groupby(["drafter", "k"]):
        result = speedup(group, **ARGS)
        assert result.total == pytest.approx(truth.speedup(drafter, k), rel=0.06), (drafter, k)
        assert (
            result.paired.low < truth.speedup(drafter, k) * 1.03
            and result.paired.high > truth.speedup(drafter, k) * 0.97
        )
