"""What the track stage reads: the small result files and the parameters of this workspace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from breakeven import config
from breakeven.config import Config
from breakeven.io import read_json
from breakeven.params import flatten
from breakeven.results import AcceptanceRow, AuditRow, CostRow, KvErrorRow, SpeculativeRow

# Logged with every run, when present: enough to read the result and to repeat it.
_ARTIFACTS = (
    "params.yaml",
    "dvc.lock",
    "requirements.lock",
    "build/models.lock.json",
    "build/hardware.json",
    "reports/report.html",
    "reports/claims.json",
    "reports/claims.md",
)
_ARTIFACT_FOLDERS = ("reports/figures", "reports/metrics")


@dataclass(frozen=True)
class ResultFiles:
    """One finished run of the pipeline, as files left it."""

    config: Config
    parameters: Mapping[str, Any]  # dotted key -> value, as in params.yaml
    hardware: Mapping[str, Any]
    lock: Mapping[str, Any]
    kv_error: list[KvErrorRow]
    speculative: list[SpeculativeRow]
    acceptance: list[AcceptanceRow]
    costs: list[CostRow]
    audits: list[AuditRow]


def read(root: Path) -> ResultFiles:
    """Read the result files of a workspace.

    Raises:
        BreakevenError: a file is missing or broken; names the command that makes it.
    """
    metrics = root / "reports" / "metrics"
    return ResultFiles(
        config=config.load(root / "params.yaml"),
        parameters=flatten(OmegaConf.load(root / "params.yaml")),
        hardware=read_json(root / "build" / "hardware.json"),
        lock=read_json(root / "build" / "models.lock.json"),
        kv_error=read_json(metrics / "kv_error.json"),
        speculative=read_json(metrics / "speculative.json"),
        acceptance=read_json(metrics / "acceptance.json"),
        costs=read_json(metrics / "costs.json"),
        audits=read_json(metrics / "audits.json"),
    )


def artifacts(root: Path) -> list[tuple[Path, str | None]]:
    """Return the files to log with every run, each with the artifact folder it goes to (None: the top)."""
    found: list[tuple[Path, str | None]] = [(root / name, None) for name in _ARTIFACTS if (root / name).is_file()]
    for name in _ARTIFACT_FOLDERS:
        folder = root / name
        found += [(file, folder.name) for file in sorted(folder.glob("*")) if file.is_file()]
    return found
