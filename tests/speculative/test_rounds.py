"""Traps of the round log: what a decoding loop must never count, each caught by one invariant."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tests.synthetic import DrafterTruth, Truth, fabricate

from breakeven.errors import BreakevenError
from breakeven.speculative.rounds import ROUND_COLUMNS, list_sums, n_tested, validate


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    truth = Truth(categories=("qa", "code"), ks=(2, 4), eos_rate=0.7)
    rounds = fabricate(truth, seed=3).rounds
    assert set(rounds["end_reason"]) == {"reject", "full", "eos", "no_draft"}
    return rounds


def _first(log: pd.DataFrame, reason: str, least_accepted: int = 0) -> int:
    return int(log.index[(log["end_reason"] == reason) & (log["n_accepted"] >= least_accepted)][0])


def test_a_right_log_passes(log):
    validate(log)
    assert set(log.columns) == set(ROUND_COLUMNS)


def test_a_log_read_back_from_parquet_passes(log, tmp_path):
    log.to_parquet(tmp_path / "rounds.parquet")
    validate(pd.read_parquet(tmp_path / "rounds.parquet"))


def test_an_empty_log_passes(log):
    validate(log.iloc[:0])


def test_drafters_that_never_draft_pass():
    truth = Truth(drafters={"ngram": DrafterTruth({}, 0.5, 0.0, draft_rate=0.0)}, categories=("qa",))
    rounds = fabricate(truth).rounds
    validate(rounds)
    assert set(rounds["end_reason"]) == {"no_draft"}


def _count_bonus_as_accepted(log):
    full = log["end_reason"] == "full"
    log.loc[full, "n_accepted"] += 1


def _count_recovered_as_accepted(log):
    """The rejected round claims its recovered token; lists grow along, so only the counts can tell."""
    i = _first(log, "reject")
    log.at[i, "n_accepted"] = log.at[i, "n_drafted"]
    for column in ("sum_min", "p_draft", "q_draft"):
        log.at[i, column] = [0.5] * (log.at[i, "n_drafted"] + 1)


def _count_past_eos(log):
    """Drafts behind an accepted end of sequence are counted as accepted, as emitted or as drafted."""
    i = _first(log, "eos")
    log.at[i, "n_accepted"] += 1


def _count_drafts_behind_eos_as_drafted(log):
    log.loc[(log["end_reason"] == "eos") & (log["n_accepted"] < log["k_planned"]), "n_drafted"] += 1


def _emit_past_eos(log):
    i = _first(log, "eos")
    log.at[i, "n_emitted"] += 2


def _draft_beyond_the_limit(log):
    i = _first(log, "full")
    log.at[i, "n_drafted"] = log.at[i, "k_planned"] + 1
    log.at[i, "n_accepted"] = log.at[i, "n_drafted"]


def _forget_a_round(log):
    return log.drop(index=_first(log, "reject", 1))


def _log_a_round_twice(log):
    log.loc[len(log)] = log.loc[_first(log, "full")]


def _log_untested_positions(log):
    i = _first(log, "reject")
    log.at[i, "sum_min"] = [*log.at[i, "sum_min"], 0.3]


def _swap_p_and_ratio(log):
    """p/q instead of p: above 1."""
    i = _first(log, "full")
    log.at[i, "p_draft"] = [1.7] * len(log.at[i, "p_draft"])


def _nan_time(log):
    log.loc[_first(log, "full"), "t_verify_s"] = np.nan


def _negative_time(log):
    log.loc[_first(log, "full"), "t_other_s"] = -1e-6


def _reject_without_draft(log):
    log.loc[_first(log, "no_draft"), "end_reason"] = "reject"


def _emit_nothing(log):
    log.loc[_first(log, "no_draft"), "n_emitted"] = 0


def _unknown_reason(log):
    log.loc[_first(log, "full"), "end_reason"] = "stopped"


def _full_with_rest(log):
    log.loc[_first(log, "reject"), "end_reason"] = "full"


BUGS = [
    (_count_bonus_as_accepted, "n_accepted <= n_drafted"),
    (_count_recovered_as_accepted, "n_emitted = n_accepted"),
    (_count_past_eos, "n_accepted <= n_drafted"),
    (_count_drafts_behind_eos_as_drafted, "behind the end of the output"),
    (_emit_past_eos, "a cut round emits"),
    (_draft_beyond_the_limit, "n_drafted <= k_planned"),
    (_forget_a_round, "numbered 0, 1, 2"),
    (_log_a_round_twice, "numbered 0, 1, 2"),
    (_log_untested_positions, "one number a tested position"),
    (_swap_p_and_ratio, "probabilities in"),
    (_nan_time, "t_verify_s is a finite number"),
    (_negative_time, "t_other_s is a finite number"),
    (_reject_without_draft, "n_accepted < n_drafted"),
    (_emit_nothing, "at least one token"),
    (_unknown_reason, "end_reason is one of"),
    (_full_with_rest, "n_accepted = n_drafted"),
]


@pytest.mark.parametrize(("plant", "rule"), BUGS, ids=[plant.__name__ for plant, _ in BUGS])
def test_planted_bug_is_refused_by_its_rule(log, plant, rule):
    broken = log.copy(deep=True).reset_index(drop=True)
    changed = plant(broken)
    broken = broken if changed is None else changed
    with pytest.raises(BreakevenError, match=rule):
        validate(broken)


def test_emitted_tokens_that_no_round_accounts_for_are_found(log):
    """A cut round that under-reports what it emitted shows in the next round's context."""
    broken = log.copy(deep=True).reset_index(drop=True)
    i = int(broken.index[broken["round"] == 1][0])
    broken.loc[i, "ctx_len"] += 1
    with pytest.raises(BreakevenError, match="ctx_len grows"):
        validate(broken)


def test_a_missing_column_names_itself(log):
    with pytest.raises(BreakevenError, match="top2_margin"):
        validate(log.drop(columns="top2_margin"))


def test_tested_counts_the_rejected_draft_once():
    rounds = pd.DataFrame({"end_reason": ["reject", "full", "eos", "no_draft"], "n_accepted": [0, 3, 2, 0]})
    assert n_tested(rounds).tolist() == [1, 3, 2, 0]


def test_list_sums_of_empty_lists_are_zero():
    assert list_sums(pd.Series([[0.5, 0.25], [], np.array([1.0])])).tolist() == [0.75, 0.0, 1.0]
