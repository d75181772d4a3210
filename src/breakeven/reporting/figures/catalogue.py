"""Which figures the report shows, in which section."""

from __future__ import annotations

from collections.abc import Callable

from breakeven.reporting.data import Results
from breakeven.reporting.figures.acceptance import by_position, early_exit_layers
from breakeven.reporting.figures.costs import speedup_map, verify_cost
from breakeven.reporting.figures.kv_error import attention_bars, error_by_layer, error_over_bits
from breakeven.reporting.figures.memory import memory_bars
from breakeven.reporting.figures.outliers import outlier_map
from breakeven.reporting.figures.speedup import by_category, predicted_against_measured, speedup_over_k
from breakeven.reporting.figures.style import Plot

Builder = Callable[[Results], Plot | None]

# section -> (what is missing if the builder finds nothing to draw, builder)
CATALOGUE: dict[str, tuple[tuple[str, Builder], ...]] = {
    "speculation": (
        ("speedup over the draft length", speedup_over_k),
        ("speedup over acceptance and draft cost", speedup_map),
        ("predicted against measured speedup", predicted_against_measured),
        ("acceptance by draft position", by_position),
        ("acceptance and speedup by category", by_category),
    ),
    "costs": (
        ("verification cost v(m)", verify_cost),
        ("early exit by layer", early_exit_layers),
    ),
    "quantization": (
        ("attention error by scheme, axis and bits", attention_bars),
        ("error over real bits", error_over_bits),
        ("outlier channels", outlier_map),
        ("error by layer", error_by_layer),
    ),
    "memory": (("memory", memory_bars),),
}


def draw_all(results: Results) -> tuple[dict[str, list[Plot]], dict[str, list[str]]]:
    """Draw every figure.

    Returns:
        Per section the figures, and per section what could not be drawn since this run holds no such data.
    """
    drawn: dict[str, list[Plot]] = {}
    missing: dict[str, list[str]] = {}
    for section, entries in CATALOGUE.items():
        drawn[section], missing[section] = [], []
        for what, builder in entries:
            plot = builder(results)
            if plot is None:
                missing[section].append(what)
            else:
                drawn[section].append(plot)
    return drawn, missing
