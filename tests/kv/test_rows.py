"""From sums of squares to result rows: which ratio, averaged how, with intervals over what."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from breakeven.config import MeasureConfig
from breakeven.errors import BreakevenError
from breakeven.kv.rows import METRICS, error_rows
from breakeven.results import SCHEMA_VERSION, KvErrorRow

MEASURE = MeasureConfig(seed=3, trial=0, bootstrap_resamples=400, confidence=0.9)
WAYS = [("post", "token", "token", 2), ("post", "channel", "token", 2), ("asym", "token", "channel", 4)]


def table(n_texts: int = 6, layers: int = 3, kv_heads: int = 2, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    rows = []
    for text in range(n_texts):
        for layer in range(layers):
            for head in range(kv_heads):
                for scheme, k_axis, v_axis, bits in WAYS:
                    facts = {
                        "text_id": f"text {text}", "layer": layer, "kv_head": head, "scheme": scheme, "k_axis": k_axis,
                        "v_axis": v_axis, "bits_nominal": bits, "levels": 7, "group_size": 0, "context_tokens": 32,
                        "k_bits_real": bits + 1.25, "v_bits_real": bits + 0.75,
                    }  # fmt: skip
                    # norms of very different sizes: a ratio of sums is another number than a mean of ratios
                    scale = 10.0 ** generator.uniform(-3, 3)
                    sums = {name: scale for pair in METRICS.values() for name in pair}
                    sums |= {pair[0]: scale * generator.uniform(0.01, 1.0) for pair in METRICS.values()}
                    rows.append(facts | sums)
    return pd.DataFrame(rows)


def by_hand(rows: pd.DataFrame, metric: str) -> list[float]:
    """One number a text: the mean over its layers and heads of the ratio of norms."""
    numerator, denominator = METRICS[metric]
    found = []
    for text in sorted(set(rows["text_id"])):
        cells = [row for row in rows.to_dict("records") if row["text_id"] == text]
        found.append(sum(math.sqrt(row[numerator] / row[denominator]) for row in cells) / len(cells))
    return found


def selected(data: pd.DataFrame, row: Any) -> pd.DataFrame:
    way = ["scheme", "k_axis", "v_axis", "bits_nominal"]
    kept = data[(data[way] == [row[name] for name in way]).all(axis=1)]
    for place in ("layer", "kv_head"):
        if row[place] is not None:
            kept = kept[kept[place] == row[place]]
    return kept


def test_every_figure_is_the_mean_over_texts_of_the_mean_over_heads_of_ratios_of_norms() -> None:
    data = table()
    rows = error_rows(data, MEASURE, "m", groupings=((), ("layer",), ("layer", "kv_head")))
    assert len(rows) == len(WAYS) * (1 + 3 + 6)
    for row in rows:
        part = selected(data, row)
        assert len(part) == 6 * (1 if row["kv_head"] is not None else 2 if row["layer"] is not None else 6)
        for metric in METRICS:
            assert dict(row)[metric] == pytest.approx(float(np.mean(by_hand(part, metric))), rel=1e-6)


def test_intervals_are_over_texts_and_hold_the_value() -> None:
    data = table(n_texts=8)
    row = error_rows(data, MEASURE, "m")[0]
    part = selected(data, row)
    texts = np.array(by_hand(part, "attention_error"))
    generator = np.random.default_rng(0)
    means = texts[generator.integers(0, 8, size=(4000, 8))].mean(axis=1)
    assert row["attention_error_low"] == pytest.approx(np.quantile(means, 0.05), rel=0.03)
    assert row["attention_error_high"] == pytest.approx(np.quantile(means, 0.95), rel=0.03)
    for metric in METRICS:
        cells = dict(row)
        assert cells[f"{metric}_low"] < cells[metric] < cells[f"{metric}_high"]


def test_more_heads_and_layers_do_not_narrow_an_interval_that_texts_decide() -> None:
    """Heads of one text are not independent: copying them a hundred times brings no information."""
    few = table(layers=1, kv_heads=1)
    many = pd.concat([few.assign(layer=layer) for layer in range(100)], ignore_index=True)
    narrow, wide = error_rows(many, MEASURE, "m", groupings=((),)), error_rows(few, MEASURE, "m", groupings=((),))
    assert [dict(row) for row in narrow] == [dict(row) for row in wide]


def test_rows_have_exactly_the_published_keys_and_are_plain_numbers() -> None:
    for row in error_rows(table(), MEASURE, "some model"):
        assert set(row) == set(KvErrorRow.__annotations__)
        assert row["schema_version"] == SCHEMA_VERSION
        assert row["model"] == "some model"
        assert row["n_texts"] == 6
        assert row["kv_head"] is None
        assert row["bits_real"] == pytest.approx((row["k_bits_real"] + row["v_bits_real"]) / 2)
        for name, value in dict(row).items():
            assert value is None or type(value) in (int, float, str), name


def test_order_of_the_table_does_not_matter() -> None:
    data = table()
    shuffled = data.sample(frac=1, random_state=1).reset_index(drop=True)
    assert error_rows(shuffled, MEASURE, "m") == error_rows(data, MEASURE, "m")


def test_the_same_seed_gives_the_same_intervals_and_another_does_not() -> None:
    data, other = table(), MeasureConfig(seed=4, trial=0, bootstrap_resamples=400, confidence=0.9)
    assert error_rows(data, MEASURE, "m") == error_rows(data, MEASURE, "m")
    first, second = error_rows(data, MEASURE, "m")[0], error_rows(data, other, "m")[0]
    assert first["attention_error"] == second["attention_error"]
    assert first["attention_error_low"] != second["attention_error_low"]


def test_a_head_whose_norm_is_zero_stays_out_of_the_mean() -> None:
    data = table()
    dead = (data["layer"] == 1) & (data["kv_head"] == 0)
    data.loc[dead, ["output_den", "output_v_num", "output_k_num", "output_both_num"]] = 0.0
    for row in error_rows(data, MEASURE, "m", groupings=((),)):
        part = selected(data, row)
        alive = part[part["output_den"] > 0]
        assert row["output_error_both"] == pytest.approx(float(np.mean(by_hand(alive, "output_error_both"))), rel=1e-6)
        assert row["attention_error"] == pytest.approx(float(np.mean(by_hand(part, "attention_error"))), rel=1e-6)


def test_where_all_norms_are_zero_there_is_no_figure() -> None:
    data = table()
    data[["output_den", "output_v_num", "output_k_num", "output_both_num"]] = 0.0
    for row in error_rows(data, MEASURE, "m"):
        assert math.isnan(row["output_error_both"])
        assert not math.isnan(row["attention_error"])


def test_a_scheme_that_was_not_measured_on_every_text_is_refused() -> None:
    data = table()
    lacking = data[~((data["scheme"] == "post") & (data["k_axis"] == "token") & (data["text_id"] == "text 3"))]
    with pytest.raises(BreakevenError, match="lacks some texts"):
        error_rows(lacking, MEASURE, "m")


def test_one_text_has_no_interval() -> None:
    for row in error_rows(table(n_texts=1), MEASURE, "m"):
        assert not math.isnan(row["attention_error"])
        assert math.isnan(row["attention_error_low"])
