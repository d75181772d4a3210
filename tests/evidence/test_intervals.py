"""Traps of interval estimation: clusters torn apart, seeds that change results, ratios of means, lying coverage."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakeven.errors import BreakevenError
from breakeven.evidence.intervals import (
    bootstrap_mean,
    bootstrap_median,
    bootstrap_ratio_of_sums,
    bootstrap_ratios,
    standard_error,
)

ARGS = {"resamples": 400, "confidence": 0.95, "seed": 7}


def _oracle(statistic, values, clusters, resamples, confidence, seed):
    """The definition, slowly: draw the clusters' multiplicities, rebuild each resample row by row."""
    labels = list(dict.fromkeys(clusters))
    counts = np.random.default_rng(seed).multinomial(len(labels), [1 / len(labels)] * len(labels), size=resamples)
    results = []
    for row in counts:
        rows = [
            value
            for label, n in zip(labels, row, strict=True)
            for _ in range(n)
            for value, owner in zip(values, clusters, strict=True)
            if owner == label
        ]
        results.append(statistic(rows))
    tail = (1 - confidence) / 2
    return np.quantile(results, [tail, 1 - tail])


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 4)), min_size=2, max_size=25))
def test_mean_and_median_equal_row_by_row_resampling(rows):
    values, clusters = [value for value, _ in rows], [label for _, label in rows]
    if len(set(clusters)) < 2:
        return
    for function, statistic in (
        (bootstrap_mean, np.mean),
        (bootstrap_median, np.median),
    ):
        interval = function(values, clusters, resamples=60, confidence=0.9, seed=3)
        low, high = _oracle(statistic, values, clusters, 60, 0.9, 3)
        assert interval.value == pytest.approx(statistic(values), abs=1e-9)
        assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-9)


def test_ratio_of_sums_is_not_the_mean_of_ratios():
    interval = bootstrap_ratio_of_sums([1, 90], [10, 100], ["a", "b"], **ARGS)
    assert interval.value == pytest.approx(91 / 110)


def test_clusters_are_drawn_whole():
    """100 copies of the same two prompts carry the information of two prompts, not of 200 rows."""
    values = np.repeat([0.0, 1.0], 100)
    clustered = bootstrap_mean(values, np.repeat(["a", "b"], 100), **ARGS)
    torn = bootstrap_mean(values, np.arange(200), **ARGS)
    assert clustered.high - clustered.low == pytest.approx(1.0)
    assert torn.high - torn.low < 0.2


@pytest.mark.parametrize("function", [bootstrap_mean, bootstrap_median])
def test_interval_covers_the_truth_about_as_often_as_it_says(function):
    """Nominal 90 %, 40 clusters: percentile intervals must cover in 80..97 % of 120 trials."""
    generator, hits, trials = np.random.default_rng(0), 0, 120
    for trial in range(trials):
        cluster_means = generator.normal(2.0, 1.0, size=40)
        values = np.repeat(cluster_means, 3) + generator.normal(0, 0.2, size=120)
        interval = function(
            values,
            np.repeat(np.arange(40), 3),
            resamples=300,
            confidence=0.9,
            seed=trial,
        )
        hits += interval.low <= 2.0 <= interval.high
    assert 0.80 <= hits / trials <= 0.97


def test_same_seed_same_interval_other_labels_same_interval():
    values = list(np.random.default_rng(5).normal(size=40))
    clusters = [f"prompt-{i % 9}" for i in range(40)]
    renamed = [f"{100 - i % 9}" for i in range(40)]
    first = bootstrap_mean(values, clusters, **ARGS)
    assert first == bootstrap_mean(values, clusters, **ARGS)
    assert first == bootstrap_mean(values, renamed, **ARGS)
    assert first != bootstrap_mean(values, clusters, **{**ARGS, "seed": 8})


def test_one_cluster_has_an_estimate_but_no_interval():
    for function in (bootstrap_mean, bootstrap_median):
        interval = function([1.0, 2.0], ["a", "a"], **ARGS)
        assert interval.value == 1.5 and math.isnan(interval.low) and math.isnan(interval.high)


def test_nothing_to_divide_by_is_undefined_not_zero():
    interval = bootstrap_ratio_of_sums([0, 0], [0, 0], ["a", "b"], **ARGS)
    assert math.isnan(interval.value) and interval.n == 0
    for function in (bootstrap_mean, bootstrap_median):
        assert math.isnan(function([], [], **ARGS).value)


def test_resamples_without_a_denominator_are_left_out():
    """Only one prompt of three ever drafted: no spread over prompts can be seen, and no division by zero happens."""
    interval = bootstrap_ratio_of_sums([3, 0, 0], [4, 0, 0], ["a", "b", "c"], **ARGS)
    assert interval.value == 0.75 and math.isnan(interval.low) and interval.n_clusters == 1


def test_many_ratios_equal_each_ratio_alone():
    generator = np.random.default_rng(1)
    top, bottom = generator.uniform(size=(50, 3)), generator.uniform(1, 2, size=(50, 3))
    clusters = generator.integers(0, 9, size=50)
    for s, interval in enumerate(bootstrap_ratios(top, bottom, clusters, **ARGS)):
        alone = bootstrap_ratio_of_sums(top[:, s], bottom[:, s], clusters, **ARGS)
        assert astuple(interval) == pytest.approx(astuple(alone))


def test_standard_error_of_a_mean():
    values = np.random.default_rng(2).normal(size=2000)
    interval = bootstrap_mean(values, np.arange(2000), resamples=2000, confidence=0.95, seed=1)
    assert standard_error(interval, 0.95) == pytest.approx(1 / math.sqrt(2000), rel=0.1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: bootstrap_mean([1.0, math.nan], ["a", "b"], **ARGS),
        lambda: bootstrap_mean([1.0], ["a", "b"], **ARGS),
        lambda: bootstrap_median([1.0, 2.0], ["a", "b"], resamples=0, confidence=0.9, seed=1),
        lambda: bootstrap_median([1.0, 2.0], ["a", "b"], resamples=10, confidence=1.0, seed=1),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(BreakevenError):
        call()
