"""Tables of the report: rows of text made from result rows; the template only lays them out.

The tables on quantization are in `kv_tables`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.reporting.data import (
    ALL,
    Results,
    at_first_temperature,
    chosen,
    cost_rows,
    overall,
)
from breakeven.reporting.verdict import outcome, round_cost
from breakeven.reporting.words import (
    NOT_MEASURED,
    counted,
    listed,
    memory,
    milliseconds,
    number,
    percent,
    ratio,
    setting,
    temperature,
    whole,
    with_interval,
)
from breakeven.results import SpeculativeRow


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        name: fragment identifier.
        caption: what it shows; a screen reader reads it first.
        columns: headers; the first column holds row headers.
        rows: cells, as many as columns.
        text_columns: indices of columns that hold prose and so are left-aligned.
        source: the result file with every figure of it.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: frozenset[int]
    source: str


def make(
    name: str, caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], text: Sequence[int], source: str
) -> Table:
    """Build a table; the first column is always prose."""
    return Table(name, caption, tuple(columns), tuple(tuple(row) for row in rows), frozenset((0, *text)), source)


def at_a_glance(results: Results) -> Table:
    """One row a drafter and temperature: speedup, verdict and the terms that make it."""
    rows = [
        (
            row["drafter"],
            with_interval(row["speedup"], row["speedup_low"], row["speedup_high"], unit="×"),
            outcome(row).value,
            temperature(row["temperature"]),
            f"{row['k']}{'' if row['calibrated'] else ' (best of sweep)'}",
            with_interval(row["tau"], row["tau_low"], row["tau_high"]),
            _cost_text(row),
            whole(row["n_prompts"]),
        )
        for row in chosen(results.speculative)
    ]
    columns = (
        "drafter",
        "speedup",
        "verdict",
        "temperature",
        "k",
        "tokens a round, τ",
        "steps a round",
        "prompts",
    )
    caption = "Every drafter at its calibrated draft length; it pays where the whole interval lies above 1×"
    return make("glance", caption, columns, rows, (2, 3), "reports/metrics/speculative.json")


def _cost_text(row: SpeculativeRow) -> str:
    cost = round_cost(row)
    return NOT_MEASURED if cost is None else number(cost.total)


def _run(row: SpeculativeRow) -> str:
    """Name a run; no-break spaces keep "k = 4" together."""
    calibrated = ", calibrated" if row["calibrated"] else ""
    k = f"k\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{row['k']}"
    return f"{row['drafter']}, {temperature(row['temperature'])}, {k}{calibrated}"


def speedup_terms(results: Results) -> Table:
    """Every setting that ran: the terms of the cost law, the three predictions and the measurement."""
    rows = [
        (
            _run(row),
            with_interval(row["speedup"], row["speedup_low"], row["speedup_high"]),
            with_interval(row["alpha"], row["alpha_low"], row["alpha_high"]),
            with_interval(row["c"], row["c_low"], row["c_high"], 3),
            number(row["v_verify"]),
            number(row["overhead"]),
            number(row["predicted_post"]),
            number(row["predicted_leviathan"]),
            number(row["predicted_cost_aware"]),
            percent(row["residual_cost_aware"]),
        )
        for row in overall(results.speculative)
    ]
    columns = ("run", "speedup", "α", "c", "v", "overhead", "post", "Leviathan", "cost-aware", "residual")
    caption = (
        "Measured speedup, its terms (α: acceptance of a tested draft token; c: draft cost, v: verification, "
        "overhead a round, all in plain steps) and three predictions; residual: cost-aware prediction over "
        "measurement, minus 1"
    )
    return make("terms", caption, columns, rows, (), "reports/metrics/speculative.json")


def throughput(results: Results) -> Table:
    """Rates, whole-request speedup, memory and agreement with plain decoding."""
    rows = [
        (
            _run(row),
            number(row["tokens_per_s"], 1),
            number(row["tokens_per_s_plain"], 1),
            number(row["speedup_total"]),
            number(row["speedup_end_to_end"]),
            memory(row["drafter_bytes"]),
            memory(row["peak_memory_bytes"]),
            _divergences(row),
            f"{whole(row['n_prompts'])} / {whole(row['n_rounds'])} / {whole(row['n_tokens'])}",
        )
        for row in overall(results.speculative)
    ]
    columns = (
        "run",
        "tokens/s",
        "plain tokens/s",
        "speedup, total time",
        "speedup, prefill included",
        "drafter",
        "peak memory",
        "outputs unlike plain",
        "prompts / rounds / tokens",
    )
    return make(
        "throughput",
        "Rates, memory and agreement with plain decoding",
        columns,
        rows,
        (),
        "reports/metrics/speculative.json",
    )


def _divergences(row: SpeculativeRow) -> str:
    """Outputs are compared at temperature 0 only; above, equality is one of distributions."""
    if row["n_divergences"] is None:
        return "not compared"
    if not row["n_divergences"]:
        return "0"
    near = row["n_divergences_near_tie"]
    return f"{row['n_divergences']}, {NOT_MEASURED if near is None else near} of them near ties"


def acceptance(results: Results) -> Table:
    """Acceptance under every definition, for the rows that speak for a drafter."""
    wanted = {(row["drafter"], row["setting"], row["k"], row["temperature"]) for row in chosen(results.speculative)}
    found: dict[tuple[str, float, str], tuple[str, int]] = {}
    for row in results.acceptance:
        key = (row["drafter"], row["temperature"], row["definition"])
        ours = (row["drafter"], row["setting"], row["k"], row["temperature"]) in wanted
        if ours and row["position"] is None and row["category"] == ALL and row["n"] >= found.get(key, ("", -1))[1]:
            found[key] = (with_interval(row["value"], row["value_low"], row["value_high"]), row["n"])
    columns = sorted({(name, value) for name, value, _ in found})
    definitions = sorted({definition for _, _, definition in found})
    rows = [
        (definition.replace("_", " "), *(found.get((*column, definition), (NOT_MEASURED, 0))[0] for column in columns))
        for definition in definitions
    ]
    headers = ("definition", *(f"{name}, {temperature(value)}" for name, value in columns))
    return make(
        "acceptance",
        "Acceptance under every definition in use, at each drafter's calibrated draft length",
        headers,
        rows,
        (),
        "reports/metrics/acceptance.json",
    )


def categories(results: Results) -> Table:
    """Speedup by category, a column a drafter."""
    rows = [row for row in at_first_temperature(results.speculative) if row["calibrated"]]
    names = sorted({row["drafter"] for row in rows})
    cells = {
        (row["category"], row["drafter"]): with_interval(row["speedup"], row["speedup_low"], row["speedup_high"])
        for row in rows
    }
    shown = [category for category in sorted({row["category"] for row in rows}) if category != ALL]
    lines = [(c.replace("_", " "), *(cells.get((c, name), NOT_MEASURED) for name in names)) for c in shown]
    return make(
        "categories",
        "Speedup by category of prompt, calibrated draft length",
        ("category", *names),
        lines,
        (),
        "reports/metrics/speculative.json",
    )


def plans(results: Results) -> Table:
    """What calibration and the cost model chose, beside what was then measured."""
    measured = {row["drafter"]: row for row in at_first_temperature(chosen(results.speculative))}
    rows = []
    for name, plan in sorted(results.plan.get("drafters", {}).items()):
        row = measured.get(name)
        found = (
            with_interval(row["speedup"], row["speedup_low"], row["speedup_high"], unit="×") if row else NOT_MEASURED
        )
        promise = ratio(plan.get("predicted_speedup"))
        rows.append((name, setting(plan.get("setting_id")) or "–", str(plan.get("k")), promise, found))
    caption = "What calibration and the cost model chose before the benchmark, and what the benchmark then measured"
    return make("plan", caption, ("drafter", "setting", "k", "promised", "measured"), rows, (1,), "data/plan.json")


def verify_costs(results: Results) -> Table:
    """v(m) and the overhead of a round of m inputs, a column a context."""
    contexts = _contexts(results)
    lengths = sorted({row["m"] for row in cost_rows(results.costs, "v") if row["m"] is not None})
    rows = []
    for m in lengths:
        cells = [_at(results, quantity, context, m) for quantity in ("v", "overhead_ratio") for context in contexts]
        rows.append((f"m\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{m}", *cells))
    places = [f"behind {counted(context, 'token')}" for context in contexts]
    headers = [f"{name} {place}" for name in ("v(m)", "overhead") for place in places]
    steps = [
        with_interval(
            milliseconds(row["value"]), milliseconds(row["value_low"]), milliseconds(row["value_high"]), 2, " ms"
        )
        for row in cost_rows(results.costs, "target_step_s")
    ]
    caption = f"Target pass over m tokens and overhead of such a round, in plain steps; one plain step: {listed(steps)}"
    return make("verify-costs", caption, ("tokens", *headers), rows, (), "reports/metrics/costs.json")


def draft_costs(results: Results) -> Table:
    """C of every drafter as calibrated, a column a context; the exits that were not chosen are in the figure."""
    contexts = _contexts(results)
    kept = cost_rows(results.costs, "c", lambda row: row["setting"] is not None)
    cells = {
        (row["drafter"] or "?", row["setting"] or "", row["m"] or 1, row["context_tokens"]): with_interval(
            row["value"], row["value_low"], row["value_high"], 3
        )
        for row in kept
    }
    names = sorted({key[:3] for key in cells})
    rows = [
        (
            ", ".join([name, *filter(None, [setting(chosen_setting)]), counted(m, "token")]),
            *(cells.get((name, chosen_setting, m, context), NOT_MEASURED) for context in contexts),
        )
        for name, chosen_setting, m in names
    ]
    headers = ("drafter", *(f"c behind {counted(context, 'token')}" for context in contexts))
    caption = "Cost c of one draft token, in plain steps, when that many are drafted at once"
    return make("draft-costs", caption, headers, rows, (), "reports/metrics/costs.json")


def _contexts(results: Results) -> list[int]:
    return sorted({row["context_tokens"] for row in results.costs if row["context_tokens"] is not None})


def _at(results: Results, quantity: str, context: int, m: int) -> str:
    """Write a cost that belongs to the target alone."""
    for row in cost_rows(results.costs, quantity, lambda row: row["drafter"] is None):
        if row["m"] == m and row["context_tokens"] == context:
            return with_interval(row["value"], row["value_low"], row["value_high"], 3)
    return NOT_MEASURED
