"""The verdict: no winner without an interval above 1, no reason that the numbers do not give."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import synthetic

from breakeven.costs.predictors import cost_aware_speedup
from breakeven.reporting.data import Results, chosen
from breakeven.reporting.verdict import (
    Outcome,
    headline,
    n_drafted,
    outcome,
    round_cost,
    speculative_findings,
    verdict_lines,
    warnings,
)
from helpers.reported import speculative_row

TRUTH = synthetic.Truth()


def row(name: str = "ngram", k: int = 4, **fields: Any) -> Any:
    return speculative_row(TRUTH, name, k, **fields)


def judged(low: float | None, value: float, high: float | None, **fields: Any) -> Any:
    return row(speedup=value, speedup_low=low, speedup_high=high, **fields)


@pytest.mark.parametrize(
    ("low", "value", "high", "expected"),
    [
        (1.01, 1.5, 2.0, Outcome.PAYS),
        (0.99, 1.5, 2.0, Outcome.OPEN),
        (1.0, 1.5, 2.0, Outcome.OPEN),
        (0.4, 0.5, 0.99, Outcome.LOSES),
        (0.4, 0.5, 1.0, Outcome.OPEN),
        (None, 3.0, None, Outcome.OPEN),
        (None, 0.1, 0.2, Outcome.OPEN),
    ],
)
def test_only_a_whole_interval_on_one_side_decides(
    low: float | None, value: float, high: float | None, expected: Outcome
) -> None:
    assert outcome(judged(low, value, high)) is expected


def test_headline_names_each_drafter_under_its_own_outcome() -> None:
    rows = [
        judged(1.2, 1.4, 1.6, drafter="a"),
        judged(1.5, 1.9, 2.2, drafter="b", k=8),
        judged(0.3, 0.4, 0.5, drafter="c"),
        judged(0.9, 1.1, 1.3, drafter="d"),
    ]
    text = headline(rows)
    assert "pays here with a and b" in text
    assert "use b with k = 8 (1.90×" in text
    assert "leave c off" in text
    assert "d is undecided" in text


def test_a_loser_is_never_recommended() -> None:
    text = headline([judged(0.3, 0.4, 0.5, drafter="c")])
    assert text == "Leave c off: slower than plain decoding."


def test_headline_without_measurements_says_so() -> None:
    assert headline([]) == "Speculative decoding was not measured in this run."
    assert verdict_lines([]) == [headline([])]


def test_calibrated_run_speaks_even_if_the_sweep_was_luckier() -> None:
    rows = [row(k=1, speedup=2.0), row(k=4, speedup=1.2, calibrated=True), row(k=8, speedup=3.0)]
    assert [r["k"] for r in chosen(rows)] == [4]
    assert "too good" not in speculative_findings(rows)[0].text


def test_without_a_calibrated_run_the_pick_is_admitted_to_flatter() -> None:
    rows = [row(k=1, speedup=2.0), row(k=8, speedup=3.0)]
    assert [r["k"] for r in chosen(rows)] == [8]
    assert "so rather too good" in speculative_findings(rows)[0].text


def test_categories_never_speak_for_the_whole() -> None:
    assert chosen([row(category="code", speedup=9.0, calibrated=True)]) == []


@pytest.mark.parametrize("name", ["ngram", "early_exit"])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_parts_of_a_round_add_up_to_the_predicted_speedup(name: str, k: int) -> None:
    one = row(name, k)
    cost = round_cost(one)
    assert cost is not None
    assert one["tau"] / cost.total == pytest.approx(one["predicted_cost_aware"])


def test_silent_rounds_lower_the_number_of_drafts() -> None:
    assert n_drafted(row("ngram", 4)) == pytest.approx(0.5 * 4)
    assert n_drafted(row("ngram", 4, alpha_accepted_per_drafted=0.0)) == pytest.approx(2.0)
    assert n_drafted(row("ngram", 4, alpha_accepted_per_drafted=None, draft_rate=0.25)) == pytest.approx(1.0)


@given(
    c=st.floats(0.3, 2.0),
    tau=st.floats(1.0, 3.0),
    verify=st.floats(1.0, 1.6),
    overhead=st.floats(0.0, 0.4),
    n=st.integers(1, 8),
)
def test_the_remedy_it_names_really_breaks_even(c: float, tau: float, verify: float, overhead: float, n: int) -> None:
    loser = row(
        k=n, c=c, tau=tau, v_verify=verify, overhead=overhead, accepted_per_round=tau - 1, draft_rate=1.0,
        alpha_accepted_per_drafted=max(tau - 1, 1e-6) / n, speedup=0.5, speedup_low=0.4, speedup_high=0.6,
    )  # fmt: skip
    loser["accepted_per_round"] = max(tau - 1, 1e-6)
    text = speculative_findings([loser])[0].text
    named = re.search(r"cost (\d+\.\d+) of a plain step instead", text)
    free = cost_aware_speedup(tau, n, 0.0, verify, overhead)
    if named:
        # The text rounds to two digits; over n drafts that moves the cost of a round by at most n / 200 steps.
        rounding = n * 0.005 / (verify + overhead)
        assert cost_aware_speedup(tau, n, float(named[1]), verify, overhead) == pytest.approx(1.0, abs=rounding + 1e-9)
    elif "not even a free draft" in text:
        assert free <= 1.0 + 1e-9
    else:
        assert "promises a gain" in text
        assert cost_aware_speedup(tau, n, c, verify, overhead) >= 1.0 - 1e-9


def test_blame_falls_on_the_largest_avoidable_part() -> None:
    drafting = speculative_findings([judged(0.3, 0.4, 0.5, c=0.8, v_verify=1.1, overhead=0.1)])[0].text
    verifying = speculative_findings([judged(0.3, 0.4, 0.5, c=0.01, v_verify=2.4, overhead=0.1)])[0].text
    elsewhere = speculative_findings([judged(0.3, 0.4, 0.5, c=0.01, v_verify=1.1, overhead=1.9)])[0].text
    assert "What costs it most is drafting" in drafting
    assert "What costs it most is verification (1.40 steps)" in verifying
    assert "What costs it most is overhead (1.90 steps)" in elsewhere


def test_reasons_are_left_out_where_costs_were_not_measured() -> None:
    text = speculative_findings([row(c=None)])[0].text
    assert "plain steps" not in text
    assert "break even" not in text


def test_other_temperatures_are_told_in_the_same_finding() -> None:
    findings = speculative_findings([row(n_prompts=20), judged(0.4, 0.5, 0.6, temperature=1.0, n_prompts=9)])
    assert len(findings) == 1
    assert findings[0].outcome is Outcome.PAYS
    assert "At T\u00a0=\u00a01 with k = 4 it does not pay: 0.50× (0.40–0.60)" in findings[0].text


def test_a_lossy_drafter_is_called_lossy() -> None:
    assert "lossy" in speculative_findings([row(lossless=False)])[0].text
    assert "lossy" not in speculative_findings([row()])[0].text


def test_warnings_tell_failed_audits_and_unexplained_divergences() -> None:
    audits: Any = [{"audit": "a", "passed": False, "detail": ""}, {"audit": "b", "passed": True, "detail": ""}]
    assert warnings([], audits) == ["1 audit of 2 failed (a): read the numbers with that in mind."]
    assert "2 outputs differ" in warnings([row(n_divergences=5, n_divergences_near_tie=3)], [])[0]
    assert warnings([row(n_divergences=5, n_divergences_near_tie=5)], []) == []
    assert warnings([row(n_divergences=None, n_divergences_near_tie=None)], []) == []


def test_every_speedup_in_the_text_comes_from_the_rows(results: Results) -> None:
    """Change the measurements, and every number in the sentences must change with them: none is written down."""
    texts = " ".join(verdict_lines(results.speculative))
    doubled: Any = [
        {key: value * 1.37 if key.startswith(("speedup", "tau", "c", "v_verify", "overhead")) and
         isinstance(value, float) else value for key, value in one.items()}
        for one in results.speculative
    ]  # fmt: skip
    others = " ".join(verdict_lines(doubled))
    decimals = {text for text in re.findall(r"\d+\.\d\d", texts) if float(text) > 0.05}
    assert len(decimals) >= 8
    # By chance two or three values may meet again; written-down ones would all stay.
    assert len(decimals & set(re.findall(r"\d+\.\d\d", others))) <= 3
