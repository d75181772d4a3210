"""Which store a URI means, and a real tracking server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _serving(folder: Path, port: int, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a server until it answers; end it afterwards, with everything that it started."""
    process = workspace.start(folder, *command, start_new_session=True)
    try:
        deadline = time.monotonic() + 200
        while True:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                    break
            except OSError:
                time.sleep(0.5)
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
def test_a_tracking_server_holds_each_result_once(root: Path, tmp_path: Path) -> None:
    port, folder = _free_port(), tmp_path / "server"
    folder.mkdir()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(port)),
        *("--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "artifacts")),
    ]
    uri = f"http://127.0.0.1:{port}"
    with _serving(folder, port, *command):
        workspace.write_results(root, reported.results(config=reported.config(track__tracking_uri=uri)))
        assert project(root)[1] == publish.Outcome(logged=6, known=0)
        assert project(root)[1] == publish.Outcome(logged=0, known=6)
        assert not (root / "mlflow" / "mlflow.db").exists()
        assert list((folder / "artifacts").rglob("report.html"))


@pytest.mark.slow
def test_the_interface_shows_the_runs_and_their_files_and_starts_no_job_runners(root: Path) -> None:
    project(root)
    port = _free_port()
    with _serving(root, port, "breakeven", "ui", "--port", str(port)) as server:
        query = {"experiment_ids": ["1", "2"], "filter": "metrics.best_speedup > 0 and params.drafter = 'ngram'"}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/2.0/mlflow/runs/search",
            json.dumps(query).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            runs = json.load(answer)["runs"]
        assert len(runs) == 1
        logged = {metric["key"] for metric in runs[0]["data"]["metrics"]}
        assert {"alpha", "c", "speedup", "peak_memory_bytes"} <= logged
        file = f"http://127.0.0.1:{port}/get-artifact?path=report.html&run_uuid={runs[0]['info']['run_id']}"
        with urllib.request.urlopen(file, timeout=60) as answer:
            assert b"<title>report</title>" in answer.read()
        lines = [" ".join(child.cmdline()) for child in psutil.Process(server.pid).children(recursive=True)]
        assert not [line for line in lines if "huey" in line or "_job_runner" in line]
