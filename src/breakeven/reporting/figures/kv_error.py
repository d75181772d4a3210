"""Figures of the KV-cache quantization error: the post's bar chart, error over real bits, error by layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from breakeven.reporting.data import Results, kv_by_key_axis, kv_measured, kv_overall
from breakeven.reporting.figures.style import INK, Look, Plot, canvas, error_bars, legend, looks, to_svg, whole_ticks
from breakeven.reporting.words import is_number, listed, number
from breakeven.results import KvErrorRow

_AXIS_TITLES = {
    "token": "Keys: one scale per token",
    "channel": "Keys: one scale per channel",
}
_PAIR_MARKERS = {"token/token": "o", "channel/channel": "s", "channel/token": "^", "token/channel": "D"}


def attention_bars(results: Results) -> Plot | None:
    """Draw the post's bar chart with the real bits and levels of every scheme."""
    rows = kv_by_key_axis(results.kv_error)
    axes_present = [axis for axis in _AXIS_TITLES if any(row["k_axis"] == axis for row in rows)]
    if not axes_present:
        return None
    styles = looks(sorted({row["scheme"] for row in rows}))
    with canvas(len(axes_present), 3.9, sharey=True) as (figure, panels):
        for axes, axis in zip(panels, axes_present, strict=True):
            _bars(axes, [row for row in rows if row["k_axis"] == axis], styles)
            axes.set_title(_AXIS_TITLES[axis])
        # Only now: fixing a limit stops the shared axis from growing with the panels that follow.
        panels[0].set_ylim(bottom=0.0)
        legend(figure)
        svg = to_svg(figure)
    worst = max(rows, key=lambda row: row["attention_error"])
    best = min(rows, key=lambda row: row["attention_error"])
    return Plot(
        "kv_attention_error",
        "Attention error by scheme, key axis and bits",
        "Relative error of the attention weights, ‖A − Â‖ / ‖A‖, with intervals over texts. Under each bar: the bits "
        "per element that must really be stored (scales and minima counted) and the number of levels that a code can "
        "take. Compare schemes at equal real bits, not at equal names. Attention weights depend on keys only.",
        f"Bar chart. Largest attention error: {_described(worst)}. Smallest: {_described(best)}.",
        svg,
    )


def _bars(axes: Axes, rows: Sequence[KvErrorRow], styles: dict[str, Look]) -> None:
    """Draw one bar a scheme and bit width, schemes side by side."""
    position, ticks, labels = 0.0, [], []
    for scheme in sorted({row["scheme"] for row in rows}):
        group = [row for row in rows if row["scheme"] == scheme]
        where = [position + i for i in range(len(group))]
        values = [(row["attention_error"], row["attention_error_low"], row["attention_error_high"]) for row in group]
        axes.bar(
            where,
            [value for value, _, _ in values],
            width=0.82,
            color=styles[scheme].color,
            edgecolor="white",
            hatch=styles[scheme].hatch,
            yerr=error_bars(values),
            error_kw={"ecolor": INK, "elinewidth": 1.2, "capsize": 2.5},
            label=scheme,
        )
        ticks += where
        labels += [f"{row['k_bits_real']:.2f} bits, {row['levels']} levels" for row in group]
        position += len(group) + 0.6
    axes.set_xticks(ticks, labels, rotation=90, fontsize=10)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("attention error")


def error_over_bits(results: Results) -> Plot | None:
    """Draw error over real bits per element: attention (keys only) and output (keys and values)."""
    rows = kv_overall(results.kv_error)
    if not rows:
        return None
    styles = looks(sorted({row["scheme"] for row in rows}))
    with canvas(2, 3.3) as (figure, panels):
        _attention_lines(panels[0], kv_by_key_axis(rows), styles)
        front = _output_points(panels[1], rows, styles)
        legend(figure)
        svg = to_svg(figure)
    return Plot(
        "kv_error_over_bits",
        "Error over real bits per element",
        "Above: attention error over the bits per key element (solid: one scale per token, dashed: per channel). "
        "Below: error of the attention output with keys and values quantized, over the mean bits of both; the marker "
        "tells the axes, and the grey line joins the schemes that no other one beats in both bits and error.",
        "Two panels over real bits per element. Unbeaten for the output error: "
        f"{listed([_pair_text(r) for r in front])}.",
        svg,
    )


def _attention_lines(axes: Axes, rows: Sequence[KvErrorRow], styles: dict[str, Look]) -> None:
    for scheme in sorted({row["scheme"] for row in rows}):
        for axis, line in (("token", "-"), ("channel", "--")):
            series = sorted(
                (row for row in rows if row["scheme"] == scheme and row["k_axis"] == axis),
                key=lambda row: row["k_bits_real"],
            )
            values = [(r["attention_error"], r["attention_error_low"], r["attention_error_high"]) for r in series]
            axes.errorbar(
                [row["k_bits_real"] for row in series],
                [value for value, _, _ in values],
                yerr=error_bars(values) if series else None,
                color=styles[scheme].color,
                marker=styles[scheme].marker,
                linestyle=line,
                linewidth=1.4,
                markersize=5,
                capsize=2.5,
                label=scheme if axis == "token" else None,
            )
    axes.set_title("Attention weights, K quantized")
    axes.set_xlabel("real bits per key element")
    _error_axis(axes, "attention error")


