"""Figures of acceptance: by draft position, and by exit layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from breakeven.reporting.data import ALL, Results, cost_rows, first_temperature
from breakeven.reporting.figures.style import (
    COLORS,
    Plot,
    break_even_line,
    canvas,
    error_bars,
    legend,
    to_svg,
    whole_ticks,
)
from breakeven.reporting.words import listed, number, temperature
from breakeven.results import AcceptanceRow

_DEFINITIONS = (
    ("conditional", "conditional: accepted / reached", COLORS[0], "o", "-"),
    ("unconditional", "unconditional: accepted / rounds", COLORS[1], "s", "--"),
)


def by_position(results: Results) -> Plot | None:
    """Draw acceptance at every draft position, a panel a drafter, at its longest draft."""
    value = first_temperature(results.speculative)
    rows = [
        row
        for row in results.acceptance
        if row["position"] is not None and row["category"] == ALL and (value is None or row["temperature"] == value)
    ]
    names = sorted({row["drafter"] for row in rows})
    if not names:
        return None
    series = {name: _longest([row for row in rows if row["drafter"] == name]) for name in names}
    with canvas(len(names), 2.5, sharex=True, sharey=True) as (figure, panels):
        for axes, name in zip(panels, names, strict=True):
            for definition in _DEFINITIONS:
                _position_line(axes, series[name], definition)
            axes.set_title(f"{name}, k = {series[name][0]['k']}")
            axes.set(ylabel="acceptance", ylim=(0, 1.02))
        panels[-1].set_xlabel("draft position")
        panels[-1].set_xticks(sorted({row["position"] or 0 for group in series.values() for row in group}))
        legend(figure)
        svg = to_svg(figure)
    first = [
        f"{name} {number(row['value'])}"
        for name in names
        for row in series[name]
        if row["position"] == 1 and row["definition"] == "conditional"
    ]
    return Plot(
        "acceptance_by_position",
        "Acceptance by draft position",
        f"At {temperature(rows[0]['temperature'])}, for the longest draft that was run. The conditional rate asks "
        "how often a draft token is accepted once it is tested; the unconditional one counts every round and falls "
        "with each position, since one rejection ends the round.",
        f"Lines by draft position. First position, conditional: {listed(first) or 'not measured'}.",
        svg,
    )


def _longest(rows: Sequence[AcceptanceRow]) -> list[AcceptanceRow]:
    """Keep the longest draft; of several settings the one with most observations."""
    k = max(row["k"] for row in rows)
    rows = [row for row in rows if row["k"] == k]
    weights: dict[str, int] = {}
    for row in rows:
        weights[row["setting"]] = weights.get(row["setting"], 0) + row["n"]
    best = max(sorted(weights), key=lambda name: weights[name])
    return [row for row in rows if row["setting"] == best]


def _position_line(axes: Axes, rows: Sequence[AcceptanceRow], definition: tuple[str, str, str, str, str]) -> None:
    name, label, color, marker, line = definition
    # A run may hold one k twice (sweep and calibrated): the larger sample stands for it.
    at: dict[int, AcceptanceRow] = {}
    for row in rows:
        position = row["position"]
        known = row["definition"] == name and position is not None and row["value"] is not None
        if known and position is not None and row["n"] > 0 and (position not in at or row["n"] > at[position]["n"]):
            at[position] = row
    if not at:
        return
    positions = sorted(at)
    axes.errorbar(
        positions,
        [at[p]["value"] for p in positions],
        yerr=error_bars([(at[p]["value"], at[p]["value_low"], at[p]["value_high"]) for p in positions]),
        color=color,
        marker=marker,
        linestyle=line,
        capsize=3,
        markersize=5,
        label=label,
    )


def early_exit_layers(results: Results) -> Plot | None:
    """Draw acceptance, draft cost and promised speedup of every exit layer."""
    points = exit_points(results.calibration)
    if not points:
        return None
    promises = exit_promises(results.plan)
    with canvas(2 if promises else 1, 2.9, sharex=True) as (figure, panels):
        panels[0].plot(*zip(*points, strict=True), color=COLORS[0], marker="o", markersize=4, label=_ALPHA)
        _exit_costs(panels[0], results)
        panels[0].set(ylabel="α and c", ylim=(0, None))
        if promises:
            panels[1].plot(*zip(*promises, strict=True), color=COLORS[2], marker="^", markersize=4, label=_PROMISE)
            break_even_line(panels[1])
            panels[1].set(ylabel="predicted speedup", ylim=(0, None))
        panels[-1].set_xlabel("exit after layer")
        whole_ticks(panels[-1])
        legend(figure)
        svg = to_svg(figure)
    layer, alpha = max(points, key=lambda point: point[1])
    best = max(promises, key=lambda point: point[1], default=None)
    promised = f" Highest predicted speedup {number(best[1])}× after layer {best[0]}." if best else ""
    return Plot(
        "early_exit_by_layer",
        "Leaving early: acceptance, cost and promise by exit layer",
        "From calibration prompts, apart from the measured ones. Draft and verification share the layers below the "
        "exit, so neither curve decides alone."
        + (" The lower panel does: the predicted speedup of every exit at its best draft length." if promises else ""),
        f"Lines by exit layer. Highest acceptance {number(alpha)} after layer {layer}.{promised}",
        svg,
    )


_ALPHA = "acceptance α of the first draft token"
_PROMISE = "predicted speedup at the best draft length"


def _exit_costs(axes: Axes, results: Results) -> None:
    """Draw c of every exit at the longest context, where it was measured."""
    rows = cost_rows(results.costs, "c", lambda row: row["layer"] is not None and row["setting"] is None)
    longest = max((row["context_tokens"] or 0 for row in rows), default=0)
    rows = [row for row in rows if (row["context_tokens"] or 0) == longest]
    if rows:
        axes.errorbar(
            [row["layer"] or 0 for row in rows],
            [row["value"] for row in rows],
            yerr=error_bars([(row["value"], row["value_low"], row["value_high"]) for row in rows]),
            color=COLORS[1],
            marker="s",
            markersize=4,
            linestyle="--",
            label="cost c of a draft token, in plain steps",
        )


def exit_promises(plan: dict[str, Any]) -> list[tuple[int, float]]:
    """Return (exit layer, highest predicted speedup over draft lengths) of the plan, by layer."""
    best: dict[int, float] = {}
    for option in plan.get("drafters", {}).get("early_exit", {}).get("alternatives", []):
        layer, speedup = option.get("setting", {}).get("layer"), option.get("predicted_speedup")
        if layer is not None and speedup is not None:
            best[int(layer)] = max(best.get(int(layer), 0.0), float(speedup))
    return sorted(best.items())


def exit_points(calibration: dict[str, Any]) -> list[tuple[int, float]]:
    """Return (exit layer, acceptance of the first draft token) of every calibrated early exit, by layer."""
    entries = calibration.get("drafters", {}).get("early_exit", [])
    points = {}
    for entry in entries:
        layer, alphas = entry.get("setting", {}).get("layer"), entry.get("conditional_alpha") or []
        if layer is not None and alphas and alphas[0] is not None:
            points[int(layer)] = float(alphas[0])
    return sorted(points.items())
