"""Speculative requests beside the plain request of the same prompt, temperature and repeat.

A speedup is a ratio of two times of the same work on the same machine in the same minutes. Ratios are formed prompt by
prompt and then summarised: a ratio of mean rates over different prompts (Spec-Bench) is no speedup of anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from breakeven.errors import BreakevenError
from breakeven.evidence.intervals import Interval, bootstrap_median

PLAIN = "plain"
PAIR_KEY = ["prompt_id", "temperature", "repeat"]
GROUP_KEY = ["drafter", "setting", "k", "calibrated", "temperature"]
REQUEST_COLUMNS = (
    "model", "machine", "workload", "prompt_id", "category", "drafter", "setting", "k", "calibrated", "temperature",
    "repeat", "order", "prompt_tokens", "new_tokens", "end_reason", "prefill_s", "draft_prefill_s", "decode_s",
    "target_passes", "output_sha256", "output_ids", "repetition_8gram", "drafter_bytes", "peak_memory_bytes",
)  # fmt: skip
_FROM_PLAIN = ["new_tokens", "prefill_s", "decode_s", "output_sha256", "output_ids", "order", "end_reason"]


@dataclass(frozen=True)
class Speedup:
    """Speedup of one group of requests in three meanings.

    Attributes:
        paired: median over prompts of the ratio of decode seconds per token, plain / speculative.
        total: ratio of total tokens per decode second.
        end_to_end: the same with the prefill of target and draft included.
        tokens_per_s: speculative, decode only.
        tokens_per_s_plain: plain, decode only, on the same prompts.
    """

    paired: Interval
    total: float
    end_to_end: float
    tokens_per_s: float
    tokens_per_s_plain: float


def check_requests(requests: pd.DataFrame) -> None:
    """Check the columns of a request table.

    Raises:
        BreakevenError: a column is missing or there is no plain request to compare with.
    """
    missing = [column for column in REQUEST_COLUMNS if column not in requests.columns]
    if missing:
        raise BreakevenError(f"the request table lacks {', '.join(missing)}. Run `dvc repro speculate`.")
    if len(requests) and not (requests["drafter"] == PLAIN).any():
        raise BreakevenError("the request table holds no plain decoding to compare with. Run `dvc repro -f speculate`.")


def pair(requests: pd.DataFrame) -> pd.DataFrame:
    """Put the plain request of the same prompt, temperature and repeat beside every speculative one.

    Args:
        requests: data/requests.parquet.

    Returns:
        The speculative requests with the plain one's columns as `<column>_plain`.

    Raises:
        BreakevenError: a speculative request has no plain partner, or several.
    """
    check_requests(requests)
    plain = requests[requests["drafter"] == PLAIN]
    if plain.duplicated(PAIR_KEY).any():
        raise BreakevenError("a prompt has several plain requests of one repeat. Run `dvc repro -f speculate`.")
    partner = plain[[*PAIR_KEY, *_FROM_PLAIN]]
    pairs = requests[requests["drafter"] != PLAIN].merge(
        partner, on=PAIR_KEY, how="left", suffixes=("", "_plain"), validate="many_to_one", indicator=True
    )
    alone = pairs[pairs["_merge"] == "left_only"]
    if len(alone):
        row = alone.iloc[0]
        raise BreakevenError(
            f"{len(alone)} speculative requests have no plain partner, first {row['drafter']} on {row['prompt_id']} at "
            f"temperature {row['temperature']}. Run `dvc repro -f speculate`."
        )
    return pairs.drop(columns="_merge")


def rated(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the pairs in which both sides decoded at least one token after the prefill: others have no rate."""
    return pairs[(pairs["new_tokens"] >= 2) & (pairs["new_tokens_plain"] >= 2)]


def speedup(pairs: pd.DataFrame, *, resamples: int, confidence: float, seed: int) -> Speedup | None:
    """Compute the speedup of pairs that belong together.

    Args:
        pairs: rows of `pair` of one drafter, setting, k and temperature.
        resamples: bootstrap resamples of the prompts.
        confidence: coverage of the interval.
        seed: seed of the resampling.

    Returns:
        The speedup; None if no pair has a rate.
    """
    usable = rated(pairs)
    if usable.empty:
        return None
    work = usable.assign(tokens=usable["new_tokens"] - 1, tokens_plain=usable["new_tokens_plain"] - 1)
    # Repeats of a prompt are one measurement of that prompt.
    sums = work.groupby("prompt_id", sort=False)[["tokens", "tokens_plain", "decode_s", "decode_s_plain"]].sum()
    ratios = (sums["decode_s_plain"] / sums["tokens_plain"]) / (sums["decode_s"] / sums["tokens"])
    paired = bootstrap_median(
        ratios.to_numpy(), sums.index.to_numpy(), resamples=resamples, confidence=confidence, seed=seed
    )
    rate = float(sums["tokens"].sum() / sums["decode_s"].sum())
    rate_plain = float(sums["tokens_plain"].sum() / sums["decode_s_plain"].sum())
    whole = float((usable["decode_s"] + usable["prefill_s"] + usable["draft_prefill_s"]).sum())
    whole_plain = float((usable["decode_s_plain"] + usable["prefill_s_plain"]).sum())
    end_to_end = (usable["new_tokens"].sum() / whole) / (usable["new_tokens_plain"].sum() / whole_plain)
    return Speedup(paired, rate / rate_plain, float(end_to_end), rate, rate_plain)
