"""From sums of squares to the rows of reports/metrics/kv_error.json, with intervals over texts.

The aggregate is the post's: the ratio of norms of every layer and KV head, averaged over them for each text, then over
texts. Texts are the clusters of the bootstrap: heads and layers of one text are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from breakeven.config import MeasureConfig
from breakeven.errors import BreakevenError
from breakeven.evidence.intervals import Interval, bootstrap_ratios
from breakeven.results import SCHEMA_VERSION, KvErrorRow

# Name in KvErrorRow -> (numerator, denominator) in data/kv_error.parquet.
METRICS = {
    "attention_error": ("attention_num", "attention_den"),
    "score_error_centred": ("score_num", "score_den"),
    "output_error_k_only": ("output_k_num", "output_den"),
    "output_error_v_only": ("output_v_num", "output_den"),
    "output_error_both": ("output_both_num", "output_den"),
}
_WAY = ["scheme", "k_axis", "v_axis", "bits_nominal"]
_FACTS = [*_WAY, "levels", "group_size", "context_tokens", "k_bits_real", "v_bits_real"]
# Arithmetic is float32: more digits would only make the committed file longer.
_DIGITS = 7


def error_rows(
    table: pd.DataFrame,
    measure: MeasureConfig,
    model: str,
    groupings: Sequence[tuple[str, ...]] = ((), ("layer",)),
) -> list[KvErrorRow]:
    """Aggregate data/kv_error.parquet.

    Args:
        table: `breakeven.kv.error.ErrorSums` rows.
        measure: seed, resamples and confidence of the intervals.
        model: as results show it.
        groupings: (): one row over everything; ("layer",): one a layer; ("layer", "kv_head"): one a KV head.

    Returns:
        Rows of every grouping, in a fixed order.

    Raises:
        BreakevenError: a scheme was not measured on every text.
    """
    ratios = table[[*_FACTS, "text_id", "layer", "kv_head"]].copy()
    for name, (numerator, denominator) in METRICS.items():
        squared = np.full(len(table), np.nan)
        # A norm of 0 has no relative error; such a cell stays out of the mean.
        np.divide(table[numerator], table[denominator], out=squared, where=table[denominator].to_numpy() > 0)
        ratios[name] = np.sqrt(squared)
    rows: list[KvErrorRow] = []
    for grouping in groupings:
        rows += _grouped(ratios, list(grouping), measure, model)
    return rows


def _grouped(ratios: pd.DataFrame, grouping: list[str], measure: MeasureConfig, model: str) -> list[KvErrorRow]:
    by_text = ratios.groupby([*_FACTS, *grouping, "text_id"], sort=True)[list(METRICS)].mean().reset_index()
    n_texts = by_text["text_id"].nunique()
    if (by_text.groupby([*_FACTS, *grouping]).size() != n_texts).any():
        raise BreakevenError("data/kv_error.parquet lacks some texts of some schemes. Delete it and run `dvc repro`.")
    rows: list[KvErrorRow] = []
    # One scheme at a time bounds the memory of the resamples.
    for _, part in by_text.groupby("scheme", sort=True):
        # Sorted by text within each way of quantizing, and every way was measured on every text.
        columns = {name: part[name].to_numpy().reshape(-1, n_texts).T for name in METRICS}
        intervals = {name: _intervals(values, measure) for name, values in columns.items()}
        ways: list[Any] = part[[*_FACTS, *grouping]].iloc[::n_texts].to_dict("records")
        for i, facts in enumerate(ways):
            rows.append(_row(facts, {name: found[i] for name, found in intervals.items()}, n_texts, model))
    return rows


def _intervals(values: np.ndarray[Any, np.dtype[np.float64]], measure: MeasureConfig) -> list[Interval]:
    """Estimate the mean over texts of every column of [texts, n], texts being the clusters."""
    present = np.isfinite(values)
    return bootstrap_ratios(
        np.where(present, values, 0.0),
        present.astype(np.float64),
        list(range(len(values))),
        resamples=measure.bootstrap_resamples,
        confidence=measure.confidence,
        seed=measure.seed,
    )


def _row(facts: dict[str, Any], found: dict[str, Interval], n_texts: int, model: str) -> KvErrorRow:
    spans: dict[str, float] = {}
    for name, interval in found.items():
        spans |= {
            name: _short(interval.value),
            f"{name}_low": _short(interval.low),
            f"{name}_high": _short(interval.high),
        }
    row: Any = {
        "schema_version": SCHEMA_VERSION,
        "model": model,
        **facts,
        "layer": facts.get("layer"),
        "kv_head": facts.get("kv_head"),
        "bits_real": (facts["k_bits_real"] + facts["v_bits_real"]) / 2,
        **spans,
        "n_texts": n_texts,
    }
    typed: KvErrorRow = row
    return typed


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
