"""Figures of what a round costs: v(m), memory, and speedup over acceptance and draft cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from breakeven.costs.predictors import cost_aware_speedup, leviathan_speedup, leviathan_tau
from breakeven.reporting.data import Results, chosen, cost_rows, drafters
from breakeven.reporting.figures.style import (
    BREAK_EVEN_COLOR,
    INK,
    Plot,
    canvas,
    error_bars,
    legend,
    looks,
    to_svg,
    whole_ticks,
)
from breakeven.reporting.words import is_number, listed, number
from breakeven.results import CostRow, SpeculativeRow

_GRID = 41
_LEVELS = (0.25, 0.5, 0.75, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0)
FloatArray = npt.NDArray[np.float64]


def verify_cost(results: Results) -> Plot | None:
    """Draw v(m), the cost of one target pass over m tokens."""
    rows = cost_rows(results.costs, "v", lambda row: row["m"] is not None and row["drafter"] is None)
    contexts = sorted({row["context_tokens"] or 0 for row in rows})
    if not rows:
        return None
    styles = looks([f"context of {context} tokens" for context in contexts])
    with canvas(1, 3.2) as (figure, panels):
        axes = panels[0]
        for context, (label, look) in zip(contexts, styles.items(), strict=True):
            series = [row for row in rows if (row["context_tokens"] or 0) == context]
            axes.errorbar(
                [row["m"] or 0 for row in series],
                [row["value"] for row in series],
                yerr=error_bars([(row["value"], row["value_low"], row["value_high"]) for row in series]),
                color=look.color,
                marker=look.marker,
                linestyle=look.line,
                capsize=3,
                markersize=5,
                label=label,
            )
        top = max(max(row["value_high"] or row["value"] for row in rows) * 1.15, 2.0)
        axes.axline((1, 1), slope=1, color=BREAK_EVEN_COLOR, linestyle=":", label="no saving: v(m) = m")
        axes.axhline(1.0, color=INK, linewidth=1.0, linestyle="--", label="free verification: v(m) = 1")
        axes.set(xlabel="tokens in one target pass, m", ylabel="v(m), in plain steps", ylim=(0, top))
        axes.set_xlim(0.5, max(row["m"] or 0 for row in rows) + 0.5)
        whole_ticks(axes)
        legend(figure)
        svg = to_svg(figure)
    last = max(rows, key=lambda row: row["m"] or 0)
    return Plot(
        "verify_cost",
        "What verification costs: v(m)",
        "Time of one target pass over m tokens, divided by the time of a pass over one token. Speculation lives from "
        "this curve staying flat.",
        f"Lines over m. v({last['m']}) is {number(last['value'])} at a context of {last['context_tokens']} tokens.",
        svg,
    )


def speedup_map(results: Results) -> Plot | None:
    """Draw the predicted speedup over acceptance and draft cost, with the measured drafters on it."""
    points = [row for row in chosen(results.speculative) if row["alpha"] is not None and row["c"] is not None]
    v = verify_curve(results.costs)
    lengths = range(1, 17) if v is None else range(1, v[1])
    largest = max((row["c"] or 0.0 for row in points), default=0.0)
    overhead = _typical_overhead(results)
    alphas = np.linspace(0.0, 0.995, _GRID)
    costs = np.linspace(0.0, max(1.0, 1.15 * largest), _GRID)
    panels_wanted = [("If verification were free (Leviathan)", _ideal(alphas, costs, lengths))]
    if v is not None:
        grid = _real(alphas, costs, lengths, v[0], overhead)
        panels_wanted.append(("With v(m) and overhead of this machine", grid))
    with canvas(len(panels_wanted), 3.9, sharex=True) as (figure, panels):
        for axes, (title, grid) in zip(panels, panels_wanted, strict=True):
            _contours(axes, costs, alphas, grid)
            _points(axes, points)
            axes.set_title(title)
            axes.set_ylabel("acceptance α")
        panels[-1].set_xlabel("cost c of a draft token, in plain steps")
        legend(figure)
        svg = to_svg(figure)
    where = [f"{r['drafter']} at α {number(r['alpha'])}, c {number(r['c'])}" for r in points]
    return Plot(
        "speedup_map",
        "Where speculation can pay",
        "Predicted speedup at the best draft length for every acceptance and draft cost; red: break-even. Left of and "
        "above the red line it pays."
        + (_LOWER_PANEL.format(number(overhead)) if v is not None else "")
        + (" Bars: intervals of the measured drafters." if points else "")
        + _caveats(points),
        f"Contour plots over acceptance and draft cost. Measured: {listed(where) or 'no drafter'}.",
        svg,
    )


_LOWER_PANEL = (
    " The lower panel adds what the upper law leaves out: verification and overhead ({} plain steps a round) as "
    "measured here."
)


def _caveats(points: Sequence[SpeculativeRow]) -> str:
    """Name the drafters whose place on the map misleads, since the map's laws do not hold for them."""
    silent = sorted(
        {row["drafter"] for row in points if is_number(row["draft_rate"]) and row["draft_rate"] < _NEARLY_ALWAYS}
    )
    sharing = sorted({row["drafter"] for row in points if row["v_verify"] is not None and row["v_verify"] < 1.0})
    text = ""
    if silent:
        text += f" Silent in some rounds, so gaining less than the map says: {listed(silent)}."
    if sharing:
        text += f" Sharing work between draft and verification, so gaining more than the map says: {listed(sharing)}."
    return text


