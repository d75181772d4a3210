"""Figures: the same bytes each time, real bits on the axis, laws that hold, and nothing drawn from nothing."""

from __future__ import annotations

import dataclasses
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.reporting.data import Results
from breakeven.reporting.figures import acceptance, costs, kv_error, memory, outliers, speedup, style
from breakeven.reporting.figures.catalogue import CATALOGUE, draw_all
from helpers import reported

BUILDERS = {builder.__name__: builder for entries in CATALOGUE.values() for _, builder in entries}
EMPTY = Results(config=reported.config())


@pytest.fixture(scope="module")
def plots(results: Results) -> dict[str, style.Plot]:
    drawn, missing = draw_all(results)
    assert not any(missing.values())
    return {plot.name: plot for section in drawn.values() for plot in section}


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave text in the SVG as text, so that it can be read back."""
    monkeypatch.setitem(style._RC, "svg.fonttype", "none")


def test_every_kind_of_figure_is_in_the_catalogue(plots: dict[str, style.Plot]) -> None:
    assert len(BUILDERS) == len(plots) == 12


def test_figures_are_well_formed_and_carry_no_date_version_or_address(plots: dict[str, style.Plot]) -> None:
    for plot in plots.values():
        ElementTree.fromstring(plot.svg)
        assert "<dc:date>" not in plot.svg
        assert "Matplotlib" not in plot.svg
        assert not [line for line in plot.svg.splitlines() if line != line.rstrip()]
        addresses = set(re.findall(r"https?://[^\"\s<>]+", plot.svg))
        # Names of XML vocabularies; no program fetches them.
        assert all("www.w3.org" in a or "purl.org" in a or "creativecommons.org" in a for a in addresses), addresses


def test_alt_texts_tell_the_data(plots: dict[str, style.Plot]) -> None:
    for plot in plots.values():
        assert len(plot.alt) > 30
        assert re.search(r"\d", plot.alt), plot.name
        assert plot.title
        assert plot.caption


@pytest.mark.parametrize("name", ["speedup_over_k", "attention_bars", "outlier_map"])
def test_drawing_twice_gives_the_same_bytes(name: str, results: Results) -> None:
    first, second = BUILDERS[name](results), BUILDERS[name](results)
    assert first is not None
    assert first == second


@pytest.mark.parametrize("name", sorted(set(BUILDERS) - {"speedup_map"}))
def test_without_data_there_is_no_figure(name: str) -> None:
    assert BUILDERS[name](EMPTY) is None


def test_without_data_the_map_shows_the_law_alone(texts: None) -> None:
    plot = costs.speedup_map(EMPTY)
    assert plot is not None
    assert "no drafter" in plot.alt
    assert "of this machine" not in plot.svg


def test_bars_are_labelled_with_real_bits_and_levels(texts: None, results: Results) -> None:
    plot = kv_error.attention_bars(results)
    assert plot is not None
    # The post's "2 bits" per token: 7 levels, 3 bits and an fp16 scale over 64 elements.
    assert "3.25 bits, 7 levels" in plot.svg
    assert "2.25 bits, 3 levels" in plot.svg
    for row in results.kv_error:
        assert f"{row['k_bits_real']:.2f} bits, {row['levels']} levels" in plot.svg


def test_layers_are_compared_at_bits_that_every_scheme_has(results: Results) -> None:
    rows = [row for row in results.kv_error if not (row["scheme"] == "uniform_symmetric" and row["bits_nominal"] == 2)]
    plot = kv_error.error_by_layer(dataclasses.replace(results, kv_error=rows))
    assert plot is not None
    assert plot.title.endswith("nominal 3 bits")


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), min_size=1, max_size=12))
def test_pareto_keeps_exactly_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    rows: Any = [{"bits_real": float(bits), "output_error_both": float(error)} for bits, error in points]
    front = [(row["bits_real"], row["output_error_both"]) for row in kv_error.pareto(rows)]
    beaten = {
        (b, e) for b, e in points for ob, oe in points if ob <= b and oe <= e and (ob, oe) != (b, e)
    }  # fmt: skip
    assert front == sorted(set(points) - beaten)


@given(
    st.lists(
        st.tuples(st.floats(-5, 5), st.none() | st.floats(-5, 5), st.none() | st.floats(-5, 5)), min_size=1, max_size=6
    )
)
def test_error_bars_never_point_backwards(values: list[tuple[float, float | None, float | None]]) -> None:
    bars = style.error_bars(values)
    assert bars.shape == (2, len(values))
    assert (bars >= 0).all()
    for (value, low, high), (below, above) in zip(values, bars.T, strict=True):
        assert low is None or low > value or value - below == pytest.approx(low)
        assert high is None or high < value or value + above == pytest.approx(high)


def test_map_pays_exactly_where_acceptance_exceeds_cost_if_verification_is_free() -> None:
    """Leviathan et al., corollary 3.9: some draft length helps if and only if alpha > c."""
    alphas, cs = np.linspace(0.03, 0.97, 17), np.linspace(0.0, 1.3, 15)
    grid = costs._ideal(alphas, cs, range(1, 17))
    assert ((grid > 1.0 + 1e-12) == (alphas[:, None] > cs[None, :] + 1e-12)).all()


def test_map_of_the_machine_falls_back_to_the_law_without_costs_and_lies_below_with_them() -> None:
    alphas, cs = np.linspace(0.0, 0.99, 9), np.linspace(0.0, 1.0, 8)
    lengths = range(1, 9)
    ideal = costs._ideal(alphas, cs, lengths)
    assert costs._real(alphas, cs, lengths, lambda m: 1.0, 0.0) == pytest.approx(ideal)
    assert (costs._real(alphas, cs, lengths, lambda m: 1.0 + 0.02 * m, 0.05) < ideal).all()


def test_verify_curve_is_the_targets_own(results: Results) -> None:
    own: Any = [
        {**row, "drafter": "early_exit", "setting": "{}", "value": 0.1}
        for row in results.costs
        if row["quantity"] == "v"
    ]
    curve = costs.verify_curve([*results.costs, *own])
    assert curve is not None
    v, longest = curve
    assert longest == 16
    # A drafter that shares work verifies more cheaply: its rows must not pull the curve down.
    assert [v(m) for m in (1, 4, 16)] == pytest.approx([1.0, 1.06, 1.30])


def test_map_names_drafters_whose_place_misleads(results: Results) -> None:
    plot = costs.speedup_map(results)
    assert plot is not None
    assert "gaining less than the map says: ngram." in plot.caption
    shares: Any = [{**row, "v_verify": 0.5} if row["drafter"] == "early_exit" else row for row in results.speculative]
    plot = costs.speedup_map(dataclasses.replace(results, speculative=shares))
    assert plot is not None
    assert "gaining more than the map says: early_exit." in plot.caption


def test_outliers_stand_above_the_median_of_their_own_layer() -> None:
    """Oracle: plain loops. A layer with larger values everywhere must not look like outliers."""
    rows = [
        {"layer": layer, "kv_head": head, "channel": channel, "which": "v",
         "max_abs": 10.0**layer * (7.0 if (head, channel) == (1, 2) else 1.0 + 0.1 * channel)}
        for layer in (1, 0) for head in (1, 0) for channel in (2, 1, 0)
    ]  # fmt: skip
    grid = outliers.relative_maxima(pd.DataFrame(rows), "v")
    assert grid is not None
    expected = []
    for layer in (0, 1):
        values = [
            next(r["max_abs"] for r in rows if (r["layer"], r["kv_head"], r["channel"]) == (layer, head, channel))
            for head in (0, 1)
            for channel in (0, 1, 2)
        ]
        middle = float(np.median(values))
        expected.append([value / middle for value in values])
    assert np.allclose(grid, expected)
    assert grid[0].argmax() == grid[1].argmax() == 5
    assert outliers.relative_maxima(pd.DataFrame(rows), "k_pre") is None


def test_a_dead_layer_does_not_divide_by_zero() -> None:
    rows = [{"layer": 0, "kv_head": 0, "channel": c, "which": "v", "max_abs": 0.0} for c in range(3)]
    grid = outliers.relative_maxima(pd.DataFrame(rows), "v")
    assert grid is not None
    assert np.isnan(grid).all()
    assert outliers.outlier_map(dataclasses.replace(EMPTY, channels=pd.DataFrame(rows))) is None
    alive = [{**row, "layer": 1, "max_abs": 1.0 + row["channel"]} for row in rows]
    both = outliers.relative_maxima(pd.DataFrame(rows + alive), "v")
    assert both is not None
    assert outliers.spread(both) == pytest.approx(1.5)
    assert outliers.outlier_map(dataclasses.replace(EMPTY, channels=pd.DataFrame(rows + alive))) is not None


def test_keys_with_outliers_are_told_apart_from_values_without(results: Results) -> None:
    plot = outliers.outlier_map(results)
    assert plot is not None
    told = {name: float(value) for name, value in re.findall(r"(keys as cached|values) (\d+\.\d)", plot.caption)}
    assert told["keys as cached"] > 5 > told["values"]


def test_exit_figure_reads_calibration_and_plan(results: Results) -> None:
    points = acceptance.exit_points(results.calibration)
    assert [layer for layer, _ in points] == list(range(1, 30))
    assert (
        acceptance.exit_points({"drafters": {"early_exit": [{"setting": {"layer": 3}, "conditional_alpha": []}]}}) == []
    )
    plan = {"drafters": {"early_exit": {"alternatives": [
        {"setting": {"layer": 2}, "k": 1, "predicted_speedup": 0.5},
        {"setting": {"layer": 2}, "k": 2, "predicted_speedup": 0.8},
        {"setting": {"layer": 1}, "k": 1, "predicted_speedup": None},
    ]}}}  # fmt: skip
    assert acceptance.exit_promises(plan) == [(2, 0.8)]


def test_positions_use_the_longest_draft_and_its_larger_sample(results: Results) -> None:
    def rate(k: int, value: float, n: int) -> Any:
        return {
            "drafter": "ngram", "setting": "{}", "k": k, "temperature": 0.0, "category": "all", "n": n, "position": 1,
            "definition": "conditional", "value": value, "value_low": None, "value_high": None,
        }  # fmt: skip

    rows = [rate(1, 0.1, 9000), rate(4, 0.5, 10), rate(4, 0.75, 500)]
    plot = acceptance.by_position(dataclasses.replace(results, acceptance=rows))
    assert plot is not None
    # Both rows of k = 4 belong to the longest draft; the first found with position 1 is told, never that of k = 1.
    assert "0.10" not in plot.alt


def test_memory_parts_are_the_measured_ones(results: Results) -> None:
    parts = {label: n_bytes for label, n_bytes, _ in memory.memory_parts(results)}
    assert parts["target weights"] == 269e6
    assert parts["KV, 4,096 tokens"] == 23040 * 4096
    assert parts["process, peak"] == 900e6
    assert parts["drafter ngram"] == 0.0


def test_runs_without_a_speedup_are_not_drawn(results: Results, no_ink: None) -> None:
    rows: Any = [{**row, "speedup": None} if row["drafter"] == "ngram" else row for row in results.speculative]
    for builder in (speedup.speedup_over_k, speedup.predicted_against_measured, speedup.by_category):
        plot = builder(dataclasses.replace(results, speculative=rows))
        assert plot is not None
        assert "ngram" not in plot.alt


def test_legend_fits_the_width() -> None:
    short, long = ["a", "b", "c"], ["a name of forty characters, if not longer"] * 3
    assert style._columns_that_fit(short, style.WIDTH_INCHES * 72) == 3
    assert style._columns_that_fit(long, style.WIDTH_INCHES * 72) == 1
