"""Look-ups in reports/metrics/costs.json: c, v(m) and memory, interpolated to the lengths that a run really met.

The unit of c and v is the target's forward pass over one token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from breakeven.evidence.intervals import Interval
from breakeven.results import CostRow

FloatArray = npt.NDArray[np.float64]


class CostTable:
    """Costs of one machine and model.

    Args:
        rows: reports/metrics/costs.json.
    """

    def __init__(self, rows: Sequence[CostRow]) -> None:
        self.rows = list(rows)

    def draft(self, drafter: str, setting: str, k: int, context: float) -> Interval | None:
        """Return c, the cost of drafting one token, at the timed draft length nearest to k.

        Args:
            drafter: its name.
            setting: canonical JSON of its setting; rows of the same exit layer serve if none carries the setting.
            k: draft length.
            context: context tokens; between timed contexts the cost is interpolated, beyond them held.

        Returns:
            c with its interval; None if this drafter was not timed.
        """
        rows = self._of_drafter("c", drafter, setting)
        if not rows:
            return None
        nearest = min({row["m"] or 1 for row in rows}, key=lambda m: (abs(m - k), m))
        return _at_context([row for row in rows if (row["m"] or 1) == nearest], context)

    def verify(self, drafter: str, setting: str, m: npt.ArrayLike, context: npt.ArrayLike) -> FloatArray | None:
        """Return v, the cost of this drafter's target pass over m tokens.

        An early exit keeps the states of its own layers, so its verification has its own cost; it is timed at a few m
        only. Between them the difference from the plain curve is interpolated, since that curve is timed at every m
        and may have steps where kernels change.

        Args:
            drafter: its name; "" for plain passes.
            setting: canonical JSON of its setting.
            m: [n] tokens in the pass.
            context: [n] context tokens.

        Returns:
            [n] costs; None if no target pass was timed.
        """
        sizes, contexts = np.atleast_1d(np.asarray(m, float)), np.atleast_1d(np.asarray(context, float))
        plain = _curves([row for row in self.rows if row["quantity"] == "v" and row["drafter"] is None])
        if not plain:
            return None
        own = _curves(self._of_drafter("v", drafter, setting))
        at_context = []
        for at, curve in plain.items():
            costs = np.interp(sizes, *_points(curve))
            if own:
                special = own[min(own, key=lambda other: abs(other - at))]
                difference = {1: 0.0} | {int(p): v - float(np.interp(p, *_points(curve))) for p, v in special.items()}
                costs = costs + np.interp(sizes, *_points(difference))
            at_context.append(costs)
        return _interpolate_context(list(plain), np.stack(at_context), contexts)

    def value(self, quantity: str, **fields: Any) -> float | None:
        """Return the first value of a quantity whose fields match, None if there is none."""
        for row in self.rows:
            if row["quantity"] == quantity and all(row.get(key) == wanted for key, wanted in fields.items()):
                return row["value"]
        return None

    def plain_curve(self) -> dict[int, dict[int, Interval]]:
        """Return v(m) of plain target passes by context and m, with intervals."""
        curve: dict[int, dict[int, Interval]] = {}
        for row in self.rows:
            if row["quantity"] == "v" and row["drafter"] is None and row["m"] is not None:
                curve.setdefault(row["context_tokens"] or 0, {})[row["m"]] = _interval(row)
        return curve

    def _of_drafter(self, quantity: str, drafter: str, setting: str) -> list[CostRow]:
        """Rows of this very setting; else rows of its exit layer; else rows that name the drafter only."""
        rows = [row for row in self.rows if row["quantity"] == quantity and row["drafter"] == drafter]
        layer = json.loads(setting).get("layer") if setting else None
        exact = [row for row in rows if row["setting"] == setting]
        same_layer = [row for row in rows if row["setting"] is None and layer is not None and row["layer"] == layer]
        bare = [row for row in rows if row["setting"] is None and row["layer"] is None]
        return exact or same_layer or bare


def _interval(row: CostRow) -> Interval:
    low = math.nan if row["value_low"] is None else row["value_low"]
    high = math.nan if row["value_high"] is None else row["value_high"]
    return Interval(row["value"], low, high, row["n"])


def _at_context(rows: list[CostRow], context: float) -> Interval:
    ordered = sorted(rows, key=lambda row: row["context_tokens"] or 0)
    contexts = [float(row["context_tokens"] or 0) for row in ordered]
    parts = [_interval(row) for row in ordered]
    value, low, high = (
        float(np.interp(context, contexts, [getattr(part, name) for part in parts]))
        for name in ("value", "low", "high")
    )
    return Interval(value, low, high, sum(part.n for part in parts))


def _curves(rows: list[CostRow]) -> dict[int, dict[int, float]]:
    """Group v rows: context -> m -> value; v(1) is 1 by definition where it was not timed."""
    curves: dict[int, dict[int, float]] = {}
    for row in sorted(rows, key=lambda row: (row["context_tokens"] or 0, row["m"] or 0)):
        if row["m"] is not None:
            curves.setdefault(row["context_tokens"] or 0, {})[row["m"]] = row["value"]
    return {context: {1: 1.0} | curve for context, curve in curves.items()}


def _points(curve: dict[int, float]) -> tuple[list[float], list[float]]:
    ordered = sorted(curve)
    return [float(m) for m in ordered], [curve[m] for m in ordered]


def _interpolate_context(known: list[int], costs: FloatArray, contexts: FloatArray) -> FloatArray:
    """Interpolate costs [contexts, n] at the context of each column."""
    order = np.argsort(known)
    grid, table = np.asarray(known, float)[order], costs[order]
    place = np.clip(np.interp(contexts, grid, np.arange(len(grid))), 0, len(grid) - 1)
    low = np.floor(place).astype(int)
    high = np.minimum(low + 1, len(grid) - 1)
    share, column = place - low, np.arange(table.shape[1])
    result: FloatArray = table[low, column] * (1 - share) + table[high, column] * share
    return result
