"""What a decision rule sees, and what it returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pandas as pd

from breakeven.evidence.costtable import CostTable
from breakeven.results import AcceptanceRow, AuditRow, KvErrorRow, SpeculativeRow

Verdict = Literal["reproduced", "contradicted", "partly", "not_testable_here", "pending"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "contradicted", "partly", "not_testable_here", "pending")
NOT_MEASURED = "not measured on this machine"

SPECULATIVE = "reports/metrics/speculative.json"
ACCEPTANCE = "reports/metrics/acceptance.json"
AUDITS = "reports/metrics/audits.json"
COSTS = "reports/metrics/costs.json"
KV_ERROR = "reports/metrics/kv_error.json"
PREDICTORS = "src/breakeven/costs/predictors.py"


@dataclass(frozen=True)
class Claim:
    """One published claim, as `claims.yaml` holds it."""

    id: str
    claim: str
    published: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    waits_for: str | None = None
    needs: str | None = None


@dataclass(frozen=True)
class Facts:
    """Everything that was measured; empty where nothing was."""

    speculative: Sequence[SpeculativeRow]
    acceptance: Sequence[AcceptanceRow]
    audits: Sequence[AuditRow]
    costs: CostTable
    kv_error: Sequence[KvErrorRow]
    kv_channels: pd.DataFrame
    calibration: Mapping[str, Any]
    hardware: Mapping[str, Any]
    lock: Mapping[str, Any]

    @property
    def target(self) -> Mapping[str, Any]:
        """The target's entry in build/models.lock.json."""
        target: Mapping[str, Any] = self.lock["models"]["target"]
        return target

    @property
    def is_random(self) -> bool:
        """Whether the weights are random: such numbers say nothing about real models."""
        return bool(self.target.get("source", {}).get("kind") == "random")

    @property
    def has_cuda(self) -> bool:
        """Whether the run used an NVIDIA GPU."""
        return bool(self.hardware.get("device") == "cuda")

    @property
    def overall(self) -> list[SpeculativeRow]:
        """The rows over all categories."""
        return [row for row in self.speculative if row["category"] == "all"]

    def without_measurements(self) -> Facts:
        """The same machine and model with nothing measured: what arithmetic alone decides."""
        return replace(
            self,
            speculative=[],
            acceptance=[],
            audits=[],
            costs=CostTable([]),
            kv_error=[],
            kv_channels=self.kv_channels.iloc[:0],
            calibration={"drafters": {}},
        )


@dataclass(frozen=True)
class Finding:
    """What was found about one claim."""

    verdict: Verdict
    measured: str
    reason: str
    artefact: str | None = None


Decision = Callable[[Claim, Facts], Finding]


def pending(reason: str, measured: str = NOT_MEASURED, artefact: str | None = None) -> Finding:
    """A claim that a later stage, or a run with other settings, will decide."""
    return Finding("pending", measured, reason, artefact)


def number(row: Mapping[str, Any], key: str) -> float:
    """Return a number of a row, NaN for null: comparisons with it are then false, which means undecided."""
    value = row[key]
    return math.nan if value is None else float(value)


def speedup_text(row: SpeculativeRow) -> str:
    """Name a row and its speedup with the interval."""
    low, high = number(row, "speedup_low"), number(row, "speedup_high")
    bounds = "no interval" if math.isnan(low) else f"{low:.2f} to {high:.2f}"
    return f"{row['drafter']} k={row['k']} T={row['temperature']:g}: {row['speedup']:.2f}x ({bounds})"


def side_of_one(row: SpeculativeRow) -> int:
    """Return 1 if the speedup's interval lies above 1, -1 if below, 0 if it holds 1 or there is none."""
    return int(number(row, "speedup_low") > 1.0) - int(number(row, "speedup_high") < 1.0)


def best(rows: Sequence[SpeculativeRow]) -> SpeculativeRow | None:
    """Return the row that speaks for a drafter: greedy and at the calibrated k if there is one, else the fastest."""
    coldest = min((row["temperature"] for row in rows), default=0.0)
    greedy = [row for row in rows if row["temperature"] == coldest]
    return max(greedy, key=lambda row: (row["calibrated"], row["speedup"]), default=None)
