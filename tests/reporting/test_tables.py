"""Tables: as many cells as headers, every figure from a row, absence told as absence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from breakeven.reporting import kv_tables, tables
from breakeven.reporting.data import Results
from breakeven.reporting.words import NOT_MEASURED
from helpers import reported

BUILDERS: list[Callable[[Results], tables.Table]] = [
    tables.at_a_glance,
    tables.speedup_terms,
    tables.throughput,
    tables.acceptance,
    tables.categories,
    tables.plans,
    tables.verify_costs,
    tables.draft_costs,
    kv_tables.attention_errors,
    kv_tables.output_errors,
]


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda builder: builder.__name__)
def test_rows_fit_their_headers(builder: Callable[[Results], tables.Table], results: Results) -> None:
    table = builder(results)
    assert table.rows
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert all(cell and cell != "nan" and "None" not in cell for row in table.rows for cell in row)
    assert len({row[0] for row in table.rows}) == len(table.rows) or table.name == "glance"


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda builder: builder.__name__)
def test_an_empty_run_gives_empty_tables(builder: Callable[[Results], tables.Table]) -> None:
    assert builder(Results(config=reported.config())).rows == ()


def test_losers_stand_in_the_first_table_with_their_verdict(results: Results) -> None:
    table = tables.at_a_glance(results)
    verdict = table.columns.index("verdict")
    found = {(row[0], row[verdict]) for row in table.rows}
    assert found == {("ngram", "pays"), ("early_exit", "does not pay")}


def test_every_run_is_listed_once(results: Results) -> None:
    # Two drafters, two temperatures, three draft lengths and the calibrated run.
    assert len(tables.speedup_terms(results).rows) == 2 * 2 * 4


def test_outputs_are_not_called_equal_where_they_were_not_compared(results: Results) -> None:
    table = tables.throughput(results)
    column = table.columns.index("outputs unlike plain")
    assert {row[column] for row in table.rows if "T\u00a0=\u00a00" in row[0]} == {"0"}
    assert {row[column] for row in table.rows if "T\u00a0=\u00a01" in row[0]} == {"not compared"}
    rows: Any = [{**row, "n_divergences": 3, "n_divergences_near_tie": 2} for row in results.speculative]
    differing = tables.throughput(dataclasses.replace(results, speculative=rows))
    assert {row[column] for row in differing.rows} == {"3, 2 of them near ties"}


def test_acceptance_is_that_of_the_chosen_runs(results: Results) -> None:
    table = tables.acceptance(results)
    cells = {row[0]: row[1:] for row in table.rows}
    assert table.columns == (
        "definition",
        *(f"{n}, T\u00a0=\u00a0{t}" for n in ("early_exit", "ngram") for t in (0, 1)),
    )
    assert cells["alpha mle"][0].startswith("0.35")
    assert cells["alpha mle"][2].startswith("0.60")
    assert "conditional" not in cells


def test_the_posts_table_has_two_axes_not_four(results: Results) -> None:
    """Attention weights do not depend on V: the post's four rows are two."""
    table = kv_tables.attention_errors(results)
    assert len(table.rows) == 4 * 4
    cells = {row[0].replace("\u00a0", " "): dict(zip(table.columns, row, strict=True)) for row in table.rows}
    post = cells["post_symmetric, 2 bits"]
    assert post["levels"] == "7"
    assert post["error per token"].startswith("0.757")
    assert post["error per channel"].startswith("0.453")
    assert post["token / channel"] == "1.67×"
    assert post["real bits per token"] == "3.25"


def test_one_key_axis_alone_leaves_the_other_unmeasured(results: Results) -> None:
    rows = [row for row in results.kv_error if row["k_axis"] == "token"]
    table = kv_tables.attention_errors(dataclasses.replace(results, kv_error=rows))
    assert {row[table.columns.index("error per channel")] for row in table.rows} == {NOT_MEASURED}
    assert {row[table.columns.index("token / channel")] for row in table.rows} == {NOT_MEASURED}


def test_output_table_takes_the_best_axes(results: Results) -> None:
    table = kv_tables.output_errors(results)
    assert {row[table.columns.index("best axes")] for row in table.rows} == {"K channel, V token"}


def test_costs_of_a_drafters_own_pass_stay_out_of_the_targets_table(results: Results) -> None:
    own: Any = [
        {**row, "drafter": "early_exit", "setting": "{}", "value": 0.1}
        for row in results.costs
        if row["quantity"] == "v"
    ]
    kept = [row for row in results.costs if row["m"] != 16 or row["drafter"] is not None]
    rows = {
        row[0].split("\u00a0")[-1]: row
        for row in tables.verify_costs(dataclasses.replace(results, costs=kept + own)).rows
    }
    assert rows["15"][1].startswith("1.280")
    # Only the drafter's own pass over 16 tokens is there: that is not v(16) of the target.
    assert rows["16"][1] == NOT_MEASURED


def test_promises_stand_beside_measurements(results: Results) -> None:
    rows = {row[0]: row for row in tables.plans(results).rows}
    assert rows["ngram"][4].startswith("1.49×")
    gone = dataclasses.replace(results, speculative=[])
    assert {row[4] for row in tables.plans(gone).rows} == {NOT_MEASURED}
