"""One finished run of the quick experiment, made once and copied: every test breaks a copy of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from helpers import workspace

_MARKS = (pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(1200))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here runs DVC on the real stages: slow, and not to be cut off on a busy machine."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for mark in _MARKS:
                item.add_marker(mark)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this working tree in which `dvc repro` on experiment=quick has ended. Never write to it."""
    # Workers of pytest-xdist share one run: the first makes it, the others wait.
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own
    root = shared / "finished"
    with FileLock(shared / "finished.lock"):
        if not (root / "made").exists():
            workspace.clone(root)
            _must(workspace.run(root, "breakeven", "params", "experiment=quick"))
            (root / ".gitignore").open("a", encoding="utf-8").write("/made\n/repro.txt\n")
            workspace.commit_all(root)
            done = _must(workspace.run(root, "dvc", "repro", timeout=1000))
            (root / "repro.txt").write_text(done.stdout, encoding="utf-8")
            # As a user would: results are committed.
            workspace.commit_all(root)
            (root / "made").touch()
    return root


@pytest.fixture
def copy_of(finished: Path, tmp_path: Path) -> Callable[[], Path]:
    """Copies the finished run, its DVC cache and model store included, its MLflow database not."""

    def copy() -> Path:
        root = tmp_path / "repository"
        shutil.copytree(
            finished, root, symlinks=True, ignore=shutil.ignore_patterns("mlflow", "made", "outputs", "tmp")
        )
        (root / ".dvc" / "tmp").mkdir(exist_ok=True)
        return root

    return copy


def _must(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return done
