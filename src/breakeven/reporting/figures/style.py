"""How every figure looks, and how it becomes the same bytes each time.

Figures are narrow and their text is large, so that they stay readable at the width of a phone; panels stand one above
the other. Series differ in marker and line as well as in colour (Okabe and Ito's palette, safe for colour blindness).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator

from breakeven.reporting.words import is_number

WIDTH_INCHES = 4.6
BREAK_EVEN_COLOR = "#B00020"
INK = "#1b1b1b"
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A5195", "#444444")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":", "-", "--", "-.", ":")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")

# Numbers of 1 and above with three decimals or more; smaller ones are scale factors, which need every digit.
_LONG_NUMBER = re.compile(r"(?<![\w.])[1-9]\d*\.\d{3,}\b")

_RC: Any = {
    "svg.hashsalt": "breakeven",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 12,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.7,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "hatch.linewidth": 0.7,
    "figure.dpi": 100,
}


@dataclass(frozen=True)
class Plot:
    """A drawn figure.

    Attributes:
        name: file name without its ending.
        title: what it shows, in a few words.
        caption: how to read it.
        alt: what it shows, for those who cannot see it; computed from the data.
        svg: the drawing.
    """

    name: str
    title: str
    caption: str
    alt: str
    svg: str


@dataclass(frozen=True)
class Look:
    """Colour, marker, line and hatch of one series."""

    color: str
    marker: str
    line: str
    hatch: str


def looks(names: Sequence[str]) -> dict[str, Look]:
    """Give every name its look; more names than looks start again."""
    n = len(COLORS)
    return {name: Look(COLORS[i % n], MARKERS[i % n], LINES[i % n], HATCHES[i % n]) for i, name in enumerate(names)}


@contextmanager
def canvas(panels: int = 1, panel_inches: float = 3.0, **options: Any) -> Iterator[tuple[Figure, list[Axes]]]:
    """Yield a figure with panels one above the other, in the style of the report.

    Args:
        panels: number of panels.
        panel_inches: height of each.
        options: passed to `Figure.subplots`.
    """
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(WIDTH_INCHES, panels * panel_inches), layout="constrained")
        axes = figure.subplots(panels, 1, squeeze=False, **options)
        yield figure, [row[0] for row in axes]


def to_svg(figure: Figure) -> str:
    """Write a figure as SVG without dates, versions or random names."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_RC):
        figure.savefig(
            buffer,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    # A hundredth of a point is below what a screen can show; six decimals would double the file.
    text = _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.2f}", buffer.getvalue())
    # One line end everywhere, none trailing: git and DVC then see the same bytes on every platform.
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def error_bars(values: Sequence[tuple[float, float | None, float | None]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Turn (value, low, high) into the [2, n] distances that Matplotlib wants; 0 where there is no interval."""
    below = [value - low if low is not None and is_number(low) else 0.0 for value, low, _ in values]
    above = [high - value if high is not None and is_number(high) else 0.0 for value, _, high in values]
    # A percentile interval may exclude its own estimate by a hair; distances may not be negative.
    return np.maximum(np.array([below, above], dtype=np.float64), 0.0)


def break_even_line(axes: Axes, horizontal: bool = True) -> None:
    """Draw the line where speculation neither gains nor loses."""
    draw = axes.axhline if horizontal else axes.axvline
    draw(1.0, color=BREAK_EVEN_COLOR, linewidth=1.6, linestyle=(0, (6, 2)), label="break-even", zorder=1.5)


def whole_ticks(axes: Axes, *, vertical: bool = False) -> None:
    """Keep the ticks of a counted quantity, such as layers, at whole numbers."""
    axis = axes.yaxis if vertical else axes.xaxis
    axis.set_major_locator(MaxNLocator(integer=True))


def legend(figure: Figure) -> None:
    """Put one legend for all panels above them, where it hides no data, in as many columns as fit."""
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside upper left",
            ncols=_columns_that_fit(list(entries), figure.get_figwidth() * 72.0),
            columnspacing=_GAP_EMS,
            handlelength=_HANDLE_EMS,
            handletextpad=0.5,
        )


_HANDLE_EMS, _GAP_EMS, _PADDING_EMS = 2.0, 1.0, 1.5


def _columns_that_fit(labels: Sequence[str], width_points: float) -> int:
    """Return the largest number of legend columns (filled one after the other) that is not wider than the figure."""
    size = float(_RC["legend.fontsize"])
    font = FontProperties(family=_RC["font.family"], size=size)
    widths = [float(text_to_path.get_text_width_height_descent(label, font, ismath=False)[0]) for label in labels]
    for columns in range(min(len(labels), 4), 1, -1):
        filled = [part for part in np.array_split(np.array(widths), columns) if part.size]
        handles = columns * (_HANDLE_EMS + _GAP_EMS) + _PADDING_EMS
        if sum(float(part.max()) for part in filled) + handles * size <= width_points:
            return columns
    return 1
