"""Experiments work in a copy but share the model store and the MLflow database of the real repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven import paths
from breakeven.errors import BreakevenError


def repository(folder: Path) -> Path:
    (folder / "conf").mkdir(parents=True)
    (folder / "dvc.yaml").touch()
    return folder


def test_a_temporary_experiment_shares_the_store_of_the_real_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, copy = repository(tmp_path / "real"), repository(tmp_path / "copy")
    monkeypatch.chdir(copy)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    assert paths.home() == copy
    monkeypatch.setenv("DVC_ROOT", str(real))
    assert paths.workspace() == copy
    assert paths.model_store() == real / "data" / "models"
    assert paths.mlflow_folder() == real / "mlflow"


def test_a_subfolder_finds_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path)
    monkeypatch.chdir(root / "conf")
    assert paths.workspace() == root


def test_outside_a_repository_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BreakevenError, match="folder with dvc.yaml"):
        paths.workspace()
