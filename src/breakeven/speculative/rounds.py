"""The round log: one row a target pass of speculative decoding (data/rounds.parquet), its schema and its invariants.

Terms: a draft token is *tested* if every one before it was accepted, so that the target decided on it; the first
tested token that fails ends the round as a rejection. Every definition of acceptance in use is a query on this table
(`breakeven.evidence.acceptance`), provided that the invariants below hold: counts stop at the end of the sequence,
the bonus or recovered token is emitted but never counted as accepted, and only drafts that could have been emitted
count as drafted (vLLM #56101, openvino.genai #1951 count on).
"""

from __future__ import annotations

from typing import Literal, TypedDict

import numpy as np
import numpy.typing as npt
import pandas as pd

from breakeven.errors import BreakevenError

EndReason = Literal["reject", "full", "eos", "max_len", "no_draft"]
END_REASONS: tuple[str, ...] = ("reject", "full", "eos", "max_len", "no_draft")

# Sums of float32 probabilities miss 1 by rounding over a large vocabulary.
PROBABILITY_TOLERANCE = 1e-3


class RoundRow(TypedDict):
    """One row of data/rounds.parquet."""

    model: str
    machine: str
    workload: str
    prompt_id: str
    category: str
    seed: int
    temperature: float  # 0: greedy
    top_p: float  # 1: off
    drafter: str
    setting: str  # canonical JSON
    k: int  # draft length asked for
    calibrated: bool
    repeat: int
    round: int  # 0-based within the request
    ctx_len: int  # tokens committed before the round
    k_planned: int  # k, or less near the output limit
    n_drafted: int  # drafts that could have been emitted
    n_accepted: int  # accepted drafts among the emitted tokens
    n_emitted: int  # accepted and the bonus or recovered token
    end_reason: EndReason
    t_draft_s: float
    t_verify_s: float
    t_other_s: float
    t_record_s: float  # writing this row; part of no decode time
    sum_min: list[float]  # [tested] sum_y min(p, q)
    p_draft: list[float]  # [tested] target probability of the drafted token
    q_draft: list[float]  # [tested] draft probability of the drafted token; 1 if the drafter is deterministic
    top2_margin: float  # target logit margin at the position that decided the round
    kv_bytes_target: int
    kv_bytes_draft: int


ROUND_COLUMNS: tuple[str, ...] = tuple(RoundRow.__annotations__)
COUNT_COLUMNS = ("k", "round", "ctx_len", "k_planned", "n_drafted", "n_accepted", "n_emitted", "kv_bytes_target")
TIME_COLUMNS = ("t_draft_s", "t_verify_s", "t_other_s", "t_record_s")
LIST_COLUMNS = ("sum_min", "p_draft", "q_draft")
# What makes a request: rows that agree here are rounds of one output.
REQUEST_KEY = ("drafter", "setting", "k", "calibrated", "temperature", "repeat", "prompt_id")


