"""Where things lie. Only this module knows folder names outside the declared stage outputs."""

from __future__ import annotations

import os
from pathlib import Path

from breakeven.errors import BreakevenError


def workspace() -> Path:
    """The copy of the repository that this process works in (a temporary one inside `dvc exp run --temp`).

    Raises:
        BreakevenError: the current folder lies in no Breakeven repository.
    """
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "dvc.yaml").is_file() and (folder / "conf").is_dir():
            return folder
    raise BreakevenError(f"{Path.cwd()} is not inside a Breakeven repository. Change to the folder with dvc.yaml.")


def home() -> Path:
    """The repository that outlives experiments: DVC names it in DVC_ROOT, elsewhere it is the workspace.

    The model store and the MLflow database live here, so that temporary experiment copies share them.
    """
    root = os.environ.get("DVC_ROOT")
    return Path(root) if root else workspace()


def model_store() -> Path:
    """Folder of verified model files, shared by all experiments."""
    return home() / "data" / "models"


def mlflow_folder() -> Path:
    """Folder of the MLflow database and its artifacts (absolute)."""
    return (home() / "mlflow").resolve()
