"""Figure of the outlier channels of keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.colors import LogNorm

from breakeven.reporting.data import Results
from breakeven.reporting.figures.style import Plot, canvas, to_svg, whole_ticks
from breakeven.reporting.words import listed, number

TENSORS = {
    "k_pre": "Keys before rotary embedding",
    "k_post": "Keys as cached",
    "v": "Values",
}
FloatGrid = npt.NDArray[np.float64]


def outlier_map(results: Results) -> Plot | None:
    """Draw every channel's largest magnitude relative to the median channel of its layer."""
    grids = {name: relative_maxima(results.channels, name) for name in TENSORS}
    present = {name: grid for name, grid in grids.items() if grid is not None and np.isfinite(grid).any()}
    if not present:
        return None
    highest = max(float(np.nanmax(grid)) for grid in present.values())
    highest = max(highest, 2.0)
    norm = LogNorm(vmin=0.5, vmax=highest, clip=True)
    with canvas(len(present), 2.5) as (figure, panels):
        for axes, (name, grid) in zip(panels, present.items(), strict=True):
            image = axes.imshow(grid, aspect="auto", cmap="cividis", norm=norm, interpolation="none", origin="upper")
            axes.set_title(TENSORS[name])
            axes.set_ylabel("layer")
            axes.grid(visible=False)
            whole_ticks(axes, vertical=True)
        panels[-1].set_xlabel("channel (KV heads one after the other)")
        bar = figure.colorbar(image, ax=panels, location="bottom", fraction=0.05, aspect=40)
        bar.set_label("largest magnitude / median channel")
        ticks = [tick for tick in (0.5, 1, 2, 5, 10, 20, 50, 100, 200) if tick <= highest]
        bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        bar.minorticks_off()
        svg = to_svg(figure)
    strongest = ", ".join(f"{TENSORS[name]}: {number(float(np.nanmax(g)), 1)}" for name, g in present.items())
    return Plot(
        "kv_outlier_channels",
        "Outlier channels of keys and values",
        "Each cell is one channel of one layer. A bright cell is a channel whose largest value stands far above the "
        "layer's median channel: a scale per channel isolates it, a scale per token suffers from it. Largest over "
        "median channel, mean over layers: "
        f"{listed([f'{TENSORS[n].lower()} {number(spread(g), 1)}' for n, g in present.items()])}.",
        f"Heat maps by layer and channel of the largest magnitude over the layer's median. Highest cell, {strongest}.",
        svg,
    )


def relative_maxima(channels: pd.DataFrame, which: str) -> FloatGrid | None:
    """Return [layers, KV heads x channels] of max_abs over the layer's median; None where nothing was captured."""
    if channels.empty or which not in set(channels["which"]):
        return None
    rows = channels[channels["which"] == which]
    wide = rows.pivot_table(index="layer", columns=["kv_head", "channel"], values="max_abs", aggfunc="max")
    grid: npt.NDArray[Any] = wide.sort_index(axis=0).sort_index(axis=1).to_numpy(dtype=np.float64)
    medians = np.nanmedian(grid, axis=1, keepdims=True)
    # A layer whose median channel is 0 has no scale to compare with.
    return np.divide(grid, medians, out=np.full_like(grid, np.nan), where=medians > 0) if grid.size else None


def spread(grid: FloatGrid) -> float:
    """Return the mean over layers of the largest channel over the median one."""
    alive = grid[np.isfinite(grid).any(axis=1)]
    return float(np.nanmax(alive, axis=1).mean())