def n_tested(rounds: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return how many draft tokens of each round the target decided on: [n], accepted ones and a rejected one."""
    rejected = (rounds["end_reason"] == "reject").to_numpy(dtype=np.int64)
    tested: npt.NDArray[np.int64] = rounds["n_accepted"].to_numpy(dtype=np.int64) + rejected
    return tested


def list_sums(column: pd.Series) -> npt.NDArray[np.float64]:
    """Return the sum of each list of a list column: [n]; an empty list sums to 0."""
    return np.fromiter((np.sum(values) for values in column), dtype=np.float64, count=len(column))


def validate(rounds: pd.DataFrame) -> None:
    """Check a round log against its schema and invariants.

    Args:
        rounds: the table; no row is a valid table (no drafter was run).

    Raises:
        BreakevenError: names the first rule that is broken, how many rows break it and the first such row.
    """
    missing = [column for column in ROUND_COLUMNS if column not in rounds.columns]
    if missing:
        raise BreakevenError(
            f"the round log lacks {', '.join(missing)}. It was written by another version: run `dvc repro speculate`."
        )
    if rounds.empty:
        return
    for column in (*COUNT_COLUMNS, *TIME_COLUMNS, "temperature", "top_p"):
        _require(rounds, _in_range(rounds[column], 0.0), f"{column} is a finite number of at least 0")
    _require(rounds, rounds["end_reason"].isin(END_REASONS), f"end_reason is one of {', '.join(END_REASONS)}")
    _check_counts(rounds)
    _check_reasons(rounds)
    _check_lists(rounds)
    _check_sequence(rounds)


def _check_counts(rounds: pd.DataFrame) -> None:
    accepted, emitted = rounds["n_accepted"], rounds["n_emitted"]
    _require(rounds, accepted <= rounds["n_drafted"], "n_accepted <= n_drafted (the bonus is not a draft)")
    _require(rounds, rounds["n_drafted"] <= rounds["k_planned"], "n_drafted <= k_planned")
    _require(rounds, rounds["k_planned"] <= rounds["k"], "k_planned <= k")
    _require(rounds, emitted >= 1, "a round emits at least one token")
    cut = rounds["end_reason"].isin(["eos", "max_len"])
    _require(rounds, cut | (emitted == accepted + 1), "n_emitted = n_accepted + 1 unless eos or max_len cut the round")
    whole = (emitted == accepted) | (emitted == accepted + 1)
    _require(rounds, ~cut | whole, "a cut round emits its accepted tokens, with or without one more")
    ended = cut & (emitted == accepted)
    _require(rounds, ~ended | (rounds["n_drafted"] == accepted), "drafts behind the end of the output do not count")


def _check_reasons(rounds: pd.DataFrame) -> None:
    reason, drafted, accepted = rounds["end_reason"], rounds["n_drafted"], rounds["n_accepted"]
    _require(rounds, (reason != "reject") | (accepted < drafted), "a rejection leaves n_accepted < n_drafted")
    _require(rounds, (reason != "full") | (accepted == drafted), "full acceptance has n_accepted = n_drafted")
    _require(rounds, (reason != "no_draft") | (drafted == 0), "no_draft has n_drafted = 0")
    _require(rounds, ~reason.isin(["reject", "full"]) | (drafted > 0), "reject and full need a draft")


def _check_lists(rounds: pd.DataFrame) -> None:
    tested = n_tested(rounds)
    for column in LIST_COLUMNS:
        lengths = np.fromiter((len(values) for values in rounds[column]), dtype=np.int64, count=len(rounds))
        _require(rounds, lengths == tested, f"{column} holds one number a tested position (n_accepted + 1 if rejected)")
        flat = np.concatenate([np.asarray(values, dtype=np.float64) for values in rounds[column]])
        inside = np.isfinite(flat) & (flat >= 0.0) & (flat <= 1.0 + PROBABILITY_TOLERANCE)
        _require(rounds, _all_by_row(inside, lengths), f"{column} holds probabilities in [0, 1]")


def _check_sequence(rounds: pd.DataFrame) -> None:
    """Within a request the rounds are numbered 0, 1, ... and each starts where the one before it ended."""
    ordered = rounds.sort_values([*REQUEST_KEY, "round"], kind="stable")
    requests = ordered.groupby(list(REQUEST_KEY), sort=False, dropna=False)
    _require(ordered, requests.cumcount() == ordered["round"], "rounds of a request are numbered 0, 1, 2, ...")
    before = requests["ctx_len"].shift() + requests["n_emitted"].shift()
    continues = before.isna() | (before == ordered["ctx_len"])
    _require(ordered, continues, "ctx_len grows by n_emitted from round to round")


def _in_range(column: pd.Series, least: float) -> npt.NDArray[np.bool_]:
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    inside: npt.NDArray[np.bool_] = np.isfinite(values) & (values >= least)
    return inside


def _all_by_row(flags: npt.NDArray[np.bool_], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return whether all flags of each row hold, the rows lying one behind the other in `flags`."""
    bad_before = np.concatenate([[0], np.cumsum(~flags)])
    ends = np.cumsum(lengths)
    holds: npt.NDArray[np.bool_] = bad_before[ends] == bad_before[ends - lengths]
    return holds


def _require(rounds: pd.DataFrame, holds: pd.Series | npt.NDArray[np.bool_], rule: str) -> None:
    broken = np.flatnonzero(~np.asarray(holds, dtype=bool))
    if not len(broken):
        return
    row = rounds.iloc[int(broken[0])]
    where = ", ".join(f"{column}={row[column]!r}" for column in ("drafter", "prompt_id", "k", "temperature", "round"))
    raise BreakevenError(
        f"the round log breaks a rule in {len(broken)} of {len(rounds)} rows: {rule}. First: {where}. "
        "This is a bug of the decoding loop or a damaged file: run `dvc repro -f speculate` and report it if it stays."
    )