def _output_points(axes: Axes, rows: Sequence[KvErrorRow], styles: dict[str, Look]) -> list[KvErrorRow]:
    front = pareto(rows)
    axes.plot(
        [row["bits_real"] for row in front],
        [row["output_error_both"] for row in front],
        color="#9a9a9a",
        linewidth=4,
        alpha=0.5,
        zorder=1.2,
    )
    for row in rows:
        values = [(row["output_error_both"], row["output_error_both_low"], row["output_error_both_high"])]
        axes.errorbar(
            [row["bits_real"]],
            [row["output_error_both"]],
            yerr=error_bars(values),
            color=styles[row["scheme"]].color,
            marker=_PAIR_MARKERS.get(f"{row['k_axis']}/{row['v_axis']}", "v"),
            linestyle="none",
            markersize=5,
            alpha=0.85,
        )
    for pair in sorted({f"{row['k_axis']}/{row['v_axis']}" for row in rows}):
        k_axis, v_axis = pair.split("/")
        label = f"K {k_axis}, V {v_axis}"
        axes.plot([], [], color="#666666", marker=_PAIR_MARKERS.get(pair, "v"), linestyle="none", label=label)
    axes.set_title("Attention output, K and V quantized")
    axes.set_xlabel("real bits per element, mean of K and V")
    _error_axis(axes, "output error")
    return front


def _error_axis(axes: Axes, label: str) -> None:
    """Errors span decades, so the axis is logarithmic, with plain numbers on it."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set_ylabel(label)


def pareto(rows: Sequence[KvErrorRow]) -> list[KvErrorRow]:
    """Return the rows that no other row beats in both real bits and output error, by ascending bits."""
    front: list[KvErrorRow] = []
    for row in sorted(rows, key=lambda row: (row["bits_real"], row["output_error_both"])):
        if not front or row["output_error_both"] < front[-1]["output_error_both"]:
            front.append(row)
    return front


def error_by_layer(results: Results) -> Plot | None:
    """Draw the attention error of every layer at the fewest bits that every scheme has."""
    rows = [row for row in kv_measured(results.kv_error) if row["layer"] is not None and row["kv_head"] is None]
    rows = rows or [row for row in kv_measured(results.kv_error) if row["layer"] is not None]
    bits = _fewest_common_bits(rows)
    if bits is None:
        return None
    rows = [row for row in rows if row["bits_nominal"] == bits]
    axes_present = [axis for axis in _AXIS_TITLES if any(row["k_axis"] == axis for row in rows)]
    styles = looks(sorted({row["scheme"] for row in rows}))
    with canvas(len(axes_present), 2.9, sharex=True, sharey=True) as (figure, panels):
        for axes, axis in zip(panels, axes_present, strict=True):
            for scheme, look in styles.items():
                series = [row for row in rows if row["scheme"] == scheme and row["k_axis"] == axis]
                _layer_line(axes, series, scheme, look)
            axes.set_title(_AXIS_TITLES[axis])
            axes.set_ylabel("attention error")
        panels[0].set_ylim(bottom=0.0)
        whole_ticks(panels[-1])
        panels[-1].set_xlabel("layer")
        legend(figure)
        svg = to_svg(figure)
    worst = max(rows, key=lambda row: row["attention_error"])
    return Plot(
        "kv_error_by_layer",
        f"Attention error by layer at nominal {bits} bits",
        f"Mean over KV heads, band: interval over texts. Equal names are not equal sizes; real bits per key element: "
        f"{listed([_sizes(rows, scheme) for scheme in styles])}.",
        f"Lines by layer. Largest error: {_described(worst)} in layer {worst['layer']}.",
        svg,
    )


def _sizes(rows: Sequence[KvErrorRow], scheme: str) -> str:
    """Write the real bits of a scheme, which differ between the axes."""
    real = sorted({f"{row['k_bits_real']:.2f}" for row in rows if row["scheme"] == scheme})
    return f"{scheme} {real[0]}" if len(real) == 1 else f"{scheme} {real[0]} to {real[-1]}"


def _layer_line(axes: Axes, rows: Sequence[KvErrorRow], scheme: str, look: Look) -> None:
    """Draw one scheme's line; several rows of a layer (KV heads, value axes) are averaged."""
    layers = sorted({row["layer"] for row in rows if row["layer"] is not None})
    if not layers:
        return
    by_layer = [[row for row in rows if row["layer"] == layer] for layer in layers]
    middle = [float(np.mean([row["attention_error"] for row in group])) for group in by_layer]
    axes.plot(layers, middle, color=look.color, marker=look.marker, linestyle=look.line, markersize=4, label=scheme)
    low = [[row["attention_error_low"] for row in group] for group in by_layer]
    high = [[row["attention_error_high"] for row in group] for group in by_layer]
    # Heads' intervals do not average into a layer's interval, so the band is drawn only where rows are whole layers.
    bounded = all(is_number(row["attention_error_low"]) and is_number(row["attention_error_high"]) for row in rows)
    if bounded and all(row["kv_head"] is None for row in rows):
        axes.fill_between(layers, [v[0] for v in low], [v[0] for v in high], color=look.color, alpha=0.18, linewidth=0)


def _fewest_common_bits(rows: Sequence[KvErrorRow]) -> int | None:
    schemes = {row["scheme"] for row in rows}
    shared = [{row["bits_nominal"] for row in rows if row["scheme"] == scheme} for scheme in schemes]
    common = set.intersection(*shared) if shared else set()
    return min(common, default=None)


def _described(row: KvErrorRow) -> str:
    where = f"{row['scheme']}, keys per {row['k_axis']}, {row['k_bits_real']:.2f} real bits"
    return f"{number(row['attention_error'], 3)} ({where})"


def _pair_text(row: KvErrorRow) -> str:
    error = f"{number(row['output_error_both'], 3)} at {row['bits_real']:.2f} bits"
    return f"{row['scheme']} with K per {row['k_axis']} and V per {row['v_axis']} ({error})"
