"""Traps of cost look-ups: the wrong drafter's v, exits charged twice, extrapolation, steps of the curve cut off."""

from __future__ import annotations

import numpy as np
import pytest
from tests.synthetic import Truth, cost_row, cost_rows

from breakeven.evidence.costtable import CostTable

TRUTH = Truth()
EXIT = '{"layer":24}'


def _row(quantity, value, **fields):
    return cost_row(TRUTH, quantity, value, **fields)


def test_plain_curve_is_read_back():
    table = CostTable(cost_rows(TRUTH))
    assert table.verify("ngram", "{}", [1, 2, 9, 16], [64, 64, 512, 100]) == pytest.approx([1, 1.02, 1.16, 1.30])
    assert table.plain_curve()[64][5].value == pytest.approx(1.08)


def test_beyond_the_timed_lengths_the_end_is_held():
    table = CostTable(cost_rows(TRUTH))
    assert table.verify("", "", 99, 9999) == pytest.approx([TRUTH.v(16)])


def test_an_exit_is_not_charged_for_its_layers_twice():
    table = CostTable(cost_rows(TRUTH))
    own, plain = table.verify("early_exit", EXIT, [3, 5, 9], 64), table.verify("", "", [3, 5, 9], 64)
    assert own == pytest.approx(plain - 0.1)


def test_a_round_without_draft_is_an_ordinary_step_for_every_drafter():
    assert CostTable(cost_rows(TRUTH)).verify("early_exit", EXIT, 1, 64) == pytest.approx([1.0])


def test_steps_of_the_plain_curve_survive_where_the_drafter_was_timed_at_few_lengths():
    """Plain v jumps at m = 9; the drafter was timed at 5 and 16 only, always 0.2 below."""
    plain = [_row("v", 1.0 if m < 9 else 2.0, m=m, context_tokens=64) for m in range(1, 17)]
    own = [_row("v", value, m=m, context_tokens=64, drafter="early_exit", setting=EXIT)
           for m, value in ((5, 0.8), (16, 1.8))]  # fmt: skip
    table = CostTable(plain + own)
    assert table.verify("early_exit", EXIT, [8, 9], 64) == pytest.approx([0.8, 1.8])
    assert table.verify("early_exit", '{"layer":3}', [8, 9], 64) == pytest.approx([1.0, 2.0])


def test_context_is_interpolated():
    rows = [_row("v", value, m=2, context_tokens=context) for context, value in ((0, 1.0), (100, 2.0))]
    assert CostTable(rows).verify("", "", [2, 2, 2], [0, 25, 100]) == pytest.approx([1.0, 1.25, 2.0])
    costs = [_row("c", value, m=1, context_tokens=context, drafter="d") for context, value in ((0, 0.1), (100, 0.3))]
    assert CostTable(costs).draft("d", "{}", 1, 50).value == pytest.approx(0.2)


def test_draft_cost_of_the_very_setting_comes_first_then_of_its_layer():
    rows = [
        _row("c", 0.5, m=1, context_tokens=64, drafter="early_exit", layer=24),
        _row("c", 0.4, m=1, context_tokens=64, drafter="early_exit", layer=20),
        _row("c", 0.6, m=4, context_tokens=64, drafter="early_exit", setting=EXIT),
    ]
    assert CostTable(rows).draft("early_exit", EXIT, 1, 64).value == 0.6
    assert CostTable(rows[:2]).draft("early_exit", EXIT, 1, 64).value == 0.5
    assert CostTable(rows[:2]).draft("early_exit", '{"layer":3}', 1, 64) is None
    assert CostTable(rows).draft("ngram", "{}", 1, 64) is None


def test_draft_cost_is_that_of_the_nearest_timed_length():
    rows = [
        _row("c", value, m=m, context_tokens=64, drafter="ngram", setting="{}") for m, value in ((1, 0.3), (8, 0.1))
    ]
    table = CostTable(rows)
    assert [table.draft("ngram", "{}", k, 64).value for k in (1, 2, 7, 12)] == [0.3, 0.3, 0.1, 0.1]


def test_null_bounds_stay_unknown():
    row = {**_row("c", 0.2, m=1, context_tokens=64, drafter="d"), "value_low": None, "value_high": None}
    assert np.isnan(CostTable([row]).draft("d", "{}", 1, 64).low)


def test_nothing_timed_is_unknown_not_free():
    assert CostTable([]).verify("", "", 3, 64) is None
    assert CostTable([]).value("memory_bytes", part="weights") is None
