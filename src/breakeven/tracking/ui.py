"""MLflow's web interface on this repository's store, without the services that only agents and judges need."""

from __future__ import annotations

import os
import sys

import typer

from breakeven import config
from breakeven.paths import workspace
from breakeven.tracking.store import Store, resolve


def serve(host: str, port: int) -> None:
    """Replace this process by MLflow's server: one worker and no job runners, 0.5 GB instead of 3.

    Raises:
        TrackingError: the store cannot be used.
    """
    store = resolve(config.load(workspace() / "params.yaml").track)
    if store.uri.startswith("http"):
        typer.echo(f"the runs are on {store.uri}: open it in a browser")
        return
    with store.writing():
        pass  # created or upgraded here, so that the server never races with a stage
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    typer.echo(f"MLflow on http://{host}:{port} (Ctrl-C ends it)")
    sys.stdout.flush()
    # The name resolves the environment of this interpreter, not whichever mlflow is first on the PATH.
    os.execv(sys.executable, command(store, host, port))  # noqa: S606


def command(store: Store, host: str, port: int) -> list[str]:
    """Return the server's command line."""
    artifacts = str(store.artifacts)
    return [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--backend-store-uri", store.uri),
        *("--default-artifact-root", artifacts),
        *("--artifacts-destination", artifacts),
        *("--host", host, "--port", str(port), "--workers", "1"),
    ]
