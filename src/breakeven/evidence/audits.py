"""Checks of the benchmark itself, after MLPerf's compliance tests: would these numbers stand?

Each audit is a pure function of the measured tables that returns whether it passed and what it saw. TEST01 (accuracy
inside the timed run), TEST04 (no cached repeats), TEST06 (token counts and the end-of-sequence exploit) and TEST09
(output lengths) are translated to speculative decoding; the others guard what is peculiar to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import binomtest

from breakeven.evidence.pairing import GROUP_KEY, PLAIN, pair, rated
from breakeven.results import AuditRow
from breakeven.speculative.rounds import REQUEST_KEY, n_tested

PHASE_TOLERANCE = 0.02  # relative: phases of a request against its decode time
LENGTH_TOLERANCE = 0.10  # relative: mean output length, as in MLPerf TEST09
Z_LIMIT = 3.0  # standard errors, of a single comparison
ORDER_P_LIMIT = 1e-3  # two-sided binomial test of who came first
CACHED_REPEAT_RATIO = 0.8  # a repeat that takes less of the first one's time was served from somewhere


@dataclass(frozen=True)
class Bench:
    """The tables of one run of the speculative benchmark."""

    requests: pd.DataFrame
    rounds: pd.DataFrame
    divergences: pd.DataFrame


Result = tuple[bool, str]
FloatArray = npt.NDArray[np.float64]


def tokens_counted_once(bench: Bench) -> Result:
    """Recount every output: the count is the number of its tokens, and nothing stands behind an end of sequence."""
    requests = bench.requests
    lengths = requests["output_ids"].map(len)
    miscounted = int((lengths != requests["new_tokens"]).sum())
    ended = requests[(requests["end_reason"] == "eos") & (lengths > 0)]
    ends = {int(ids[-1]) for ids in ended["output_ids"]}
    beyond = sum(any(int(token) in ends for token in ids[:-1]) for ids in requests["output_ids"])
    seen = f"{len(requests)} outputs recounted, {int(lengths.sum())} tokens, end-of-sequence tokens {sorted(ends)}"
    return miscounted == 0 and beyond == 0, f"{seen}; {miscounted} miscounted, {beyond} go on behind their end"


def rounds_account_for_tokens(bench: Bench) -> Result:
    """Tokens emitted by the rounds and the one from the prefill are the output; rounds are the target passes."""
    key = list(REQUEST_KEY)
    sums = bench.rounds.groupby(key).agg(emitted=("n_emitted", "sum"), passes=("n_emitted", "size")).reset_index()
    logged = bench.requests if (bench.rounds["drafter"] == PLAIN).any() else _speculative(bench.requests)
    joined = logged.merge(sums, on=key, how="left").fillna({"emitted": 0, "passes": 0})
    wrong = joined[(joined["emitted"] + 1 != joined["new_tokens"]) | (joined["passes"] != joined["target_passes"])]
    return wrong.empty, f"{len(joined)} requests, {len(bench.rounds)} rounds; {len(wrong)} requests do not add up"


def same_tokens_on_both_sides(bench: Bench) -> Result:
    """Greedy outputs with the same digest have the same counts and tokens on both sides of every ratio."""
    pairs = _greedy_pairs(bench)
    same = pairs[pairs["output_sha256"] == pairs["output_sha256_plain"]]
    equal = [list(a) == list(b) for a, b in zip(same["output_ids"], same["output_ids_plain"], strict=True)]
    wrong = int((~np.asarray(equal, dtype=bool) | (same["new_tokens"] != same["new_tokens_plain"]).to_numpy()).sum())
    return wrong == 0, f"{len(same)} of {len(pairs)} greedy pairs share their output; {wrong} of these differ in tokens"


def output_lengths_agree(bench: Bench) -> Result:
    """Mean greedy output length within 10 % of plain decoding for every drafter (TEST09)."""
    pairs = _greedy_pairs(bench)
    if pairs.empty:
        return True, "no greedy pairs"
    means = pairs.groupby("drafter")[["new_tokens", "new_tokens_plain"]].mean()
    worst = float((means["new_tokens"] / means["new_tokens_plain"] - 1.0).abs().max())
    return worst <= LENGTH_TOLERANCE, f"largest relative difference of mean output length: {worst:.1%}"


def greedy_outputs_identical_or_explained(bench: Bench) -> Result:
    """Every greedy output that differs from plain decoding is in the divergence table, at its first difference."""
    pairs = _greedy_pairs(bench)
    found = {}
    for row in pairs.to_dict("records"):
        position = _first_difference(list(row["output_ids"]), list(row["output_ids_plain"]))
        if position is not None:
            found[row["drafter"], row["setting"], row["k"], row["repeat"], row["prompt_id"]] = position
    names = ["drafter", "setting", "k", "repeat", "prompt_id"]
    known = bench.divergences[bench.divergences["drafter"].isin(set(pairs["drafter"]))]
    listed = {tuple(row[name] for name in names): row["position"] for row in known.to_dict("records")}
    missing = sum(listed.get(key) != position for key, position in found.items())
    extra = len(set(listed) - set(found))
    seen = f"{len(pairs) - len(found)} of {len(pairs)} greedy outputs are identical to plain decoding"
    return missing == 0 and extra == 0, f"{seen}; {missing} differences not listed, {extra} listed without one"


def no_unexplained_divergence(bench: Bench) -> Result:
    """Greedy outputs leave plain decoding only where two logits nearly tie (transformers #39421, vLLM #41758)."""
    pairs = _greedy_pairs(bench)
    if pairs.empty:
        return True, "no greedy pairs"
    verdicts = bench.divergences["verdict"][bench.divergences["drafter"].isin(set(pairs["drafter"]))]
    ties, unexplained = int((verdicts == "near_tie").sum()), int((verdicts == "unexplained").sum())
    return unexplained == 0 and ties + unexplained == len(verdicts), f"{ties} near ties, {unexplained} unexplained"


def order_is_balanced(bench: Bench) -> Result:
    """Plain decoding came first about as often as each drafter did, so drift of the machine favours neither."""
    column = "place" if "place" in bench.requests else "order"
    pairs = pair(bench.requests.assign(order=bench.requests[column]))
    passed, parts = True, []
    for drafter, table in pairs.groupby("drafter", sort=True):
        # Variants of one prompt share the plain request: one comparison a prompt, of its mean place.
        mean = table.groupby(["prompt_id", "temperature", "repeat"])[["order", "order_plain"]].mean()
        first, n = int((mean["order_plain"] < mean["order"]).sum()), len(mean)
        passed &= bool(binomtest(first, n).pvalue >= ORDER_P_LIMIT)
        parts.append(f"{drafter}: plain first in {first} of {n}")
    return passed, "; ".join(parts) or "no pairs"


def repeats_are_not_cached(bench: Bench) -> Result:
    """Repeats of a request take as long as the first one (TEST04)."""
    requests = rated(pair(bench.requests)) if len(_speculative(bench.requests)) else bench.requests
    key = [name for name in REQUEST_KEY if name != "repeat"]
    rates = requests.assign(rate=requests["decode_s"] / (requests["new_tokens"] - 1).clip(lower=1))
    wide = rates.pivot_table(index=key, columns="repeat", values="rate")
    if wide.shape[1] < 2:
        return True, "one repeat: nothing to replay"
    ratio = float((wide.iloc[:, 1:].median(axis=1) / wide.iloc[:, 0]).median())
    return ratio >= CACHED_REPEAT_RATIO, f"later repeats take {ratio:.2f} of the first one's time per token (median)"


def phases_sum_to_decode_time(bench: Bench) -> Result:
    """Draft, verify and other seconds of the rounds make up the decode time within 2 %."""
    key = list(REQUEST_KEY)
    phases = bench.rounds[["t_draft_s", "t_verify_s", "t_other_s"]].sum(axis=1)
    sums = bench.rounds[key].assign(phases=phases).groupby(key)["phases"].sum().reset_index()
    joined = bench.requests.merge(sums, on=key)
    joined = joined[joined["decode_s"] > 0]
    if joined.empty:
        return True, "no rounds"
    worst = float((joined["phases"] / joined["decode_s"] - 1.0).abs().max())
    return worst <= PHASE_TOLERANCE, f"largest relative difference over {len(joined)} requests: {worst:.2%}"


def acceptance_matches_sum_min(bench: Bench) -> Result:
    """At temperature > 0, accepted drafts match sum_y min(p, q) within 3 standard errors, in level and in slope.

    Under a right sampler each tested draft is accepted with exactly that probability b given all before it, so the sum
    of w (accepted - b) is a martingale with variance sum w^2 b (1 - b). w = 1 asks whether enough was accepted; w = b -
    mean asks whether it was accepted where b is high, which an index off by one leaves undone. A wrong q or a
    temperature on one side only breaks the first. Repeats share their random streams: only the first counts.
    """
    first = bench.rounds["repeat"] == bench.rounds["repeat"].min()
    sampled = bench.rounds[(bench.rounds["temperature"] > 0) & first & (n_tested(bench.rounds) > 0)]
    scores: list[tuple[float, str]] = []
    for key, table in sampled.groupby(GROUP_KEY, sort=True):
        mass, accepted = _tested_positions(table)
        label = f"{key[0]} k={key[2]} T={key[4]:g}, {len(mass)} positions"
        scores.append((_martingale_score(np.ones(len(mass)), mass, accepted), f"level of {label}"))
        scores.append((_martingale_score(mass - mass.mean(), mass, accepted), f"slope of {label}"))
    if not scores:
        return True, "no tested draft at a temperature above 0"
    worst, label = max(scores, key=lambda score: abs(score[0]))
    limit = _joint_limit(len(scores))
    return abs(
        worst
    ) <= limit, f"{len(scores)} comparisons; largest {worst:+.2f} of {limit:.2f} standard errors ({label})"


def repetition_is_reported(bench: Bench) -> Result:
    """Small models loop at temperature 0, which flatters every drafter: the share of repeated 8-grams is known."""
    scores = bench.requests["repetition_8gram"].astype(float)
    plain = bench.requests[bench.requests["drafter"] == PLAIN].groupby("temperature")["repetition_8gram"].mean()
    shares = ", ".join(f"{share:.1%} at T={temperature}" for temperature, share in plain.items())
    return bool(scores.between(0.0, 1.0).all()), f"plain outputs repeat 8-grams: {shares}"


AUDITS: dict[str, Callable[[Bench], Result]] = {
    function.__name__: function
    for function in (
        tokens_counted_once,
        rounds_account_for_tokens,
        same_tokens_on_both_sides,
        output_lengths_agree,
        greedy_outputs_identical_or_explained,
        no_unexplained_divergence,
        order_is_balanced,
        repeats_are_not_cached,
        phases_sum_to_decode_time,
        acceptance_matches_sum_min,
        repetition_is_reported,
    )
}


def audit(bench: Bench) -> list[AuditRow]:
    """Run every audit; a failed one is a row, not an error: the report must show it."""
    rows: list[AuditRow] = []
    for name, function in AUDITS.items():
        passed, detail = function(bench)
        rows.append({"audit": name, "passed": bool(passed), "detail": detail})
    return rows


def _tested_positions(rounds: pd.DataFrame) -> tuple[FloatArray, FloatArray]:
    """Return sum_y min(p, q) and whether it was accepted (0 or 1), [positions] each, over all tested drafts."""
    mass = np.concatenate([np.asarray(values, dtype=np.float64) for values in rounds["sum_min"]])
    accepted = np.ones(len(mass))
    last = np.cumsum(n_tested(rounds)) - 1
    accepted[last[(rounds["end_reason"] == "reject").to_numpy()]] = 0.0
    return np.clip(mass, 0.0, 1.0), accepted


def _martingale_score(weights: FloatArray, mass: FloatArray, accepted: FloatArray) -> float:
    """Return the weighted sum of accepted - mass in standard errors.

    Where every outcome is certain there is no spread and only float32 rounding may differ: a floor of 1e-3 a position
    keeps that from counting.
    """
    spread = math.sqrt(float((weights**2 * mass * (1.0 - mass)).sum()))
    floor = 1e-3 * float(np.abs(weights).sum())
    total = float((weights * (accepted - mass)).sum())
    return total / max(spread, floor) if max(spread, floor) > 0.0 else 0.0


def _joint_limit(n: int) -> float:
    """Return the limit under which all of n scores stay as surely as one stays under 3 (Bonferroni)."""
    normal = NormalDist()
    return -normal.inv_cdf(normal.cdf(-Z_LIMIT) / n)


def _speculative(requests: pd.DataFrame) -> pd.DataFrame:
    return requests[requests["drafter"] != PLAIN]


def _greedy_pairs(bench: Bench) -> pd.DataFrame:
    """Greedy pairs of drafters that claim to be lossless: others may write what they like."""
    greedy = bench.requests[bench.requests["temperature"] == 0]
    return pair(greedy[greedy["lossless"].astype(bool)] if "lossless" in greedy else greedy)


def _first_difference(a: list[int], b: list[int]) -> int | None:
    """Return the first index at which two outputs differ, a missing token counting as a difference."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))
