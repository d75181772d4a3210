"""Panels that share an axis: no point may lie outside, whichever panel it is in."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from breakeven.reporting.data import Results
from breakeven.reporting.figures import kv_error, speedup


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collect figures instead of rendering them."""
    figures: list[Figure] = []

    def keep(self: Figure, buffer: Any, **_: Any) -> None:
        figures.append(self)
        buffer.write("<svg/>")

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def tops(figure: Figure) -> list[float]:
    return [axes.get_ylim()[1] for axes in figure.axes if isinstance(axes, Axes)]


def test_a_fast_second_temperature_is_not_cut_off(results: Results, drawn: list[Figure]) -> None:
    rows: Any = [
        {**row, "speedup": 5.0, "speedup_high": 6.0} if row["temperature"] == 1.0 else row
        for row in results.speculative
    ]
    assert speedup.speedup_over_k(dataclasses.replace(results, speculative=rows)) is not None
    assert min(tops(drawn[0])) > 6.0


@pytest.mark.parametrize("builder", [kv_error.attention_bars, kv_error.error_by_layer])
def test_a_large_error_per_channel_is_not_cut_off(builder: Any, results: Results, drawn: list[Figure]) -> None:
    rows: Any = [
        {**row, "attention_error": 3.0, "attention_error_high": 3.5} if row["k_axis"] == "channel" else row
        for row in results.kv_error
    ]
    assert builder(dataclasses.replace(results, kv_error=rows)) is not None
    assert min(tops(drawn[0])) > 3.5
