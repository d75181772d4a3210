"""From the tables of the measuring stages to result rows: pure, so a formula mended never re-measures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from breakeven import io
from breakeven.config import Config
from breakeven.errors import BreakevenError
from breakeven.evidence.audits import Bench, audit
from breakeven.evidence.claims import Facts
from breakeven.evidence.costtable import CostTable
from breakeven.evidence.pairing import pair
from breakeven.evidence.speculation import acceptance_rows, group_estimates, groups, speculative_row
from breakeven.results import AcceptanceRow, AuditRow, CostRow, KvErrorRow, SpeculativeRow
from breakeven.speculative.rounds import ROUND_COLUMNS, validate

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Measured:
    """Everything that the stages before this one left behind."""

    requests: pd.DataFrame
    rounds: pd.DataFrame
    divergences: pd.DataFrame
    cost_rows: list[CostRow]
    plan: dict[str, Any]
    calibration: dict[str, Any]
    kv_error_rows: list[KvErrorRow]
    kv_channels: pd.DataFrame
    hardware: dict[str, Any]
    lock: dict[str, Any]


@dataclass(frozen=True)
class Summary:
    """Rows of speculative.json, acceptance.json and audits.json."""

    speculative: list[SpeculativeRow]
    acceptance: list[AcceptanceRow]
    audits: list[AuditRow]


def load(folder: Path | None = None) -> Measured:
    """Read what the measuring stages wrote.

    Args:
        folder: the workspace; the current folder if None.

    Raises:
        BreakevenError: a file is missing or damaged.
    """
    root = folder or Path()
    data, metrics = root / "data", root / "reports" / "metrics"
    return Measured(
        requests=io.read_parquet(data / "requests.parquet"),
        rounds=io.read_parquet(data / "rounds.parquet"),
        divergences=io.read_parquet(data / "divergences.parquet"),
        cost_rows=io.read_json(metrics / "costs.json"),
        plan=io.read_json(data / "plan.json"),
        calibration=io.read_json(data / "calibration.json"),
        kv_error_rows=io.read_json(metrics / "kv_error.json"),
        kv_channels=io.read_parquet(data / "kv_channels.parquet"),
        hardware=io.read_json(root / "build" / "hardware.json"),
        lock=io.read_json(root / "build" / "models.lock.json"),
    )


def summarize(measured: Measured, config: Config) -> Summary:
    """Build all rows.

    Args:
        measured: the tables.
        config: for the bootstrap settings and the names of hardware and dtype.

    Returns:
        The rows; a drafter none of whose outputs had a second token has no row.

    Raises:
        BreakevenError: the round log breaks an invariant, requests lack their plain partner, or nothing was measured.
    """
    if measured.requests.empty:
        raise BreakevenError("data/requests.parquet holds no request. Run `dvc repro -f speculate`.")
    # Outputs of a single token need no round: such a log has no row and then no column either.
    rounds = measured.rounds if len(measured.rounds) else pd.DataFrame(columns=list(ROUND_COLUMNS))
    validate(rounds)
    pairs = pair(measured.requests)
    costs = CostTable(measured.cost_rows)
    kv_bytes = kv_bytes_per_token(costs, measured.lock, config)
    speculative, acceptance = [], []
    for group in groups(pairs, rounds, measured.divergences):
        estimates = group_estimates(group, config)
        row = speculative_row(group, estimates, costs, config, kv_bytes)
        if row is not None:
            speculative.append(row)
        acceptance += acceptance_rows(group, estimates)
    bench = Bench(measured.requests, rounds, measured.divergences)
    return Summary(speculative, acceptance, audit(bench))


def facts(measured: Measured, summary: Summary) -> Facts:
    """Gather what the claims are decided on."""
    return Facts(
        speculative=summary.speculative,
        acceptance=summary.acceptance,
        audits=summary.audits,
        costs=CostTable(measured.cost_rows),
        kv_error=measured.kv_error_rows,
        kv_channels=measured.kv_channels,
        calibration=measured.calibration,
        hardware=measured.hardware,
        lock=measured.lock,
    )


def kv_bytes_per_token(costs: CostTable, lock: dict[str, Any], config: Config) -> int:
    """Return the bytes of keys and values of one token, as measured, else 2 * layers * kv_heads * head_dim * width."""
    measured = costs.value("memory_bytes", part="kv_per_token")
    if measured is not None:
        return int(measured)
    target = lock["models"]["target"]
    elements = 2 * target["n_layers"] * target["n_kv_heads"] * target["head_dim"]
    return int(elements * DTYPE_BYTES[config.hardware.dtype])
