"""One workspace with fabricated results, and one initialised database that tests copy (initialising takes seconds)."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven.config import TrackConfig
from breakeven.tracking import store as stores
from helpers import workspace


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace in which every stage but track has run; also the current folder."""
    for variable in ("DVC_ROOT", "DVC_EXP_NAME", "BREAKEVEN_SWEEP_ID"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "work space"  # a blank: URIs are not paths
    workspace.write_results(folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def fresh_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database of this version without runs."""
    folder = tmp_path_factory.mktemp("fresh")
    stores.mlflow_is_quiet()
    stores.prepare_database(folder / "mlflow.db", folder / "artifacts")
    return folder / "mlflow.db"


@pytest.fixture
def track() -> TrackConfig:
    """The default: SQLite under the repository."""
    return TrackConfig(tracking_uri=None, experiment_prefix="breakeven")
