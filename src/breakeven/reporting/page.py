"""The page: one self-contained HTML file and its figures."""

from __future__ import annotations

import base64
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from breakeven.io import write_text
from breakeven.reporting import kv_tables, narrative, tables
from breakeven.reporting.data import Results, claim_order
from breakeven.reporting.figures.catalogue import draw_all
from breakeven.reporting.figures.style import Plot
from breakeven.reporting.kv_verdict import kv_lines
from breakeven.reporting.verdict import headline, speculative_findings, warnings

_ASSETS = files("breakeven.reporting") / "assets"

# verdict -> (sign, words); the sign and the words carry the meaning, colour only repeats it.
VERDICTS = {
    "reproduced": ("✓", "reproduced"),
    "partly": ("≈", "partly"),
    "contradicted": ("✗", "contradicted"),
    "not_testable_here": ("–", "not testable here"),
    "pending": ("…", "pending"),
}
OUTCOMES = {"pays": ("✓", "pays"), "does not pay": ("✗", "does not pay"), "undecided": ("?", "undecided")}


def data_uri(plot: Plot) -> str:
    """Return a figure as a data URI, so that the page needs no other file."""
    return "data:image/svg+xml;base64," + base64.b64encode(plot.svg.encode()).decode()


def cell(text: str) -> Markup:
    """Escape a cell; let it break after underscores and before an interval, but not inside "(low–high)"."""
    value, bracket, rest = text.partition(" (")
    if bracket and "–" in rest:
        return _breakable(value) + Markup(' <span class="interval">({}</span>').format(rest)
    return _breakable(text)


def _breakable(text: str) -> Markup:
    return Markup("_<wbr>").join(text.split("_"))


def render(results: Results) -> tuple[str, list[Plot]]:
    """Return the page and the figures in it. Equal results give equal bytes."""
    drawn, missing = draw_all(results)
    # Autoescape: names of models, prompts and settings come from configuration and data, not from us.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"data_uri": data_uri, "cell": cell}
    template = environment.from_string((_ASSETS / "report.html").read_text(encoding="utf-8"))
    page = template.render(
        css=(_ASSETS / "report.css").read_text(encoding="utf-8"),
        plots=drawn,
        missing=missing,
        **_verdict(results),
        **_evidence(results),
    )
    return page.rstrip() + "\n", [plot for section in drawn.values() for plot in section]


def _verdict(results: Results) -> dict[str, Any]:
    """Return what the top of the page says."""
    return {
        "model": results.config.model.name,
        "hardware": results.config.hardware.name,
        "experiment": results.config.experiment,
        "headline": headline(results.speculative),
        "findings": speculative_findings(results.speculative),
        "kv_lines": kv_lines(results.kv_error),
        "warnings": warnings(results.speculative, results.audits),
        "outcomes": OUTCOMES,
    }


def _evidence(results: Results) -> dict[str, Any]:
    """Return tables, audits, claims and prose."""
    claims = sorted(results.claims, key=lambda row: claim_order(row["id"]))
    return {
        "facts": narrative.machine_facts(results),
        "glance": tables.at_a_glance(results),
        "speculation_tables": [
            tables.speedup_terms(results),
            tables.throughput(results),
            tables.acceptance(results),
            tables.categories(results),
        ],
        "cost_tables": [tables.plans(results), tables.verify_costs(results), tables.draft_costs(results)],
        "kv_tables": [kv_tables.attention_errors(results), kv_tables.output_errors(results)],
        "audits": sorted(results.audits, key=lambda row: (row["passed"], row["audit"])),
        "claims": claims,
        "claim_counts": narrative.ledger_counts([row["verdict"] for row in claims]),
        "verdicts": VERDICTS,
        "limits": narrative.limits(results),
        "commands": narrative.commands(results),
    }


def write(results: Results, reports: Path) -> None:
    """Write reports/figures/*.svg and reports/report.html; figures of an earlier run go.

    Raises:
        BreakevenError: a file cannot be written.
    """
    page, plots = render(results)
    folder = reports / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    current = {f"{plot.name}.svg" for plot in plots}
    for old in folder.glob("*.svg"):
        if old.name not in current:
            old.unlink()
    for plot in plots:
        write_text(folder / f"{plot.name}.svg", plot.svg)
    write_text(reports / "report.html", page)
