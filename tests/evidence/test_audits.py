"""Every audit must pass on honest tables and fail on the cheat that it stands guard against."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
from tests.synthetic import EOS, DrafterTruth, Truth, fabricate

from breakeven.evidence.audits import AUDITS, Bench, audit


def _bench(truth: Truth, seed: int = 0) -> Bench:
    tables = fabricate(truth, seed)
    return Bench(tables.requests, tables.rounds, tables.divergences)


@pytest.fixture(scope="module")
def honest() -> Bench:
    return _bench(Truth(categories=("qa", "code"), repeats=2, near_ties=2, ks=(2, 4)))


@pytest.fixture
def bench(honest: Bench) -> Bench:
    return copy.deepcopy(honest)


def _failed(bench: Bench) -> set[str]:
    return {row["audit"] for row in audit(bench) if not row["passed"]}


def test_honest_tables_pass_every_audit(honest):
    rows = audit(honest)
    assert len(rows) == len(AUDITS) >= 11
    assert [row for row in rows if not row["passed"]] == []
    assert all(row["detail"] for row in rows)


@pytest.mark.parametrize("seed", range(6))
def test_honest_tables_pass_whatever_the_draws(seed):
    assert _failed(_bench(Truth(categories=("qa",), prompts_per_category=8, ks=(1, 3)), seed)) == set()


@pytest.mark.parametrize(
    "truth",
    [
        Truth(drafters={"ngram": DrafterTruth({}, 0.5, 0.0, draft_rate=0.0)}, categories=("qa",)),
        Truth(temperatures=(0.8,), categories=("qa",), ks=(1, 3), calibrated=False),
        Truth(temperatures=(0.0,), categories=("qa",), eos_rate=1.0),
    ],
    ids=["never drafts", "no greedy requests", "every output ends early"],
)
def test_partial_runs_pass(truth):
    assert _failed(_bench(truth)) == set()


def test_retokenised_counts_are_caught(bench):
    """Spec-Bench counts re-tokenised text for the baseline and loop counters for the method."""
    bench.requests.loc[bench.requests["drafter"] == "plain", "new_tokens"] -= 1
    assert "tokens_counted_once" in _failed(bench)


def test_going_on_behind_the_end_of_sequence_is_caught(bench):
    """MLPerf's EOS exploit: tokens behind the end are cheap to accept."""
    i = bench.requests.index[bench.requests["end_reason"] == "max_len"][0]
    ids = list(bench.requests.at[i, "output_ids"])
    ids[5] = EOS
    bench.requests.at[i, "output_ids"] = ids
    assert "tokens_counted_once" in _failed(bench)


def test_bonus_counted_twice_is_caught(bench):
    bench.rounds.loc[bench.rounds["end_reason"] == "full", "n_emitted"] += 1
    assert "rounds_account_for_tokens" in _failed(bench)


def test_a_round_that_was_not_logged_is_caught(bench):
    rounds = bench.rounds.drop(index=bench.rounds.index[-1])
    assert "rounds_account_for_tokens" in _failed(Bench(bench.requests, rounds, bench.divergences))


def test_equal_digests_over_unequal_tokens_are_caught(bench):
    i = bench.requests.index[(bench.requests["drafter"] == "ngram") & (bench.requests["temperature"] == 0)][-1]
    bench.requests.at[i, "output_ids"] = [*bench.requests.at[i, "output_ids"][:-1], 77]
    assert "same_tokens_on_both_sides" in _failed(bench)


def test_shorter_outputs_of_the_method_are_caught(bench):
    chosen = (bench.requests["drafter"] == "ngram") & (bench.requests["temperature"] == 0)
    bench.requests.loc[chosen, "new_tokens"] = (bench.requests.loc[chosen, "new_tokens"] * 0.8).astype(int)
    assert "output_lengths_agree" in _failed(bench)


def test_a_difference_that_nobody_listed_is_caught(bench):
    silent = Bench(bench.requests, bench.rounds, bench.divergences.iloc[:0])
    assert "greedy_outputs_identical_or_explained" in _failed(silent)


def test_a_difference_listed_at_a_later_position_is_caught(bench):
    bench.divergences["position"] += 1
    assert "greedy_outputs_identical_or_explained" in _failed(bench)


def test_an_unexplained_divergence_is_caught(bench):
    bench.divergences.loc[bench.divergences.index[0], "verdict"] = "unexplained"
    assert "no_unexplained_divergence" in _failed(bench)


def test_a_lossy_drafter_may_write_something_else(bench):
    bench.divergences["verdict"] = "unexplained"
    bench.requests["lossless"] = ~bench.requests["drafter"].isin(set(bench.divergences["drafter"]))
    assert _failed(bench) == set()


def test_baseline_always_first_is_caught():
    """The baseline on a cold machine, the method on a warm one."""
    bench = _bench(Truth(prompts_per_category=4, ks=(2,), temperatures=(0.0,)))
    bench.requests.loc[bench.requests["drafter"] == "plain", "place"] = -1
    assert "order_is_balanced" in _failed(bench)


def test_repeats_served_from_a_cache_are_caught(bench):
    later = bench.requests["repeat"] > 0
    bench.requests.loc[later, "decode_s"] *= 0.3
    assert "repeats_are_not_cached" in _failed(bench)


def test_time_that_no_phase_accounts_for_is_caught(bench):
    bench.requests.loc[bench.requests["drafter"] == "ngram", "decode_s"] *= 0.9
    assert "phases_sum_to_decode_time" in _failed(bench)


def test_a_sampler_that_accepts_too_much_is_caught():
    """Planted: q is the draft's law at another temperature, so accepted counts outrun sum min(p, q)."""
    bench = _bench(Truth(temperatures=(1.0,), prompts_per_category=6, sweep_prompts_per_category=6, ks=(2,)))
    bench.rounds["sum_min"] = [[0.8 * value for value in values] for values in bench.rounds["sum_min"]]
    assert "acceptance_matches_sum_min" in _failed(bench)


def test_an_off_by_one_in_sum_min_is_caught():
    """Planted: each position logs the overlap of the next one."""
    generator = np.random.default_rng(0)
    rows = []
    for i in range(1500):
        mass = generator.choice([0.2, 0.9], size=3, p=[0.5, 0.5])
        passed = generator.random(2) < mass[:2]
        accepted = 2 if passed.all() else int(np.argmin(passed))
        reason = "full" if accepted == 2 else "reject"
        rows.append({"prompt_id": f"p{i % 20}", "drafter": "d", "setting": "", "k": 2, "calibrated": True,
                     "temperature": 1.0, "repeat": 0, "n_accepted": accepted, "end_reason": reason,
                     "right": mass[: accepted + (reason == "reject")].tolist(),
                     "shifted": mass[1 : 1 + accepted + (reason == "reject")].tolist()})  # fmt: skip
    rounds = pd.DataFrame(rows)
    right = Bench(pd.DataFrame(), rounds.assign(sum_min=rounds["right"]), pd.DataFrame())
    shifted = Bench(pd.DataFrame(), rounds.assign(sum_min=rounds["shifted"]), pd.DataFrame())
    assert AUDITS["acceptance_matches_sum_min"](right)[0]
    assert not AUDITS["acceptance_matches_sum_min"](shifted)[0]


def test_a_missing_repetition_score_is_caught(bench):
    bench.requests.loc[bench.requests.index[0], "repetition_8gram"] = np.nan
    assert "repetition_is_reported" in _failed(bench)
