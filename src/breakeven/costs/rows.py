"""From raw timing samples to rows of reports/metrics/costs.json: ratios paired by round, with intervals."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from breakeven.config import MeasureConfig
from breakeven.evidence.intervals import Interval, bootstrap_median
from breakeven.results import SCHEMA_VERSION, CostRow


def cost_rows(samples: pd.DataFrame, measure: MeasureConfig, *, model: str, machine: str) -> list[CostRow]:
    """Return target_step_s, v, c and overhead rows for every context length.

    Every ratio divides two times of the same round (so that drift of the machine cancels) and its interval bootstraps
    over rounds. The unit of c, v and overhead_ratio is the target's forward pass of one token.
    """
    rows: list[CostRow] = []
    for context in sorted(samples["context_tokens"].unique().tolist()):
        at_context = samples[samples["context_tokens"] == context]
        one = _by_round(at_context, "target", m=1)
        common: dict[str, Any] = {"model": model, "machine": machine, "context_tokens": int(context)}
        rows.append(_row("target_step_s", _median(one, measure), m=1, **common))
        keys = ["kind", "drafter", "setting", "layer", "m"]
        for values, group in at_context.groupby(keys, sort=True):
            kind, drafter, setting, layer, m = values
            seconds: pd.Series[float] = group.set_index("repeat")["seconds"]
            ratios: pd.Series[float] = seconds.div(one).dropna()
            case: dict[str, Any] = {
                "drafter": drafter or None,
                "setting": setting or None,
                "layer": layer or None,
                "m": int(str(m)),
            }
            if kind in ("target", "verify"):
                rows.append(_row("v", _median(ratios, measure), **case, **common))
            elif kind in ("draft", "exit"):
                rows.append(_row("c", _median(ratios / case["m"], measure), **case, **common))
            elif kind == "overhead":
                rows.append(_row("overhead_s", _median(seconds, measure), **case, **common))
                rows.append(_row("overhead_ratio", _median(ratios, measure), **case, **common))
    return rows


def memory_rows(parts: Mapping[str, int], drafters: Mapping[str, int], *, model: str, machine: str) -> list[CostRow]:
    """Return memory_bytes rows: weights, kv_per_token, process_peak, and one `drafter` row for each drafter."""
    common: dict[str, Any] = {"model": model, "machine": machine}
    rows = [_row("memory_bytes", _exact(size), part=part, **common) for part, size in sorted(parts.items())]
    for name, size in sorted(drafters.items()):
        rows.append(_row("memory_bytes", _exact(size), part="drafter", drafter=name, **common))
    return rows


def process_peak_bytes(device: torch.device) -> int:
    """Return the most memory that this process has held: device memory on a GPU, resident set elsewhere."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts KiB, macOS bytes.
    return int(peak if sys.platform == "darwin" else peak * 1024)


def _by_round(samples: pd.DataFrame, kind: str, m: int) -> pd.Series[float]:
    chosen = samples[(samples["kind"] == kind) & (samples["m"] == m)]
    return chosen.set_index("repeat")["seconds"]


def _median(values: pd.Series[float], measure: MeasureConfig) -> Interval:
    array = np.asarray(values, dtype=np.float64)
    return bootstrap_median(
        array,
        np.arange(len(array)),
        resamples=measure.bootstrap_resamples,
        confidence=measure.confidence,
        seed=measure.seed,
    )


def _exact(value: int) -> Interval:
    return Interval(float(value), float(value), float(value), 1)


def _row(quantity: str, interval: Interval, **fields: Any) -> CostRow:
    row: CostRow = {
        "schema_version": SCHEMA_VERSION,
        "model": "",
        "machine": "",
        "quantity": quantity,
        "drafter": None,
        "setting": None,
        "layer": None,
        "m": None,
        "context_tokens": None,
        "part": None,
        "value": interval.value,
        "value_low": interval.low,
        "value_high": interval.high,
        "n": interval.n,
    }
    row.update(fields)  # type: ignore[typeddict-item]
    return row
