"""What the report is made from: the result files of one run, read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from breakeven.config import Config, load
from breakeven.io import read_json, read_parquet
from breakeven.reporting.words import is_number
from breakeven.results import AcceptanceRow, AuditRow, ClaimRow, CostRow, KvErrorRow, SpeculativeRow

ALL = "all"  # the category that stands for every category


@dataclass(frozen=True)
class Results:
    """Everything that a run left behind.

    Attributes:
        config: the run's configuration.
        hardware: build/hardware.json.
        lock: build/models.lock.json.
        speculative: reports/metrics/speculative.json.
        acceptance: reports/metrics/acceptance.json.
        costs: reports/metrics/costs.json.
        kv_error: reports/metrics/kv_error.json.
        audits: reports/metrics/audits.json.
        claims: reports/claims.json.
        channels: data/kv_channels.parquet, one row a layer, KV head, channel and tensor.
        calibration: data/calibration.json.
        plan: data/plan.json.
    """

    config: Config
    hardware: dict[str, Any] = field(default_factory=dict)
    lock: dict[str, Any] = field(default_factory=dict)
    speculative: list[SpeculativeRow] = field(default_factory=list)
    acceptance: list[AcceptanceRow] = field(default_factory=list)
    costs: list[CostRow] = field(default_factory=list)
    kv_error: list[KvErrorRow] = field(default_factory=list)
    audits: list[AuditRow] = field(default_factory=list)
    claims: list[ClaimRow] = field(default_factory=list)
    channels: pd.DataFrame = field(default_factory=pd.DataFrame)
    calibration: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)


def read(workspace: Path) -> Results:
    """Read the result files of a workspace.

    Raises:
        BreakevenError: a file is missing or unreadable; the message names the command that makes it.
    """
    metrics = workspace / "reports" / "metrics"
    return Results(
        config=load(workspace / "params.yaml"),
        hardware=read_json(workspace / "build" / "hardware.json"),
        lock=read_json(workspace / "build" / "models.lock.json"),
        speculative=read_json(metrics / "speculative.json"),
        acceptance=read_json(metrics / "acceptance.json"),
        costs=read_json(metrics / "costs.json"),
        kv_error=read_json(metrics / "kv_error.json"),
        audits=read_json(metrics / "audits.json"),
        claims=read_json(workspace / "reports" / "claims.json"),
        channels=read_parquet(workspace / "data" / "kv_channels.parquet"),
        calibration=read_json(workspace / "data" / "calibration.json"),
        plan=read_json(workspace / "data" / "plan.json"),
    )


def overall(rows: Sequence[SpeculativeRow]) -> list[SpeculativeRow]:
    """Keep the rows over every category, in a fixed order."""
    return sorted((row for row in rows if row["category"] == ALL), key=_speculative_order)


def measured(rows: Sequence[SpeculativeRow]) -> list[SpeculativeRow]:
    """Keep the rows that carry a speedup: a run whose outputs were too short to time carries none."""
    return [row for row in rows if is_number(row["speedup"])]


def chosen(rows: Sequence[SpeculativeRow]) -> list[SpeculativeRow]:
    """Return one row per drafter and temperature that speaks for the drafter.

    That is the row of the calibrated draft length. Where no such run exists, it is the fastest one of the sweep,
    which flatters the drafter; `is_calibrated` tells the two apart.
    """
    best: dict[tuple[str, float], SpeculativeRow] = {}
    for row in overall(rows):
        key = (row["drafter"], row["temperature"])
        if key not in best or _preference(row) > _preference(best[key]):
            best[key] = row
    return [best[key] for key in sorted(best)]


def first_temperature(rows: Sequence[SpeculativeRow]) -> float | None:
    """Return the temperature with most prompts behind it (the lower one of two equals); None without rows."""
    if not rows:
        return None
    return max((row["n_prompts"], -row["temperature"]) for row in rows)[1] * -1.0


def at_first_temperature(rows: Sequence[SpeculativeRow]) -> list[SpeculativeRow]:
    """Keep the rows of the temperature with most prompts."""
    temperature = first_temperature(rows)
    return [row for row in rows if row["temperature"] == temperature]


def claim_order(identifier: str) -> tuple[int, int, str]:
    """Order SD2 before SD10, and the four write-ups as the ledger does."""
    prefix, digits = identifier[:2], identifier[2:]
    known = ("SD", "KV", "TK", "GD")
    return (known.index(prefix) if prefix in known else len(known), int(digits) if digits.isdigit() else 0, identifier)


def drafters(rows: Sequence[SpeculativeRow]) -> list[str]:
    """Return the names of the drafters in a fixed order."""
    return sorted({row["drafter"] for row in rows})


def kv_measured(rows: Sequence[KvErrorRow]) -> list[KvErrorRow]:
    """Keep the rows that can be placed: a scheme may fail on a tensor (all zeros, say) and then has no error."""
    return [
        row
        for row in rows
        if is_number(row["attention_error"])
        and is_number(row["output_error_both"])
        and is_number(row["k_bits_real"])
        and is_number(row["bits_real"])
    ]


def kv_overall(rows: Sequence[KvErrorRow]) -> list[KvErrorRow]:
    """Keep the rows over all layers and KV heads at the longest context, in a fixed order."""
    whole = [row for row in kv_measured(rows) if row["layer"] is None and row["kv_head"] is None]
    longest = max((row["context_tokens"] for row in whole), default=0)
    kept = [row for row in whole if row["context_tokens"] == longest]
    return sorted(kept, key=lambda row: (row["scheme"], row["k_axis"], row["v_axis"], row["bits_nominal"]))


def kv_by_key_axis(rows: Sequence[KvErrorRow]) -> list[KvErrorRow]:
    """Keep one row per scheme, key axis and bits: the attention error does not depend on V at all."""
    unique: dict[tuple[str, str, int], KvErrorRow] = {}
    for row in kv_overall(rows):
        unique.setdefault((row["scheme"], row["k_axis"], row["bits_nominal"]), row)
    return list(unique.values())


def cost_rows(rows: Sequence[CostRow], quantity: str, where: Callable[[CostRow], bool] | None = None) -> list[CostRow]:
    """Keep the costs of one quantity, in a fixed order."""
    kept = [row for row in rows if row["quantity"] == quantity and is_number(row["value"])]
    kept = [row for row in kept if where is None or where(row)]
    return sorted(
        kept,
        key=lambda row: (
            row["drafter"] or "",
            row["context_tokens"] or 0,
            row["layer"] or 0,
            row["m"] or 0,
            row["part"] or "",
            row["setting"] or "",
        ),
    )


def _speculative_order(row: SpeculativeRow) -> tuple[str, float, int, bool, str]:
    return (row["drafter"], row["temperature"], row["k"], row["calibrated"], row["setting"])


def _preference(row: SpeculativeRow) -> tuple[bool, int, float]:
    """Calibrated first, then most prompts, then speed."""
    return (row["calibrated"], row["n_prompts"] if row["calibrated"] else 0, row["speedup"] or 0.0)