# From this share of drafting rounds on, silence no longer moves a drafter visibly.
_NEARLY_ALWAYS = 0.95


def _contours(axes: Axes, costs: FloatArray, alphas: FloatArray, grid: FloatArray) -> None:
    axes.contourf(costs, alphas, grid, levels=[1.0, 1e9], colors=["#E3F1E6"])
    drawn = [level for level in _LEVELS if grid.min() < level < grid.max()]
    if drawn:
        lines = axes.contour(costs, alphas, grid, levels=drawn, colors="#707070", linewidths=0.8)
        axes.clabel(lines, fmt=lambda level: f"{level:g}×", fontsize=9)
    if grid.min() < 1.0 < grid.max():
        axes.contour(costs, alphas, grid, levels=[1.0], colors=BREAK_EVEN_COLOR, linewidths=2.2)
        axes.plot([], [], color=BREAK_EVEN_COLOR, linewidth=2.2, label="break-even")
    axes.set(xlim=(-0.02 * costs[-1], costs[-1]), ylim=(-0.02, 1.02))
    axes.grid(visible=False)


def _points(axes: Axes, rows: Sequence[SpeculativeRow]) -> None:
    styles = looks(drafters(rows))
    temperatures = sorted({row["temperature"] for row in rows})
    for row in rows:
        alpha, c, look = row["alpha"] or 0.0, row["c"] or 0.0, styles[row["drafter"]]
        axes.errorbar(
            [c],
            [alpha],
            xerr=error_bars([(c, row["c_low"], row["c_high"])]),
            yerr=error_bars([(alpha, row["alpha_low"], row["alpha_high"])]),
            color=look.color,
            marker=look.marker,
            # Temperatures of one drafter share colour and marker; only the first is filled.
            markerfacecolor=look.color if row["temperature"] == temperatures[0] else "white",
            linestyle="none",
            markersize=8,
            capsize=3,
            label=f"{row['drafter']}, T = {row['temperature']:g}",
            zorder=5,
        )


def verify_curve(rows: Sequence[CostRow]) -> tuple[Callable[[int], float], int] | None:
    """Return v as a function of m, the median over contexts, and the largest measured m; None if v was not measured."""
    measured: dict[int, list[float]] = {}
    for row in cost_rows(rows, "v", lambda row: row["m"] is not None and row["drafter"] is None):
        measured.setdefault(row["m"] or 0, []).append(row["value"])
    if len(measured) < 2:
        return None
    ms = sorted(measured)
    values = [median(measured[m]) for m in ms]
    return (lambda m: float(np.interp(m, ms, values))), ms[-1]


def _typical_overhead(results: Results) -> float:
    """Return the median overhead of a round over the drafters, in plain steps; 0 where none was measured."""
    return median([row["overhead"] for row in chosen(results.speculative) if row["overhead"] is not None] or [0.0])


def _ideal(alphas: FloatArray, costs: FloatArray, lengths: Sequence[int]) -> FloatArray:
    """Return [alphas, costs] of Leviathan's law at its best draft length."""
    return np.array([[max(leviathan_speedup(a, k, c) for k in lengths) for c in costs] for a in alphas])


def _real(
    alphas: FloatArray, costs: FloatArray, lengths: Sequence[int], v: Callable[[int], float], overhead: float
) -> FloatArray:
    """Return [alphas, costs] of the cost-aware law at its best draft length, i.i.d. acceptance."""
    taus = {(a, k): leviathan_tau(a, k) for a in alphas for k in lengths}
    verify = {k: v(k + 1) for k in lengths}
    return np.array(
        [
            [max(cost_aware_speedup(taus[a, k], k, c, verify[k], overhead) for k in lengths) for c in costs]
            for a in alphas
        ]
    )
