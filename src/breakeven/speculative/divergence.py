"""Greedy outputs that differ from plain decoding: a near tie, or a bug?

A pass over m tokens rounds differently from m passes over one (transformers #39421, vLLM #41758), so two tokens whose
logits nearly tie may swap. The size of that rounding is measured in the run itself: where both paths chose the same
token after the same text, their top-2 margins should be equal, and the largest difference seen there bounds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

COLUMNS = [
    "drafter", "setting", "k", "repeat", "prompt_id", "position", "plain_token", "spec_token",
    "margin_plain", "margin_spec", "epsilon", "verdict",
]  # fmt: skip


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the first position where two outputs differ, a missing token counting as different; None if equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def divergences(requests: pd.DataFrame) -> pd.DataFrame:
    """Compare every greedy speculative request with the plain one of its prompt and repeat.

    Returns:
        One row a diverging request (contract of data/divergences.parquet); `near_tie` if flipping the two tokens
        needs no more than epsilon, i.e. margin_plain + margin_spec <= epsilon; else `unexplained`.
    """
    pairs = list(_pairs(requests[requests["temperature"] == 0.0]))
    noise = [abs(p - s) for plain, spec, at in pairs for p, s in _agreed_margins(plain, spec, at)]
    epsilon = max(noise, default=0.0)
    rows = [_row(plain, spec, at, epsilon) for plain, spec, at in pairs if at is not None]
    return pd.DataFrame(rows, columns=COLUMNS)


def _pairs(greedy: pd.DataFrame) -> Iterator[tuple[dict[str, Any], dict[str, Any], int | None]]:
    """Yield (plain request, speculative request, first difference)."""
    rows: list[dict[str, Any]] = greedy.to_dict("records")  # type: ignore[assignment]
    plain = {(r["prompt_id"], r["repeat"]): r for r in rows if r["drafter"] == "plain"}
    for spec in rows:
        if spec["drafter"] != "plain":
            base = plain[(spec["prompt_id"], spec["repeat"])]
            yield base, spec, first_difference(list(base["output_ids"]), list(spec["output_ids"]))


def _agreed_margins(plain: dict[str, Any], spec: dict[str, Any], at: int | None) -> list[tuple[float, float]]:
    return list(zip(plain["margins"][:at], spec["margins"][:at], strict=False))


def _row(plain: dict[str, Any], spec: dict[str, Any], at: int, epsilon: float) -> dict[str, Any]:
    row = {key: spec[key] for key in ("drafter", "setting", "k", "repeat", "prompt_id")}
    row |= {"position": at, "epsilon": epsilon, "verdict": "unexplained"}
    for name, request in (("plain", plain), ("spec", spec)):
        reached = at < len(request["output_ids"])
        row[f"{name}_token"] = int(request["output_ids"][at]) if reached else None
        row[f"margin_{name}"] = float(request["margins"][at]) if reached else None
    # Where one output simply goes on, there is no token to compare: never a near tie.
    margins = (row["margin_plain"], row["margin_spec"])
    if None not in margins and sum(margins) <= epsilon:
        row["verdict"] = "near_tie"
    return row
