"""Figures of the measured speedup: over k, by category, and against the three predictions."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from breakeven.reporting.data import ALL, Results, at_first_temperature, drafters, measured, overall
from breakeven.reporting.figures.style import (
    COLORS,
    INK,
    Look,
    Plot,
    break_even_line,
    canvas,
    error_bars,
    legend,
    looks,
    to_svg,
)
from breakeven.reporting.words import is_number, listed, ratio, temperature
from breakeven.results import SpeculativeRow

_PREDICTORS = (
    ("predicted_post", "the post's law"),
    ("predicted_leviathan", "Leviathan"),
    ("predicted_cost_aware", "cost-aware"),
)


def speedup_over_k(results: Results) -> Plot | None:
    """Draw measured speedup over the draft length, a panel a temperature."""
    rows = measured(overall(results.speculative))
    temperatures = sorted({row["temperature"] for row in rows})
    if not rows:
        return None
    styles = looks(drafters(rows))
    with canvas(len(temperatures), 3.1, sharex=True, sharey=True) as (figure, panels):
        for axes, value in zip(panels, temperatures, strict=True):
            for i, name in enumerate(styles):
                series = [row for row in rows if row["drafter"] == name and row["temperature"] == value]
                _k_series(axes, series, styles[name], name, shift=0.12 * (i - (len(styles) - 1) / 2))
            break_even_line(axes)
            axes.set_title(temperature(value))
            axes.set_ylabel("speedup")
        # Only now: fixing a limit stops the shared axis from growing with the panels that follow.
        panels[0].set_ylim(bottom=0.0)
        panels[-1].set_xlabel("draft length k")
        panels[-1].set_xticks(sorted({row["k"] for row in rows}))
        legend(figure)
        svg = to_svg(figure)
    best, worst = max(rows, key=lambda row: row["speedup"]), min(rows, key=lambda row: row["speedup"])
    return Plot(
        "speedup_over_k",
        "Measured speedup over the draft length",
        "Median over prompts of the paired ratio to plain decoding, with intervals. Below the red line speculation "
        f"costs time.{_rings(rows)}",
        f"Points with intervals over k. Fastest: {_where(best)}. Slowest: {_where(worst)}.",
        svg,
    )


def _rings(rows: Sequence[SpeculativeRow]) -> str:
    """Explain the rings, and the wider intervals of the sweep where it had fewer prompts."""
    ringed = [row["n_prompts"] for row in rows if row["calibrated"]]
    swept = [row["n_prompts"] for row in rows if not row["calibrated"]]
    if not ringed:
        return ""
    text = " Rings: the draft length that calibration chose."
    if swept and max(ringed) > max(swept):
        text += f" They rest on up to {max(ringed)} prompts, the other points on up to {max(swept)}."
    return text


def _k_series(axes: Axes, rows: Sequence[SpeculativeRow], look: Look, name: str, shift: float) -> None:
    """Draw the sweep as a line and the calibrated run as a ring; drafters are shifted apart to keep bars visible."""
    sweep = [row for row in rows if not row["calibrated"]]
    for group, line in ((sweep, look.line), ([row for row in rows if row["calibrated"]], "none")):
        if not group:
            continue
        axes.errorbar(
            [row["k"] + shift for row in group],
            [row["speedup"] for row in group],
            yerr=error_bars([_interval(row) for row in group]),
            color=look.color,
            marker=look.marker,
            linestyle=line,
            linewidth=1.4,
            markersize=5,
            capsize=3,
            label=name,
        )
        if group[0]["calibrated"]:
            axes.plot(
                [row["k"] + shift for row in group],
                [row["speedup"] for row in group],
                marker="o",
                markersize=12,
                markerfacecolor="none",
                markeredgecolor=look.color,
                linestyle="none",
            )


def predicted_against_measured(results: Results) -> Plot | None:
    """Draw each prediction against its measurement; the diagonal is a perfect prediction."""
    rows = measured(overall(results.speculative))
    predictors = [(key, label) for key, label in _PREDICTORS if any(is_number(_value(row, key)) for row in rows)]
    if not predictors:
        return None
    styles = looks(drafters(rows))
    right = 1.1 * max(_value(row, key) or 0.0 for row in rows for key, _ in predictors)
    top = 1.1 * max(row["speedup_high"] or row["speedup"] for row in rows)
    with canvas(1, 4.2) as (figure, panels):
        axes = panels[0]
        for (key, _), color in zip(predictors, COLORS, strict=False):
            for row in rows:
                predicted = _value(row, key)
                if is_number(predicted):
                    _prediction(axes, predicted or 0.0, row, color, styles[row["drafter"]].marker)
        axes.axline((0, 0), slope=1, color=INK, linewidth=1.2, label="predicted = measured")
        axes.set(xlim=(0, right), ylim=(0, top), xlabel="predicted speedup", ylabel="measured speedup")
        for (_, label), color in zip(predictors, COLORS, strict=False):
            axes.add_line(Line2D([], [], color=color, linewidth=6, label=label))
        for name, look in styles.items():
            axes.add_line(Line2D([], [], color="#555555", marker=look.marker, linestyle="none", label=name))
        legend(figure)
        svg = to_svg(figure)
    errors = [f"{label} {_mean_error(rows, key)}" for key, label in predictors]
    return Plot(
        "predicted_against_measured",
        "Predicted against measured speedup",
        "Every draft length and temperature. Points right of the diagonal were promised more than they gave. Colour: "
        "the formula; marker: the drafter.",
        f"Scatter plot. Mean absolute relative error of the prediction: {listed(errors)}.",
        svg,
    )


def _prediction(axes: Axes, predicted: float, row: SpeculativeRow, color: str, marker: str) -> None:
    axes.errorbar(
        [predicted],
        [row["speedup"]],
        yerr=error_bars([_interval(row)]),
        color=color,
        marker=marker,
        linestyle="none",
        markersize=5,
        elinewidth=0.8,
        alpha=0.8,
    )


def _mean_error(rows: Sequence[SpeculativeRow], key: str) -> str:
    pairs = [(_value(row, key), row["speedup"]) for row in rows]
    errors = [abs(predicted / measured - 1.0) for predicted, measured in pairs if predicted is not None and measured]
    return f"{100 * sum(errors) / len(errors):.0f} %" if errors else "unknown"


def by_category(results: Results) -> Plot | None:
    """Draw acceptance and speedup of every category."""
    rows = [row for row in measured(at_first_temperature(results.speculative)) if row["category"] != ALL]
    # The calibrated run has most prompts; without it the shortest draft of each drafter stands in.
    rows = [row for row in rows if row["calibrated"]] or [
        row for row in rows if row["k"] == min(r["k"] for r in rows if r["drafter"] == row["drafter"])
    ]
    if not rows:
        return None
    categories = sorted({row["category"] for row in rows}, reverse=True)
    styles = looks(drafters(overall(results.speculative)) or drafters(rows))
    with canvas(2, 0.9 + 0.34 * len(categories), sharey=True) as (figure, panels):
        for i, (name, look) in enumerate(styles.items()):
            series = [row for row in rows if row["drafter"] == name]
            shift = 0.16 * ((len(styles) - 1) / 2 - i)
            where = [categories.index(row["category"]) + shift for row in series]
            accepted = [(row["alpha"], row["alpha_low"], row["alpha_high"]) for row in series]
            _dots(panels[0], accepted, where, look, name)
            _dots(panels[1], [_interval(row) for row in series], where, look, name)
        break_even_line(panels[1], horizontal=False)
        panels[0].set(xlabel="acceptance of a tested draft token, α", xlim=(0, 1))
        panels[1].set(xlabel="speedup")
        panels[1].set_xlim(left=0)
        for axes in panels:
            axes.set_yticks(range(len(categories)), [category.replace("_", " ") for category in categories])
        legend(figure)
        svg = to_svg(figure)
    return Plot(
        "by_category",
        "Acceptance and speedup by category",
        f"At {temperature(rows[0]['temperature'])}, at each drafter's calibrated draft length where it was run. "
        "Intervals over the prompts of a category; with few prompts they are wide.",
        f"Two dot plots by category. Fastest: {_where(max(rows, key=lambda row: row['speedup']))}. "
        f"Slowest: {_where(min(rows, key=lambda row: row['speedup']))}.",
        svg,
    )


def _dots(
    axes: Axes,
    values: Sequence[tuple[float | None, float | None, float | None]],
    where: Sequence[float],
    look: Look,
    name: str,
) -> None:
    """Draw horizontal intervals; categories without a value are left empty."""
    known = [((value, low, high), y) for (value, low, high), y in zip(values, where, strict=True) if value is not None]
    if not known:
        return
    axes.errorbar(
        [value for (value, _, _), _ in known],
        [y for _, y in known],
        xerr=error_bars([interval for interval, _ in known]),
        color=look.color,
        marker=look.marker,
        linestyle="none",
        markersize=5,
        capsize=2.5,
        label=name,
    )


def _interval(row: SpeculativeRow) -> tuple[float, float | None, float | None]:
    return (row["speedup"], row["speedup_low"], row["speedup_high"])


def _value(row: SpeculativeRow, key: str) -> float | None:
    """Read a column by name: the three predictions are told apart by their key."""
    value = dict(row)[key]
    return float(value) if isinstance(value, int | float) and is_number(value) else None


def _where(row: SpeculativeRow) -> str:
    place = "" if row["category"] == ALL else f" on {row['category'].replace('_', ' ')}"
    return f"{row['drafter']}{place} with k = {row['k']} at {temperature(row['temperature'])}, {ratio(row['speedup'])}"
