"""The claims ledger: every published claim with its verdict, always all 35 in the same order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import yaml

from breakeven.evidence.claims import cache, guide, post_table, speculation
from breakeven.evidence.claims.facts import NOT_MEASURED, VERDICTS, Claim, Decision, Facts, Finding, pending
from breakeven.results import ClaimRow

DECISIONS: dict[str, Decision] = {**speculation.DECISIONS, **post_table.DECISIONS, **cache.DECISIONS, **guide.DECISIONS}
# Claims that arithmetic decides even where nothing real was measured.
ARITHMETIC = frozenset({"SD2", "SD3", "SD4", "KV1", "GD1"})
TITLES = {
    "SD": "Speculative decoding on GPT-2 weights",
    "KV": "KV-cache quantization on Qwen2.5-0.5B-Instruct",
    "TK": "Three Triton attention kernels on a T4",
    "GD": "A guide to speculative decoding",
}


def load_claims() -> list[Claim]:
    """Read the published claims, in the order of the ledger."""
    text = (files("breakeven.evidence.claims") / "claims.yaml").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = yaml.safe_load(text)
    return [Claim(**entry) for entry in entries]


def decide(claim: Claim, facts: Facts) -> Finding:
    """Decide one claim.

    A run on random weights decides nothing about real models: what it measured is left out, and only arithmetic
    remains. A claim that needs hardware which is not here is not testable here; one that no rule of this package
    decides yet is pending.
    """
    if claim.needs and not facts.has_cuda:
        return Finding("not_testable_here", NOT_MEASURED, f"needs {claim.needs}; this run used {_place(facts)}")
    decision = DECISIONS.get(claim.id)
    if decision is None:
        return pending(f"waits for {claim.waits_for}")
    if not facts.is_random:
        return decision(claim, facts)
    if claim.id in ARITHMETIC:
        return decision(claim, facts.without_measurements())
    return pending(
        "the numbers of a tiny random model say nothing about real ones; run a real model, e.g. the default experiment",
        f"{NOT_MEASURED}: the model of this run has random weights",
    )


def ledger(facts: Facts) -> list[ClaimRow]:
    """Return one row a claim, all of them."""
    rows: list[ClaimRow] = []
    for claim in load_claims():
        finding = decide(claim, facts)
        rows.append(
            {
                "id": claim.id,
                "claim": claim.claim,
                "published": claim.published,
                "measured": finding.measured,
                "verdict": finding.verdict,
                "reason": finding.reason,
                "artefact": finding.artefact,
            }
        )
    return rows


def markdown(rows: Sequence[ClaimRow], facts: Facts) -> str:
    """Render the ledger as Markdown, one table a source."""
    counts = Counter(row["verdict"] for row in rows)
    tally = ", ".join(f"{counts[verdict]} {verdict.replace('_', ' ')}" for verdict in VERDICTS)
    lines = [
        "# Claims ledger",
        "",
        f"{len(rows)} published claims, tested with {facts.target['name']} on {_place(facts)}: {tally}.",
        "",
        "*reproduced*: holds here. *contradicted*: does not. *partly*: holds in part, or is undecided within the",
        "measured intervals (the reason says which). *not testable here*: needs hardware that this machine lacks.",
        "*pending*: a later stage, or a run on a real model, decides. The decision rules are the docstrings of",
        "`src/breakeven/evidence/claims/`.",
    ]
    for prefix, title in TITLES.items():
        lines += ["", f"## {prefix}: {title}", ""]
        lines += ["| ID | claim | published | measured | verdict | why | shown in |", "|---|---|---|---|---|---|---|"]
        lines += [_line(row) for row in rows if row["id"].startswith(prefix)]
    return "\n".join(lines) + "\n"


def _line(row: ClaimRow) -> str:
    artefact = f"`{row['artefact']}`" if row["artefact"] else "–"
    cells = [row["id"], row["claim"], row["published"], row["measured"], f"**{row['verdict'].replace('_', ' ')}**"]
    cells += [row["reason"], artefact]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _place(facts: Facts) -> str:
    names = facts.hardware.get("device_names") or []
    what = ", ".join(names) or facts.hardware.get("cpu_model") or "an unnamed device"
    return f"{facts.hardware.get('device', 'cpu')} ({what})"
