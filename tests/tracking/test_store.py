"""Which store a URI means, and a real tracking server."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakeven.config import TrackConfig
from breakeven.tracking import publish, ui
from breakeven.tracking.project import project
from breakeven.tracking.store import TrackingError, resolve
from helpers import reported, workspace


def _track(uri: str | None) -> TrackConfig:
    return TrackConfig(tracking_uri=uri, experiment_prefix="breakeven")


def test_the_default_is_absolute_and_in_the_repository_that_stays(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    store = resolve(_track(None))
    assert store.uri == f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    assert store.artifacts == tmp_path / "mlflow" / "artifacts"


def test_a_relative_sqlite_path_is_relative_to_the_repository_that_stays(root: Path, tmp_path: Path) -> None:
    store = resolve(_track("sqlite:///shared/runs.db"))
    assert store.database == root / "shared" / "runs.db"
    assert resolve(_track(f"sqlite:///{tmp_path}/runs.db")).database == tmp_path / "runs.db"


def test_postgresql_names_the_driver_that_sqlalchemy_would_not_guess(root: Path) -> None:
    for scheme in ("postgresql", "postgres"):
        store = resolve(_track(f"{scheme}://user:secret@host/mlflow"))
        assert store.uri == "postgresql+psycopg2://user:secret@host/mlflow"
        assert store.artifacts is not None, "MLflow's default would be a folder of the current directory"
    assert resolve(_track("postgresql+psycopg://host/mlflow")).uri == "postgresql+psycopg://host/mlflow"


@pytest.mark.parametrize("uri", ["./mlruns", "file:///tmp/mlruns", "mlruns"])
def test_a_file_store_is_refused_with_what_to_use(root: Path, uri: str) -> None:
    with pytest.raises(TrackingError, match="sqlite:///"):
        resolve(_track(uri))


def test_a_missing_server_is_a_clear_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    workspace.write_results(root, reported.results(config=reported.config(track__tracking_uri="http://127.0.0.1:9")))
    with pytest.raises(TrackingError, match=r"127\.0\.0\.1:9.*reports/"):
        project(root)


def test_a_missing_database_driver_is_a_clear_error(root: Path) -> None:
    uri = "postgresql://user:secret@127.0.0.1:9/mlflow"
    workspace.write_results(root, reported.results(config=reported.config(track__tracking_uri=uri)))
    with pytest.raises(TrackingError, match="psycopg2") as refusal:
        project(root)
    assert "secret" not in str(refusal.value)


def test_the_interface_has_one_worker_on_this_store(root: Path) -> None:
    line = ui.command(resolve(_track(None)), "127.0.0.1", 5001)
    assert line[line.index("--workers") + 1] == "1"
    assert line[line.index("--backend-store-uri") + 1] == f"sqlite:///{root}/mlflow/mlflow.db"
    assert line[line.index("--port") + 1] == "5001"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A real MLflow server on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path / "server"
    folder.mkdir()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(port)),
        *("--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "artifacts")),
    ]
    process = workspace.start(folder, *command, start_new_session=True)
    try:
        deadline = time.monotonic() + 200
        while True:
            assert process.poll() is None
            assert time.monotonic() < deadline
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                    break
            except OSError:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_a_tracking_server_holds_each_result_once(root: Path, server: str) -> None:
    workspace.write_results(root, reported.results(config=reported.config(track__tracking_uri=server)))
    assert project(root)[1] == publish.Outcome(logged=6, known=0)
    assert project(root)[1] == publish.Outcome(logged=0, known=6)
    assert not (root / "mlflow" / "mlflow.db").exists()
    assert list((root.parent / "server" / "artifacts").rglob("report.html"))
