"""The summary end to end on fabricated runs with a known truth: every subset of what a run may hold."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import get_type_hints

import pandas as pd
import pytest
from tests.synthetic import DrafterTruth, Truth, configuration, fabricate, measured, write

from breakeven import io
from breakeven.errors import BreakevenError
from breakeven.evidence.claims import ledger, markdown
from breakeven.evidence.costtable import CostTable
from breakeven.evidence.summary import facts, kv_bytes_per_token, load, summarize
from breakeven.results import AcceptanceRow, AuditRow, ClaimRow, SpeculativeRow

NGRAM = DrafterTruth({"max_ngram": 3}, 0.6, 0.004, draft_rate=0.5)
SMALL = {"categories": ("qa", "code"), "ks": (1, 4), "prompts_per_category": 2, "max_new_tokens": 24}


def _summary(truth: Truth, **changes):
    tables = dataclasses.replace(fabricate(truth), **changes)
    return summarize(measured(tables), configuration(truth))


def _overall(summary):
    return [row for row in summary.speculative if row["category"] == "all"]


@pytest.fixture(scope="module")
def default():
    truth = Truth(categories=("qa", "math", "code"), ks=(1, 4, 8))
    return truth, _summary(truth)


def test_rows_hold_exactly_the_fields_of_the_schema(default):
    _, summary = default
    for rows, schema in (
        (summary.speculative, SpeculativeRow),
        (summary.acceptance, AcceptanceRow),
        (summary.audits, AuditRow),
    ):
        assert rows and all(set(row) == set(get_type_hints(schema)) for row in rows)
        json.dumps(io._finite(rows), allow_nan=False)


def test_every_run_and_category_has_its_row(default):
    truth, summary = default
    runs = len(truth.drafters) * len(truth.ks) * len(truth.temperatures)
    assert len(_overall(summary)) == runs
    assert len(summary.speculative) == runs * (1 + len(truth.categories))
    calibrated = [row for row in _overall(summary) if row["calibrated"] and row["temperature"] == 0.0]
    assert {row["n_prompts"] for row in calibrated} == {len(truth.categories) * truth.prompts_per_category}


def test_truth_is_found(default):
    truth, summary = default
    for row in _overall(summary):
        drafter = truth.drafters[row["drafter"]]
        assert row["c"] == pytest.approx(drafter.c)
        assert row["overhead"] == pytest.approx(truth.overhead, rel=0.02)
        assert row["alpha"] == pytest.approx(drafter.alpha, abs=0.13)
        assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
        assert row["n_divergences"] == (0 if row["temperature"] == 0 else None)


def test_cost_aware_prediction_explains_the_measurement(default):
    """All costs are known and times are noisy by 1 %: the identity must close."""
    _, summary = default
    assert all(abs(row["residual_cost_aware"]) < 0.02 for row in _overall(summary))


def test_the_two_simpler_laws_do_not_explain_it(default):
    _, summary = default
    silent = [row for row in _overall(summary) if row["drafter"] == "ngram" and row["k"] == 8]
    assert silent and all(row["predicted_post"] > 1.3 * row["speedup_total"] for row in silent)


def test_plain_overhead_belongs_to_the_plain_step():
    """A loop whose bookkeeping costs half a step on both sides: without it the prediction would miss by 50 %."""
    truth = Truth(overhead=0.5, overhead_plain=0.5, **SMALL)
    assert all(abs(row["residual_cost_aware"]) < 0.02 for row in _overall(_summary(truth)))


def test_without_plain_rounds_the_plain_step_is_taken_whole():
    truth = Truth(overhead_plain=0.0, **SMALL)
    rounds = fabricate(truth).rounds
    summary = _summary(truth, rounds=rounds[rounds["drafter"] != "plain"])
    assert all(abs(row["residual_cost_aware"]) < 0.02 for row in _overall(summary))


def test_acceptance_rows_carry_every_definition_by_its_name(default):
    _, summary = default
    found = {row["definition"] for row in summary.acceptance}
    assert found == {"tau", "accepted_per_round", "accepted_per_drafted", "alpha_mle", "unconditional", "conditional",
                     "sum_min", "match_probability", "top1_agreement"}  # fmt: skip
    positional = {row["definition"] for row in summary.acceptance if row["position"] is not None}
    assert positional == {"unconditional", "conditional"}
    keys = [(r["drafter"], r["setting"], r["k"], r["temperature"], r["category"], r["definition"], r["position"])
            for r in summary.acceptance]  # fmt: skip
    assert len(keys) == len(set(keys))


SUBSETS = {
    "one drafter": Truth(drafters={"ngram": NGRAM}, **SMALL),
    "one temperature, sampling": Truth(temperatures=(0.8,), **SMALL),
    "no calibrated run": Truth(calibrated=False, **SMALL),
    "a single k": Truth(categories=("qa",), ks=(3,)),
    "many k": Truth(categories=("qa",), ks=(1, 2, 3, 6, 12), prompts_per_category=2),
    "one prompt a category": Truth(**{**SMALL, "prompts_per_category": 1, "sweep_prompts_per_category": 1}),
    "one prompt": Truth(categories=("qa",), prompts_per_category=1, sweep_prompts_per_category=1),
    "repeats": Truth(repeats=3, **SMALL),
    "divergences": Truth(near_ties=3, unexplained=1, **SMALL),
    "a drafter that never drafts": Truth(drafters={"ngram": DrafterTruth({}, 0.5, 0.0, draft_rate=0.0)}, **SMALL),
    "outputs of a few tokens": Truth(eos_rate=0.5, **{**SMALL, "max_new_tokens": 3}),
    "outputs of one token": Truth(eos_rate=0.0, **{**SMALL, "max_new_tokens": 1}),
}


@pytest.mark.parametrize("truth", SUBSETS.values(), ids=SUBSETS.keys())
def test_any_subset_gives_rows_and_35_claims(truth, tmp_path):
    tables = fabricate(truth)
    write(tables, tmp_path)
    stored = load(tmp_path)
    summary = summarize(stored, configuration(truth, resamples=100))
    seen = facts(stored, summary)
    claims = ledger(seen)
    assert len(claims) == 35 and all(set(row) == set(get_type_hints(ClaimRow)) for row in claims)
    assert markdown(claims, seen).count("\n| ") >= 35 + 4
    assert len(summary.audits) >= 11
    if truth.max_new_tokens > 1:
        assert summary.speculative and summary.acceptance
    for row in summary.speculative:
        assert not any(isinstance(value, float) and math.isnan(value) for value in row.values())


def test_never_drafting_has_null_alpha_and_no_law(default):
    row = _overall(_summary(SUBSETS["a drafter that never drafts"]))[0]
    assert row["alpha"] is None and row["predicted_post"] is None and row["predicted_leviathan"] is None
    assert row["tau"] == 1.0 and row["draft_rate"] == 0.0
    assert row["predicted_cost_aware"] == pytest.approx(row["speedup_total"], rel=0.02)


def test_an_untimed_drafter_has_no_prediction():
    truth = Truth(drafters={"ngram": NGRAM}, **SMALL)
    rows = [row for row in fabricate(truth).cost_rows if row["quantity"] != "c"]
    for row in _overall(_summary(truth, cost_rows=rows)):
        assert row["c"] is None and row["predicted_cost_aware"] is None and row["residual_cost_aware"] is None


def test_divergences_are_counted_for_their_own_run():
    truth = Truth(near_ties=2, unexplained=1, **SMALL)
    tables = fabricate(truth)
    summary = summarize(measured(tables), configuration(truth))
    greedy = [row for row in _overall(summary) if row["temperature"] == 0.0]
    assert sum(row["n_divergences"] for row in greedy) == 3
    assert sum(row["n_divergences_near_tie"] for row in greedy) == 2
    assert any(not row["passed"] for row in summary.audits)


def test_same_tables_same_rows():
    truth = Truth(**SMALL)
    assert _summary(truth) == _summary(truth)


def test_a_broken_round_log_is_refused():
    tables = fabricate(Truth(**SMALL))
    tables.rounds.loc[tables.rounds["end_reason"] == "full", "n_accepted"] += 1
    with pytest.raises(BreakevenError, match="bonus is not a draft"):
        summarize(measured(tables), configuration())


def test_no_requests_are_refused():
    tables = fabricate(Truth(**SMALL))
    empty = dataclasses.replace(tables, requests=tables.requests.iloc[:0], rounds=tables.rounds.iloc[:0])
    with pytest.raises(BreakevenError, match="no request"):
        summarize(measured(empty), configuration())


def test_a_missing_file_names_the_command(tmp_path):
    with pytest.raises(BreakevenError, match="dvc repro"):
        load(tmp_path)


def test_kv_bytes_come_from_the_shape_where_they_were_not_measured():
    lock = fabricate(Truth(**SMALL)).lock
    assert kv_bytes_per_token(CostTable([]), lock, configuration()) == 2 * 30 * 3 * 64 * 2


def test_draft_cost_of_an_exit_is_charged_once(default):
    """v of the exit is 0.1 below plain: a row that took the plain one would miss by that much of a round."""
    truth, summary = default
    rows = [row for row in _overall(summary) if row["drafter"] == "early_exit" and row["k"] == 4]
    for row in rows:
        assert row["v_verify"] == pytest.approx(truth.v(5, "early_exit"), abs=0.02)


def test_tables_may_come_from_pandas_or_parquet(tmp_path):
    truth = Truth(**SMALL)
    tables = fabricate(truth)
    write(tables, tmp_path)
    direct, stored = summarize(measured(tables), configuration(truth)), summarize(load(tmp_path), configuration(truth))
    pd.testing.assert_frame_equal(pd.DataFrame(direct.speculative), pd.DataFrame(stored.speculative))
